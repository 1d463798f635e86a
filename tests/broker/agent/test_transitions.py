"""A caller may say which transition it means a skill to be: the content address of the contract, as on the card."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bus
from broker.agent.agent import SkillAgent
from broker.agent.card import SCHEMAS
from broker.ledger.ledger import Ledger
from broker.pipeline.pipeline import Pipeline
from broker.sessions import Credential
from broker.worktrees.worktrees import Worktrees
from skills import Catalog

from ..conftest import Effects
from ..house import House

OTHER = "sha256:" + "0" * 64


async def listed(house: House, skill: str) -> str:
    card = await house.ask("GetExtendedAgentCard", {})
    (schemas,) = [each for each in card["capabilities"]["extensions"] if each["uri"] == SCHEMAS]
    transition: str = schemas["params"]["skills"][skill]["transition"]
    return transition


async def test_the_transition_of_the_card_is_the_one_of_the_log(house: House, ledger: Ledger) -> None:
    transition = await listed(house, "once")
    await house.send("once", {}, metadata={"skill_id": "once", "transition_fn": transition})
    (entry,) = await ledger.entries(episode="ep1")
    assert json.loads(entry.encoded)["transitionFn"] == transition


async def test_another_transition_is_the_callers_error_and_nothing_runs(house: House, ledger: Ledger) -> None:
    with pytest.raises(bus.InvalidParams, match="proposal does not match the registered transition"):
        await house.send("once", {}, metadata={"skill_id": "once", "transition_fn": OTHER})
    assert await ledger.entries(episode="ep1") == []
    assert await ledger.spent("ep1") == {}


async def test_a_skill_that_is_not_seen_tells_nothing_of_its_transition(house: House) -> None:
    with pytest.raises(bus.SkillNotFound):
        await house.send("hidden", {}, metadata={"skill_id": "hidden", "transition_fn": OTHER})


@pytest.mark.parametrize("transition", [None, 7, "", "0" * 64, "sha256:" + "A" * 64, [OTHER]])
async def test_what_is_no_hash_is_said(house: House, transition: Any) -> None:
    with pytest.raises(bus.InvalidParams, match="must be sha256: and 64"):
        await house.send("once", {}, metadata={"skill_id": "once", "transition_fn": transition})


@pytest.fixture
async def upgraded(
    catalog: Catalog, ledger_path: Path, worktrees: Worktrees, credential: Credential
) -> AsyncIterator[House]:
    """Another worker of the same agent, of a release in which every contract has changed."""
    changed = Catalog()
    for skill in catalog:
        contract = skill.contract.model_copy(update={"description": "of another release"})
        assert changed.add("test", [replace(skill, contract=contract)])
    async with await Ledger.open(str(ledger_path)) as ledger:
        pipeline = Pipeline(changed, ledger, worktrees, owner="w2", version="1")
        yield House(SkillAgent("house", pipeline, ledger, version="1"), credential)
        await pipeline.close()


async def test_a_call_that_has_ended_is_answered_after_an_upgrade(
    house: House, upgraded: House, effects: Effects, ledger: Ledger
) -> None:
    metadata = {"skill_id": "once", "transition_fn": await listed(house, "once")}
    first = await house.send("once", {"a": 1}, metadata=metadata)
    assert await listed(upgraded, "once") != metadata["transition_fn"]
    assert await upgraded.send("once", {"a": 1}, metadata=metadata) == first
    assert len(effects.runs) == len(await ledger.entries(episode="ep1")) == 1
    with pytest.raises(bus.IdempotencyConflict):
        await upgraded.send("once", {"a": 2}, metadata=metadata)
    with pytest.raises(bus.InvalidParams, match="proposal does not match"):
        await upgraded.send("once", {"a": 1}, message_id="m2", metadata=metadata)


async def test_a_call_that_runs_is_to_be_asked_for_again(house: House, upgraded: House, effects: Effects) -> None:
    metadata = {"skill_id": "once", "transition_fn": await listed(house, "once")}
    running = asyncio.create_task(house.send("once", {"do": "wait"}, metadata=metadata))
    await asyncio.wait_for(effects.started.wait(), 20)
    with pytest.raises(bus.Unavailable, match="the contract that it began with"):
        await upgraded.send("once", {"do": "wait"}, metadata=metadata)
    effects.gate.set()
    ended = await running
    assert await upgraded.send("once", {"do": "wait"}, metadata=metadata) == ended
