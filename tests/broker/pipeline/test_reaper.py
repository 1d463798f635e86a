"""What workers that are gone leave behind, and long calls whose requests are acknowledged early."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from broker.chain.provenance import Provenance
from broker.ledger.ledger import Ledger
from broker.ledger.waiters import Waiter
from broker.pipeline.pipeline import LONG, Asked, Pipeline
from broker.pipeline.planned import task_id
from broker.pipeline.reaper import MOST, Reaper
from broker.worktrees.worktrees import Worktrees
from bus import BusError, ConnectionLost, InvalidAgentResponse, Unavailable
from skills import Catalog, Skill

from ..conftest import Effects, _contract, _plan
from ..house import Answer, House, message

Ask = Callable[..., Asked]


@pytest.fixture
def catalog(catalog: Catalog, effects: Effects) -> Catalog:
    changes: dict[str, dict[str, Any]] = {
        "long": {"deadline": LONG + 1},
        "long again": {"deadline": LONG + 1, "repeatable": True},
        "long placed": {"deadline": LONG + 1, "worktree": True},
        "not long": {"deadline": LONG},
    }
    skills = [
        Skill(_contract(name.replace(" ", "-"), **each), _plan("Test.Run"), effects.run)
        for name, each in changes.items()
    ]
    assert catalog.add("long", skills)
    return catalog


class Answers:
    """What was answered, and to whom; may be told to fail, or that nobody is there."""

    def __init__(self) -> None:
        self.bodies: dict[str, Any] = {}
        self.heard = True
        self.lost = False
        self.narrow = False

    async def __call__(self, address: str, operation: str, body: bytes | BusError) -> bool:
        assert operation == "SendMessage"
        if self.lost:
            raise ConnectionLost
        if isinstance(body, BusError):
            body = orjson.dumps(body.as_json())
        elif self.narrow:
            raise InvalidAgentResponse("too large")
        self.bodies[address] = orjson.loads(body)
        return self.heard


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
async def pipeline(catalog: Catalog, ledger: Ledger, worktrees: Worktrees, answers: Answers) -> AsyncIterator[Pipeline]:
    pipeline = Pipeline(catalog, ledger, worktrees, owner="w1", version="0")
    pipeline.answering.answer = answers
    yield pipeline
    await pipeline.close()


@pytest.fixture
def reaper(pipeline: Pipeline) -> Reaper:
    """One that waits for nothing beyond a lease."""
    return Reaper(pipeline, lease=0.0)


@pytest.fixture
def leave(catalog: Catalog, ledger: Ledger, worktrees: Worktrees, ask: Ask, effects: Effects) -> Callable[..., Any]:
    """Leave a call open, as a worker that is killed does; the id of its task."""

    async def leave(skill: str, message_id: str = "m1", *waiting: str) -> str:
        dying = Pipeline(catalog, ledger, worktrees, owner="dead", version="0", lease=0.01)
        effects.started.clear()
        effects.gate.clear()
        run = dying.begin(ask(skill, {"do": "wait"}, message_id))
        await effects.started.wait()
        for address in waiting:
            assert await ledger.waiters.keep(Waiter(run.task_id, address, "SendMessage", 0))
        await dying.close()
        await ledger.tasks.forget(0)  # a renewal that was on its way is written before this
        effects.gate.set()
        while run.task_id not in {task.id for task in await ledger.tasks.abandoned(time.time(), 100)}:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return run.task_id

    return leave


async def ended(pipeline: Pipeline) -> None:
    """Wait for all that a sweep began."""
    await asyncio.gather(*(run.task for run in list(pipeline._running.values())), return_exceptions=True)
    await asyncio.gather(*pipeline.answering._busy.values())


@pytest.mark.parametrize(
    ("skill", "outcome", "runs"),
    [
        ("once", "indeterminate", 1),
        ("long", "indeterminate", 1),
        ("again", "succeeded", 2),
        ("long-again", "succeeded", 2),
    ],
)
async def test_whatever_a_worker_left_open_is_ended_without_being_asked_for(
    reaper: Reaper, pipeline: Pipeline, ledger: Ledger, leave: Any, answers: Answers, effects: Effects,
    skill: str, outcome: str, runs: int,
) -> None:  # fmt: skip
    name = await leave(skill, "m1", "a", "b")
    await reaper.sweep()
    await ended(pipeline)
    await reaper.sweep()  # the waiters of what is not long wait for it
    receipt = await ledger.receipt(name)
    assert receipt is not None
    assert receipt.outcome == outcome
    assert len(effects.runs) == runs
    assert {address: body["task"]["id"] for address, body in answers.bodies.items()} == {"a": name, "b": name}
    assert await ledger.waiters.of(name) == []
    assert await ledger.spent("ep1") == {("Test.Run", "test"): 1}
    assert (await Provenance(ledger).verify("ep1")).faults == ()


async def test_two_reapers_end_a_call_once(
    reaper: Reaper, pipeline: Pipeline, other: House, leave: Any, ledger: Ledger, effects: Effects
) -> None:
    for number in range(5):
        await leave("again", f"m{number}")
    there = other.agent._pipeline
    await asyncio.gather(reaper.sweep(), Reaper(there, lease=0.0).sweep())
    await asyncio.gather(ended(pipeline), ended(there))
    assert len(effects.runs) == 10
    assert await ledger.open_calls("ep1") == 0
    assert (await Provenance(ledger).verify("ep1")).entries == 5


async def test_what_lives_is_left_alone(
    pipeline: Pipeline, reaper: Reaper, other: House, ask: Ask, effects: Effects, leave: Any, ledger: Ledger
) -> None:
    call = asyncio.create_task(pipeline.call(ask("once", {"do": "wait"})))
    await effects.started.wait()
    await Reaper(other.agent._pipeline, lease=0.0).sweep()
    await reaper.sweep()
    assert other.agent._pipeline.load == 0
    effects.gate.set()
    assert (await call).outcome == "succeeded"
    name = await leave("once", "m2")
    await Reaper(pipeline, lease=60.0).sweep()  # its redelivery may still come
    assert await ledger.receipt(name) is None


async def test_a_reaper_takes_over_a_bounded_number_at_a_time(
    reaper: Reaper, pipeline: Pipeline, leave: Any, effects: Effects, ledger: Ledger
) -> None:
    for number in range(MOST + 2):
        await leave("again", f"m{number}")
    effects.gate.clear()
    await reaper.sweep()
    assert pipeline.load == MOST
    await reaper.sweep()
    assert pipeline.load == MOST
    effects.gate.set()
    await ended(pipeline)
    await reaper.sweep()
    await ended(pipeline)
    assert await ledger.open_calls("ep1") == 0


async def test_calls_that_can_not_be_ended_here_hide_no_others(
    leave: Any, pipeline: Pipeline, ledger: Ledger, ledger_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.pipeline.reaper._LOOKED_AT", 2)
    for number in range(3):
        await leave("long", f"m{number}")
    name = await leave("once", "m9")
    with closing(sqlite3.connect(ledger_path, isolation_level=None)) as connection:
        connection.execute("UPDATE calls SET input_ref = NULL WHERE skill = 'long'")
    reaper = Reaper(pipeline, lease=0.0)
    for _ in range(3):
        await reaper.sweep()
        await ended(pipeline)
    assert await ledger.receipt(name) is not None
    assert await ledger.open_calls("ep1") == 3
    assert reaper._skip == 0, "the next sweep begins with the oldest again"


async def test_a_call_whose_row_can_not_be_read_hides_no_others(
    reaper: Reaper, pipeline: Pipeline, leave: Any, ledger: Ledger, ledger_path: Path
) -> None:
    await leave("once", "m1")
    name = await leave("once", "m2")
    with closing(sqlite3.connect(ledger_path, isolation_level=None)) as connection:
        connection.execute("UPDATE calls SET effect = x'00' WHERE message_id = 'm1'")
    await reaper.sweep()
    await ended(pipeline)
    assert await ledger.receipt(name) is not None
    assert await ledger.open_calls("ep1") == 1


async def test_a_reaper_sweeps_by_itself(pipeline: Pipeline, leave: Any, ledger: Ledger) -> None:
    name = await leave("once")
    sweeping = asyncio.create_task(Reaper(pipeline, lease=0.05).run())
    async with asyncio.timeout(20):
        while await ledger.receipt(name) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    sweeping.cancel()


async def test_who_was_left_waiting_by_a_worker_that_had_committed(
    reaper: Reaper, pipeline: Pipeline, ledger: Ledger, ask: Ask, effects: Effects, answers: Answers
) -> None:
    pipeline.answering.answer = None  # it is killed between the two
    run = pipeline.begin(ask("long", {"do": "wait"}))
    await effects.started.wait()
    assert await ledger.waiters.keep(Waiter(run.task_id, "a", "SendMessage", 1))
    assert await ledger.waiters.keep(Waiter(run.task_id, "a", "SendMessage", 1)), "the same one again"
    effects.gate.set()
    await run.receipt()
    assert not await ledger.waiters.keep(Waiter(run.task_id, "late", "SendMessage", 0)), "it has ended"
    await ended(pipeline)
    pipeline.answering.answer = answers
    answers.lost = True
    await reaper.sweep()
    assert len(await ledger.waiters.of(run.task_id)) == 1
    answers.lost, answers.heard = False, False
    await reaper.sweep()
    assert answers.bodies["a"]["task"]["history"][0]["messageId"] == "m1"
    assert await ledger.waiters.of(run.task_id) == [], "nobody is there to be told"
    answers.bodies.clear()
    await reaper.sweep()
    assert answers.bodies == {}


async def test_a_worker_that_lost_its_lease_ends_its_handler_and_tells_what_came_of_it(
    catalog: Catalog, pipeline: Pipeline, reaper: Reaper, ledger: Ledger, ledger_path: Path, worktrees: Worktrees,
    ask: Ask, effects: Effects,
) -> None:  # fmt: skip
    late = Pipeline(catalog, ledger, worktrees, owner="late", version="0", lease=3600.0)
    running = asyncio.create_task(late.call(ask("long", {"do": "wait"})))
    await effects.started.wait()
    with closing(sqlite3.connect(ledger_path, isolation_level=None)) as connection:
        connection.execute("UPDATE calls SET lease_until = 1")  # it stood still for so long
        assert pipeline._running == {}
        await reaper.sweep()
        await ended(pipeline)
    receipt = await ledger.receipt(task_id("ep1", "m1"))
    assert receipt is not None
    assert receipt.outcome == "indeterminate"
    assert not running.done()
    await late._leases._renew()
    found = await asyncio.wait_for(running, 20)
    assert (found.outcome, found.entry_index) == ("indeterminate", receipt.entry_index)
    assert await ledger.spent("ep1") == {("Test.Run", "test"): 1}
    assert (await Provenance(ledger).verify("ep1")).entries == 1
    await late.close()


@pytest.mark.parametrize("history", [0, 1])
async def test_a_long_message_is_accepted_and_answered_from_the_ledger(
    house: House, ledger: Ledger, effects: Effects, answers: Answers, history: int
) -> None:
    answer = Answer(address="there")
    asked = {"message": message("long", {"do": "wait"}, "m1"), "configuration": {"historyLength": history}}
    call = asyncio.create_task(house.call("SendMessage", asked, answer))
    await asyncio.wait_for(answer.accepted.wait(), 20)
    assert [each.address for each in await ledger.waiters.of(task_id("ep1", "m1"))] == ["there"]
    assert not call.done()
    effects.gate.set()
    await asyncio.wait_for(call, 20)
    assert answer.bodies == []
    assert answers.bodies["there"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert ("history" in answers.bodies["there"]["task"]) == bool(history)
    again = Answer(address="elsewhere")
    await house.call("SendMessage", asked, again)
    assert again.bodies == [answers.bodies["there"]]
    assert not again.accepted.is_set()


async def test_a_long_message_that_is_sent_again_takes_one_place_alone(
    house: House, effects: Effects, answers: Answers
) -> None:
    asked = {"message": message("long", {"do": "wait"}, "m1")}
    first = Answer(address="first")
    call = asyncio.create_task(house.call("SendMessage", asked, first))
    await asyncio.wait_for(first.accepted.wait(), 20)
    for name in ("second", "third"):
        again = Answer(address=name)
        await asyncio.wait_for(house.call("SendMessage", asked, again), 20)
        assert again.accepted.is_set()
    assert not call.done()
    effects.gate.set()
    await asyncio.wait_for(call, 20)
    assert set(answers.bodies) == {"first", "second", "third"}
    assert len(effects.runs) == 1


async def test_without_a_way_to_answer_later_nothing_is_accepted(
    house: House, pipeline: Pipeline, effects: Effects
) -> None:
    pipeline.answering.answer = None
    effects.gate.set()
    answer = Answer()
    await house.call("SendMessage", {"message": message("long", {"do": "wait"}, "m1")}, answer)
    assert (answer.ended, answer.accepted.is_set()) == (True, False)


async def test_an_answer_that_can_not_be_sent_is_an_error(
    reaper: Reaper, pipeline: Pipeline, ledger: Ledger, leave: Any, answers: Answers
) -> None:
    answers.narrow = True
    name = await leave("long", "m1", "a")
    await reaper.sweep()
    await ended(pipeline)
    assert answers.bodies["a"]["message"] == "too large"
    assert await ledger.waiters.of(name) == []


async def test_a_message_that_is_not_long_is_not_accepted(house: House, effects: Effects) -> None:
    effects.gate.set()
    for skill in ("not-long", "once"):
        answer = Answer()
        await house.call("SendMessage", {"message": message(skill, {"do": "wait"}, skill)}, answer, message_id=skill)
        assert (answer.ended, answer.accepted.is_set()) == (True, False)


async def test_a_stream_of_a_long_task_is_accepted_once_it_has_begun(house: House, effects: Effects) -> None:
    stream = await house.stream("long", {"do": "wait"}).count(1)
    await asyncio.wait_for(stream.answer.accepted.wait(), 20)
    effects.gate.set()
    assert (await stream.end()).state == "COMPLETED"
    short = await house.stream("once", {}, message_id="m3").end()
    assert not short.answer.accepted.is_set()


async def test_no_request_waits_long_for_a_worktree(
    pipeline: Pipeline, worktrees: Worktrees, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.pipeline.waits.LONG", 0.1)
    await worktrees.create("ep1")
    async with worktrees.hold("ep1"):
        with pytest.raises(Unavailable, match="worktree was not free") as caught:
            await pipeline.call(ask("long-placed"))
    assert caught.value.metadata["retryAfterMs"]
    assert (await pipeline.call(ask("long-placed"))).outcome == "succeeded"
