import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.conftest import Ended, Home

Skillbus = Callable[..., Ended]
LINKS = ["world", "entry", "record", "input", "plan", "effect", "output"]


@pytest.fixture
def task(skillbus: Skillbus, session: Path) -> dict[str, Any]:
    """The second call of three."""
    skillbus("call", "calc", "--arg", "expr=1")
    ended = skillbus("call", "write_file", "--arg", "path=a.txt", "--arg", "content=x", "--raw")
    skillbus("call", "calc", "--arg", "expr=3")
    found: dict[str, Any] = json.loads(ended.out)["task"]
    return found


def test_every_handle_leads_to_the_call(skillbus: Skillbus, task: dict[str, Any]) -> None:
    metadata = task["artifacts"][0]["metadata"]
    world = task["artifacts"][0]["parts"][0]["data"]["world"]
    handles = [
        "ep1:2",
        task["id"],
        metadata["invocation"],
        metadata["output"],
        world["plan"],
        world["effects"][0]["record"],
    ]
    for handle in handles:
        ended = skillbus("why", handle)
        assert (ended.code, ended.err) == (0, "")
        lines = ended.out.splitlines()
        assert lines[0] == "#2 ep1 write_file completed (succeeded)"
        assert [line.split()[:2] for line in lines[1:8]] == [["✓", name] for name in LINKS]
        assert lines[8] == "all 7 link(s) verified"
    assert skillbus("why", "2", "--episode", "ep1").out.startswith("#2 ep1 write_file")
    assert skillbus("why", "ep1:head").out.startswith("#3 ep1 calc")
    assert skillbus("why", "head", "-e", "ep1").out.startswith("#3 ep1 calc")


def test_json_is_for_programs(skillbus: Skillbus, task: dict[str, Any]) -> None:
    walk = json.loads(skillbus("why", "ep1:2", "--json").out)
    assert (walk["episode"], walk["index"], walk["skill"], walk["verified"]) == ("ep1", 2, "write_file", True)
    assert [link["name"] for link in walk["links"]] == LINKS
    assert all(link["fault"] is None for link in walk["links"])


@pytest.mark.parametrize("form", ["--raw", "--json-out"])
def test_a_result_on_stdin_names_its_call(home: Home, session: Path, form: str) -> None:
    result = home.run("call", "calc", "--arg", "expr=6*7", form).out
    for text in (result, json.dumps(json.loads(result), indent=4)):
        ended = home.run("why", "-", stdin=text)
        assert ended.code == 0, ended.err
        assert ended.out.startswith("#1 ep1 calc completed")


def test_what_is_no_result_is_refused(home: Home, session: Path) -> None:
    for text, says in (
        ("", "is no JSON"),
        ("[1]", "is no call's result"),
        ('{"task": {}}', "is no call's result"),
        ('{"artifacts": [{"metadata": null}]}', "is no call's result"),
        ('{"artifacts": [{"metadata": [1]}, null, 1]}', "is no call's result"),
        ("[" * 100_000, "is no JSON"),
        ('{"world": {"x": ' + "[" * 500 + "]" * 500 + "}}", ""),
        ("1" * 5_000, "is no JSON"),
        ('{"artifacts": [{"metadata": {"invocation": "\\ud800"}}]}', ""),
    ):
        ended = home.run("why", "-", stdin=text)
        assert (ended.code, ended.out) == (1, "")
        assert says in ended.err
        assert len(ended.err.splitlines()) == 1
        assert "internal" not in ended.err


@pytest.mark.parametrize(
    "handle",
    [
        "ep1:9", "ep9:1", "sha256:" + "0" * 64, "0" * 32, "nonsense", "2", "a2a:ep1:x",
        "ep1:" + "9" * 23, "ep1:" + "9" * 5_000, "9" * 5_000, "sha256:" + "9" * 5_000, "ep1:\udcff", "\udcff:1",
        "\udcff",
    ],
    ids=range(14),
)  # fmt: skip
def test_what_leads_nowhere_is_an_error(skillbus: Skillbus, task: dict[str, Any], handle: str) -> None:
    for options in ([], ["--episode", "ep1"]) if handle != "2" else ([],):
        ended = skillbus("why", handle, *options)
        assert (ended.code, ended.out) == (1, "")
        assert len(ended.err.splitlines()) == 1
        assert "internal" not in ended.err


def test_a_broken_link_is_shown_and_ends_with_3(skillbus: Skillbus, task: dict[str, Any], home: Home) -> None:
    output = task["artifacts"][0]["metadata"]["output"]
    connection = sqlite3.connect(home.ledger)
    with connection:
        connection.execute("update objects set payload = payload || x'20' where ref = ?", (output,))
    connection.close()
    ended = skillbus("why", "ep1:2")
    assert ended.code == 3
    (broken,) = (line for line in ended.out.splitlines() if line.startswith("✗"))
    assert broken.split()[1] == "output"
    assert "hash to" in broken
    assert ended.err == "error: 1 of 7 link(s) broken: output\n"
    assert "verified" not in ended.out
