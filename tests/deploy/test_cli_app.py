import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from rich.text import Text
from typer.main import get_command

from deploy.cli.app import app
from tests.deploy.conftest import COMMAND, Ended, Home

Skillbus = Callable[..., Ended]
VERBS = [
    (), ("demo",), ("worker",), ("session",), ("session", "new"), ("session", "list"), ("session", "revoke"),
    ("session", "end"), ("skills",), ("card",), ("call",), ("task",), ("task", "list"),
    ("task", "show"), ("task", "follow"), ("task", "cancel"), ("agents",), ("ping",), ("log",), ("log", "tail"),
    ("log", "verify"), ("why",), ("replay",), ("provenance",), ("config",), ("doctor",), ("dead",),
    ("dead", "list"), ("dead", "show"), ("dead", "requeue"), ("dead", "drop"), ("kb",), ("kb", "add"),
    ("kb", "list"), ("kb", "remove"), ("kb", "search"), ("contract",), ("contract", "check"), ("contract", "fmt"),
    ("contract", "air"), ("contract", "new"), ("topology",), ("topology", "plan"), ("topology", "apply"),
    ("topology", "check"),
]  # fmt: skip
GROUPS = (("session",), ("task",), ("log",), ("dead",), ("kb",), ("topology",), ("contract",))


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_help_teaches_with_examples(skillbus: Skillbus, verb: tuple[str, ...]) -> None:
    for option in ("--help", "-h"):
        ended = skillbus(*verb, option)
        assert (ended.code, ended.err) == (0, "")
        assert " ".join(["Usage: skillbus", *verb]) in ended.out
        if verb not in GROUPS:
            assert re.search(rf"(Examples|Begin with).*\n(.*\n)?.* skillbus {' '.join(verb)}", ended.out)


def test_help_keeps_its_brackets() -> None:
    groups, texts = [get_command(app)], list[str]()
    while groups:
        command = groups.pop()
        groups += getattr(command, "commands", {}).values()
        texts += [getattr(parameter, "help", None) or "" for parameter in command.params]
    assert any("[tools.kb]" in text for text in texts)
    for text in texts:
        assert Text.from_markup(text).plain == text.replace("\\[", "[")


def test_every_verb_has_its_page(skillbus: Skillbus) -> None:
    pages = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    for verb in VERBS[1:]:
        if verb not in GROUPS:
            assert f"skillbus {' '.join(verb)}" in pages
    groups = {group.name for group in app.registered_groups} | {command.name for command in app.registered_commands}
    assert groups == {verb[0] for verb in VERBS if verb}


def test_the_version_is_that_of_the_distribution(home: Home) -> None:
    ended = home.run("--version")
    assert (ended.code, ended.out, ended.err) == (0, f"skillbus {version('skillbus')}\n", "")


@pytest.mark.parametrize("verb", [(), *GROUPS])
def test_without_a_verb_the_help_is_shown(skillbus: Skillbus, verb: tuple[str, ...]) -> None:
    ended = skillbus(*verb)
    assert ended.code == 1
    assert "Usage: skillbus" in ended.out
    assert ended.err == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["cal"], "No such command 'cal'. Did you mean 'call'?: see `skillbus --help`"),
        (["call"], "Missing argument 'SKILL': see `skillbus call --help`"),
        (["call", "x", "--nothing"], "No such option: --nothing: see `skillbus call --help`"),
        (["worker", "--slots", "many"], "--slots"),
        (["session", "new", "a", "b"], "unexpected extra argument"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_1(skillbus: Skillbus, arguments: list[str], says: str) -> None:
    ended = skillbus(*arguments)
    assert (ended.code, ended.out) == (1, "")
    assert says in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_credential_typed_by_mistake_is_not_repeated(skillbus: Skillbus) -> None:
    ended = skillbus("call", "calc", "ab" * 32)
    assert ended.code == 1
    assert "abab" not in ended.err


def test_a_reader_that_is_gone_ends_it_quietly(home: Home) -> None:
    with home.start("--help") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(60) == 130
        assert process.stderr.read() == ""


def test_a_terminal_without_our_letters_gets_substitutes(home: Home, session: Path) -> None:
    home.run("call", "calc", "--arg", "expr=1")
    ended = home.run("why", "ep1:head", PYTHONIOENCODING="latin-1")
    assert ended.code == 0
    assert ended.out.splitlines()[1].startswith("\\u2713 world")


def test_no_colour_where_there_is_no_terminal(home: Home, session: Path) -> None:
    for ended in (home.run("call", "calc", "--arg", "expr=1"), home.run("log", "tail"), home.run("call")):
        assert "\x1b" not in ended.out + ended.err


SECRET = "S3CRET"


def test_what_nobody_planned_for_is_one_line_without_a_secret(
    skillbus: Skillbus, session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wrong(*_: object, **__: object) -> None:
        raise ValueError(f"invalid literal: amqp://u:{SECRET}@h/")

    monkeypatch.setattr("bus.Client.send", wrong)
    for level in ("info", "debug"):
        monkeypatch.setenv("SKILLBUS_LOG_LEVEL", level)
        ended = skillbus("call", "calc")
        assert (ended.code, ended.out) == (1, "")
        *trace, line = ended.err.splitlines()
        assert line == "error: internal: ValueError. SKILLBUS_LOG_LEVEL=debug shows where; please report it"
        assert SECRET not in ended.err
        assert bool(trace) == (level == "debug")
        assert not trace or trace[0] == "Traceback (most recent call last):"


@pytest.mark.parametrize(
    "url",
    [
        f"amqp://u:{SECRET}/x@h/",
        f"amqp://u:{SECRET}@h:port/",
        f"amqp://u:{SECRET}@h:99999/",
        f"amqp://u:{SECRET}@[::1",
        f"amqp://h/?heartbeat={SECRET}",
    ],
)
def test_a_bad_url_is_one_line_that_does_not_repeat_it(skillbus: Skillbus, session: Path, url: str) -> None:
    for verb in (["worker"], ["call", "calc"], ["skills"], ["demo"], ["dead", "list"], ["doctor"]):
        ended = skillbus(*verb, "--amqp-url", url)
        assert ended.code in (1, 2)
        assert "--amqp-url: " in ended.out + ended.err
        assert SECRET not in ended.out + ended.err
        assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    "verb",
    ["skills", "log tail", "--help", "call calc -a expr=1 --json-out", "session list --json"],
)
@pytest.mark.parametrize("to", [">&-", ">/dev/full"])
def test_an_output_that_cannot_be_written_is_one_line(home: Home, session: Path, verb: str, to: str) -> None:
    if verb == "log tail":
        home.run("call", "calc", "--arg", "expr=1")
    ended = shell(home, f"{verb} {to}")
    assert ended.code == 1
    (line,) = ended.err.splitlines()[-1:]
    assert line.startswith("error: ")
    assert "Bad file descriptor" in line or "No space left on device" in line
    assert "Traceback" not in ended.err
    assert "internal" not in ended.err


@pytest.mark.parametrize("closed", ["2>/dev/full", "<&- 2>&-"])
def test_another_stream_that_is_closed_changes_nothing(home: Home, session: Path, closed: str) -> None:
    ended = shell(home, f"call calc -a expr=6*7 {closed}")
    assert ended.code == 0
    assert "42" in ended.out


def test_an_input_that_is_closed_is_empty(home: Home, session: Path) -> None:
    for verb in ("why -", "call calc --json -"):
        ended = shell(home, f"{verb} <&-")
        assert ended.code == 1
        assert len(ended.err.splitlines()) == 1
        assert "internal" not in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["log", "tail", "-n", "9" * 20],
        ["log", "tail", "-n", "9" * 5_000],
        ["log", "tail", "--episode", "\udcff"],
        ["log", "verify", "\udcff"],
        ["call", "calc", "--arg", "expr=\udcff"],
        ["call", "\udcff"],
        ["call", "calc", "--message-id", "\udcff"],
        ["call", "calc", "--context", "\udcff"],
        ["call", "calc", "--json", "[" * 100_000],
        ["call", "calc", "--json", '{"expr": ' + "9" * 5_000 + "}"],
        ["call", "calc", "--json", '{"expr": 1e99999}'],
        ["call", "calc", "--timeout", "9" * 5_000],
        ["skills", "\udcff"],
        ["session", "new", "\udcff", "-g", "A=b:1"],
        ["session", "new", "ep9", "-g", "A=b\udcff:1"],
        ["session", "revoke", "\udcff"],
        ["log", "tail", "--ledger", "x\0y"],
        ["log", "tail", "--ledger", "postgresql://u:S3CRET@h:port/db"],
        ["log", "tail", "--ledger", "x" * 5_000],
        ["log", "tail", "--config", "x\0y"],
        ["session", "new", "ep9", "-g", "A=b:1", "--out", "x\0y"],
        ["session", "new", "ep9", "-g", "A=b:1", "--out", "x" * 5_000],
        ["session", "new", "ep9", "-g", "A=b:1", "--repo", "x\0y"],
    ],
    ids=range(23),
)
def test_odd_arguments_come_to_one_line_or_a_result(skillbus: Skillbus, session: Path, arguments: list[str]) -> None:
    ended = skillbus(*arguments)
    assert "internal" not in ended.err
    assert "S3CRET" not in ended.err
    if ended.code:
        assert len(ended.err.splitlines()) == 1


def test_what_draws_on_terminals_is_loaded_for_them_alone(home: Home, session: Path) -> None:
    program = """if True:
        import sys, deploy.logs
        from deploy.cli.app import run
        assert run(["call", "calc", "--arg", "expr=1"]) == 0
        deploy.logs.configure("json")
        assert "rich" not in sys.modules
    """
    done = subprocess.run(
        [sys.executable, "-c", program], env=home.environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def shell(home: Home, command: str) -> Ended:
    done = subprocess.run(
        f"{shlex.quote(COMMAND)} {command}",
        shell=True, cwd=home.folder, env=home.environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return Ended(done.returncode, done.stdout, done.stderr)
