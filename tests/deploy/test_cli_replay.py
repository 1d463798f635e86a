import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deploy.conftest import Ended, Home

Skillbus = Callable[..., Ended]
PACK = ("--pack", "tests.packs:slow")


@pytest.fixture
def calls(skillbus: Skillbus, session: Path, home: Home) -> None:
    """An answer, a write, a refusal, and a call of a pack that has to be named."""
    skillbus("call", "calc", "--arg", "expr=1")
    skillbus("call", "write_file", "--arg", "path=a.txt", "--arg", "content=x")
    skillbus("call", "ailang-read", "--arg", "path=../a.txt")
    assert skillbus("call", "slow", "--arg", f"marker={home.folder / 'marks'}", *PACK).code == 0


def test_an_episode_comes_out_equal(skillbus: Skillbus, calls: None, home: Home) -> None:
    for options in (("ep1",), ("--episode", "ep1"), ("ep1", "-e", "ep1")):
        ended = skillbus("replay", *options, *PACK)
        assert (ended.code, ended.err) == (0, "")
        assert ended.out.splitlines() == [
            "✓ #1 ep1 calc succeeded: equal",
            "✓ #2 ep1 write_file succeeded: equal",
            "✓ #3 ep1 ailang-read refused: equal",
            "✓ #4 ep1 slow succeeded: equal",
            "4 call(s) run again: 4 equal",
        ]
    assert (home.folder / "marks").read_text().count("\n") == 1


def test_one_call_by_its_handles(skillbus: Skillbus, calls: None) -> None:
    found = json.loads(skillbus("why", "ep1:2", "--json").out)
    for options in (("ep1:2",), ("2", "-e", "ep1"), (found["hash"],), (found["taskId"],)):
        ended = skillbus("replay", *options)
        assert (ended.code, ended.out.splitlines()[0]) == (0, "✓ #2 ep1 write_file succeeded: equal")
    assert skillbus("replay", "head", "-e", "ep1", *PACK).out.startswith("✓ #4 ep1 slow")


def test_a_bound_tool_whose_contract_was_rewritten_is_another(
    skillbus: Skillbus, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert skillbus("contract", "new", "hello").code == 0
    tools = ("--tools", str(home.folder / "hello"))
    monkeypatch.setenv(
        "SKILLBUS_SESSION", skillbus("session", "new", "ep1", "-g", "hello.Hello=tool:5", *tools).out.strip()
    )
    assert skillbus("call", "hello.Hello", "--arg", "query=you", "--strict", *tools).code == 0
    ended = skillbus("replay", "ep1", *tools)
    assert (ended.code, ended.out.splitlines()[-1]) == (0, "1 call(s) run again: 1 equal"), ended.err
    contract = home.folder / "hello" / "hello.tb"
    contract.write_text(contract.read_text().replace("Says what", "Tells what"))
    ended = skillbus("replay", "ep1", *tools)
    assert ended.code == 4
    assert "not run again: the contract of hello.Hello is another: the call ran by sha256:" in ended.out


def test_what_is_not_loaded_ends_with_4(skillbus: Skillbus, calls: None) -> None:
    ended = skillbus("replay", "ep1")
    assert ended.code == 4
    assert "! #4 ep1 slow succeeded: not run again: the skill slow is not loaded here" in ended.out
    assert ended.out.splitlines()[-1] == "4 call(s) run again: 3 equal, 1 not run"
    assert ended.err.startswith("error: 1 call(s) could not be run again")
    told = json.loads(skillbus("replay", "ep1", "--json").out)
    assert [call["equal"] for call in told["calls"]] == [True, True, True, False]
    assert (told["equal"], told["different"], told["not run"], told["faults"]) == (3, 0, 1, [])


def test_a_changed_log_ends_with_3(skillbus: Skillbus, calls: None, home: Home) -> None:
    connection = sqlite3.connect(home.ledger)
    with connection:
        connection.execute("update objects set payload = payload || ' ' where semantic_id like '%effect-result%'")
        connection.execute("update spend set spent = spent + 1")
    connection.close()
    ended = skillbus("replay", "ep1", *PACK)
    assert ended.code == 3
    assert "✗ #2 ep1 write_file succeeded: log: effect: " in ended.out
    assert "✗ the spend does not add up" in ended.out
    assert "2 call(s) came out otherwise and " in ended.err


def test_a_plan_that_changed_ends_with_3(skillbus: Skillbus, calls: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from skills import Plan

    monkeypatch.setattr("tests.packs._plan", lambda _: Plan.one("Test.Mark", {"marker": "other"}, scope="test"))
    ended = skillbus("replay", "ep1:4", *PACK)
    assert ended.code == 3
    assert "✗ #4 ep1 slow succeeded: plan: sha256:" in ended.out
    assert "they differ at /effects/0/payload/marker" in ended.out
    (call,) = json.loads(skillbus("replay", "ep1:4", "--json", *PACK).out)["calls"]
    assert [difference["stage"] for difference in call["differences"]] == ["plan"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "say what to run again"),
        (("ep9",), "no episode 'ep9'"),
        (("ep1:9",), "no entry 9"),
        (("head",), "say which episode"),
        (("ep1", "-e", "ep2"), "two episodes"),
        (("No Episode",), "no episode 'No Episode'"),
    ],
)
def test_what_is_not_there_ends_with_1(skillbus: Skillbus, calls: None, options: tuple[str, ...], says: str) -> None:
    ended = skillbus("replay", *options)
    assert (ended.code, ended.out) == (1, "")
    assert says in ended.err
    assert len(ended.err.splitlines()) == 1
