"""A handler that calls other agents through the client: the calls are its task's."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import bus
from broker.agent.agent import SkillAgent
from broker.ledger.ledger import Ledger
from broker.pipeline.pipeline import Pipeline, task_id
from broker.sessions import Credential
from broker.worktrees.worktrees import Worktrees
from skills import Catalog, Context, Done, Outcome, PlannedEffect, Skill
from tests.conformance.stage import soon

from .conftest import Effects, _contract, _plan
from .house import message


class Delegate:
    """Calls the first skill of a chain, and lets that call the rest."""

    def __init__(self) -> None:
        self.client: bus.Client | None = None
        self.told: list[Context] = []

    async def run(self, effect: PlannedEffect, context: Context) -> Outcome:
        self.told.append(context)
        assert self.client is not None
        skill, *rest = effect.payload["chain"]
        arguments = {"chain": rest} if rest else {"do": "wait"}
        answer = await self.client.send("house", message(skill, arguments, f"to {skill}"), within=context)
        return Done({"state": answer["task"]["status"]["state"]})


@pytest.fixture
def delegate() -> Delegate:
    return Delegate()


@pytest.fixture
def catalog(catalog: Catalog, delegate: Delegate) -> Catalog:
    skills = [Skill(_contract(name), _plan("Test.Run"), delegate.run) for name in ("first", "second")]
    skills.append(Skill(_contract("brief", deadline=0.4), _plan("Test.Run"), delegate.run))
    assert catalog.add("delegates", skills)
    return catalog


@pytest.fixture
async def client(
    pipeline: Pipeline, ledger: Ledger, credential: Credential, delegate: Delegate, worktrees: Worktrees
) -> AsyncIterator[bus.Client]:
    broker, agent = bus.MemoryBroker(), SkillAgent("house", pipeline, ledger, version="1")
    async with (
        await bus.serve(broker, "house", agent),
        await bus.connect(broker, authorize=credential.authorize) as client,
    ):
        await agent.join(broker, instance="w1")
        delegate.client = client
        yield client
        await agent.leave()


async def state(client: bus.Client, name: str) -> Any:
    task = await soon(client.request("house", "GetTask", {"id": task_id("ep1", name)}))
    return task["status"]["state"].removeprefix("TASK_STATE_")


async def test_the_cancel_of_a_root_ends_all_that_was_called_for_it(
    client: bus.Client, delegate: Delegate, effects: Effects, ledger: Ledger
) -> None:
    root = task_id("ep1", "root")
    call = asyncio.create_task(client.send("house", message("first", {"chain": ["second", "once"]}, "root")))
    await soon(effects.started.wait())
    assert [context.task_id for context in delegate.told] == [root, task_id("ep1", "to second")]
    assert [context.onward["a2a-root-task"] for context in delegate.told] == [root, root]
    assert [context.onward["a2a-depth"] for context in delegate.told] == ["1", "2"]
    answer = await soon(client.request("house", "CancelTask", {"id": root}))
    assert answer["status"]["state"] == "TASK_STATE_CANCELED"
    assert (await soon(call))["task"]["status"]["state"] == "TASK_STATE_CANCELED"
    for name in ("to second", "to once"):
        async with asyncio.timeout(20):
            while await state(client, name) == "WORKING":  # noqa: ASYNC110 - nobody is told of a child's end
                await asyncio.sleep(0.01)
        assert await state(client, name) == "CANCELED"
        child = await ledger.tasks.get(task_id("ep1", name), "ep1")
        assert child is not None
        assert child.root_task == root


async def test_a_child_has_less_time_than_its_parent(client: bus.Client, delegate: Delegate, effects: Effects) -> None:
    effects.gate.set()
    await soon(client.send("house", message("first", {"chain": ["second", "once"]}, "root"), timeout=20))
    first, second = (context.deadline for context in delegate.told)
    assert second <= first - 0.5


async def test_with_no_time_left_a_handler_calls_nobody(
    client: bus.Client, delegate: Delegate, effects: Effects
) -> None:
    answer = await soon(client.send("house", message("brief", {"chain": ["once"]}, "root")))
    assert answer["task"]["artifacts"][0]["metadata"]["outcome"] == "failed"
    assert (len(delegate.told), effects.runs) == (1, [])
