"""A skill as it is served: its contract, its pure phases, and the handler that runs its effect."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from .contract import Contract
from .directory import Directory
from .plan import Plan, PlannedEffect

Tier = Literal["stub", "fake", "live"]
EffectStatus = Literal["ok", "failed", "denied", "indeterminate", "canceled"]


class Reporter(Protocol):
    """Where a running handler's reports go: see `Context.progress` and `Context.chunk`."""

    async def progress(self, text: str, fraction: float | None) -> None:
        """How far the call has come."""

    async def chunk(self, artifact: str, part: Mapping[str, Any], *, last: bool) -> None:
        """A part of an artifact."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a handler is told about the call it serves.

    `deadline` is Unix time in seconds. `worktree` is the episode's directory, present when the contract
    says `worktree`; nothing outside it can be opened through it.

    `task_id` is the A2A task that the call became. A handler that calls other agents gives them `onward`, the service
    parameters `a2a-root-task`, `a2a-depth` and the trace, and less than the time to its deadline: the bus's client does
    both with `within=context`, and over HTTP they are headers. A cancel of the task then ends those calls too.

    `session` and `agent` name whose call it is besides its episode, where that is known. What the handler
    looked at and changed besides its effect it adds to `accesses`, as JSON objects; the call's record keeps them.

    A handler is ended, when its call is canceled or its deadline passes, by `asyncio.CancelledError`: it stops what it
    has started, waits for that, and lets the error through. The caller is told only then.
    """

    invocation_id: str
    episode: str
    deadline: float
    worktree: Directory | None = None
    reporter: Reporter | None = field(default=None, repr=False, compare=False)
    task_id: str = ""
    onward: Mapping[str, str] = field(default_factory=dict)
    session: str = ""
    agent: str = ""
    accesses: list[Mapping[str, Any]] = field(default_factory=list, repr=False, compare=False)

    async def progress(self, text: str = "", fraction: float | None = None) -> None:
        """Tell whoever follows the call how far it has come: a short text, a fraction of 1, or both.

        Costs little: reports that come faster than they can be of use are thinned out, the newest one wins.
        """
        if self.reporter is not None:
            await self.reporter.progress(text, fraction)

    async def chunk(self, content: Any, *, artifact: str = "progress", last: bool = False) -> None:
        """Send a part of an artifact ahead of the result: a text, or anything that JSON can say.

        Chunks of one artifact follow each other in the order they were sent; none is left out. They are for reading
        along and are kept for a while only: the result has to hold whatever must last. Raises ValueError for a chunk
        or a sum of chunks that is too large.
        """
        if self.reporter is not None:
            part = {"text": content} if isinstance(content, str) else {"data": content}
            await self.reporter.chunk(artifact, part, last=last)


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
    `raise_tier` tells the operator how to get a higher tier; it never holds a secret, as listings show it.
    """

    contract: Contract
    plan: Planner
    handler: Handler | None = None
    finish: Finisher | None = None
    tier: Tier = "live"
    raise_tier: str = ""

    @property
    def id(self) -> str:
        return self.contract.id
