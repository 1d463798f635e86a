"""The way of one call: admit, plan, reserve, execute, finish, commit."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace

from bus import (
    BusError,
    DeadlineExceeded,
    IdempotencyConflict,
    SkillNotFound,
)
from skills import Catalog, Context, Directory, Done, Failed, Outcome, PlannedEffect, Skill, canonical
from skills.redaction import redact_labelled

from . import outcomes, records
from .answering import Answering
from .events import Reports
from .facts import Facts
from .grants import decide, oversees, sees
from .leases import EVENTS_KEPT, Leases
from .ledger import Ledger
from .operations import Closing, Denied, Fenced, Receipt, Reserved
from .outcomes import Ran
from .planned import (
    DEFAULT_DEADLINE,
    LONG,
    Asked,
    Planned,
    is_long,
    plan_call,
    plan_recovery,
    task_id,
    traced,
    transition_of,
)
from .policy import UNRESTRICTED, HostPolicy
from .records import Object
from .runs import Canceled, Run, Wakes
from .sessions import Session
from .tasks import Named, Task
from .waits import Waits
from .worktrees import Worktrees

__all__ = ["DEFAULT_DEADLINE", "EVENTS_KEPT", "LONG", "Asked", "Pipeline", "task_id"]

_WORST_CASE = ("x" * 16, "indeterminate", "sha256:" + "0" * 64)

log = logging.getLogger(__name__)


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
        policy: HostPolicy = UNRESTRICTED,
        agent: str = "",
    ) -> None:
        self.catalog = catalog
        self._policy = policy
        self._agent = agent
        self.ledger = ledger
        self.wakes = Wakes()
        self.clock = clock
        self._waits = Waits(ledger, worktrees, owner=owner, lease=lease, clock=clock)
        self._interpreter = Object("world/interpreter/v1", canonical.encode({"skillbus": version}))
        self._transitions = {skill.id: transition_of(skill.contract) for skill in catalog}
        self._running: dict[str, Run] = {}
        self.answering = Answering(ledger)
        self._leases = Leases(ledger, self._running, owner=owner, lease=lease, clock=clock, look=self.look_for_cancels)

    async def call(self, asked: Asked) -> Receipt:
        """Run a call, join it if it is running, or return what came of it.

        Raises SkillNotFound for a skill that is absent or that the session does not see, InvalidParams,
        IdempotencyConflict, DeadlineExceeded, Unauthenticated, SandboxUnavailable, Unavailable, InternalError.
        """
        return await self.begin(asked).receipt()

    def begin(self, asked: Asked) -> Run:
        """Begin a call, or find the run of it that is under way here.

        Raises SkillNotFound, InvalidParams, IdempotencyConflict, InternalError; the run raises what `call` does.
        """
        skill = self.admit(asked.session, asked.skill_id, asked.caller)
        planned = plan_call(asked, skill)
        alone = not self.oversees(asked.session, skill)
        return self._start(replace(planned, call=replace(planned.call, alone=True)) if alone else planned)

    def running(self, task_id: str, episode: str) -> Run | None:
        """The run of a task of this episode, if it runs here."""
        run = self._running.get(task_id)
        return run if run is not None and run.episode == episode else None

    @property
    def load(self) -> int:
        """How many calls run here now."""
        return len(self._running)

    async def recover(self, task: Task) -> Run | None:
        """Close an open call whose worker is gone: nobody else may ever ask for it again. The run that does it.

        Does nothing while its worker lives, or for a skill that is not here. Another worker may be first; then the run
        ends with Unavailable.
        """
        skill = self.catalog.get(task.skill)
        now = self.clock()
        dead = task.receipt is None and task.lease_until is not None and task.lease_until <= now
        if not dead or skill is None or task.input_ref is None or task.id in self._running:
            return None
        session = await self.ledger.session(task.session)
        kept = (await self.ledger.objects([task.input_ref])).get(task.input_ref)
        if session is None or kept is None or task.id in self._running:
            return None
        log.warning("task %s: its worker is gone; ending it here", task.id)
        try:
            return self._start(plan_recovery(task, skill, session, kept.payload, now))
        except BusError as error:
            log.error("task %s can't be ended here: %s", task.id, error)
            return None

    def is_long(self, skill_id: str) -> bool:
        """Whether calls of a skill may take longer than their requests may stay unacknowledged."""
        skill = self.catalog.get(skill_id)
        return skill is not None and is_long(skill.contract)

    async def look_for_cancels(self) -> None:
        """End the calls here whose task, or whose root task, has a tombstone in the ledger."""
        runs = {run.task_id: run for run in self._running.values() if not run.canceled}
        named = [Named(run.task_id, run.episode, run.root_task) for run in runs.values()]
        for name in await self.ledger.tasks.buried(named) if named else ():
            log.info("task %s is canceled", name)
            runs[name].cancel()

    def _start(self, planned: Planned) -> Run:
        call = planned.call
        run = self._running.get(call.task_id)
        if run is None:
            run = Run(
                call.task_id,
                call.session.id,
                call.session.episode,
                call.context_id,
                call.fingerprint,
                call.root_task,
                long=is_long(planned.skill.contract),
            )
            self._running[call.task_id] = run
            run.start(asyncio.create_task(self._settle(planned, run), name=call.task_id))
            run.task.add_done_callback(self._ended)
            self._leases.keep()
        elif not planned.recovering:
            if call.alone and run.session != call.session.id:
                raise IdempotencyConflict
            run.joined = True
        if run.fingerprint != call.fingerprint:
            raise IdempotencyConflict
        return run

    def _ended(self, task: asyncio.Task[Receipt]) -> None:
        run = self._running.pop(task.get_name())
        self.wakes.wake(run.task_id)
        # whoever asked may be gone; what went wrong is in the log and the ledger
        if not task.cancelled() and task.exception() is None and run.long and not task.result().replayed:
            self.answering.begin(run.task_id, run.episode)

    def admit(self, session: Session, skill_id: str, caller: str | None = None) -> Skill:
        """The skill, if it exists and the session sees it. Raises SkillNotFound, the same for both.

        What the host's policy denies is not there either, unless it has effects: then the log keeps the denial.
        """
        skill = self.catalog.get(skill_id)
        if (
            skill is None
            or not self._sees(session, skill, caller)
            or (not skill.contract.effects and self._policy.hides(skill.contract))
        ):
            raise SkillNotFound(metadata={"skill": skill_id[:128]})
        return skill

    def shows(self, session: Session, task: Task) -> bool:
        """Whether a session may look at a task of its episode: one of its own, or of a skill that it oversees."""
        skill = self.catalog.get(task.skill)
        return task.session == session.id or (skill is not None and self.oversees(session, skill))

    def overseen(self, session: Session) -> list[Skill]:
        """The offered skills of which a session may look at all tasks of its episode."""
        return [skill for skill in self.offered if self.oversees(session, skill)]

    @property
    def offered(self) -> list[Skill]:
        """The skills of which the host's policy lets anything run, in the order of their ids."""
        return [skill for skill in self.catalog if not self._policy.hides(skill.contract)]

    def visible(self, session: Session, caller: str | None = None) -> list[Skill]:
        """The offered skills that a session sees."""
        return [skill for skill in self.offered if self._sees(session, skill, caller)]

    def _sees(self, session: Session, skill: Skill, caller: str | None = None) -> bool:
        contract = skill.contract
        return sees(session.grants, contract.access, int(self.clock()), Facts.of(contract, subject=caller))

    def oversees(self, session: Session, skill: Skill) -> bool:
        """Whether a session may look at all calls of a skill in its episode, whoever has made them."""
        contract = skill.contract
        return oversees(session.grants, contract.access, int(self.clock()), Facts.of(contract))

    async def close(self, grace: float = 0.0) -> None:
        """Wait for what is running for `grace` seconds, then let go of it: its outcome will be found indeterminate."""
        runs = list(self._running.values())
        if runs:
            await asyncio.wait([run.task for run in runs], timeout=grace)
            for run in runs:
                if not run.task.done():
                    run.abandon()
            await asyncio.gather(*(run.task for run in runs), return_exceptions=True)
        await self.answering.close()
        await self._leases.close()

    # reserve, execute, finish

    async def _settle(self, planned: Planned, run: Run) -> Receipt:
        try:
            return await self._perform(planned, run)
        except Fenced:
            log.error("call %s was taken over by another worker while it ran here", planned.invocation)
            return await self._waits.elsewhere(run)

    async def _perform(self, planned: Planned, run: Run) -> Receipt:
        contract = planned.skill.contract
        if not planned.plan.effects:
            if self._policy.refusal(contract) is not None:
                raise SkillNotFound(metadata={"skill": contract.id})
            if self.clock() >= planned.deadline:
                raise DeadlineExceeded
            return await self._commit(planned, None, None)
        effect = planned.plan.effects[0]
        async with AsyncExitStack() as stack:
            try:
                with run.interruptible():
                    worktree = await stack.enter_async_context(self._waits.place(planned, run))
            except Canceled:
                task = await self.ledger.tasks.get(run.task_id, run.episode)
                if task is None:
                    return await self._commit(planned, await self._not_begun(planned, effect), None)
                # It runs in another worker, which is told as well; this one waits for what comes of it.
                worktree = await stack.enter_async_context(self._waits.place(planned, run))
            narrowed = any(grant.constraints for grant in planned.call.session.grants)
            facts = Facts.of(contract, effect, subject=planned.caller, worktree=worktree) if narrowed else None
            refusal = self._policy.refusal(contract, effect.effect)
            locked = worktree is not None
            reservation = await self._waits.leave(planned, effect, run, locked=locked, facts=facts, refusal=refusal)
            if isinstance(reservation, Receipt):
                return reservation
            if isinstance(reservation, Denied):
                return await self._commit(planned, outcomes.denied(effect, reservation.decision, self.clock()), None)
            run.reserved = True
            run.opened.set()
            self.wakes.wake(run.task_id)
            if reservation.recovered:
                ran = await self._recovered(planned, effect, reservation, worktree, run)
            else:
                ran = await self._execute(planned, effect, reservation, worktree, run)
            return await self._commit(planned, ran, reservation.epoch)

    async def _not_begun(self, planned: Planned, effect: PlannedEffect) -> Ran:
        episode, now = planned.call.session.episode, self.clock()
        declared = planned.declared(effect)
        decision = decide(planned.call.session.grants, declared, int(now), await self.ledger.spent(episode))
        return outcomes.not_begun(effect, decision.budget_before, now, "canceled before its effect began")

    async def _recovered(
        self, planned: Planned, effect: PlannedEffect, reserved: Reserved, worktree: Directory | None, run: Run
    ) -> Ran:
        """Go on with a call that an earlier worker has begun and not ended."""
        log.warning("call %s of %s: taken over from a worker that is gone", planned.invocation, planned.skill.id)
        if not planned.skill.contract.repeatable:
            return outcomes.indeterminate(effect, reserved)
        if run.canceled or await self.ledger.tasks.buried([Named(run.task_id, run.episode, run.root_task)]):
            return outcomes.interrupted(effect, reserved)
        if not planned.may_run or self._policy.refusal(planned.skill.contract, effect.effect) is not None:
            return outcomes.indeterminate(effect, reserved)
        return await self._execute(planned, effect, reserved, worktree, run)

    async def _execute(
        self, planned: Planned, effect: PlannedEffect, reserved: Reserved, worktree: Directory | None, run: Run
    ) -> Ran:
        contract, handler, now = planned.skill.contract, planned.skill.handler, self.clock()
        if now >= planned.deadline and not reserved.recovered:
            reason = "the deadline passed before its effect began"
            return outcomes.not_begun(effect, reserved.budget_before, now, reason, refund=True)
        remaining = min(contract.deadline, max(planned.deadline - now, 0.001))
        reports = Reports(self.ledger, planned.call, reserved.epoch, self.clock, self.wakes.wake)
        limit: asyncio.Timeout | None = None
        context = Context(
            planned.invocation,
            planned.call.session.episode,
            now + remaining,
            worktree,
            reports,
            planned.call.task_id,
            planned.onward,
            session=planned.call.session.id,
            agent=self._agent,
        )
        outcome: Outcome
        told, begun = "the handler failed", reserved.recovered
        try:
            if handler is None:
                raise TypeError(f"{contract.id} has effects and no handler")
            with run.interruptible():
                begun = True
                async with asyncio.timeout(remaining) as limit:
                    outcome = await handler(effect, context)
            if isinstance(outcome, Done):
                records.compose_output(outcome.output, planned.plan_object.ref, [_WORST_CASE])
            elif not isinstance(outcome, Failed):
                raise TypeError("a handler returns Done or Failed")
        except Canceled:
            if run.lost:
                raise Fenced(run.task_id) from None
            if begun:
                return outcomes.interrupted(effect, reserved, context.accesses)
            reason = "canceled before its effect began"
            return outcomes.not_begun(effect, reserved.budget_before, now, reason, refund=True)
        except (records.OutputTooLarge, canonical.NotCanonical) as error:
            told = str(error)
            outcome = Failed(told)
        except BaseException as error:
            if run.task.cancelling() or isinstance(error, KeyboardInterrupt):
                raise
            if limit is not None and limit.expired():
                told = f"the handler did not end within {remaining:.1f} s"
                outcome = Failed(told, retryable=True)
            else:
                outcome = Failed(traced(error))
        finally:
            await reports.close()
        if isinstance(outcome, Failed):
            log.warning("call %s of %s failed: %s", planned.invocation, contract.id, redact_labelled(outcome.reason))
            return outcomes.failed(effect, reserved, told, context.accesses, retryable=outcome.retryable is True)
        return outcomes.done(effect, reserved, outcome.output, context.accesses)

    # commit

    async def _commit(self, planned: Planned, ran: Ran | None, epoch: int | None) -> Receipt:
        """Write the outcome. From here the effect has happened, so nothing about the caller stops it."""
        end = planned.end(ran)
        state, outcome, output, ran = end.state, end.outcome, end.output, end.ran
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
            ended=(state, outcome),
        )
        closing = Closing(
            call=planned.call,
            epoch=epoch,
            now=self.clock(),
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
            refund=ran is not None and ran.refund,
        )
        receipt = await self._waits.commit(closing, planned.deadline)
        level = logging.DEBUG if state == "completed" else logging.INFO
        ended = (planned.invocation, planned.skill.id, receipt.state, receipt.outcome, receipt.entry_index)
        log.log(level, "call %s of %s: %s, %s, entry %d", *ended)
        return receipt
