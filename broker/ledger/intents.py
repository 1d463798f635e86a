"""What the ledger keeps of the intent of a call with an effect: enough to end the call by a worker that can't run it.

Nothing stored is believed: an object whose bytes are not those of its name is not there.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.engine import Connection

from skills import Contract, Effect, Plan, PlannedEffect, Skill, canonical

from . import records, schema
from .books import bytes_of
from .database import Database
from .records import Object, transition_of

_call, _object = schema.calls.c, schema.objects.c


@dataclass(frozen=True, slots=True)
class Intent:
    """What was to be done by a call, as it was written before its effect ran.

    `skill` stands in for the one that the call was begun with: its contract, and no code. `transition` is that contract
    as an object of the log.
    """

    skill: Skill
    plan: Plan
    plan_object: Object
    input: Object
    transition: Object


class Intents:
    """Reads the intents of calls."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, task_id: str) -> Intent | None:
        """The intent of a call; None for one without an effect, or whose request or input the ledger has not."""
        return await self._database.read(lambda connection: _intent(connection, task_id))


def _intent(connection: Connection, task_id: str) -> Intent | None:
    row = connection.execute(select(schema.calls).where(_call.task_id == task_id)).mappings().first()
    return None if row is None or row["effect"] is None else _read(connection, dict(row))


def _read(connection: Connection, row: Mapping[str, Any]) -> Intent | None:
    held = _Held(connection)
    request, kept = held.get(row["request_ref"], records.REQUEST), held.get(row["input_ref"], records.INPUT)
    payload = None if request is None else _payload(row, request)
    if payload is None or kept is None:
        return None
    found = held.get(row["plan_ref"], records.PLAN)
    plan, encoded = _recorded(found, row, payload) or _rebuilt(held, row, payload)
    contract, transition = _contract(held.get(row["transition_ref"], records.TRANSITION), row)
    return Intent(Skill(contract, lambda _: plan), plan, encoded, kept, transition)


class _Held:
    """Objects of the ledger by their names."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, name: str | None, semantic_id: str) -> Object | None:
        query = select(_object.semantic_id, _object.payload).where(_object.ref == name)
        row = self._connection.execute(query).first() if name else None
        found = None if row is None else Object(row.semantic_id, bytes_of(row.payload))
        return found if found is not None and (found.ref, found.semantic_id) == (name, semantic_id) else None


def _payload(row: Mapping[str, Any], request: Object) -> Mapping[str, Any] | None:
    """What was asked of the handler."""
    head = records.effect_request(row["effect"], row["scope"], row["cost"], 0, b"").payload.removesuffix(b"0:")
    found = re.match(rb"\d{1,18}:", request.payload.removeprefix(head))
    if not request.payload.startswith(head) or found is None:
        return None
    payload = orjson.loads(request.payload[len(head) + found.end() :])
    return payload if isinstance(payload, dict) else None


def _recorded(found: Object | None, row: Mapping[str, Any], payload: Mapping[str, Any]) -> tuple[Plan, Object] | None:
    """The plan that was kept, if it asks for what the intent says."""
    if found is None:
        return None
    kept = orjson.loads(found.payload)
    try:
        (effect,) = (PlannedEffect(**each) for each in kept["effects"])
        finish = bool(kept["finish"])
    except (KeyError, TypeError, ValueError):
        return None
    asked = row["effect"], row["scope"], row["cost"], payload
    same = (effect.effect, effect.scope, effect.cost, effect.payload) == asked
    return (Plan((effect,), finish), found) if same else None


def _rebuilt(held: _Held, row: Mapping[str, Any], payload: Mapping[str, Any]) -> tuple[Plan, Object]:
    """A plan that asks for what the intent says: the one that was kept, unless it had an uncommon form."""
    effect = PlannedEffect("e1", row["effect"], row["scope"], row["cost"], payload)
    plans = [Plan((effect,), finish) for finish in (False, True)]
    made = [(plan, Object(records.PLAN, canonical.encode(plan.as_json()))) for plan in plans]
    return next((each for each in made if held.get(each[1].ref, records.PLAN) is not None), made[0])


def _contract(kept: Object | None, row: Mapping[str, Any]) -> tuple[Contract, Object]:
    """The contract that the call was begun with, and as what the log names it."""
    effect = Effect.model_construct(name=row["effect"], scope=row["scope"], cost=row["cost"])
    # Not validated: whatever it was called, the call has to end.
    known = Contract.model_construct(
        id=row["skill"], title=row["skill"], description="A skill whose contract the ledger does not have",
        input_schema={"type": "object"}, output_schema={"type": "object"}, access=effect, effects=(effect,),
    )  # fmt: skip
    if kept is None:
        return known, transition_of(known)
    try:
        contract = Contract.model_validate_json(kept.payload)
    except ValidationError:  # one of a Skillbus whose contracts have another form
        return known, kept
    declared = [(each.name, each.scope) for each in contract.effects]
    fits = contract.id == row["skill"] and (row["effect"], row["scope"]) in declared
    return (contract if fits else known), kept
