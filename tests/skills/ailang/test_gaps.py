"""The table of gaps on the page of the AILANG tools: each is shown by a test that is there, or said to be open."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def _rows() -> list[list[str]]:
    page = (ROOT / "docs" / "ailang.md").read_text(encoding="utf-8")
    table = page.partition("## Gaps of the original\n")[2].partition("\n## ")[0]
    return [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]


def _tests(file: Path) -> set[str]:
    found = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return {each.name for each in found if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_gap_is_shown_closed_or_said_to_be_open() -> None:
    rows = _rows()
    assert len(rows) > 20
    for row in rows:
        assert NAMED.search(row[-1]) or row[-1].startswith(("open", "not ours")), row


def test_every_test_that_is_named_is_there() -> None:
    named = [found for row in _rows() for found in NAMED.findall(" ".join(row))]
    assert len(named) > 20
    for file, test in named:
        assert test in _tests(ROOT / file), f"{file}::{test}"
