import json
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deploy.conftest import Ended, Home

Skillbus = Callable[..., Ended]
PACK = ("--pack", "tests.packs:slow")


@pytest.fixture
def calls(skillbus: Skillbus, session: Path) -> None:
    """A success, one without an effect, a refusal, a run and its failure, and a denial, in this order."""
    for options in (
        ("write_file", "--arg", "path=a.txt", "--arg", "content=x"),
        ("calc", "--arg", "expr=1"),
        ("ailang-read", "--arg", "path=../a"),
        ("slow", "--arg", "marker=marks", "--arg-json", "fail=true", *PACK),
        ("slow", "--arg", "marker=marks", *PACK),
    ):
        assert skillbus("call", *options).code == 0


def spoil(home: Home, statement: str) -> None:
    connection = sqlite3.connect(home.ledger)
    with connection:
        assert connection.execute(statement).rowcount
    connection.close()


def test_a_line_says_who_what_and_what_came_of_it(skillbus: Skillbus, calls: None) -> None:
    ended = skillbus("log", "tail")
    assert (ended.code, ended.err) == (0, "")
    said = [line.split(" ", 2) for line in ended.out.splitlines()]
    assert [index for index, _, _ in said] == ["#1", "#2", "#3", "#4", "#5"]
    assert all(len(digest) == 8 and int(digest, 16) >= 0 for _, digest, _ in said)
    assert [rest for _, _, rest in said] == [
        "coordinator:a2a ep1 write_file [Workspace.Write ok]",
        "coordinator:a2a ep1 calc [no effects]",
        "coordinator:a2a ep1 ailang-read [no effects]",
        "coordinator:a2a ep1 slow [Test.Mark failed]",
        "coordinator:a2a ep1 slow [Test.Mark denied:budget]",
    ]


def test_json_lines_are_for_programs(skillbus: Skillbus, calls: None) -> None:
    lines = [json.loads(line) for line in skillbus("log", "tail", "--json").out.splitlines()]
    assert [line["outcome"] for line in lines] == ["succeeded", "succeeded", "refused", "failed", "denied:budget"]
    assert lines[4]["effects"] == [{"effect": "Test.Mark", "scope": "test", "status": "denied:budget"}]
    assert lines[0]["hash"].startswith("sha256:")


def test_the_newest_and_one_episode_can_be_asked_for(
    skillbus: Skillbus, calls: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKILLBUS_SESSION", skillbus("session", "new", "ep2", "-g", "A=b:1").out.strip())
    skillbus("call", "calc", "--arg", "expr=2")
    assert [line.split()[3] for line in skillbus("log", "tail", "-n", "2").out.splitlines()] == ["ep1", "ep2"]
    assert len(skillbus("log", "tail", "-n", "2", "--episode", "ep1").out.splitlines()) == 2
    assert skillbus("log", "tail", "-n", "0").out == ""
    assert (
        skillbus("log", "verify", "ep2", "ep1").out
        == "ep2: chain verified: 1 entries\nep1: chain verified: 5 entries\n"
    )


def test_an_unknown_episode_is_an_error(skillbus: Skillbus, session: Path) -> None:
    for verb in (("tail", "--episode"), ("verify",)):
        ended = skillbus("log", *verb, "ep9")
        assert ended.code == 1
        assert "no episode 'ep9'" in ended.err


def test_without_a_ledger_there_is_nothing_to_read(skillbus: Skillbus, home: Home) -> None:
    for verb in ("tail", "verify"):
        ended = skillbus("log", verb)
        assert ended.code == 1
        assert "there is no ledger" in ended.err
    assert not home.ledger.exists()


@pytest.mark.parametrize("options", [["--interval", "x"], ["--interval", "1ms"], ["-n", "-1"], ["-n", "x"]])
def test_wrong_options_are_named(skillbus: Skillbus, options: list[str]) -> None:
    ended = skillbus("log", "tail", *options)
    assert ended.code == 1
    assert options[0].lstrip("-") in ended.err


def test_following_shows_what_comes(skillbus: Skillbus, session: Path, home: Home) -> None:
    skillbus("call", "calc", "--arg", "expr=1")
    with home.start("log", "tail", "--follow", "--interval", "50ms") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("#1 ")
        skillbus("call", "calc", "--arg", "expr=2")
        assert process.stdout.readline().startswith("#2 ")
        skillbus("call", "calc", "--arg", "expr=3")
        assert process.stdout.readline().startswith("#3 ")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")


def test_following_ends_when_nobody_reads(skillbus: Skillbus, session: Path, home: Home) -> None:
    skillbus("call", "calc", "--arg", "expr=1")
    with home.start("log", "tail", "--follow", "--interval", "50ms") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("#1 ")
        process.stdout.close()
        assert process.wait(60) == 130
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_whole_log_is_verified(skillbus: Skillbus, calls: None) -> None:
    ended = skillbus("log", "verify")
    assert (ended.code, ended.out) == (0, "chain verified: 5 entries\n")
    assert json.loads(skillbus("log", "verify", "--json").out) == [
        {"episode": "ep1", "entries": 5, "verified": True, "faults": []}
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "update objects set payload = payload || x'20' where semantic_id = 'world/effect-plan/v1'",
        "update entries set encoded = replace(encoded, 'coordinator', 'coordinatox') where entry_index = 2",
        "delete from entries where entry_index = 5",
        "update spend set spent = 0",
        "update objects set payload = 7 where semantic_id = 'world/effect-record/v1'",
        "update objects set payload = cast(x'ff' as text) where semantic_id = 'world/effect-record/v1'",
    ],
)
def test_a_changed_log_is_found(skillbus: Skillbus, calls: None, home: Home, statement: str) -> None:
    spoil(home, statement)
    ended = skillbus("log", "verify")
    assert (ended.code, ended.out) == (3, "")
    as_json = skillbus("log", "verify", "--json")
    assert as_json.code == 3
    if "cast(" in statement:  # the database itself can't read it any more
        assert "the ledger can't be read" in ended.err
        return
    assert "this log is not what was written" in ended.err
    assert "✗ ep1: " in ended.err
    (verdict,) = json.loads(as_json.out)
    assert (verdict["verified"], bool(verdict["faults"])) == (False, True)


def test_what_an_entry_does_not_tell_is_left_out_of_its_line(skillbus: Skillbus, calls: None, home: Home) -> None:
    spoil(home, "update entries set encoded = x'7b'")
    spoil(home, "update objects set payload = x'5b5d' where semantic_id = 'world/effect-record/v1'")
    first = skillbus("log", "tail").out.splitlines()[0]
    assert first.split(" ", 2)[2] == "? ep1 write_file [no effects]"
