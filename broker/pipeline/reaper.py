"""Ends the calls of workers that are gone, and answers those who were left waiting."""

import asyncio
import logging
import random

from ..ledger.tasks import Task
from ..ledger.watch import LedgerUnavailable
from .pipeline import Pipeline
from .runs import Run

MOST = 16
"""Calls that one reaper takes over at a time."""

_LOOKED_AT = 100

log = logging.getLogger(__name__)


class Reaper:
    """Looks, about once in `lease` seconds, for what a worker that is gone has left: one in every worker.

    A call is taken over when its lease has been over for another `lease`, so that its redelivery comes first where
    there is one. One that may be repeated runs again, any other becomes indeterminate. The waiters of a call that has
    ended are answered when nobody has done so for as long.
    """

    def __init__(self, pipeline: Pipeline, *, lease: float) -> None:
        self._pipeline = pipeline
        self._lease = lease
        self._taken: set[Run] = set()
        self._skip = 0
        """Calls that are left to others, or that the ledger has lost the input of: others may stand behind them."""

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            # By chance, so that the workers do not all come at the same moment.
            await asyncio.sleep(self._lease * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load, guards nothing
            try:
                await self.sweep()
            except LedgerUnavailable:
                await self._pipeline.ledger.watch.back()
            except Exception:
                log.exception("what other workers have left could not be looked for")

    async def sweep(self) -> None:
        """Look once. What is taken over goes on after this returns."""
        self._pipeline.steps.look()
        before = self._pipeline.clock() - self._lease
        ledger = self._pipeline.ledger
        self._taken = {run for run in self._taken if not run.task.done()}
        steady = ledger.watch.steady_for() >= self._lease
        found = await ledger.tasks.abandoned(before, _LOOKED_AT, self._skip) if steady else []
        for task in found:
            if len(self._taken) >= MOST:
                break
            run = await self._recover(task)
            if run is not None:
                self._taken.add(run)
            else:
                self._skip += 1
        if len(found) < _LOOKED_AT:
            self._skip = 0
        for task_id, episode in await ledger.waiters.unanswered(before, _LOOKED_AT):
            await self._pipeline.answering.begin(task_id, episode)

    async def _recover(self, task: Task) -> Run | None:
        try:
            return await self._pipeline.recover(task)
        except LedgerUnavailable:
            raise
        except Exception:  # a row that was changed by hand must not keep others from their end
            log.exception("task %s can't be ended", task.id)
            return None
