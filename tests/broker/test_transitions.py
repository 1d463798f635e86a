"""A caller may say which transition it means a skill to be: the content address of the contract, as on the card."""

import json
from typing import Any

import pytest

import bus
from broker.card import SCHEMAS
from broker.ledger import Ledger

from .house import House

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
