"""The way of one call: admit, plan, reserve, execute, finish, commit."""

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from bus import DeadlineExceeded, IdempotencyConflict, InternalError, InvalidParams, SandboxUnavailable, SkillNotFound
from skills import (
    Catalog,
    Context,
    Contract,
    Directory,
    Done,
    EffectResult,
    EffectStatus,
    Failed,
    Outcome,
    Plan,
    PlanLawError,
    PlannedEffect,
    Skill,
    admit_finish,
    admit_plan,
    canonical,
)

from . import records
from .grants import sees
from .ledger import Ledger
from .records import EffectRecord, Object
from .sessions import Session
from .settlement import Busy, Call, Claim, Closing, Denied, Fenced, Receipt, Reserved
from .worktrees import WorktreeError, Worktrees

DEFAULT_DEADLINE = 60.0
MAX_INPUT = 1 << 20
_BUSY_POLL = 0.1
_WORST_CASE = ("x" * 16, "indeterminate", "sha256:" + "0" * 64)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asked:
    """One call as its caller asked for it. `deadline` is Unix time in seconds."""

    session: Session
    skill_id: str
    arguments: Any
    message_id: str
    context_id: str
    deadline: float


@dataclass(frozen=True, slots=True)
class _Planned:
    """A call past its pure first phase, with everything that the later steps need."""

    call: Call
    skill: Skill
    arguments: Any
    plan: Plan
    input: Object
    plan_object: Object
    deadline: float

    @property
    def invocation(self) -> str:
        return records.invocation_id(self.call.session.episode, self.call.task_id)


@dataclass(frozen=True, slots=True)
class _Ran:
    """What became of the effect: its status, its record, what else is to be stored, what the host knows of it."""

    status: EffectStatus
    label: str
    record: Object
    output: Mapping[str, Any] | None = None
    objects: tuple[Object, ...] = ()
    reason: str | None = None
    retryable: bool = False


def task_id(episode: str, message_id: str) -> str:
    """The id of the task that a message becomes: the same for every resend, another for every other message."""
    return hashlib.sha256(f"{episode}\0{message_id}".encode()).hexdigest()[:32]


@lru_cache(maxsize=1024)
def _transition(contract: bytes) -> Object:
    return Object("world/transition-source/v1", contract)


def transition_of(contract: Contract) -> Object:
    """The contract as the object that log entries name as the transition they ran."""
    return _transition(canonical.encode(contract.model_dump(mode="json")))


class Pipeline:
    """Runs calls for one worker. Each is run once, however often it is asked for, and outlives who asked."""

    def __init__(
        self,
        catalog: Catalog,
        ledger: Ledger,
        worktrees: Worktrees,
        *,
        owner: str,
        version: str,
        lease: float = 15.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.catalog = catalog
        self.ledger = ledger
        self._worktrees = worktrees
        self._owner = owner
        self._lease = lease
        self._clock = clock
        self._interpreter = Object("world/interpreter/v1", canonical.encode({"skillbus": version}))
        self._transitions = {skill.id: transition_of(skill.contract) for skill in catalog}
        self._running: dict[str, tuple[str, asyncio.Task[Receipt]]] = {}
        self._renewal: asyncio.Task[None] | None = None

    async def call(self, asked: Asked) -> Receipt:
        """Run a call, join it if it is running, or return what came of it.

        Raises SkillNotFound for a skill that is absent or that the session does not see, InvalidParams,
        IdempotencyConflict, DeadlineExceeded, Unauthenticated, SandboxUnavailable, Unavailable, InternalError.
        """
        planned = self._plan(asked, self.admit(asked.session, asked.skill_id))
        key = planned.call.task_id
        running = self._running.get(key)
        if running is None:
            task = asyncio.create_task(self._settle(planned), name=key)
            self._running[key] = running = planned.call.fingerprint, task
            task.add_done_callback(self._ended)
            self._keep_leases()
        fingerprint, task = running
        if fingerprint != planned.call.fingerprint:
            raise IdempotencyConflict
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Receipt]) -> None:
        del self._running[task.get_name()]
        if not task.cancelled():
            task.exception()  # whoever asked may be gone; what went wrong is in the log and the ledger

    def admit(self, session: Session, skill_id: str) -> Skill:
        """The skill, if it exists and the session sees it. Raises SkillNotFound, the same for both."""
        skill = self.catalog.get(skill_id)
        if skill is None or not sees(session.grants, skill.contract.access, int(self._clock())):
            raise SkillNotFound(metadata={"skill": skill_id[:128]})
        return skill

    def visible(self, session: Session) -> list[Skill]:
        """The skills that a session sees, in the order of their ids."""
        now = int(self._clock())
        return [skill for skill in self.catalog if sees(session.grants, skill.contract.access, now)]

    async def close(self, grace: float = 0.0) -> None:
        """Wait for what is running for `grace` seconds, then let go of it: its outcome will be found indeterminate."""
        tasks = [task for _, task in self._running.values()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)

    # plan

    def _plan(self, asked: Asked, skill: Skill) -> _Planned:
        try:
            encoded = canonical.encode(asked.arguments)
        except canonical.NotCanonical as error:
            raise InvalidParams(f"the arguments have no canonical form: {error}") from None
        if len(encoded) > MAX_INPUT:
            raise InvalidParams(f"the arguments are {len(encoded)} bytes; the limit is {MAX_INPUT}")
        arguments = _sorted(asked.arguments)
        try:
            plan = skill.plan(arguments)
            plan_bytes = admit_plan(plan.as_json(), skill.contract.effects)
        except PlanLawError as error:
            log.error("the plan of %s breaks a law: %s", skill.id, error)
            raise InternalError from None
        except Exception:
            log.exception("the plan of %s failed", skill.id)
            raise InternalError from None
        episode = asked.session.episode
        call = Call(
            session=asked.session,
            skill=skill.id,
            message_id=asked.message_id,
            task_id=task_id(episode, asked.message_id),
            context_id=asked.context_id,
            fingerprint=canonical.ref(skill.id.encode() + b"\0" + encoded),
        )
        return _Planned(
            call,
            skill,
            arguments,
            plan,
            Object(records.INPUT, encoded),
            Object(records.PLAN, plan_bytes),
            asked.deadline,
        )

    # reserve, execute, finish

    async def _settle(self, planned: _Planned) -> Receipt:
        if not planned.plan.effects:
            return await self._commit(planned, None, None)
        effect = planned.plan.effects[0]
        async with self._place(planned) as worktree:
            reservation = await self._reserve(planned, effect, locked=worktree is not None)
            if isinstance(reservation, Receipt):
                return reservation
            if isinstance(reservation, Denied):
                return await self._commit(planned, self._denied(planned, effect, reservation), None)
            if reservation.recovered and not planned.skill.contract.repeatable:
                ran = self._ran(effect, reservation, "indeterminate", _indeterminate(reservation))
            else:
                ran = await self._execute(planned, effect, reservation, worktree)
            return await self._commit(planned, ran, reservation.epoch)

    @asynccontextmanager
    async def _place(self, planned: _Planned) -> AsyncIterator[Directory | None]:
        """Where the effect runs: the episode's worktree, held, for a skill that needs it."""
        if not planned.skill.contract.worktree:
            yield None
            return
        async with asyncio.timeout(max(planned.deadline - self._clock(), 0.001)) as waiting:
            try:
                async with self._worktrees.hold(planned.call.session.episode) as worktree:
                    waiting.reschedule(None)
                    yield worktree
            except WorktreeError as error:
                raise SandboxUnavailable(str(error)) from None
            except asyncio.CancelledError:
                if waiting.expired():
                    raise DeadlineExceeded("the deadline passed before the worktree was free") from None
                raise

    async def _reserve(self, planned: _Planned, effect: PlannedEffect, *, locked: bool) -> Reserved | Denied | Receipt:
        while True:
            now = self._clock()
            if now >= planned.deadline:
                raise DeadlineExceeded
            declared = next(
                e for e in planned.skill.contract.effects if (e.name, e.scope) == (effect.effect, effect.scope)
            )
            payload = canonical.encode(dict(effect.payload))
            request = records.effect_request(effect.effect, effect.scope, effect.cost, int(now), payload)
            reservation = await self.ledger.reserve(
                Claim(
                    call=planned.call,
                    effect=declared,
                    request=request,
                    objects=(planned.input, planned.plan_object),
                    owner=self._owner,
                    now=now,
                    lease_until=now + self._lease,
                    abandoned=locked,
                )
            )
            if not isinstance(reservation, Busy):
                return reservation
            await asyncio.sleep(min(_BUSY_POLL, max(reservation.until - now, 0.01)))

    async def _execute(
        self, planned: _Planned, effect: PlannedEffect, reserved: Reserved, worktree: Directory | None
    ) -> _Ran:
        contract, handler = planned.skill.contract, planned.skill.handler
        remaining = min(contract.deadline, max(planned.deadline - self._clock(), 0.001))
        context = Context(planned.invocation, planned.call.session.episode, self._clock() + remaining, worktree)
        outcome: Outcome
        try:
            if handler is None:
                raise TypeError(f"{contract.id} has effects and no handler")
            async with asyncio.timeout(remaining):
                outcome = await handler(effect, context)
            if isinstance(outcome, Done):
                records.compose_output(outcome.output, planned.plan_object.ref, [_WORST_CASE])
        except TimeoutError:
            outcome = Failed(f"the handler did not end within {remaining:.1f} s", retryable=True)
        except (records.OutputTooLarge, canonical.NotCanonical) as error:
            outcome = Failed(str(error))
        except Exception:
            log.exception("the handler of %s failed, call %s", contract.id, planned.invocation)
            outcome = Failed("the handler failed")
        if isinstance(outcome, Failed):
            log.warning("call %s of %s failed: %s", planned.invocation, contract.id, outcome.reason)
            return self._ran(effect, reserved, "failed", outcome.reason, retryable=outcome.retryable)
        result = Object(records.RESULT, canonical.encode(dict(outcome.output)))
        record = _record(effect, reserved, result_ref=result.ref)
        return _Ran("ok", "succeeded", record, outcome.output, (result, record))

    def _ran(
        self, effect: PlannedEffect, reserved: Reserved, status: EffectStatus, reason: str, *, retryable: bool = False
    ) -> _Ran:
        record = _record(effect, reserved)
        return _Ran(status, status, record, objects=(record,), reason=reason, retryable=retryable)

    def _denied(self, planned: _Planned, effect: PlannedEffect, denied: Denied) -> _Ran:
        decision = denied.decision
        payload = canonical.encode(dict(effect.payload))
        request = records.effect_request(effect.effect, effect.scope, effect.cost, int(self._clock()), payload)
        record = EffectRecord(
            effect.effect, effect.scope, effect.cost, decision.budget_before, decision.budget_before,
            allowed=False, failed=False, denial=decision.label, request_ref=request.ref, result_ref="",
        ).as_object()  # fmt: skip
        reason = f"{decision.label}: {effect.effect} in {effect.scope}, {decision.budget_before} left of the budget"
        return _Ran("denied", decision.label, record, objects=(record,), reason=reason)

    # commit

    async def _commit(self, planned: _Planned, ran: _Ran | None, epoch: int | None) -> Receipt:
        """Write the outcome. From here the effect has happened, so nothing about the caller stops it."""
        state, outcome = _state(planned.plan, ran)
        try:
            output = self._output(planned, ran)
        except (PlanLawError, ValueError, TypeError, KeyError) as error:
            log.exception("the finish phase of %s failed, call %s", planned.skill.id, planned.invocation)
            if ran is None:
                raise InternalError from None
            state, outcome = "failed", "failed"
            ran = replace(ran, reason=f"the effect ended {ran.status}, and the finish phase failed: {error}")
            effect = planned.plan.effects[0]
            output = records.compose_output({}, planned.plan_object.ref, [(effect.id, ran.status, ran.record.ref)])
        transition = self._transitions.get(planned.skill.id) or transition_of(planned.skill.contract)
        record = records.invocation_record(
            invocation=planned.invocation,
            episode=planned.call.session.episode,
            skill=planned.skill.id,
            transition_fn=transition.ref,
            interpreter=self._interpreter.ref,
            input_ref=planned.input.ref,
            output_ref=output.ref,
            plan_ref=planned.plan_object.ref,
            effects=[ran.record.ref] if ran else [],
        )
        closing = Closing(
            call=planned.call,
            epoch=epoch,
            now=self._clock(),
            state=state,
            outcome=outcome,
            output=output,
            record=record,
            objects=(planned.input, planned.plan_object, transition, self._interpreter, *(ran.objects if ran else ())),
            transition_fn=transition.ref,
            interpreter=self._interpreter.ref,
            metadata={
                "tier": planned.skill.tier,
                "mode": planned.skill.contract.output_mode,
                **({"reason": ran.reason} if ran and ran.reason else {}),
                **({"retryable": True} if ran and ran.retryable else {}),
            },
        )
        try:
            return await self.ledger.commit(closing)
        except Fenced:
            log.error("call %s was taken over by another worker while it ran here", planned.invocation)
            found = await self.ledger.receipt(planned.call.task_id)
            if found is None:
                raise InternalError from None
            return found

    def _output(self, planned: _Planned, ran: _Ran | None) -> Object:
        plan = planned.plan
        if ran is None:
            return records.compose_output(plan.result or {}, planned.plan_object.ref, ())
        effect = plan.effects[0]
        effects = [(effect.id, ran.status, ran.record.ref)]
        body: Mapping[str, Any] = ran.output or {}
        if plan.finish and planned.skill.finish is not None:
            result = EffectResult(effect.id, effect.effect, ran.status, ran.record.ref, ran.output)
            body = planned.skill.finish(planned.arguments, result)
            admit_finish(dict(body))
        return records.compose_output(body, planned.plan_object.ref, effects)

    def _keep_leases(self) -> None:
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.create_task(self._renew_leases(), name="leases")

    async def _renew_leases(self) -> None:
        while self._running:
            await asyncio.sleep(self._lease / 3)
            if self._running:
                try:
                    await self.ledger.renew(self._owner, self._clock() + self._lease)
                except Exception:
                    log.exception("the leases could not be renewed")


def _record(effect: PlannedEffect, reserved: Reserved, *, result_ref: str = "") -> Object:
    return EffectRecord(
        effect.effect, effect.scope, effect.cost, reserved.budget_before, reserved.budget_before - effect.cost,
        allowed=True, failed=not result_ref, denial="", request_ref=reserved.request_ref, result_ref=result_ref,
    ).as_object()  # fmt: skip


def _indeterminate(reserved: Reserved) -> str:
    return (
        "indeterminate: the worker that ran the effect ended before it wrote the outcome, so the effect may or may not "
        f"have happened; it is not safe to repeat and was not run again. Its request is {reserved.request_ref}"
    )


def _state(plan: Plan, ran: _Ran | None) -> tuple[str, str]:
    if ran is None:
        return ("rejected", "refused") if plan.refused else ("completed", "succeeded")
    return {"ok": "completed", "denied": "rejected"}.get(ran.status, "failed"), ran.label


def _sorted(value: Any) -> Any:
    """The arguments as a plan sees them: keys in byte order, as they are stored, whatever order they came in."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    return value
