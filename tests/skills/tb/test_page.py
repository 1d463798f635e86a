"""docs/contracts.md: its contracts, manifests and examples are right, and its table of faults is whole."""

import contextlib
import io
import re
import textwrap
import tomllib
from pathlib import Path

import pytest

import skills.tb
from skills.tb import MANIFEST, Bound, Folder, Library, fmt, manifest, parse, satisfy
from skills.tb.syntax import MAX_DECLARATIONS, MAX_LINE, MAX_LISTS, MAX_NAME, MAX_PATH, MAX_SOURCE

from .page import ADVANCED, MONEY, VECTORS

PAGE = (Path(__file__).parents[3] / "docs" / "contracts.md").read_text()
EXAMPLE = re.compile(r"```python\n(.*?)```\n\n((?:    [^\n]*\n)+)", re.DOTALL)
CODES = re.compile(
    r'(?:code, message(?:, hint)? = |_refuse\(\n? *|refuse\(|_fault\(|Fault\(|self\._refuse\()f?"([a-z{}-]+)"'
)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_its_contracts_are_right_and_in_the_one_layout() -> None:
    sources = [parse(text) for text in (*blocks("tb"), MONEY)]
    assert Library(sources).faults == ()
    assert [fmt(parse(text)) for text in blocks("tb")] == blocks("tb")
    assert blocks("tb")[0] == ADVANCED


def test_its_manifest_satisfies_its_contract(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    (tmp_path / "a.tb").write_text(ADVANCED)
    (tmp_path / MANIFEST).write_text(text)
    (tmp_path / "handlers.py").touch()
    (standing,) = Folder.read(tmp_path).standings
    assert standing.state == "bound"
    given = manifest(tomllib.loads(text.replace("# javascript", "javascript").replace("python =", "# python =")))
    assert isinstance(satisfy(Library([parse(ADVANCED)]).air("examples.tool_advanced"), given, standing.tool.id), Bound)


@pytest.mark.parametrize("example", list(EXAMPLE.finditer(PAGE)), ids=["values", "grants"])
def test_an_example_prints_what_the_page_says(example: re.Match[str]) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example[1], "contracts.md", "exec"), {"__name__": "contracts"})
    assert printed.getvalue() == textwrap.dedent(example[2])


def test_there_are_examples() -> None:
    assert len(EXAMPLE.findall(PAGE)) == 2


def test_every_fault_is_in_its_table() -> None:
    rows = re.findall(r"^\| ((?:`[a-z-]+`(?:, )?)+) \|", PAGE, re.MULTILINE)
    listed = set(re.findall(r"`([a-z-]+)`", " ".join(rows))) - {"python", "javascript", "effect", "scope"}
    used = {
        code.replace("{word}", kind)
        for file in Path(skills.tb.__file__).parent.glob("*.py")
        for code in CODES.findall(file.read_text())
        for kind in ("takes", "gives")
    }
    assert used <= listed
    assert {row["output"]["error"]["code"] for row in VECTORS if "error" in row["output"]} <= listed
    assert {"no-module", "host-code", "limit", "missing-takes", "broken-module", "duplicate-module"} <= used


def test_its_limits_are_those_of_the_parser() -> None:
    for text in (
        f"at most {MAX_SOURCE // 1024} KiB", f"{MAX_LINE} characters a line",
        f"{MAX_DECLARATIONS} declarations", f"{MAX_NAME} characters a name", f"{MAX_PATH} a module's",
        f"{MAX_LISTS} deep",
    ):  # fmt: skip
        assert text in PAGE
