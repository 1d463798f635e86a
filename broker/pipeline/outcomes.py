"""What became of an effect, and the record that says so."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skills import EffectStatus, Plan, PlannedEffect, canonical

from ..grants.grant import Decision
from ..ledger import records
from ..ledger.operations import Reserved
from ..ledger.records import EffectRecord, Object

CANCELED = "canceled"


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of the effect: its status, its record, what else is to be stored, what the host knows of it.

    `refund` says that it was never begun, though leave to run it was taken.
    """

    status: EffectStatus
    label: str
    record: Object
    output: Mapping[str, Any] | None = None
    objects: tuple[Object, ...] = ()
    reason: str | None = None
    retryable: bool = False
    refund: bool = False


Accesses = Sequence[Mapping[str, Any]]


def done(effect: PlannedEffect, reserved: Reserved, output: Mapping[str, Any], accesses: Accesses = ()) -> Ran:
    """The handler answered."""
    result = Object(records.RESULT, canonical.encode(dict(output)))
    record, *kept = _record(effect, reserved, accesses, result_ref=result.ref)
    return Ran("ok", "succeeded", record, output, (result, record, *kept))


def failed(
    effect: PlannedEffect, reserved: Reserved, reason: str, accesses: Accesses = (), *, retryable: bool = False
) -> Ran:
    """The handler ended without an answer."""
    record, *kept = _record(effect, reserved, accesses)
    return Ran("failed", "failed", record, objects=(record, *kept), reason=reason, retryable=retryable)


def indeterminate(effect: PlannedEffect, reserved: Reserved, why: str = "it is not safe to repeat") -> Ran:
    """Nobody can know whether the effect happened; `why` it was not run again."""
    (record,) = _record(effect, reserved)
    reason = (
        "indeterminate: the worker that ran the effect ended before it wrote the outcome, so the effect may or may not "
        f"have happened; {why} and was not run again. Its request is {reserved.request_ref}"
    )
    return Ran("indeterminate", "indeterminate", record, objects=(record,), reason=reason)


def denied(effect: PlannedEffect, decision: Decision, now: float) -> Ran:
    """No grant allows the effect, or the host does not."""
    record = _untouched(
        effect, decision.budget_before, decision.label, now, narrowing=decision.narrowing, reason=decision.reason
    )
    why = decision.reason or f"{decision.budget_before} left of the budget"
    reason = f"{decision.label}: {effect.effect} in {effect.scope}, {why}"
    return Ran("denied", decision.label, record, objects=(record,), reason=reason)


def interrupted(effect: PlannedEffect, reserved: Reserved, accesses: Accesses = ()) -> Ran:
    """The call was canceled while the effect ran: it may have happened in part, and stays spent."""
    record, *kept = _record(effect, reserved, accesses)
    reason = f"canceled while the effect ran: it may have happened in part. Its request is {reserved.request_ref}"
    return Ran("canceled", CANCELED, record, objects=(record, *kept), reason=reason)


def not_begun(effect: PlannedEffect, budget_before: int, now: float, reason: str, *, refund: bool = False) -> Ran:
    """The call was canceled before its effect began: nothing happened, and nothing is spent."""
    record = _untouched(effect, budget_before, CANCELED, now)
    return Ran("canceled", CANCELED, record, objects=(record,), reason=reason, refund=refund)


def state_of(plan: Plan, ran: Ran | None) -> tuple[str, str]:
    """The state and the outcome of a call."""
    if ran is None:
        return ("rejected", "refused") if plan.refused else ("completed", "succeeded")
    states = {"ok": "completed", "denied": "rejected", CANCELED: CANCELED}
    return states.get(ran.status, "failed"), ran.label


def request_of(effect: PlannedEffect, now: float) -> Object:
    """What is asked of the handler, as the object that records name."""
    payload = canonical.encode(dict(effect.payload))
    return records.effect_request(effect.effect, effect.scope, effect.cost, int(now), payload)


def _record(
    effect: PlannedEffect, reserved: Reserved, accesses: Accesses = (), *, result_ref: str = ""
) -> tuple[Object, ...]:
    """The record of an effect that was allowed, and the object that it names besides its request and result."""
    kept = (_kept(accesses),) if accesses else ()
    record = EffectRecord(
        effect.effect, effect.scope, effect.cost, reserved.budget_before, reserved.budget_before - effect.cost,
        allowed=True, failed=not result_ref, denial="", request_ref=reserved.request_ref, result_ref=result_ref,
        narrowing=reserved.narrowing, accesses_ref=kept[0].ref if kept else "",
    ).as_object()  # fmt: skip
    return record, *kept


def _kept(accesses: Accesses) -> Object:
    try:
        payload = canonical.encode(list(accesses))
    except canonical.NotCanonical:  # the effect has happened; what its pack says of it must not undo that
        payload = canonical.encode([{"fault": "what the handler looked at and changed has no canonical form"}])
    return Object(records.ACCESSES, payload)


def _untouched(
    effect: PlannedEffect, budget: int, label: str, now: float, *, narrowing: str = "", reason: str = ""
) -> Object:
    """The record of an effect that was kept from running."""
    return EffectRecord(
        effect.effect, effect.scope, effect.cost, budget, budget,
        allowed=False, failed=False, denial=label, request_ref=request_of(effect, now).ref, result_ref="",
        narrowing=narrowing, reason=reason,
    ).as_object()  # fmt: skip
