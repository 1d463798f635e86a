"""How a call ends whose worker is gone: by its skill, if that would do the same again, else as it was recorded."""

import logging
from collections.abc import Callable
from dataclasses import replace

import orjson

from bus import BusError
from skills import Catalog, Skill

from ..grants.policy import HostPolicy
from ..ledger.intents import Intent
from ..ledger.ledger import Ledger
from ..ledger.operations import Call
from ..ledger.tasks import Task
from ..sessions import Session
from .planned import DEFAULT_DEADLINE, Asked, Planned, plan_call

PATIENCE = 3.0
"""Leases that a call which could run again is left to a worker that can run it, by one that can't."""

log = logging.getLogger(__name__)


class Recovery:
    """Plans the ends of open calls, from what the ledger keeps of their intents."""

    def __init__(
        self, catalog: Catalog, ledger: Ledger, policy: HostPolicy, *, lease: float, clock: Callable[[], float]
    ) -> None:
        self._catalog = catalog
        self._ledger = ledger
        self._policy = policy
        self._lease = lease
        self._clock = clock

    async def plan(self, task: Task) -> Planned | None:
        """How an open call ends here; None where the ledger has lost what it takes."""
        session, intent = await self._ledger.session(task.session), await self._ledger.intents.of(task.id)
        if session is None or intent is None:
            log.error("task %s can't be ended: the ledger has lost its session, its request or its input", task.id)
            return None
        return plan_recovery(task, intent, session, self._catalog.get(task.skill), self._clock(), self._policy)

    def leaves(self, task: Task, planned: Planned) -> bool:
        """Whether an open call is left for a while to a worker that can run it again, since this one can't."""
        now, lease = self._clock(), task.lease_until or 0.0
        could = planned.skill.contract.repeatable and may_still(task, planned.call.session, now)
        return could and not planned.may_run and now < lease + PATIENCE * self._lease

    async def as_begun(self, planned: Planned) -> Planned:
        """The call by the plan that it was begun with: as it is if that is its own, else to be ended as recorded."""
        intent = await self._ledger.intents.of(planned.call.task_id)
        if intent is None or intent.plan_object.ref == planned.plan_object.ref:
            return planned
        log.warning("call %s: this worker plans it otherwise than it was begun", planned.invocation)
        return as_recorded(planned.call, intent, planned.deadline)


def plan_recovery(
    task: Task, intent: Intent, session: Session, skill: Skill | None, now: float, policy: HostPolicy
) -> Planned:
    """Plan to end a call that its worker has left open.

    `may_run` of the plan says that its effect may run again here: `skill` plans it byte for byte as it was begun, and
    it, the session, the caller's deadline and the host's policy let it.
    """
    until = now + DEFAULT_DEADLINE
    arguments = orjson.loads(intent.input.payload)
    asked = Asked(session, task.skill, arguments, task.message_id, task.context_id, until, task.root_task)
    planned = None if skill is None else _planned(asked, skill)
    if skill is None or planned is None or planned.plan_object.ref != intent.plan_object.ref:
        return as_recorded(planned_call(task, intent, session), intent, until)
    may_run = (
        skill.contract.repeatable
        and may_still(task, session, now)
        and policy.refusal(skill.contract, intent.plan.effects[0].effect) is None
    )
    if may_run:
        until = min(now + max(skill.contract.deadline, DEFAULT_DEADLINE), task.deadline or float("inf"))
    return replace(planned, deadline=until, recovering=True, may_run=may_run)


def planned_call(task: Task, intent: Intent, session: Session) -> Call:
    """The call that a task is."""
    return Call(
        session=session,
        skill=task.skill,
        message_id=task.message_id,
        task_id=task.id,
        context_id=task.context_id,
        fingerprint=task.fingerprint,
        input_ref=intent.input.ref,
        deadline=task.deadline,
        root_task=task.root_task,
    )


def as_recorded(call: Call, intent: Intent, until: float) -> Planned:
    """Plan to end a call as its intent says: nothing of it runs."""
    return Planned(
        call,
        intent.skill,
        intent.plan,
        intent.input,
        intent.plan_object,
        until,
        recovering=True,
        may_run=False,
        begun_by=intent.transition,
    )


def may_still(task: Task, session: Session, now: float) -> bool:
    """Whether a call may run again as far as its session and its caller's deadline go."""
    return session.is_alive(now) and (task.deadline is None or now < task.deadline)


def _planned(asked: Asked, skill: Skill) -> Planned | None:
    try:
        return plan_call(asked, skill)
    except BusError:
        return None  # what went wrong is in the log
