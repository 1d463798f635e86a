"""A plan: what the pure first phase of a call returns, and the laws it must keep."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PLAN_VERSION = "world/effect-plan/v1"


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
