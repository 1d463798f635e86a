import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from a2a.types import Task
from google.protobuf.json_format import ParseDict

import bus
from broker.chain.provenance import Provenance
from broker.grants.grant import Grant
from broker.ledger.ledger import Ledger
from broker.pipeline.pipeline import Asked, Pipeline, task_id
from broker.sessions import mint
from broker.worktrees.worktrees import Worktrees
from bus.discovery.control import ask
from bus.discovery.vitals import Info, Stats
from skills import Catalog, Context, Done, Outcome, PlannedEffect, Skill
from skills.process import run_process

from ..conftest import Effects, _contract, _plan
from ..house import House, Listener

Ask = Callable[..., Asked]
TASK = task_id("ep1", "m1")
SPENT = ("Test.Run", "test")


def cancel(house: House, task: str = TASK, **options: Any) -> "asyncio.Task[Any]":
    return asyncio.create_task(house.ask("CancelTask", {"id": task}, message_id=f"cancel {task}", **options))


def outcome(task: Any) -> str:
    return str(task["artifacts"][0]["metadata"]["outcome"])


@pytest.fixture
async def joined(house: House, other: House) -> AsyncIterator[bus.MemoryBroker]:
    """Both workers listen on one control exchange."""
    broker = bus.MemoryBroker()
    await house.agent.join(broker, instance="w1")
    await other.agent.join(broker, instance="w2", stats=lambda: Stats(running=3))
    yield broker
    await house.agent.leave()
    await other.agent.leave()


async def sound(ledger: Ledger, entries: int) -> None:
    verdict = await Provenance(ledger).verify("ep1")
    assert (verdict.entries, verdict.faults) == (entries, ())


@pytest.mark.parametrize("which", ["the same worker", "another worker"])
async def test_a_running_call_is_canceled_through_any_worker(
    house: House, other: House, joined: bus.MemoryBroker, ledger: Ledger, effects: Effects, which: str
) -> None:
    stream = await house.stream("once", {"do": "report"}).count(4)
    task = await cancel(house if which == "the same worker" else other)
    ParseDict(task, Task())
    assert task["status"]["state"] == "TASK_STATE_CANCELED"
    assert task["status"]["message"]["parts"][0]["text"].startswith("canceled while the effect ran")
    assert outcome(task) == "canceled"
    await stream.end()
    assert (stream.places, stream.state) == ([0, 1, 2, 3, 4, 5], "CANCELED")
    assert await ledger.spent("ep1") == {SPENT: 1}
    await sound(ledger, 1)
    assert [link.fault for link in (await Provenance(ledger).why(TASK)).links] == [None] * 7
    again = await house.send("once", {"do": "report"})
    assert again["task"] == task
    assert len(effects.runs) == 1


async def test_the_answer_comes_when_the_handler_has_ended(
    house: House, other: House, joined: bus.MemoryBroker, effects: Effects
) -> None:
    stream = await house.stream("once", {"do": "stubborn"}).count(1)
    await effects.started.wait()
    first, second = cancel(other), cancel(house)
    done, _ = await asyncio.wait({first, second}, timeout=0.1)
    assert not done
    effects.gate.set()
    assert await first == await second
    assert await cancel(other) == await first
    await stream.end()


async def test_a_handler_that_comes_to_its_result_has_not_been_canceled(
    house: House, ledger: Ledger, effects: Effects
) -> None:
    stream = await house.stream("once", {"do": "deaf"}).count(1)
    await effects.started.wait()
    with pytest.raises(bus.TaskNotCancelable):
        await cancel(house)
    assert (await stream.end()).state == "COMPLETED"
    await sound(ledger, 1)


@pytest.mark.parametrize("skill", ["once", "pure"])
async def test_a_finished_task_is_not_cancelable(house: House, other: House, skill: str) -> None:
    await house.send(skill, {})
    for each in (house, other):
        with pytest.raises(bus.TaskNotCancelable, match="completed"):
            await cancel(each)


async def test_an_unknown_task_and_that_of_another_episode_are_not_found(
    house: House, other: House, joined: bus.MemoryBroker, ledger: Ledger, effects: Effects
) -> None:
    stream = await house.stream("once", {"do": "wait"}).count(1)
    stranger, session = mint("ep2", [Grant("Test.Run", "test", 1, 2**40)], ttl=60)
    await ledger.add_session(session)
    for asked in (cancel(house, credential=stranger), cancel(other, "0" * 32)):
        with pytest.raises(bus.TaskNotFound):
            await asked
    effects.gate.set()
    assert (await stream.end()).state == "COMPLETED"


async def test_a_stranger_with_a_call_in_the_same_worker_cancels_nothing_of_mine(
    house: House, other: House, joined: bus.MemoryBroker, worktrees: Worktrees, ledger: Ledger, effects: Effects
) -> None:
    await worktrees.create("ep1")
    stranger, session = mint("ep2", [Grant("Test.Run", "test", 1, 2**40)], ttl=60)
    await ledger.add_session(session)
    mine = await house.stream("placed", {"do": "wait"}).count(1)
    waiting = await house.stream("placed", {}, message_id="m2").count(1)
    theirs = await house.stream("once", {"do": "wait"}, credential=stranger, headers={"a2a-root-task": TASK}).count(1)
    for name in (TASK, task_id("ep1", "m2")):
        for each in (house, other):
            with pytest.raises(bus.TaskNotFound):
                await cancel(each, name, credential=stranger)
    await cancel(house, task_id("ep1", "m2"))
    assert (await waiting.end()).state == "CANCELED"
    effects.gate.set()
    for stream in (mine, theirs):
        assert (await stream.end()).state == "COMPLETED"


async def test_a_revoked_session_cancels_nothing(house: House, ledger: Ledger, effects: Effects) -> None:
    stream = await house.stream("once", {"do": "wait"}).count(1)
    await ledger.revoke(now=1, session_id=house.credential.id)
    with pytest.raises(bus.Unauthenticated):
        await cancel(house)
    effects.gate.set()
    assert (await stream.end()).state == "COMPLETED"


async def test_without_the_control_exchange_the_lease_brings_the_cancel(
    catalog: Catalog, ledger: Ledger, worktrees: Worktrees, other: House, ask: Ask, effects: Effects
) -> None:
    pipeline = Pipeline(catalog, ledger, worktrees, owner="w1", version="0", lease=1.2)
    run = pipeline.begin(ask("once", {"do": "wait"}))
    await effects.started.wait()
    assert outcome(await cancel(other)) == "canceled"
    assert (await run.receipt()).state == "canceled"
    await pipeline.close()


@pytest.mark.parametrize("which", ["the same worker", "another worker"])
async def test_a_call_that_waits_for_its_worktree_has_cost_nothing(
    house: House,
    other: House,
    joined: bus.MemoryBroker,
    worktrees: Worktrees,
    ledger: Ledger,
    effects: Effects,
    which: str,
) -> None:
    await worktrees.create("ep1")
    first = await house.stream("placed", {"do": "wait"}).count(1)
    second = await house.stream("placed", {}, message_id="m2").count(1)
    task = await cancel(house if which == "the same worker" else other, task_id("ep1", "m2"))
    assert outcome(task) == "canceled"
    assert "before its effect began" in task["status"]["message"]["parts"][0]["text"]
    assert (await second.end()).state == "CANCELED"
    assert await ledger.spent("ep1") == {SPENT: 1}
    effects.gate.set()
    assert (await first.end()).state == "COMPLETED"
    assert len(effects.runs) == 1
    await sound(ledger, 2)


async def test_a_call_that_was_reserved_and_not_begun_gets_its_budget_back(
    pipeline: Pipeline, ledger: Ledger, ask: Ask, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = ledger.reserve

    async def canceled_meanwhile(claim: Any) -> Any:
        reserved = await reserve(claim)
        run.cancel()
        return reserved

    monkeypatch.setattr(ledger, "reserve", canceled_meanwhile)
    run = pipeline.begin(ask("once"))
    receipt = await run.receipt()
    assert (receipt.state, receipt.outcome) == ("canceled", "canceled")
    assert (effects.runs, await ledger.spent("ep1")) == ([], {SPENT: 0})
    await sound(ledger, 1)
    monkeypatch.undo()
    for n in range(51):
        last = await pipeline.call(ask("once", {}, f"n{n}"))
    assert last.outcome == "denied:budget"
    assert await ledger.spent("ep1") == {SPENT: 50}


async def test_a_deadline_that_passes_while_the_ledger_is_slow_costs_nothing(
    catalog: Catalog, ledger: Ledger, worktrees: Worktrees, ask: Ask, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    pipeline = Pipeline(catalog, ledger, worktrees, owner="w", version="0", clock=lambda: now)
    reserve = ledger.reserve

    async def slow(claim: Any) -> Any:
        nonlocal now
        reserved = await reserve(claim)
        now += 60
        return reserved

    monkeypatch.setattr(ledger, "reserve", slow)
    receipt = await pipeline.call(ask("once"))
    assert receipt.state == "canceled"
    assert "deadline" in receipt.metadata["reason"]
    assert (effects.runs, await ledger.spent("ep1")) == ([], {SPENT: 0})
    await sound(ledger, 1)
    await pipeline.close()


async def test_the_deadline_is_checked_before_a_plain_answer(pipeline: Pipeline, ledger: Ledger, ask: Ask) -> None:
    with pytest.raises(bus.DeadlineExceeded):
        await pipeline.call(ask("pure", deadline=time.time() - 1))
    await sound(ledger, 0)


def child(house: House, number: int, root: str = TASK) -> Listener:
    return house.stream("once", {"do": "wait"}, message_id=f"c{number}", headers={"a2a-root-task": root})


async def test_the_cancel_of_a_root_reaches_its_children(
    house: House, other: House, joined: bus.MemoryBroker, ledger: Ledger, effects: Effects
) -> None:
    root = await house.stream("once", {"do": "wait"}).count(1)
    children = [await child(each, n).count(1) for n, each in enumerate((house, other, other))]
    apart = await child(other, 9, "another").count(1)
    await cancel(other)
    for each in (root, *children):
        assert (await each.end()).state == "CANCELED"
    effects.gate.set()
    assert (await apart.end()).state == "COMPLETED"
    assert children[0].answer.bodies[0]["task"]["metadata"]["rootTask"] == TASK
    await sound(ledger, 5)


async def test_the_cancel_of_a_child_leaves_its_root_alone(house: House, effects: Effects) -> None:
    root = await house.stream("once", {"do": "wait"}).count(1)
    one = await child(house, 1).count(1)
    await cancel(house, task_id("ep1", "c1"))
    assert (await one.end()).state == "CANCELED"
    effects.gate.set()
    assert (await root.end()).state == "COMPLETED"


@pytest.mark.parametrize(("skill", "state"), [("once", "indeterminate"), ("again", "canceled")])
async def test_the_cancel_of_a_call_whose_worker_is_gone(
    catalog: Catalog,
    ledger: Ledger,
    worktrees: Worktrees,
    other: House,
    ask: Ask,
    effects: Effects,
    skill: str,
    state: str,
) -> None:
    dying = Pipeline(catalog, ledger, worktrees, owner="dead", version="0", lease=0.1)
    dying.begin(ask(skill, {"do": "wait"}))
    await effects.started.wait()
    await dying.close()
    if state == "canceled":
        assert outcome(await cancel(other)) == "canceled"
    else:
        with pytest.raises(bus.TaskNotCancelable):
            await cancel(other)
        assert outcome(await other.ask("GetTask", {"id": TASK})) == "indeterminate"
    assert len(effects.runs) == 1
    assert await ledger.spent("ep1") == {SPENT: 1}
    await sound(ledger, 1)


async def test_a_cancel_has_a_deadline_of_its_own(house: House, effects: Effects) -> None:
    stream = await house.stream("once", {"do": "stubborn"}).count(1)
    await effects.started.wait()
    with pytest.raises(bus.DeadlineExceeded):
        await cancel(house, deadline=time.time() + 0.05)
    effects.gate.set()
    assert (await stream.end()).state == "CANCELED"


async def test_a_worker_that_stops_while_it_cancels_leaves_the_call_open(
    pipeline: Pipeline, ledger: Ledger, ask: Ask, effects: Effects
) -> None:
    run = pipeline.begin(ask("once", {"do": "stubborn"}))
    await effects.started.wait()
    run.cancel()
    closing = asyncio.create_task(pipeline.close())
    await asyncio.sleep(0)
    await closing
    assert run.task.cancelled()
    assert await ledger.open_calls("ep1") == 1


async def test_workers_say_how_they_are(house: House, joined: bus.MemoryBroker) -> None:
    answers = await ask(joined, Info, agent="house", quiet=0.05)
    assert sorted(answer.instance for answer in answers) == ["w1", "w2"]
    said = next(answer.body for answer in answers if answer.instance == "w1")
    assert (said.version, said.skills, said.card_hash) == ("1", 6, house.agent.card_hash)
    assert "CancelTask" in said.operations
    (stats,) = await ask(joined, Stats, agent="house", instance="w2", quiet=0.05)
    assert (stats.body.running, stats.body.calls) == (3, 0)


async def test_the_programs_of_a_canceled_call_are_gone_when_it_is_answered(
    ledger: Ledger, worktrees: Worktrees, other: House, ask: Ask, tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    async def handler(effect: PlannedEffect, context: Context) -> Outcome:
        script = 'sleep 600 & echo "$$ $!" > "$0"; wait'
        finished = await run_process(["sh", "-c", script, str(fifo)], env={"PATH": os.defpath})
        return Done({"status": finished.status})

    catalog = Catalog()
    assert catalog.add("test", [Skill(_contract("program"), _plan("Test.Run"), handler)])
    pipeline = Pipeline(catalog, ledger, worktrees, owner="w1", version="0", lease=1.2)
    run = pipeline.begin(ask("program"))
    pids = [int(pid) for pid in (await asyncio.to_thread(fifo.read_text)).split()]
    assert outcome(await cancel(other)) == "canceled"
    for pid in pids:
        state = await asyncio.to_thread(state_of, pid)
        assert state in ("", "Z"), "a process of the call is left"
    assert (await run.receipt()).state == "canceled"
    await pipeline.close()


def state_of(pid: int) -> str:
    """The state that the kernel tells of a process; empty when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
