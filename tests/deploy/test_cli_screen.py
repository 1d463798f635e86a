import asyncio
import os
import pty
import subprocess
from pathlib import Path

import pytest

import bus
from deploy.cli import screen
from tests.deploy.conftest import LIMIT, Home


def at_terminal(home: Home, *arguments: str, **environment: str) -> str:
    """What a terminal gets of both streams."""
    ours, theirs = pty.openpty()
    home.environment |= {"TERM": "xterm", "COLUMNS": "200"} | environment
    with home.start(*arguments, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        said = b""
        while True:
            try:
                chunk = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            said += chunk
        os.close(ours)
        process.wait(LIMIT)
    return said.decode().replace("\r\n", "\n")


def test_a_terminal_gets_colours_unless_it_wants_none(home: Home, session: Path) -> None:
    assert "\x1b[32mcalc: completed, ok\x1b[0m" in at_terminal(home, "call", "calc", "--arg", "expr=1")
    assert "\x1b[33mailang-read: rejected" in at_terminal(home, "call", "ailang-read", "--arg", "path=..")
    assert "\x1b[31merror:\x1b[0m" in at_terminal(home, "call", "nothing")
    plain = at_terminal(home, "log", "tail", NO_COLOR="1")
    assert "\x1b" not in plain
    assert plain.splitlines()[0].endswith(" coordinator:a2a ep1 calc [no effects]")


def test_a_terminal_gets_long_fields_shortened_and_no_commands(home: Home, session: Path) -> None:
    (home.workspaces / "ep1" / "a.txt").write_text("\x1b]0;owned\x07" + "x" * 10_000)
    arguments = ("call", "read_file", "--arg", "path=a.txt")
    shown = at_terminal(home, *arguments)
    assert "\x1b]0;owned" not in shown
    assert "\\x1b]0;owned\\x07xxx" in shown
    assert "more characters; --json-out prints them all" in shown
    assert "x" * 10_000 in home.run(*arguments).out


def test_something_long_is_shown_at_a_terminal(home: Home, session: Path) -> None:
    assert "verifying 1 episode(s)" in at_terminal(home, "log", "verify")
    assert home.run("log", "verify").err == ""


def test_a_call_that_nobody_takes_says_so(home: Home, session: Path, rabbitmq_url: str, unique_prefix: str) -> None:
    async def serve_and_leave() -> None:
        await (await bus.serve(rabbitmq_url, "gone", lambda *_: asyncio.sleep(0), prefix=unique_prefix)).stop()

    asyncio.run(serve_and_leave())
    options = ("--amqp-url", rabbitmq_url, "--prefix", unique_prefix, "--agent", "gone")
    try:
        said = at_terminal(home, "call", "calc", "--arg", "expr=1", "--timeout", "2s", *options)
    finally:
        asyncio.run(bus.remove(rabbitmq_url, "gone", prefix=unique_prefix, shared=True))
    assert "waiting for gone …" in said
    assert "waiting: nobody serves gone at the moment …" in said
    assert "DEADLINE_EXCEEDED: no answer came before the deadline: nobody serves the agent. Start a worker" in said


@pytest.mark.parametrize(
    ("text", "line", "lines"),
    [
        ("plain é", "plain é", "plain é"),
        ("a\tb\nc", "a\\tb\\nc", "a\tb\nc"),
        ("\x1b[2J\x00\x7f\x9b", "\\x1b[2J\\x00\\x7f\\x9b", "\\x1b[2J\\x00\\x7f\\x9b"),
        ("\r\x08", "\\x0d\\x08", "\\x0d\\x08"),
        ("\u202egpj.exe", "\\u202egpj.exe", "\\u202egpj.exe"),
    ],
)
def test_controls_are_spelled_out(text: str, line: str, lines: str) -> None:
    assert screen.legible(text) == line
    assert screen.legible(text, lines=True) == lines


def test_columns_line_up(capsys: pytest.CaptureFixture[str]) -> None:
    screen.say_table(("A", "LONGER", "C"), [("wide cell", "x", "1"), ("y", "z\n", "")])
    assert capsys.readouterr().out == "A          LONGER  C\nwide cell  x       1\ny          z\\n\n"
