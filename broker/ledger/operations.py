"""What can be asked of the ledger in its one writer's transactions, and what it answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bus import Unavailable
from skills import Effect

from ..grants.facts import Facts
from ..grants.grant import Decision
from ..sessions import Session
from .records import Object


@dataclass(frozen=True, slots=True)
class Call:
    """Which call it is. `task_id` derives from the episode and the message id; `fingerprint` from what was asked.

    `deadline` (Unix seconds) is the caller's; `root_task` names the task that this one was begun for. `alone` says that
    what came of a call which another session has made under the same id is not for this one.
    """

    session: Session
    skill: str
    message_id: str
    task_id: str
    context_id: str
    fingerprint: str
    input_ref: str = ""
    deadline: float | None = None
    root_task: str | None = None
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """Ask for leave to run a call's effect.

    `abandoned` says that an open intent found for this call can't have a living owner, since the claimant holds
    the lock that an owner would hold. `recovering` takes an open intent over even for a session that has ended.
    Nothing is taken over from an owner before the ledger has been there for `steady` seconds: one that could not
    renew its lease for want of the ledger is not gone. `now` is Unix seconds; grants see whole ones.

    `plan` and `transition` are what the call begins with, for whoever has to end it without the skill.

    `facts` are what the constraints of grants are put on. A new call is denied by the host with `refusal`, whatever
    the grants say.
    """

    call: Call
    effect: Effect
    request: Object
    plan: Object
    transition: Object
    objects: Sequence[Object]
    owner: str
    now: float
    lease_until: float
    abandoned: bool = False
    recovering: bool = False
    steady: float = 0.0
    facts: Facts | None = None
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class Reserved:
    """Leave to run. `recovered` says that an earlier owner may have run the effect already.

    `narrowing` is the text of the constraints under which the grant gave it.
    """

    epoch: int
    budget_before: int
    request_ref: str
    recovered: bool = False
    narrowing: str = ""


@dataclass(frozen=True, slots=True)
class Denied:
    decision: Decision


@dataclass(frozen=True, slots=True)
class Busy:
    """Another worker is running this call; its lease ends at `until`."""

    until: float


@dataclass(frozen=True, slots=True)
class Closing:
    """What came of a call. `epoch` is that of its reservation, None for a call that needed none.

    `refund` gives back what the reservation took, for an effect that was never begun.
    """

    call: Call
    epoch: int | None
    now: float
    state: str
    outcome: str
    output: Object
    record: Object
    objects: Sequence[Object]
    transition_fn: str
    interpreter: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    refund: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """What a running call reports: events of its task, each as its JSON. The answer is the place of the last one."""

    call: Call
    epoch: int
    now: float
    events: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Receipt:
    """A committed call. `output` is the exact bytes of its output object; `replayed` says that it was there before."""

    episode: str
    task_id: str
    context_id: str
    message_id: str
    skill: str
    state: str
    outcome: str
    entry_index: int
    output_ref: str
    output: bytes
    closed_at: float
    metadata: Mapping[str, Any]
    replayed: bool = False


Reservation = Reserved | Denied | Busy | Receipt
Operation = Claim | Closing | Progress


class Begun(Unavailable):
    """A call that needs no leave was begun with an effect, and is open."""

    default = "another worker is running this call"

    def __init__(self) -> None:
        super().__init__(metadata={"retryAfterMs": "1000"})


class Fenced(Exception):
    """Another worker took the call over while this one was running it, or has ended it."""
