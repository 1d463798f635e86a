"""A call past its pure first phase: what was asked, the plan for it, and the objects that keep both."""

import hashlib
import logging
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from bus import InternalError, InvalidParams
from skills import (
    Contract,
    Effect,
    EffectResult,
    Plan,
    PlanLawError,
    PlannedEffect,
    Skill,
    admit_finish,
    admit_plan,
    canonical,
)

from ..ledger import records
from ..ledger.operations import Call
from ..ledger.records import Object, transition_of
from ..sessions import Session
from . import outcomes
from .outcomes import Ran

MAX_INPUT = 1 << 20
DEFAULT_DEADLINE = 60.0
ROOT_TASK = "a2a-root-task"
"""The header that names the task that a call is part of."""

LONG = 600.0
"""Seconds. A skill that may run for longer is long: its requests are acknowledged once the ledger has them."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asked:
    """One call as its caller asked for it.

    `deadline` is Unix time in seconds; `root_task` the task it is part of; `onward` the service parameters of calls
    that are made for it. `transition` is the content address that the skill's contract must have, if that matters.
    `caller` is the broker's user, where the broker vouched for it.
    """

    session: Session
    skill_id: str
    arguments: Any
    message_id: str
    context_id: str
    deadline: float
    root_task: str | None = None
    onward: Mapping[str, str] = field(default_factory=dict)
    transition: str | None = None
    caller: str | None = None

    @property
    def fingerprint(self) -> str | None:
        """What says that another call asks for the same; None for arguments that have no canonical form."""
        try:
            return fingerprint(self.skill_id, canonical.encode(self.arguments))
        except canonical.NotCanonical:
            return None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a call ends: its state, its outcome, its output, and what became of its effect."""

    state: str
    outcome: str
    output: Object
    ran: Ran | None


@dataclass(frozen=True, slots=True)
class Planned:
    """A call past its pure first phase, with everything that the later steps need.

    `recovering` closes what a worker that is gone left open, `may_run` lets it run a repeatable effect again.
    `begun_by` is the contract that the call was begun with, where it ends as it was recorded and not by a skill here.
    """

    call: Call
    skill: Skill
    plan: Plan
    input: Object
    plan_object: Object
    deadline: float
    recovering: bool = False
    may_run: bool = True
    begun_by: Object | None = None
    onward: Mapping[str, str] = field(default_factory=dict)
    caller: str | None = None

    @property
    def needs_worktree(self) -> bool:
        """Whether anything of it works in its episode's worktree; what only writes down an end does not."""
        contract = self.skill.contract
        return contract.worktree and not (self.recovering and not (contract.repeatable and self.may_run))

    @property
    def invocation(self) -> str:
        return records.invocation_id(self.call.session.episode, self.call.task_id)

    def declared(self, effect: PlannedEffect) -> Effect:
        """The effect as the contract declares it."""
        return next(e for e in self.skill.contract.effects if (e.name, e.scope) == (effect.effect, effect.scope))

    def output(self, ran: Ran | None) -> Object:
        """The output of the call after its effect, or without one. What it raises is the skill's fault."""
        plan = self.plan
        if ran is None:
            return records.compose_output(plan.result or {}, self.plan_object.ref, ())
        effect = plan.effects[0]
        effects = [(effect.id, ran.status, ran.record.ref)]
        body: Mapping[str, Any] = ran.output or {}
        if plan.finish and self.skill.finish is not None:
            result = EffectResult(effect.id, effect.effect, ran.status, ran.record.ref, ran.output)
            body = dict(self.skill.finish(orjson.loads(self.input.payload), result))
            admit_finish(body)
        return records.compose_output(body, self.plan_object.ref, effects)

    def bare(self, ran: Ran) -> Ended:
        """How the call ends after its effect when nobody runs its finish phase."""
        effects = [(self.plan.effects[0].id, ran.status, ran.record.ref)]
        return Ended(*outcomes.state_of(self.plan, ran), records.compose_output({}, self.plan_object.ref, effects), ran)

    def end(self, ran: Ran | None) -> Ended:
        """How the call ends after its effect, or without one: also where its finish phase fails.

        Raises InternalError for an answer without an effect that can't be composed.
        """
        state, outcome = outcomes.state_of(self.plan, ran)
        try:
            return Ended(state, outcome, self.output(ran), ran)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            log.error("the output of %s failed, call %s: %s", self.skill.id, self.invocation, traced(error))
        if ran is None:
            raise InternalError
        if state != outcomes.CANCELED:
            state, outcome = "failed", "failed"
            ran = replace(ran, reason=f"the effect ended {ran.status}, and the finish phase failed")
        effects = [(self.plan.effects[0].id, ran.status, ran.record.ref)]
        return Ended(state, outcome, records.compose_output({}, self.plan_object.ref, effects), ran)


def task_id(episode: str, message_id: str) -> str:
    """The id of the task that a message becomes: the same for every resend, another for every other message."""
    return hashlib.sha256(f"{episode}\0{message_id}".encode()).hexdigest()[:32]


def fingerprint(skill_id: str, arguments: bytes) -> str:
    """What a call asks for: its skill, and its arguments in their canonical form."""
    return canonical.ref(skill_id.encode() + b"\0" + arguments)


def plan_call(asked: Asked, skill: Skill) -> Planned:
    """Plan a call.

    Raises InvalidParams for arguments that can't be kept or a transition that is another, InternalError for a plan
    that is broken.
    """
    if asked.transition is not None and asked.transition != transition_of(skill.contract).ref:
        raise InvalidParams("proposal does not match the registered transition")
    try:
        encoded = canonical.encode(asked.arguments)
    except canonical.NotCanonical as error:
        raise InvalidParams(f"the arguments have no canonical form: {error}") from None
    if len(encoded) > MAX_INPUT:
        raise InvalidParams(f"the arguments are {len(encoded)} bytes; the limit is {MAX_INPUT}")
    try:
        # what is stored is what the phases see, each a copy of its own, so that they can be run again from the log
        plan = skill.plan(orjson.loads(encoded))
        plan_bytes = admit_plan(plan.as_json(), skill.contract.effects)
    except PlanLawError as error:
        log.error("the plan of %s breaks a law: %s", skill.id, error)
        raise InternalError from None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        log.error("the plan of %s failed: %s", skill.id, traced(error))
        raise InternalError from None
    episode = asked.session.episode
    kept = Object(records.INPUT, encoded)
    call = Call(
        session=asked.session,
        skill=skill.id,
        message_id=asked.message_id,
        task_id=task_id(episode, asked.message_id),
        context_id=asked.context_id,
        fingerprint=fingerprint(skill.id, encoded),
        input_ref=kept.ref,
        deadline=asked.deadline,
        root_task=asked.root_task,
    )
    onward = {
        **asked.onward,
        ROOT_TASK: call.root_task or call.task_id,
    }  # a cancel of the root reaches what its handler calls
    return Planned(
        call, skill, plan, kept, Object(records.PLAN, plan_bytes), asked.deadline, onward=onward, caller=asked.caller
    )


def is_long(contract: Contract) -> bool:
    """Whether a call may take longer than its request may stay unacknowledged."""
    return contract.deadline > LONG


def traced(error: BaseException) -> str:
    """Where an error of a pack came from and what kind it is; not its text, which may hold what it was given."""
    return f"{type(error).__name__}\n{''.join(traceback.format_tb(error.__traceback__))}".rstrip()
