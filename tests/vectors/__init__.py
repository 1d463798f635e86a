"""The recorded vectors, one JSON object a line."""

import json
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def rows(name: str, **wanted: Any) -> list[dict[str, Any]]:
    """The rows of `NAME.vectors.jsonl` whose members equal `wanted`; never none, so that a typo can't pass."""
    lines = (HERE / f"{name}.vectors.jsonl").read_text(encoding="utf-8").splitlines()
    found = [row for row in map(json.loads, lines) if all(row.get(key) == value for key, value in wanted.items())]
    assert found, f"no vectors in {name} with {wanted}"
    return found


def parametrize(name: str, **wanted: Any) -> pytest.MarkDecorator:
    """Run a test once for each row, named by its id, as the argument `row`."""
    return pytest.mark.parametrize("row", [pytest.param(row, id=row["id"]) for row in rows(name, **wanted)])
