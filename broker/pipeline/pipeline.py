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
from skills import Catalog, PlannedEffect, Skill, canonical

from ..grants.facts import Facts
from ..grants.grant import decide, oversees, sees
from ..grants.policy import UNRESTRICTED, HostPolicy
from ..ledger import records
from ..ledger.ledger import Ledger
from ..ledger.operations import Begun, Closing, Denied, Fenced, Receipt
from ..ledger.records import Object, transition_of
from ..ledger.tasks import Named, Task
from ..sessions import Session
from ..worktrees.worktrees import Worktrees
from . import outcomes
from .answering import Answering
from .execution import Execution
from .leases import EVENTS_KEPT, Leases, Steps
from .outcomes import Ran
from .planned import DEFAULT_DEADLINE, LONG, Asked, Planned, is_long, plan_call, task_id
from .recovery import Recovery
from .runs import Canceled, Run, Wakes
from .waits import Waits

__all__ = ["DEFAULT_DEADLINE", "EVENTS_KEPT", "LONG", "Asked", "Pipeline", "task_id"]

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
        self.ledger = ledger
        self.wakes = Wakes()
        self.clock = clock
        self.steps = Steps(clock, ledger.watch)
        self._waits = Waits(ledger, worktrees, owner=owner, lease=lease, clock=clock, steps=self.steps)
        self._recovery = Recovery(catalog, ledger, policy, lease=lease, clock=clock)
        self._execution = Execution(ledger, policy, agent=agent, clock=clock, wake=self.wakes.wake)
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

        Raises SkillNotFound, InvalidParams, IdempotencyConflict, InternalError, also for a call that the ledger has
        (see `resume`); the run raises what `call` does.
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

        Does nothing while its worker lives. Where this worker can't run a call again that may be, others come first for
        a while. Another worker may be first; then the run ends with Unavailable.
        """
        now = self.clock()
        dead = task.receipt is None and task.lease_until is not None and task.lease_until <= now
        if not dead or task.id in self._running:
            return None
        planned = await self._recovery.plan(task)
        if planned is None or task.id in self._running or self._recovery.leaves(task, planned):
            return None
        log.warning("task %s: its worker is gone; ending it here", task.id)
        try:
            return self._start(planned)
        except BusError as error:
            log.error("task %s can't be ended here: %s", task.id, error)
            return None

    async def resume(self, asked: Asked) -> Run | None:
        """The run that tells what comes of a call which the ledger has, though its skill can't be called so any more.

        None if there is none that the session may look at, or one of another skill or with other arguments.
        """
        episode = asked.session.episode
        task = await self.ledger.tasks.get(task_id(episode, asked.message_id), episode)
        if task is None or not self.shows(asked.session, task) or task.fingerprint != asked.fingerprint:
            return None
        if task.receipt is not None:
            run = Run(task.id, task.session, episode, task.context_id, task.fingerprint, task.root_task)
            run.start(asyncio.create_task(_known(task.receipt)))
            return run
        planned = None if task.id in self._running else await self._recovery.plan(task)
        if planned is not None and not planned.may_run:  # it waits for whoever runs it
            planned = replace(planned, deadline=max(planned.deadline, asked.deadline))
        found = self._running.get(task.id) or (self._start(planned) if planned is not None else None)
        if found is not None:
            found.joined = True  # somebody waits, as long as it takes
        return found

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
            return await self._answer(planned, run)
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
            reservation = await self._waits.leave(
                planned, effect, run, locked=locked, facts=facts, refusal=refusal, transition=self._transition(planned)
            )
            if isinstance(reservation, Receipt):
                return reservation
            if isinstance(reservation, Denied):
                return await self._commit(planned, outcomes.denied(effect, reservation.decision, self.clock()), None)
            run.reserved = True
            run.opened.set()
            self.wakes.wake(run.task_id)
            if reservation.recovered:
                planned = await self._recovery.as_begun(planned)
                effect = planned.plan.effects[0]
                ran = await self._execution.again(planned, effect, reservation, worktree, run)
            else:
                ran = await self._execution.run(planned, effect, reservation, worktree, run)
            return await self._commit(planned, ran, reservation.epoch)

    async def _answer(self, planned: Planned, run: Run) -> Receipt:
        """End a call that asks for no effect. One that was begun with an effect all the same ends as that says."""
        contract = planned.skill.contract
        try:
            if self._policy.refusal(contract) is not None:
                raise SkillNotFound(metadata={"skill": contract.id})
            if self.clock() >= planned.deadline:
                raise DeadlineExceeded
            return await self._commit(planned, None, None)
        except (SkillNotFound, Begun):
            begun = await self._recovery.as_begun(planned)
            if begun is planned:
                raise
            run.joined = True  # somebody waits, as long as it takes
            return await self._perform(begun, run)

    async def _not_begun(self, planned: Planned, effect: PlannedEffect) -> Ran:
        episode, now = planned.call.session.episode, self.clock()
        declared = planned.declared(effect)
        decision = decide(planned.call.session.grants, declared, int(now), await self.ledger.spent(episode))
        return outcomes.not_begun(effect, decision.budget_before, now, "canceled before its effect began")

    def _transition(self, planned: Planned) -> Object:
        """The contract that a call runs by, or was begun with if it ends as it was recorded."""
        contract = planned.skill.contract
        return planned.begun_by or self._transitions.get(contract.id) or transition_of(contract)

    # commit

    async def _commit(self, planned: Planned, ran: Ran | None, epoch: int | None) -> Receipt:
        """Write the outcome. From here the effect has happened, so nothing about the caller stops it."""
        end = planned.end(ran)
        state, outcome, output, ran = end.state, end.outcome, end.output, end.ran
        transition = self._transition(planned)
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


async def _known(receipt: Receipt) -> Receipt:
    return receipt
