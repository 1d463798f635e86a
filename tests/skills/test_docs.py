"""Each example in the docs of the tools runs, and prints what the page says."""

import contextlib
import io
import re
import textwrap
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLE = re.compile(r"```python\n(.*?)```\n\n((?:    [^\n]*\n)+)", re.DOTALL)
EXAMPLES = [
    (name, match) for name in ("host-tools", "ailang") for match in EXAMPLE.finditer((DOCS / f"{name}.md").read_text())
]


@pytest.mark.parametrize(("name", "example"), EXAMPLES, ids=lambda value: value if isinstance(value, str) else "")
def test_an_example_prints_what_its_page_says(name: str, example: re.Match[str]) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example[1], f"{name}.md", "exec"), {"__name__": name})
    assert printed.getvalue() == textwrap.dedent(example[2])


def test_there_are_examples() -> None:
    assert {name for name, _ in EXAMPLES} == {"host-tools", "ailang"}
