"""A plan: what the pure first phase of a call returns, and the laws it must keep."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from . import canonical
from .contract import Effect

PLAN_VERSION = "world/effect-plan/v1"
MAX_PAYLOAD = 1 << 20

_EFFECT_ID = re.compile(r"[a-z0-9]{1,16}")


@dataclass(frozen=True, slots=True)
class PlannedEffect:
    """One effect that a plan asks for; `payload` is what the handler gets."""

    id: str
    effect: str
    scope: str
    cost: int
    payload: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "effect": self.effect,
            "scope": self.scope,
            "cost": self.cost,
            "payload": dict(self.payload),
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """One effect, or none and a result.

    `finish` asks for the finish phase after the effect. `refused` says that `result` is a refusal of the
    call rather than its answer; it is not part of the plan's encoding.
    """

    effects: tuple[PlannedEffect, ...] = ()
    finish: bool = False
    result: Mapping[str, Any] | None = None
    refused: bool = False

    def as_json(self) -> dict[str, Any]:
        """The plan as the object that is encoded, hashed and stored (`world/effect-plan/v1`)."""
        return {
            "plan": PLAN_VERSION,
            "effects": [effect.as_json() for effect in self.effects],
            "finish": self.finish,
            "result": None if self.result is None else dict(self.result),
        }

    @classmethod
    def one(cls, effect: str, payload: Mapping[str, Any], *, scope: str = "worktree", finish: bool = False) -> "Plan":
        """A plan of one effect of cost 1."""
        return cls(effects=(PlannedEffect("e1", effect, scope, 1, payload),), finish=finish)

    @classmethod
    def answer(cls, result: Mapping[str, Any]) -> "Plan":
        """A plan without effects whose result is the answer."""
        return cls(result=result)

    @classmethod
    def refuse(cls, message: str) -> "Plan":
        """The plan refusal of the AILANG tools: `{"ok": false, "refused": message}`."""
        return cls(result={"ok": False, "refused": message}, refused=True)


class PlanLawError(ValueError):
    """A plan, or the output of a finish phase, breaks one of the laws; `law` is "shape" or "L1" to "L7"."""

    def __init__(self, law: str, reason: str) -> None:
        self.law, self.reason = law, reason
        super().__init__(f"effect plan violates {law}: {reason}")


def admit_plan(plan: Any, declared: Iterable[Effect]) -> bytes:
    """The canonical encoding of a plan that keeps the laws, checked in their order.

    `plan` is the plan as a JSON object (`Plan.as_json`) or the text of one. Raises PlanLawError.
    """
    value = _value(plan)
    if not isinstance(value, dict):
        raise PlanLawError("shape", "the plan is not an object")
    if "world" in value:
        raise PlanLawError("L6", "the plan has a world member")
    if value.keys() != {"effects", "finish", "plan", "result"}:
        raise PlanLawError("shape", "the members must be exactly effects, finish, plan, result")
    if value["plan"] != PLAN_VERSION or not isinstance(value["finish"], bool) or not isinstance(value["effects"], list):
        raise PlanLawError("shape", f"plan must be {PLAN_VERSION}, finish a boolean, effects an array")
    effects, result = value["effects"], value["result"]
    if len(effects) > 1:
        raise PlanLawError("L1", "a plan has at most one effect")
    triples = {(effect.name, effect.scope, effect.cost) for effect in declared}
    for effect in effects:
        _admit_effect(effect, triples)
    if (result is not None and not isinstance(result, dict)) or (not effects) != (result is not None):
        raise PlanLawError("L7", "a plan has one effect, or a result that is an object")
    if value["finish"] and not effects:
        raise PlanLawError("L7", "a finish phase needs an effect")
    if result is not None and "world" in result:
        raise PlanLawError("L6", "the result has a world member")
    return _encoded(value)


def admit_finish(output: Any) -> bytes:
    """The canonical encoding of what a finish phase returned; raises PlanLawError."""
    value = _value(output)
    if not isinstance(value, dict):
        raise PlanLawError("L6", "the output is not an object")
    if "world" in value or "effects" in value:
        raise PlanLawError("L6", "the output has a reserved member")
    return _encoded(value)


def _admit_effect(effect: Any, triples: set[tuple[str, str, int]]) -> None:
    if not isinstance(effect, dict) or effect.keys() != {"cost", "effect", "id", "payload", "scope"}:
        raise PlanLawError("shape", "an effect's members must be exactly cost, effect, id, payload, scope")
    if not all(isinstance(effect[key], str) for key in ("id", "effect", "scope")) or type(effect["cost"]) is not int:
        raise PlanLawError("shape", "id, effect and scope must be strings, cost an integer")
    if not _EFFECT_ID.fullmatch(effect["id"]):
        raise PlanLawError("L2", "an effect's id must be 1 to 16 of a-z and 0-9")
    if not isinstance(effect["payload"], dict):
        raise PlanLawError("L4", "the payload is not an object")
    if (effect["effect"], effect["scope"], effect["cost"]) not in triples:
        raise PlanLawError("L3", "effect, scope and cost are not declared by the contract")
    if len(_encoded(effect["payload"])) > MAX_PAYLOAD:
        raise PlanLawError("L4", f"the payload is over {MAX_PAYLOAD} bytes")


def _value(source: Any) -> Any:
    if not isinstance(source, (str, bytes)):
        return source
    try:
        return canonical.parse(source)
    except canonical.NotCanonical as error:
        raise PlanLawError("shape", str(error)) from None


def _encoded(value: Any) -> bytes:
    try:
        return canonical.encode(value)
    except canonical.NotCanonical as error:
        raise PlanLawError("shape", str(error)) from None
