import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deploy.conftest import Ended, Home

Skillbus = Callable[..., Ended]


@pytest.fixture
def trailer(skillbus: Skillbus, session: Path) -> str:
    """The trailer of an episode of three calls."""
    for number in range(3):
        skillbus("call", "calc", "--arg", f"expr={number}")
    ended = skillbus("provenance", "ep1")
    assert (ended.code, ended.err) == (0, "")
    return ended.out


def test_a_trailer_names_store_episode_entries_and_the_newest_of_them(
    skillbus: Skillbus, trailer: str, home: Home
) -> None:
    head = skillbus("why", "ep1:head", "--json").out
    first, second = trailer.splitlines()
    assert first == f"World-Provenance: store={home.ledger} episode=ep1 entries=1-3"
    assert second.removeprefix("World-Head: ") in head
    part = skillbus("provenance", "ep1", "--entries", "2-2").out
    assert "entries=2-2\nWorld-Head: sha256:" in part
    assert part.splitlines()[1] != second


def test_a_trailer_of_this_ledger_holds_and_goes_on_to_hold(skillbus: Skillbus, trailer: str, home: Home) -> None:
    skillbus("call", "calc", "--arg", "expr=9")
    message = home.folder / "message"
    message.write_text(f"Change something\n\n{trailer}Signed-off-by: somebody\n")
    for text in (trailer, f"@{message}"):
        ended = skillbus("provenance", "--verify", text)
        assert (ended.code, ended.out) == (0, "✓ ep1 entries 1-3: of this ledger, chain verified\n")
    piped = home.run("provenance", "--verify", "-", stdin=message.read_text())
    assert (piped.code, piped.err) == (0, "")
    moved = home.ledger.rename(home.folder / "moved.db")
    assert skillbus("provenance", "--verify", trailer, "--ledger", str(moved)).code == 0


def test_a_trailer_of_another_ledger_does_not_hold(skillbus: Skillbus, trailer: str, home: Home) -> None:
    other = ("--state-dir", str(home.folder / "other"))
    assert skillbus("session", "new", "ep1", "-g", "A=b:1", "--out", str(home.folder / "c"), *other).code == 0
    ended = skillbus("provenance", "--verify", trailer, *other)
    assert (ended.code, "no entries 1-3" in ended.out) == (3, True)
    skillbus("call", "calc", "--arg", "expr=0", "--session", str(home.folder / "c"), *other)
    one = skillbus("provenance", "ep1", "--entries", "1-1").out
    assert "in the trailer" in skillbus("provenance", "--verify", one, *other).out
    (headless, _) = one.splitlines()
    ended = skillbus("provenance", "--verify", headless, *other)
    assert (ended.code, "it names the store" in ended.out) == (3, True)
    assert skillbus("provenance", "--verify", headless).code == 0
    both = skillbus("provenance", "--verify", one.replace("ep1", "ep9") + trailer)
    assert both.code == 3
    assert [line[0] for line in both.out.splitlines()] == ["✗", "✓"]


def test_a_log_that_does_not_hold_gets_no_trailer(skillbus: Skillbus, trailer: str, home: Home) -> None:
    connection = sqlite3.connect(home.ledger)
    with connection:
        connection.execute("update objects set payload = payload || ' ' where semantic_id like '%plan%'")
    connection.close()
    ended = skillbus("provenance", "ep1")
    assert (ended.code, ended.out) == (3, "")
    assert "this log is not what was written" in ended.err
    assert skillbus("provenance", "--verify", trailer).code == 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "say which episode"),
        (("ep1", "--verify", "x"), "say which episode"),
        (("ep9",), "has no entries"),
        (("ep1", "--entries", "3-9"), "has no entries 3-9"),
        (("ep1", "--entries", "3-1"), "--entries wants FIRST-LAST"),
        (("--verify", "x", "--entries", "1-1"), "names its own"),
        (("--verify", "nothing"), "no World-Provenance trailer"),
        (("--verify", "@nowhere"), "No such file"),
    ],
)
def test_what_can_not_be_done_ends_with_1(
    skillbus: Skillbus, trailer: str, options: tuple[str, ...], says: str
) -> None:
    ended = skillbus("provenance", *options)
    assert (ended.code, ended.out) == (1, "")
    assert says in ended.err
    assert len(ended.err.splitlines()) == 1
