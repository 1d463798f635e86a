"""Calls that a worker has left open, and that those who come after it can't run as they were begun."""

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import bus
from broker.agent.agent import SkillAgent
from broker.chain.provenance import Provenance
from broker.chain.replay import Replay
from broker.grants.grant import Grant
from broker.grants.policy import HostPolicy
from broker.ledger.ledger import Ledger
from broker.ledger.records import transition_of
from broker.ledger.waiters import Waiter
from broker.pipeline.pipeline import Asked, Pipeline
from broker.pipeline.planned import task_id
from broker.pipeline.reaper import Reaper
from broker.pipeline.recovery import PATIENCE
from broker.sessions import Credential, mint
from broker.worktrees.worktrees import Worktrees
from bus import BusError
from skills import Catalog, Effect, Plan, Skill
from tests.webhooks import Receiver

from ..conftest import Effects, _contract, _plan
from ..house import House, message
from ..push.receivers import Deliveries, asking, house_with_push

Ask = Callable[..., Asked]
TASK = task_id("ep1", "m1")
ASKED = {"do": "wait"}
SPENT = {("Test.Run", "test"): 1}


@dataclass
class Site:
    """A ledger, and workers of one agent that come one after another, each with skills of its own."""

    ledger: Ledger
    worktrees: Worktrees
    credential: Credential
    effects: Effects
    ahead: float = 0.0
    answered: dict[str, Any] = field(default_factory=dict)
    _pipelines: list[Pipeline] = field(default_factory=list)

    def clock(self) -> float:
        return time.time() + self.ahead

    def worker(self, skills: list[Skill], *, policy: HostPolicy | None = None, lease: float = 0.01) -> House:
        catalog = Catalog()
        assert catalog.add("test", skills) or skills[0].handler is None  # one without a handler is left out
        owner = f"w{len(self._pipelines)}"
        pipeline = Pipeline(
            catalog, self.ledger, self.worktrees, owner=owner, version=owner, lease=lease, clock=self.clock,
            policy=policy or HostPolicy(),
        )  # fmt: skip
        pipeline.answering.answer = self.answer
        self._pipelines.append(pipeline)
        return House(SkillAgent("house", pipeline, self.ledger, version="1"), self.credential)

    async def answer(self, address: str, _operation: str, body: bytes | BusError) -> bool:
        assert isinstance(body, bytes)
        self.answered[address] = json.loads(body)
        return True

    async def leave(self, skill: Skill, *waiting: str) -> None:
        """Begin a call and leave it open, as a worker that is killed does."""
        dying = self.worker([skill]).agent._pipeline
        session = await self.ledger.session(self.credential.id)
        assert session is not None
        run = dying.begin(Asked(session, skill.id, ASKED, "m1", "ep1", time.time() + 3600))
        await asyncio.wait_for(self.effects.started.wait(), 20)
        for address in waiting:
            assert await self.ledger.waiters.keep(Waiter(run.task_id, address, "SendMessage", 0))
        await dying.close()
        self.effects.gate.set()
        await self.abandoned()

    async def abandoned(self) -> None:
        """Wait until the lease of a call is over."""
        async with asyncio.timeout(20):
            while not await self.ledger.tasks.abandoned(time.time(), 1):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        for pipeline in self._pipelines:
            await pipeline.close()


@pytest.fixture
async def site(ledger: Ledger, worktrees: Worktrees, credential: Credential, effects: Effects) -> AsyncIterator[Site]:
    site = Site(ledger, worktrees, credential, effects)
    yield site
    await site.close()


@pytest.fixture
def once(effects: Effects) -> Skill:
    return Skill(_contract("once"), _plan("Test.Run"), effects.run)


@pytest.fixture
def again(effects: Effects) -> Skill:
    return Skill(_contract("once", repeatable=True), _plan("Test.Run"), effects.run)


def _raises(_arguments: Any) -> Plan:
    raise RuntimeError


def _other(arguments: Any) -> Plan:
    return Plan.one("Test.Run", {"other": arguments}, scope="test")


def _another(arguments: Any) -> Plan:
    return Plan.one("Test.Other", arguments, scope="test")


OTHER = Effect(name="Test.Other", scope="test")
LATER: dict[str, Callable[[Skill], list[Skill]]] = {
    "it is gone": lambda skill: [],
    "its plan raises": lambda skill: [replace(skill, plan=_raises)],
    "its plan breaks a law": lambda skill: [replace(skill, plan=_plan("Unknown"))],
    "it refuses": lambda skill: [replace(skill, plan=lambda _: Plan.refuse("no"))],
    "it answers without an effect": lambda skill: [replace(skill, plan=lambda a: Plan.answer({"got": a}))],
    "it asks for something else": lambda skill: [replace(skill, plan=_other)],
    "it has another effect": lambda skill: [
        replace(skill, plan=_another, contract=skill.contract.model_copy(update={"effects": (OTHER,)}))
    ],
    "it is not seen": lambda skill: [replace(skill, contract=skill.contract.model_copy(update={"access": OTHER}))],
    "it has no handler": lambda skill: [replace(skill, handler=None)],
}


async def sound(site: Site, catalog: Catalog) -> None:
    """The chain holds, and nothing that reads it fails."""
    verdict = await Provenance(site.ledger).verify("ep1")
    assert (verdict.entries, verdict.faults) == (1, ())
    walk = await Provenance(site.ledger).why(TASK)
    assert walk.holds
    await Replay(site.ledger, catalog).call(TASK)
    assert await site.ledger.spent("ep1") == SPENT


@pytest.mark.parametrize(
    ("kind", "later"),
    # who made a call need not see its skill any more for it to run again
    [(kind, later) for kind in ("once", "again") for later in LATER if (kind, later) != ("again", "it is not seen")],
)
async def test_a_call_that_was_left_open_across_an_upgrade_ends_as_it_was_recorded(
    request: pytest.FixtureRequest, site: Site, ledger: Ledger, effects: Effects, kind: str, later: str
) -> None:
    skill: Skill = request.getfixturevalue(kind)
    await site.leave(skill, "a", "b")
    house = site.worker(LATER[later](skill))
    pipeline = house.agent._pipeline
    task = await ledger.tasks.get(TASK, "ep1")
    assert task is not None
    site.ahead = PATIENCE * 0.01
    following = house.listen("SubscribeToTask", {"id": TASK}, message_id="m2")
    stream = await following.end()
    assert stream.state == "FAILED"
    await Reaper(pipeline, lease=0.0).sweep()
    await asyncio.gather(*pipeline.answering._busy.values())
    receipt = await ledger.receipt(TASK)
    assert receipt is not None
    assert (receipt.state, receipt.outcome) == ("failed", "indeterminate")
    assert "was not run again" in receipt.metadata["reason"]
    assert len(effects.runs) == 1
    assert {address: body["task"]["id"] for address, body in site.answered.items()} == {"a": TASK, "b": TASK}
    assert await ledger.waiters.of(TASK) == []
    (entry,) = await ledger.entries(episode="ep1")
    begun_by = skill if later != "it is not seen" else LATER[later](skill)[0]
    assert json.loads(entry.encoded)["transitionFn"] == transition_of(begun_by.contract).ref
    await sound(site, pipeline.catalog)
    replayed = await Replay(ledger, catalog_of(skill)).call(TASK)
    if later not in ("it is not seen", "it has another effect"):
        assert replayed.equal, replayed


async def test_a_webhook_is_told_of_such_an_end(site: Site, once: Skill, ledger: Ledger, effects: Effects) -> None:
    async with Receiver() as receiver:
        before = site.worker([once]).agent._pipeline
        house = house_with_push(before, ledger, site.credential)
        await house.ask("SendMessage", asking("once", ASKED, receiver.url))
        await asyncio.wait_for(effects.started.wait(), 20)
        await before.close()
        after = site.worker([]).agent._pipeline
        await site.abandoned()
        await Reaper(after, lease=0.0).sweep()
        async with Deliveries(after, ledger) as deliveries:
            deliveries.start()
            posted = await receiver.count(3)
    assert posted[-1].json["statusUpdate"]["status"]["state"] == "TASK_STATE_FAILED"


def catalog_of(*skills: Skill) -> Catalog:
    catalog = Catalog()
    assert catalog.add("test", list(skills))
    return catalog


@pytest.mark.parametrize("later", LATER)
async def test_a_call_that_is_sent_again_after_an_upgrade_gets_that_outcome(
    site: Site, once: Skill, effects: Effects, later: str
) -> None:
    await site.leave(once)
    house = site.worker(LATER[later](once))
    for _ in range(2):  # it ends the call, then it tells of it
        answer = await house.send("once", ASKED)
        assert answer["task"]["artifacts"][0]["metadata"]["outcome"] == "indeterminate"
    assert len(effects.runs) == 1
    streamed = await house.stream("once", ASKED).end()
    assert streamed.state == "FAILED"
    await sound(site, house.agent._pipeline.catalog)


async def test_a_repeatable_call_runs_again_only_by_the_plan_that_it_was_begun_with(
    site: Site, again: Skill, effects: Effects, ledger: Ledger
) -> None:
    await site.leave(again)
    contract = again.contract.model_copy(update={"description": "of another release"})
    house = site.worker([replace(again, contract=contract)])
    await Reaper(house.agent._pipeline, lease=0.0).sweep()
    answer = await house.send("once", ASKED)
    assert answer["task"]["artifacts"][0]["metadata"]["outcome"] == "succeeded"
    assert len(effects.runs) == 2
    await sound(site, house.agent._pipeline.catalog)


async def test_what_another_worker_can_run_again_is_left_to_it_for_a_while(
    site: Site, again: Skill, effects: Effects, ledger: Ledger
) -> None:
    await site.leave(again)
    without, having = site.worker([], lease=60.0), site.worker([again])
    await Reaper(without.agent._pipeline, lease=0.0).sweep()
    assert without.agent._pipeline.load == 0
    await Reaper(having.agent._pipeline, lease=0.0).sweep()
    assert (await having.send("once", ASKED))["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert len(effects.runs) == 2


@pytest.mark.parametrize("kind", ["once", "again"])
async def test_what_the_policy_denies_by_now_does_not_run_again(
    request: pytest.FixtureRequest, site: Site, ledger: Ledger, effects: Effects, kind: str
) -> None:
    skill: Skill = request.getfixturevalue(kind)
    await site.leave(skill)
    house = site.worker([skill], policy=HostPolicy(deny=("once",)))
    site.ahead = PATIENCE * 0.01
    await Reaper(house.agent._pipeline, lease=0.0).sweep()
    answer = await house.send("once", ASKED)
    assert answer["task"]["artifacts"][0]["metadata"]["outcome"] == "indeterminate"
    assert len(effects.runs) == 1
    await sound(site, house.agent._pipeline.catalog)


async def test_a_policy_that_denies_a_skill_which_asks_for_no_effect_any_more(site: Site, once: Skill) -> None:
    await site.leave(once)
    house = site.worker([replace(once, plan=lambda _: Plan.refuse("no"))], policy=HostPolicy(deny=("once",)))
    answer = await house.send("once", ASKED)
    assert answer["task"]["artifacts"][0]["metadata"]["outcome"] == "indeterminate"
    with pytest.raises(bus.SkillNotFound):
        await house.send("once", ASKED, message_id="m2")


@pytest.mark.parametrize("later", ["it is gone", "it is not seen"])
async def test_a_call_that_is_sent_again_tells_nobody_else_anything(
    site: Site, once: Skill, ledger: Ledger, later: str
) -> None:
    await site.leave(once)
    house = site.worker(LATER[later](once))
    other, session = mint("ep1", [Grant("Other", "test", 1, 2**40)], ttl=600)
    await ledger.add_session(session)
    asked = {"message": message("once", ASKED, "m1")}
    for _ in range(2):
        with pytest.raises(bus.SkillNotFound) as caught:
            await house.ask("SendMessage", asked, credential=other)
        with pytest.raises(bus.SkillNotFound) as absent:
            await house.ask("SendMessage", {"message": message("once", ASKED, "m7")}, message_id="m7", credential=other)
        assert caught.value.as_json() == absent.value.as_json()
        with pytest.raises(bus.SkillNotFound):
            await house.send("once", {"do": "something else"})
        await house.send("once", ASKED)


async def test_a_call_without_an_effect_that_is_sent_again_after_its_skill_has_gone(site: Site) -> None:
    pure = Skill(_contract("pure", access=None, effects=()), lambda a: Plan.answer({"got": a}))
    first = await site.worker([pure]).send("pure", {"a": 1})
    assert await site.worker([]).send("pure", {"a": 1}) == first
    assert await site.worker([replace(pure, plan=_raises)]).send("pure", {"a": 1}) == first
    with pytest.raises(bus.InternalError):
        await site.worker([replace(pure, plan=_raises)]).send("pure", {"a": 2}, message_id="m2")


async def test_a_call_that_runs_elsewhere_is_waited_for_and_not_taken_over(
    site: Site, once: Skill, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.pipeline.recovery.DEFAULT_DEADLINE", 0.0)  # it waits until the deadline of its caller
    running = asyncio.create_task(site.worker([once], lease=60.0).send("once", ASKED))
    await asyncio.wait_for(effects.started.wait(), 20)
    house = site.worker([])
    again = house.stream("once", ASKED)
    await again.count(1)
    await Reaper(house.agent._pipeline, lease=0.0).sweep()
    assert not running.done()
    effects.gate.set()
    assert (await again.end()).state == "COMPLETED"
    await running


async def test_a_call_with_a_finish_phase_ends_without_it_and_can_be_replayed(
    site: Site, effects: Effects, ledger: Ledger
) -> None:
    def finish(_arguments: Any, result: Any) -> dict[str, Any]:
        return {"shaped": result.status}

    def plan(arguments: Any) -> Plan:
        return Plan.one("Test.Run", arguments, scope="test", finish=True)

    skill = Skill(_contract("once"), plan, effects.run, finish)
    await site.leave(skill)
    answer = await site.worker([]).send("once", ASKED)
    assert answer["task"]["artifacts"][0]["parts"][0]["data"].keys() == {"world"}
    replayed = await Replay(ledger, catalog_of(skill)).call(TASK)
    assert replayed.equal, replayed
    missing = await Replay(ledger, catalog_of()).call(TASK)
    assert missing.missing == "the skill once is not loaded here"


@pytest.mark.parametrize("finish", [False, True])
async def test_a_call_that_an_older_skillbus_has_begun(
    site: Site, ledger: Ledger, ledger_path: Path, effects: Effects, finish: bool
) -> None:
    def plan(arguments: Any) -> Plan:
        return Plan.one("Test.Run", arguments, scope="test", finish=finish)

    await site.leave(Skill(_contract("once"), plan, effects.run))
    with closing(sqlite3.connect(ledger_path, isolation_level=None)) as connection:
        (recorded,) = connection.execute("SELECT plan_ref FROM calls").fetchone()
        connection.execute("UPDATE calls SET plan_ref = NULL, transition_ref = NULL")
    house = site.worker([])
    answer = await house.send("once", ASKED)
    assert answer["task"]["artifacts"][0]["metadata"]["outcome"] == "indeterminate"
    assert answer["task"]["artifacts"][0]["parts"][0]["data"]["world"]["plan"] == recorded
    await sound(site, house.agent._pipeline.catalog)


@pytest.mark.parametrize("column", ["plan_ref", "transition_ref"])
async def test_an_intent_whose_objects_were_changed_ends_by_what_its_request_says(
    site: Site, ledger: Ledger, ledger_path: Path, once: Skill, column: str
) -> None:
    await site.leave(once)
    with closing(sqlite3.connect(ledger_path, isolation_level=None)) as connection:
        (name,) = connection.execute(f"SELECT {column} FROM calls").fetchone()
        connection.execute("UPDATE objects SET payload = '{}' WHERE ref = ?", (name,))
    answer = await site.worker([]).send("once", ASKED)
    assert answer["task"]["artifacts"][0]["metadata"]["outcome"] == "indeterminate"


async def test_an_intent_whose_request_was_changed_is_ended_by_nobody(
    site: Site, ledger: Ledger, ledger_path: Path, once: Skill
) -> None:
    await site.leave(once)
    with closing(sqlite3.connect(ledger_path, isolation_level=None)) as connection:
        connection.execute("UPDATE objects SET payload = 'x' WHERE ref = (SELECT request_ref FROM calls)")
    house = site.worker([])
    await Reaper(house.agent._pipeline, lease=0.0).sweep()
    with pytest.raises(bus.SkillNotFound):
        await house.send("once", ASKED)
    assert await ledger.open_calls("ep1") == 1


async def test_a_cancel_ends_what_is_left_of_a_skill_that_is_gone(site: Site, once: Skill) -> None:
    await site.leave(once)
    with pytest.raises(bus.TaskNotCancelable, match="failed"):
        await site.worker([]).ask("CancelTask", {"id": TASK}, message_id="m2")


async def test_a_clock_that_is_set_takes_no_call_from_a_living_worker(
    site: Site, once: Skill, effects: Effects, ledger: Ledger
) -> None:
    lease = 30.0
    there, here = site.worker([once], lease=lease), site.worker([once], lease=lease)
    running = asyncio.create_task(there.send("once", ASKED))
    await asyncio.wait_for(effects.started.wait(), 20)
    site.ahead += 3 * lease
    task = await ledger.tasks.get(TASK, "ep1")
    assert task is not None
    assert task.lease_until is not None
    assert task.lease_until < site.clock() - 2 * lease
    pipeline = here.agent._pipeline
    await Reaper(pipeline, lease=lease).sweep()
    assert pipeline.load == 0
    await here.ask("GetTask", {"id": TASK}, message_id="m2")  # it would take over what it finds dead
    await asyncio.gather(*(run.task for run in pipeline._running.values()), return_exceptions=True)
    assert not running.done()
    await there.agent._pipeline._leases._renew()
    effects.gate.set()
    assert (await running)["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_call_of_a_worker_that_is_gone_is_taken_over_a_lease_after_the_clock_was_set(
    site: Site, once: Skill, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.pipeline.waits.SETTLE", 0.0)
    await site.leave(once)
    house = site.worker([once])
    site.ahead += 3600
    reaper = Reaper(house.agent._pipeline, lease=0.01)
    async with asyncio.timeout(20):
        while await ledger.receipt(TASK) is None:
            await reaper.sweep()
            await asyncio.sleep(0.01)
    assert await ledger.spent("ep1") == SPENT
