"""The forms that servers speak of themselves in."""

from dataclasses import fields
from typing import Any

import orjson
import pytest

from bus import ServerStats, State
from bus.discovery.vitals import MOST_INTERVAL, Heartbeat, Info, Pong, Stats, Vitals

BEAT = Heartbeat("a", "w1", State.BLOCKED, 10.0, version="1", card_hash="sha256:00", slots=64, running=3)

EXAMPLES: list[tuple[Vitals, dict[str, Any]]] = [
    (Pong(State.PAUSED, 1, 2), {"state": "paused", "running": 1, "slots": 2}),
    (
        Info(version="1", software="s/1", skills=3, operations=("GetTask",), slots=4, interval_seconds=0.5),
        {
            "version": "1",
            "software": "s/1",
            "skills": 3,
            "operations": ["GetTask"],
            "slots": 4,
            "intervalSeconds": 0.5,
        },
    ),
    (
        BEAT,
        {
            "agent": "a",
            "instance": "w1",
            "state": "blocked",
            "intervalSeconds": 10.0,
            "version": "1",
            "cardHash": "sha256:00",
            "slots": 64,
            "running": 3,
            "leaving": False,
        },
    ),
]


@pytest.mark.parametrize(("said", "members"), EXAMPLES, ids=lambda it: type(it).__name__)
def test_what_is_said_is_read(said: Vitals, members: dict[str, Any]) -> None:
    written = orjson.loads(orjson.dumps(said.as_json()))
    assert written == members
    assert type(said).read(written) == said
    assert type(said).read({**written, "fromTheFuture": {"a": 1}}) == said


def test_every_count_of_a_server_is_told() -> None:
    counts = ServerStats(**{field.name: number for number, field in enumerate(fields(ServerStats), 1)})
    told = Stats.of(counts, state=State.BLOCKED, slots=7)
    for field in fields(ServerStats):
        assert getattr(told, field.name) == getattr(counts, field.name), field.name
    assert (told.state, told.slots) == (State.BLOCKED, 7)
    assert Stats.read(orjson.loads(orjson.dumps(told.as_json()))) == told
    assert told.as_json()["deadLettered"] == counts.dead_lettered


@pytest.mark.parametrize(
    "changes",
    [
        {"agent": None}, {"agent": 1}, {"agent": "x" * 2000}, {"instance": None}, {"state": None}, {"state": "fine"},
        {"intervalSeconds": None}, {"intervalSeconds": "10"}, {"intervalSeconds": 0}, {"intervalSeconds": -1},
        {"intervalSeconds": MOST_INTERVAL + 1}, {"intervalSeconds": True}, {"running": 1.5}, {"running": True},
        {"slots": -1}, {"leaving": 1}, {"leaving": "no"}, {"cardHash": 1}, {"type": "urn:skillbus:control:ping:v1"},
    ],
)  # fmt: skip
def test_what_is_no_heartbeat(changes: dict[str, Any]) -> None:
    members = orjson.loads(BEAT.encode())
    assert Heartbeat.decode(orjson.dumps(members)) == BEAT
    assert Heartbeat.decode(orjson.dumps(members | changes)) is None


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"beat"', b"\xff", b'{"type":"urn:skillbus:control"}'])
def test_what_is_no_object(body: bytes) -> None:
    assert Heartbeat.decode(body) is None


def test_a_list_is_one_of_strings_and_not_too_long() -> None:
    assert Info.read({"operations": ["a"]}) == Info(operations=("a",))
    for wrong in ("a", [1], ["a"] * 1000, {"a": 1}):
        assert Info.read({"operations": wrong}) is None


def test_who_is_ready() -> None:
    assert Pong(State.CONNECTED, running=64, slots=64).ready
    assert not any(Pong(state).ready for state in State if state is not State.CONNECTED)
