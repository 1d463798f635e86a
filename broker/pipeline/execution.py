"""Running the effect of one call: its handler, under its deadline, and what became of it."""

import asyncio
import logging
from collections.abc import Callable

from skills import Context, Directory, Done, Failed, Outcome, PlannedEffect, canonical
from skills.redaction import redact_labelled

from ..grants.policy import HostPolicy
from ..ledger import records
from ..ledger.ledger import Ledger
from ..ledger.operations import Fenced, Reserved
from ..ledger.tasks import Named
from . import outcomes
from .events import Reports
from .outcomes import Ran
from .planned import Planned, traced
from .runs import Canceled, Run

_WORST_CASE = ("x" * 16, "indeterminate", "sha256:" + "0" * 64)

log = logging.getLogger(__name__)


class Execution:
    """Runs effects that leave was given for. `wake` is told of a task when there may be news of it."""

    def __init__(
        self,
        ledger: Ledger,
        policy: HostPolicy,
        *,
        agent: str,
        clock: Callable[[], float],
        wake: Callable[[str], None],
    ) -> None:
        self._ledger = ledger
        self._policy = policy
        self._agent = agent
        self._clock = clock
        self._wake = wake

    async def again(
        self, planned: Planned, effect: PlannedEffect, reserved: Reserved, worktree: Directory | None, run: Run
    ) -> Ran:
        """Go on with a call that an earlier worker has begun and not ended."""
        contract = planned.skill.contract
        log.warning("call %s of %s: taken over from a worker that is gone", planned.invocation, planned.skill.id)
        if not contract.repeatable:
            return outcomes.indeterminate(effect, reserved)
        if run.canceled or await self._ledger.tasks.buried([Named(run.task_id, run.episode, run.root_task)]):
            return outcomes.interrupted(effect, reserved)
        denied = self._policy.refusal(contract, effect.effect) is not None
        if not planned.may_run or denied:
            return outcomes.indeterminate(effect, reserved, "it may not run any more as it was begun")
        return await self.run(planned, effect, reserved, worktree, run)

    async def run(
        self, planned: Planned, effect: PlannedEffect, reserved: Reserved, worktree: Directory | None, run: Run
    ) -> Ran:
        """Run the handler. Raises Fenced when another worker has the call."""
        contract, handler, now = planned.skill.contract, planned.skill.handler, self._clock()
        if now >= planned.deadline and not reserved.recovered:
            reason = "the deadline passed before its effect began"
            return outcomes.not_begun(effect, reserved.budget_before, now, reason, refund=True)
        remaining = min(contract.deadline, max(planned.deadline - now, 0.001))
        reports = Reports(self._ledger, planned.call, reserved.epoch, self._clock, self._wake)
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
