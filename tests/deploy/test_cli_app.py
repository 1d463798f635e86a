import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from deploy.cli.app import app
from tests.deploy.conftest import Ended, Home

Skillbus = Callable[..., Ended]
VERBS = [
    (), ("demo",), ("worker",), ("session",), ("session", "new"), ("session", "list"), ("session", "revoke"),
    ("skills",), ("call",), ("log",), ("log", "tail"), ("log", "verify"), ("why",), ("config",), ("doctor",),
    ("dead",), ("dead", "list"), ("dead", "show"), ("dead", "requeue"), ("dead", "drop"),
]  # fmt: skip
GROUPS = (("session",), ("log",), ("dead",))


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_help_teaches_with_examples(skillbus: Skillbus, verb: tuple[str, ...]) -> None:
    for option in ("--help", "-h"):
        ended = skillbus(*verb, option)
        assert (ended.code, ended.err) == (0, "")
        assert " ".join(["Usage: skillbus", *verb]) in ended.out
        if verb not in GROUPS:
            assert re.search(rf"(Examples|Begin with).*\n(.*\n)?.* skillbus {' '.join(verb)}", ended.out)


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


def test_a_programmers_error_keeps_its_trace(
    skillbus: Skillbus, session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wrong(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("bus.Client.send", wrong)
    with pytest.raises(ZeroDivisionError):
        skillbus("call", "calc")
