"""docs/secrets.md and docs/memory.md: their manifests and tables are taken, and their numbers are the code's."""

import re
import tomllib
from pathlib import Path

import pytest

from skills import PackContext
from skills.memory.limits import LIMITS
from skills.memory.store import KEPT_SECONDS
from skills.memory.work import Readable, Writable
from skills.redaction import forms
from skills.secrets.reading import COMMAND_SECONDS, MAX_VALUE, PASSED
from skills.secrets.resolve import MAX_LINES, MIN_VALUE
from skills.supplies import Supplies
from skills.tb.manifest import manifest

DOCS = Path(__file__).parents[2] / "docs"
SECRETS, MEMORY = ((DOCS / name).read_text() for name in ("secrets.md", "memory.md"))


def blocks(page: str) -> list[str]:
    return re.findall(r"```toml\n(.*?)```", page, re.DOTALL)


@pytest.mark.parametrize("page", [SECRETS, MEMORY], ids=["secrets", "memory"])
def test_manifests_are_taken(page: str, tmp_path: Path) -> None:
    (binding,) = manifest(tomllib.loads(blocks(page)[0]), tmp_path).tools.values()
    assert binding.secrets or binding.memories


def test_the_table_is_taken_and_says_the_defaults(tmp_path: Path) -> None:
    table = tomllib.loads(blocks(MEMORY)[1])["tools"]
    Supplies(PackContext(config=table, state_dir=tmp_path))
    said = {name: value for name, value in table["memory"].items() if name not in ("store", "tenant")}
    assert said == {name: getattr(LIMITS, name) for name in said}
    assert len(said) == 3


def test_numbers_and_names() -> None:
    for number in (MIN_VALUE, MAX_VALUE, MAX_LINES, f"{COMMAND_SECONDS:g} seconds", forms.MIN_LINE, forms.MIN_LEAF):
        assert str(number) in SECRETS
    assert all(f"`{name}`" in SECRETS for name in PASSED)
    for number in (LIMITS.key_bytes, LIMITS.accesses, f"{KEPT_SECONDS / 86400:g} days"):
        assert str(number) in MEMORY
    for kind in (Readable, Writable):
        assert all(f"`{name}(" in MEMORY for name in vars(kind) if not name.startswith("_"))
