"""The examples of docs/bus.md and docs/operations.md, run as they stand there."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import bus
from bus.client import leg, stream
from bus.limits import Limits
from bus.server import events, reply, server

ROOT = Path(bus.__file__).parents[1]
PAGE = (ROOT / "docs" / "bus.md").read_text()
EXAMPLE = re.compile(r"```python\n(.*?)```\n\n((?:    [^\n]*\n)+)", re.DOTALL)
EXAMPLES = EXAMPLE.findall(PAGE) + EXAMPLE.findall((ROOT / "docs" / "operations.md").read_text())


def test_every_example_says_what_it_prints() -> None:
    assert len(EXAMPLE.findall(PAGE)) == PAGE.count("```python") >= 5
    assert len(EXAMPLES) == len(EXAMPLE.findall(PAGE)) + 1


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_prints_what_the_page_says(number: int) -> None:
    code, output = EXAMPLES[number]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert [line.rstrip() for line in done.stdout.splitlines()] == textwrap.dedent(output).splitlines()


def test_the_limits_are_what_the_page_says() -> None:
    limits = Limits()
    assert (limits.body, limits.depth, limits.headers, limits.horizon) == (1024 * 1024, 64, 16 * 1024, 24 * 3600)
    assert limits.parts == 1000
    assert (server.SLOTS, events.WINDOW, leg.BUFFER, stream.IDLE, server.KEEPALIVE) == (64, 32, 4096, 30.0, 10.0)
    assert reply.KEEPALIVE_BOUNDS == (1.0, 60.0)


def test_every_page_it_points_to_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert target.startswith("https://") or (ROOT / "docs" / target).exists(), target
