"""What a call may have to wait for: its worktree, leave to run, another worker, the ledger."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from bus import DeadlineExceeded, SandboxUnavailable, Unavailable
from skills import Directory, PlannedEffect

from ..grants.facts import Facts
from ..ledger.ledger import Ledger
from ..ledger.operations import Busy, Claim, Closing, Denied, Receipt, Reserved
from ..ledger.records import Object
from ..ledger.watch import LedgerUnavailable
from ..worktrees.worktrees import WorktreeError, Worktrees
from . import outcomes
from .leases import Steps
from .planned import LONG, Planned
from .runs import Run

SETTLE = 3.0
"""Seconds that nobody takes a call over after the ledger was away, or a lease if that is longer."""

_BUSY_POLL = 0.1
_RARELY = 2.0
_RECOVERY_WAIT = 1.0


class Waits:
    """Waits for the calls of one worker, `owner` of their leases of `lease` seconds."""

    def __init__(
        self,
        ledger: Ledger,
        worktrees: Worktrees,
        *,
        owner: str,
        lease: float,
        clock: Callable[[], float] = time.time,
        steps: Steps,
    ) -> None:
        self._ledger = ledger
        self._worktrees = worktrees
        self._owner = owner
        self._lease = lease
        self._clock = clock
        self._steps = steps

    async def elsewhere(self, run: Run) -> Receipt:
        """What comes of a call in the worker that has it now."""
        pause = _BUSY_POLL
        while True:
            with suppress(LedgerUnavailable):
                task = await self._ledger.tasks.get(run.task_id, run.episode)
                if task is not None and task.receipt is not None:
                    return replace(task.receipt, replayed=True)
                if task is None or task.lease_until is None or task.lease_until < self._clock():
                    raise Unavailable("another worker has taken this call over", metadata={"retryAfterMs": "5000"})
            await self._ledger.watch.back()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _RARELY)

    @asynccontextmanager
    async def place(self, planned: Planned, run: Run) -> AsyncIterator[Directory | None]:
        """Where the effect runs: the episode's worktree, held, for a skill that needs it.

        It is waited for until the deadline, and at most as long as a request may wait without being acknowledged.
        """
        if not planned.needs_worktree:
            yield None
            return
        left = max(planned.deadline - self._clock(), 0.001)
        most = _RECOVERY_WAIT if planned.recovering and not run.joined else LONG
        async with asyncio.timeout(min(left, most)) as waiting:
            try:
                async with self._worktrees.hold(planned.call.session.episode) as worktree:
                    waiting.reschedule(None)
                    yield worktree
            except WorktreeError as error:
                raise SandboxUnavailable(str(error)) from None
            except asyncio.CancelledError:
                if not waiting.expired():
                    raise
                if left <= most:
                    raise DeadlineExceeded("the deadline passed before the worktree was free") from None
                raise Unavailable(
                    f"the worktree was not free within {most:g} s", metadata={"retryAfterMs": "60000"}
                ) from None

    async def leave(
        self,
        planned: Planned,
        effect: PlannedEffect,
        run: Run,
        *,
        locked: bool,
        facts: Facts | None,
        transition: Object,
        refusal: str | None,
    ) -> Reserved | Denied | Receipt:
        """Leave to run the effect, why not, or what came of the call already.

        Raises DeadlineExceeded, Unauthenticated, IdempotencyConflict, and Unavailable when the deadline passes while
        the ledger is away, or when a call that is to be recovered is another worker's.
        """
        pause = _BUSY_POLL
        while True:
            self._steps.look()
            now = self._clock()
            if now >= planned.deadline:
                raise DeadlineExceeded
            claim = Claim(
                call=planned.call,
                effect=planned.declared(effect),
                request=outcomes.request_of(effect, now),
                plan=planned.plan_object,
                transition=transition,
                objects=(planned.input,),
                owner=self._owner,
                now=now,
                lease_until=now + self._lease,
                abandoned=locked,
                recovering=planned.recovering,
                steady=max(self._lease, SETTLE),
                facts=facts,
                refusal=refusal,
            )
            async with self._ledger.watch.limit(planned.deadline - now):
                try:
                    reservation = await self._ledger.reserve(claim)
                except LedgerUnavailable:
                    await self._ledger.watch.back()
                    continue
            if not isinstance(reservation, Busy):
                return reservation
            if planned.recovering and not run.joined:
                raise Unavailable("another worker ends this call", metadata={"retryAfterMs": "1000"})
            await asyncio.sleep(min(pause, max(reservation.until - now, _BUSY_POLL)))
            pause = min(1.5 * pause, _RARELY)

    async def commit(self, closing: Closing, deadline: float) -> Receipt:
        """Commit. While the ledger is away this waits: for good, if there is an effect that has happened."""
        while closing.epoch is None:
            async with self._ledger.watch.limit(deadline - self._clock()):
                try:
                    return await self._ledger.commit(closing)
                except LedgerUnavailable:
                    await self._ledger.watch.back()
        return await self._ledger.commit(closing)
