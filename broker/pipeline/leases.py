"""The leases on the calls that run in this process: renewed while they run, and told when one was lost."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from ..ledger.ledger import Ledger
from ..ledger.watch import LedgerUnavailable, Watch
from .runs import Run

EVENTS_KEPT = 24 * 3600.0
"""Seconds that the events of tasks are kept."""

STEP = 1.0
"""Seconds by which the wall clock has to move against the time that passes, to have been set."""

_FORGET_EVERY = 3600.0

log = logging.getLogger(__name__)


class Steps:
    """Sees that the wall clock was set, on which leases are, and says so to `watch`.

    Nobody takes a call over then for as long as after the ledger was away: its worker, if it lives, renews its lease
    meanwhile. Every worker sees that for itself, whenever it looks before it takes something over.
    """

    def __init__(self, clock: Callable[[], float], watch: Watch) -> None:
        self._clock = clock
        self._watch = watch
        self._drift = clock() - time.monotonic()

    def look(self) -> None:
        """Compare the wall clock with the time that has passed since the last look."""
        drift = self._clock() - time.monotonic()
        step, self._drift = drift - self._drift, drift
        if abs(step) > STEP:
            log.warning(
                "the clock was set by %+.0f s: no call is taken over before its worker can renew its lease", step
            )
            self._watch.late()


class Leases:
    """Renews the leases of `running` each third of `lease` seconds, and then looks for what may end a call early.

    A ledger that was away is asked again the moment it is back: nobody takes over a call before its worker could do
    that. A call whose lease has another owner, or that has been ended elsewhere, is given up here.
    """

    def __init__(
        self,
        ledger: Ledger,
        running: Mapping[str, Run],
        *,
        owner: str,
        lease: float,
        clock: Callable[[], float],
        look: Callable[[], Awaitable[None]],
    ) -> None:
        self._ledger = ledger
        self._running = running
        self._owner = owner
        self._lease = lease
        self._clock = clock
        self._look = look
        self._task: asyncio.Task[None] | None = None
        self._forgotten = 0.0

    def keep(self) -> None:
        """Renew from now on, as long as anything runs."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._renew_all(), name="leases")

    async def close(self) -> None:
        """Renew none any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _renew_all(self) -> None:
        pause = self._lease / 3
        while self._running:
            await asyncio.sleep(pause)
            pause = self._lease / 3
            try:
                if self._running:
                    await self._renew()
                    await self._look()
                    await self._forget()
            except LedgerUnavailable:
                await self._ledger.watch.back()
                pause = 0.0
            except Exception:
                log.exception("the leases could not be renewed")

    async def _renew(self) -> None:
        mine = {name: run for name, run in self._running.items() if run.reserved}
        held = await self._ledger.renew(self._owner, list(self._running), self._clock() + self._lease)
        for name in mine.keys() - held:
            mine[name].lose()

    async def _forget(self) -> None:
        now = self._clock()
        if now - self._forgotten > _FORGET_EVERY:
            self._forgotten = now
            await self._ledger.tasks.forget(now - EVENTS_KEPT)
