import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from a2a.types import StreamResponse
from google.protobuf.json_format import ParseDict

import bus
from broker.grants.grant import Grant
from broker.ledger.ledger import Ledger
from broker.ledger.settlement import KEPT_EVENTS
from broker.pipeline.pipeline import Asked, Pipeline, task_id
from broker.sessions import mint
from broker.worktrees.worktrees import Worktrees
from skills import Catalog

from ..conftest import Effects
from ..house import House, Listener

Ask = Callable[..., Asked]
TASK = task_id("ep1", "m1")
WHOLE = ["task", "statusUpdate", "artifactUpdate", "artifactUpdate", "artifactUpdate", "statusUpdate"]


def subscribe(house: House, after: int | None = None, **options: Any) -> Listener:
    headers = {} if after is None else {"a2a-after-seq": str(after)}
    return house.listen("SubscribeToTask", {"id": TASK}, message_id="s", headers=headers, **options)


async def test_a_stream_from_beginning_to_end(house: House, effects: Effects) -> None:
    stream = await house.stream("once", {"do": "report"}).count(4)
    assert not stream.answer.ended
    effects.gate.set()
    await stream.end()
    assert stream.kinds == WHOLE
    assert stream.places == [0, 1, 2, 3, 4, 5]
    assert {headers["a2a-task-id"] for headers in stream.answer.headers} == {TASK}
    assert stream.answer.bodies[0]["task"]["id"] == TASK
    assert stream.answer.bodies[4]["artifactUpdate"]["lastChunk"] is True
    assert stream.state == "COMPLETED"
    for body in stream.answer.bodies:
        ParseDict(body, StreamResponse())


@pytest.mark.parametrize(
    ("skill", "arguments", "state"),
    [
        ("pure", {}, "COMPLETED"),
        ("once", {}, "COMPLETED"),
        ("once", {"refuse": 1}, "REJECTED"),
        ("once", {"do": "fail"}, "FAILED"),
    ],
)
async def test_short_calls_stream_too(house: House, skill: str, arguments: Any, state: str) -> None:
    stream = await house.stream(skill, arguments).end()
    assert stream.kinds == ["task", "artifactUpdate", "statusUpdate"]
    assert stream.places == [0, 1, 2]
    assert stream.state == state
    for body in stream.answer.bodies:
        ParseDict(body, StreamResponse())
    again = await house.stream(skill, arguments).end()
    # the task itself is told as it is: under load a stream begins before the ledger has it
    assert again.answer.bodies[1:] == stream.answer.bodies[1:]


async def test_everyone_who_listens_gets_the_same_events(house: House, other: House, effects: Effects) -> None:
    first = await house.stream("once", {"do": "report"}).count(4)
    second, third = subscribe(house, 0), subscribe(other, 0)
    fourth = other.stream("once", {"do": "report"})
    for each in (second, third, fourth):
        await each.count(4)
    effects.gate.set()
    for each in (first, second, third, fourth):
        await each.end()
        assert each.places == [0, 1, 2, 3, 4, 5]
        assert each.answer.bodies[1:] == first.answer.bodies[1:]
    assert len(effects.runs) == 1


async def test_a_subscription_begins_with_the_task_as_it_is(house: House, other: House, effects: Effects) -> None:
    await house.stream("once", {"do": "report"}).count(4)
    stream = await subscribe(other).count(1)
    task = stream.answer.bodies[0]["task"]
    assert task["status"]["state"] == "TASK_STATE_WORKING"
    assert [artifact["parts"] for artifact in task["artifacts"]] == [[{"text": "one "}, {"text": "two"}]]
    effects.gate.set()
    await stream.end()
    assert stream.places == [3, 4, 5]
    ParseDict(stream.answer.bodies[0], StreamResponse())


@pytest.mark.parametrize("after", [0, 1, 2, 3, 99])
async def test_a_stream_is_taken_up_again_at_any_place(house: House, effects: Effects, after: int) -> None:
    first = await house.stream("once", {"do": "report"}).count(4)
    stream = await subscribe(house, after).count(1)
    effects.gate.set()
    await stream.end()
    await first.end()
    begin = min(after, 3)
    assert stream.places == list(range(begin, 6))
    assert stream.answer.bodies[1:] == first.answer.bodies[begin + 1 :]


async def test_what_a_cut_stream_missed_of_an_ended_task_is_told(house: House, effects: Effects) -> None:
    effects.gate.set()
    first = await house.stream("once", {"do": "report"}).end()
    for again in (subscribe(house, 2), house.stream("once", {"do": "report"}, headers={"a2a-after-seq": "2"})):
        await again.end()
        assert again.places == [2, 3, 4, 5]
        assert again.answer.bodies[1:] == first.answer.bodies[3:]
    ended = await house.stream("once", {"do": "report"}, headers={"a2a-after-seq": "5"}).end()
    assert (ended.places, ended.kinds, ended.state) == ([5], ["task"], "COMPLETED")


@pytest.mark.parametrize("after", [None, 5, 6])
async def test_there_is_no_subscription_to_an_ended_task(house: House, effects: Effects, after: int | None) -> None:
    effects.gate.set()
    await house.stream("once", {"do": "report"}).end()
    with pytest.raises(bus.UnsupportedOperation):
        await subscribe(house, after).end()


async def test_events_that_are_not_kept_any_more_leave_a_gap(house: House, ledger: Ledger, effects: Effects) -> None:
    await house.stream("once", {"do": "report"}).count(4)
    await ledger.tasks.forget(before=time.time() + 1)
    stream = await subscribe(house, 1).count(1)
    effects.gate.set()
    await stream.end()
    assert stream.places == [3, 4, 5]
    assert stream.answer.headers[0]["a2a-gap"] is True
    assert "artifacts" not in stream.answer.bodies[0]["task"]
    again = await house.stream("once", {"do": "report"}).end()
    assert (again.places, again.state) == ([5], "COMPLETED")
    assert again.answer.headers[0]["a2a-gap"] is True
    assert KEPT_EVENTS > 3


@pytest.mark.parametrize("after", ["-1", "x", "1.5", "9" * 30, "٣"])
async def test_places_that_are_none(house: House, after: str) -> None:
    with pytest.raises(bus.InvalidParams):
        await house.stream("pure", {}, headers={"a2a-after-seq": after}).end()


async def test_a_caller_who_goes_away_does_not_end_the_task(house: House, effects: Effects) -> None:
    stream = await house.stream("once", {"do": "report"}, leave_after=2).count(2)
    await asyncio.wait({stream.task}, timeout=0.05)
    assert not stream.task.done(), "the request was done before its call"
    effects.gate.set()
    await stream.end()
    assert stream.places == [0, 1]
    assert (await house.ask("GetTask", {"id": TASK}))["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_subscriber_who_goes_away_is_let_go(house: House, effects: Effects) -> None:
    await house.stream("once", {"do": "report"}).count(4)
    stream = await subscribe(house, 0, leave_after=1).end()
    assert stream.places == [0]
    effects.gate.set()


async def test_a_subscription_ends_with_its_deadline(house: House, effects: Effects) -> None:
    await house.stream("once", {"do": "report"}).count(4)
    with pytest.raises(bus.DeadlineExceeded):
        await subscribe(house, deadline=time.time() + 0.05).end()
    effects.gate.set()


async def test_a_task_of_another_episode_is_not_there(house: House, ledger: Ledger, effects: Effects) -> None:
    await house.stream("once", {"do": "report"}).count(4)
    stranger, session = mint("ep2", [Grant("Test.Run", "test", 1, 2**40)], ttl=60)
    await ledger.add_session(session)
    for operation in ("SubscribeToTask", "GetTask"):
        with pytest.raises(bus.TaskNotFound):
            await house.ask(operation, {"id": TASK}, credential=stranger)
    effects.gate.set()


@pytest.mark.parametrize(
    ("skill", "kind"),
    [("absent", bus.SkillNotFound), ("hidden", bus.SkillNotFound), ("placed", bus.SandboxUnavailable)],
)
async def test_what_cannot_begin_is_an_error_and_no_stream(house: House, skill: str, kind: type[Exception]) -> None:
    stream = house.stream(skill, {})
    with pytest.raises(kind):
        await stream.end()
    assert stream.answer.bodies == []


async def test_a_call_that_waits_for_its_worktree_is_submitted(
    house: House, worktrees: Worktrees, effects: Effects
) -> None:
    await worktrees.create("ep1")
    first = await house.stream("placed", {"do": "wait"}).count(1)
    second = await house.stream("placed", {}, message_id="m2").count(1)
    assert second.answer.bodies[0]["task"]["status"]["state"] == "TASK_STATE_SUBMITTED"
    effects.gate.set()
    await first.end()
    await second.end()
    assert (second.places, second.state) == ([0, 1, 2], "COMPLETED")


async def test_a_call_that_waits_can_be_asked_for_where_it_waits(
    house: House, other: House, worktrees: Worktrees, effects: Effects
) -> None:
    await worktrees.create("ep1")
    first = await house.stream("placed", {"do": "wait"}).count(1)
    second = await house.stream("placed", {}, message_id="m2").count(1)
    waiting = {"id": task_id("ep1", "m2")}
    assert (await house.ask("GetTask", waiting))["status"]["state"] == "TASK_STATE_SUBMITTED"
    with pytest.raises(bus.TaskNotFound):
        await other.ask("GetTask", waiting)
    with pytest.raises(bus.TaskNotFound):
        await other.ask("SubscribeToTask", waiting)
    here = await house.listen("SubscribeToTask", waiting).count(1)
    there = other.listen("SubscribeToTask", waiting, headers={"a2a-after-seq": "0"})
    effects.gate.set()
    await first.end()
    for each in (second, here, there):
        assert ((await each.end()).places, each.state) == ([0, 1, 2], "COMPLETED")


async def test_a_stream_fails_when_its_call_cannot_begin_after_all(
    house: House, worktrees: Worktrees, effects: Effects
) -> None:
    await worktrees.create("ep1")
    await house.stream("placed", {"do": "wait"}).count(1)
    second = house.stream("placed", {}, message_id="m2", deadline=time.time() + 2.0)
    with pytest.raises(bus.DeadlineExceeded):
        await second.end()
    assert second.kinds == ["task"]
    effects.gate.set()


@pytest.mark.parametrize(("skill", "state"), [("once", "FAILED"), ("again", "COMPLETED")])
async def test_whoever_follows_a_task_ends_it_when_its_worker_is_gone(
    other: House,
    catalog: Catalog,
    ledger: Ledger,
    worktrees: Worktrees,
    ask: Ask,
    effects: Effects,
    skill: str,
    state: str,
) -> None:
    dying = Pipeline(catalog, ledger, worktrees, owner="dead", version="0", lease=1.5)
    dying.begin(ask(skill, {"do": "report"}))
    await effects.started.wait()
    stream = await subscribe(other, 0).count(4)
    await dying.close()
    effects.gate.set()
    await stream.end()
    assert stream.state == state
    assert len(effects.runs) == (1 if skill == "once" else 2)
    assert stream.places == list(range(len(stream.places)))


async def test_a_session_that_has_ended_does_not_keep_a_call_open(
    other: House, catalog: Catalog, ledger: Ledger, worktrees: Worktrees, effects: Effects
) -> None:
    _, session = mint("ep1", [Grant("Test.Run", "test", 9, 2**40)], ttl=60)
    await ledger.add_session(session)
    dying = Pipeline(catalog, ledger, worktrees, owner="dead", version="0", lease=0.05)
    dying.begin(Asked(session, "again", {"do": "wait"}, "m1", "ep1", time.time() + 30))
    await effects.started.wait()
    await dying.close()
    await ledger.revoke(now=1, session_id=session.id)
    effects.gate.set()
    stream = await subscribe(other, 0).end()
    assert stream.state == "FAILED"
    assert stream.answer.bodies[1]["artifactUpdate"]["artifact"]["metadata"]["outcome"] == "indeterminate"
    assert len(effects.runs) == 1
