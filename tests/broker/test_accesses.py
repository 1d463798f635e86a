"""What a handler looked at and changed besides its effect stands in the call's record."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broker.chain.provenance import Provenance
from broker.chain.replay import Replay
from broker.ledger import records
from broker.ledger.ledger import Ledger
from broker.pipeline.pipeline import Asked, Pipeline
from broker.sessions import Session
from skills import Catalog, Context, Contract, Done, Effect, Failed, Outcome, Plan, PlannedEffect, Skill

Ask = Callable[..., Asked]
OBJECT: dict[str, Any] = {"type": "object"}
SEEN = {"memory": "m.Notes", "read": [["k", 3]]}


@pytest.fixture
def seen() -> list[Context]:
    return []


@pytest.fixture
def catalog(seen: list[Context]) -> Catalog:
    async def handle(effect: PlannedEffect, context: Context) -> Outcome:
        seen.append(context)
        context.accesses.append({"odd": float("nan")} if effect.payload.get("odd") else SEEN)
        match effect.payload.get("do"):
            case "fail":
                return Failed("no")
            case "raise":
                raise RuntimeError
        return Done({"ok": True})

    effect = Effect(name="Test.Run", scope="test")
    contract = Contract(
        id="look", title="look", description="look", input_schema=OBJECT, output_schema=OBJECT,
        access=Effect(name="Test.Run", scope="test", cost=0), effects=(effect,),
    )  # fmt: skip
    catalog = Catalog()
    skill = Skill(contract, lambda given: Plan.one("Test.Run", given, scope="test"), handle)
    assert catalog.add("test", [skill])
    return catalog


async def accesses(ledger: Ledger, entry: int) -> Any:
    found = (await ledger.entries(episode="ep1"))[entry - 1]
    header = json.loads(found.encoded)
    record = await one(ledger, header["transitionRef"])
    effect = await one(ledger, record["effects"][0])
    return await one(ledger, effect["accessesRef"])


async def one(ledger: Ledger, ref: str) -> Any:
    return json.loads((await ledger.objects([ref]))[ref].payload)


@pytest.mark.parametrize("do", ["work", "fail", "raise"])
async def test_they_are_kept_however_the_call_ends(
    pipeline: Pipeline, ledger: Ledger, catalog: Catalog, ask: Ask, session: Session, seen: list[Context], do: str
) -> None:
    await pipeline.call(ask("look", {"do": do}))
    assert await accesses(ledger, 1) == [SEEN]
    assert seen[0].session == session.id
    assert (await Provenance(ledger).verify("ep1")).faults == ()
    assert [call.differences async for call in Replay(ledger, catalog).episode("ep1")] == [()]


async def test_a_changed_byte_in_them_is_found(pipeline: Pipeline, ledger: Ledger, ledger_path: Path, ask: Ask) -> None:
    await pipeline.call(ask("look"))
    with closing(sqlite3.connect(ledger_path, isolation_level=None)) as connection:
        named = "UPDATE objects SET payload = ? WHERE semantic_id = ?"
        assert connection.execute(named, (b"[]", records.ACCESSES)).rowcount == 1
    (fault,) = (await Provenance(ledger).verify("ep1")).faults
    assert "hash to" in fault


async def test_what_has_no_canonical_form_does_not_undo_the_effect(
    pipeline: Pipeline, ledger: Ledger, ask: Ask
) -> None:
    receipt = await pipeline.call(ask("look", {"odd": True}))
    assert receipt.state == "completed"
    assert await accesses(ledger, 1) == [{"fault": "what the handler looked at and changed has no canonical form"}]
