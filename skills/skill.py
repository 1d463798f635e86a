"""A skill as it is served: its contract, its pure phases, and the handler that runs its effect."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .contract import Contract
from .directory import Directory
from .plan import Plan, PlannedEffect

Tier = Literal["stub", "fake", "live"]
EffectStatus = Literal["ok", "failed", "denied", "indeterminate"]


@dataclass(frozen=True, slots=True)
class Context:
    """What a handler is told about the call it serves.

    `deadline` is Unix time in seconds. `worktree` is the episode's directory, present when the contract
    says `worktree`; nothing outside it can be opened through it.
    """

    invocation_id: str
    episode: str
    deadline: float
    worktree: Directory | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The effect ran; `output` is the handler's answer, whatever it says."""

    output: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler could not run the effect. `reason` goes to the log of the host, never to the caller."""

    reason: str
    retryable: bool = False


Outcome = Done | Failed


@dataclass(frozen=True, slots=True)
class EffectResult:
    """What the finish phase sees of the effect; `output` is None unless `status` is "ok"."""

    id: str
    effect: str
    status: EffectStatus
    record: str
    output: Mapping[str, Any] | None = None


Planner = Callable[[Any], Plan]
Handler = Callable[[PlannedEffect, Context], Awaitable[Outcome]]
Finisher = Callable[[Any, EffectResult], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Skill:
    """A contract with the code that keeps it.

    `plan` and `finish` are pure functions of their arguments. `handler` is None for a skill without effects.
    """

    contract: Contract
    plan: Planner
    handler: Handler | None = None
    finish: Finisher | None = None
    tier: Tier = "live"

    @property
    def id(self) -> str:
        return self.contract.id
