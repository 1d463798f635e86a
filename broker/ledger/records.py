"""The immutable objects a call leaves behind, each as the bytes that are hashed and stored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from skills import Contract, canonical
from skills.canonical import ref

SEMANTICS_EPOCH = 1
WRITTEN_BY = "coordinator:a2a"
MAX_OUTPUT = (1 << 20) - (1 << 16)
"""Bytes of an output: what is left of a message of 1 MiB for the task around it is plenty."""

INPUT = "world/invocation-input/v1"
PLAN = "world/effect-plan/v1"
OUTPUT = "world/invocation-output/v1"
INVOCATION = "world/invocation-record/v3"
"""The record of version 2 and, last, how the call ended, so that the chain holds that as well."""
TRANSITION = "world/transition-source/v1"
"""The contract of a skill: what an entry of the log says that it ran."""
REQUEST = "world/effect-request/v1"
RECORD = "world/effect-record/v1"
RESULT = "world/effect-result/v1"
ACCESSES = "world/effect-accesses/v1"
"""What the handler looked at and changed besides its effect: a memory's keys with their versions, for instance."""


class OutputTooLarge(ValueError):
    """The composed output is over MAX_OUTPUT bytes."""


@dataclass(frozen=True, slots=True)
class Object:
    """Bytes with a meaning; its name is the hash of the bytes."""

    semantic_id: str
    payload: bytes

    @property
    def ref(self) -> str:
        return ref(self.payload)

    @property
    def interface_hash(self) -> str:
        return ref(self.semantic_id.encode())


@dataclass(frozen=True, slots=True)
class World:
    """Where an episode's chain stands: the index, output and hash of its newest entry."""

    revision: int
    state_root: str
    log_head: str

    def encode(self) -> bytes:
        return orjson.dumps({"revision": self.revision, "stateRoot": self.state_root, "logHead": self.log_head})


@dataclass(frozen=True, slots=True)
class Entry:
    """One link of an episode's chain; `transition_ref` names the invocation record it commits."""

    index: int
    transition_fn: str
    interpreter: str
    prev_hash: str
    transition_ref: str

    def encode(self) -> bytes:
        return orjson.dumps(
            {
                "entryIndex": self.index,
                "semanticsEpoch": SEMANTICS_EPOCH,
                "transitionFn": self.transition_fn,
                "interpreter": self.interpreter,
                "prevEntryHash": self.prev_hash,
                "writtenBy": WRITTEN_BY,
                "transitionRef": self.transition_ref,
            }
        )

    @property
    def hash(self) -> str:
        return ref(self.encode())


def genesis(episode: str) -> World:
    """The world of an episode before its first call: revision 0, bound to the episode's name."""
    return World(0, ref(b"{}"), ref(canonical.encode({"episode": episode, "genesis": "world/genesis/v1"})))


def after(world: World, entry: Entry, output_ref: str) -> World:
    """The world after `entry` has been appended to `world`."""
    return World(entry.index, output_ref, entry.hash)


def invocation_id(episode: str, task_id: str) -> str:
    return f"a2a:{episode}:{task_id}"


def effect_request(effect: str, scope: str, cost: int, now: int, payload: bytes) -> Object:
    """The request of an effect: length-prefixed names, cost, logical time, canonical payload (not JSON)."""
    head = f"{len(effect.encode())}:{effect}{len(scope.encode())}:{scope}{cost}:{now}:"
    return Object(REQUEST, head.encode() + payload)


@dataclass(frozen=True, slots=True)
class EffectRecord:
    """What became of one brokered effect.

    `narrowing` is the text of the constraints of the grant that decided, where it had any; `reason` says which of them
    does not hold, or what the host does not allow. `accesses_ref` names what the handler looked at and changed besides.
    Where there is none, the record has no such member.
    """

    effect: str
    scope: str
    cost: int
    budget_before: int
    budget_after: int
    allowed: bool
    failed: bool
    denial: str
    request_ref: str
    result_ref: str
    narrowing: str = ""
    reason: str = ""
    accesses_ref: str = ""

    def encode(self) -> bytes:
        return orjson.dumps(
            {
                "effect": self.effect,
                "scope": self.scope,
                "cost": self.cost,
                "budgetBefore": self.budget_before,
                "budgetAfter": self.budget_after,
                "allowed": self.allowed,
                "failed": self.failed,
                "denial": self.denial,
                "requestRef": self.request_ref,
                "resultRef": self.result_ref,
                **({"narrowing": self.narrowing} if self.narrowing else {}),
                **({"reason": self.reason} if self.reason else {}),
                **({"accessesRef": self.accesses_ref} if self.accesses_ref else {}),
            }
        )

    @property
    def is_consistent(self) -> bool:
        """The record law: a success debits and has a result, a failure debits and has none, a denial neither."""
        debited = self.budget_after == self.budget_before - self.cost
        if self.allowed:
            return not self.denial and not self.reason and debited and bool(self.result_ref) != self.failed
        return not self.failed and bool(self.denial) and self.budget_after == self.budget_before and not self.result_ref

    def as_object(self) -> Object:
        if not self.is_consistent:
            raise ValueError(f"inconsistent effect record: {self}")
        return Object(RECORD, self.encode())


def invocation_record(
    *,
    invocation: str,
    episode: str,
    skill: str,
    transition_fn: str,
    interpreter: str,
    input_ref: str,
    output_ref: str,
    plan_ref: str,
    effects: Sequence[str],
    ended: tuple[str, str] | None = None,
) -> Object:
    """The record that ties one call's objects together; `effects` are the refs of its effect records.

    `ended` is the call's state and outcome; without it the record is one of version 2, which has none.
    """
    record: dict[str, Any] = {
        "invocationId": invocation,
        "episodeId": episode,
        "skillId": skill,
        "transitionFn": transition_fn,
        "interpreter": interpreter,
        "semanticsEpoch": SEMANTICS_EPOCH,
        "input": input_ref,
        "output": output_ref,
        "plan": plan_ref,
        "effects": list(effects),
    }
    if ended is None:
        return Object("world/invocation-record/v2", orjson.dumps(record))
    return Object(INVOCATION, orjson.dumps({**record, "state": ended[0], "outcome": ended[1]}))


def compose_output(body: Mapping[str, Any], plan_ref: str, effects: Sequence[tuple[str, str, str]]) -> Object:
    """The output of a call: `body` and the `world` block, canonically.

    `effects` holds (id, status, record ref) of each effect. Raises OutputTooLarge, NotCanonical, or ValueError
    when the body claims the reserved member.
    """
    if "world" in body:
        raise ValueError("the body has the reserved member world")
    world = {"effects": [{"id": i, "status": s, "record": r} for i, s, r in effects], "plan": plan_ref}
    payload = canonical.encode({**body, "world": world})
    if len(payload) > MAX_OUTPUT:
        raise OutputTooLarge(f"the output is {len(payload)} bytes; the limit is {MAX_OUTPUT}")
    return Object(OUTPUT, payload)


@lru_cache(maxsize=1024)
def _transition(contract: bytes) -> Object:
    return Object(TRANSITION, contract)


def transition_of(contract: Contract) -> Object:
    """The contract as the object that log entries name as the transition they ran."""
    return _transition(canonical.encode(contract.model_dump(mode="json")))
