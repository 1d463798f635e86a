"""Canceling a task, wherever it runs: a tombstone in the ledger, and a word to the workers that they may look."""

import asyncio
from collections.abc import Awaitable, Callable

from bus import TaskNotCancelable, TaskNotFound

from ..ledger.ledger import Ledger
from ..ledger.tasks import Task
from ..pipeline.outcomes import CANCELED
from ..pipeline.pipeline import Pipeline
from .streams import Streams

UNSEEN = 1.0
"""Seconds that another worker has to end a task that is not in the ledger yet."""

Tell = Callable[[str], Awaitable[bool]]
"""Tells the other workers of a task with a tombstone; False when nobody could be told."""


class Cancels:
    """Cancels tasks. The tombstone is what counts: whoever runs a task finds it, at the latest with its next lease."""

    def __init__(self, pipeline: Pipeline, ledger: Ledger, streams: Streams, tell: Tell) -> None:
        self._pipeline = pipeline
        self._tasks = ledger.tasks
        self._streams = streams
        self._tell = tell

    async def cancel(self, task_id: str, episode: str) -> Task:
        """The canceled task, once its handler has ended, and those of the tasks that were begun for it.

        A task that is canceled already is answered the same. Raises TaskNotFound, and TaskNotCancelable for a task
        that has ended otherwise, or that comes to its end before it can be stopped.
        """
        task = await self._tasks.get(task_id, episode) or await self._cancel_unseen(task_id, episode)
        if task.receipt is None:
            buried = await self._tasks.bury(task_id, episode, self._pipeline.clock())
            await self._spread(task_id)
            await asyncio.gather(*(self._streams.ended(each) for each in buried))
            task = await self._streams.ended(task_id)
        if task.state != CANCELED:
            raise TaskNotCancelable(f"the task has ended: {task.state}")
        return task

    async def _spread(self, task_id: str) -> bool:
        await self._pipeline.look_for_cancels()
        return await self._tell(task_id)

    async def _cancel_unseen(self, task_id: str, episode: str) -> Task:
        """Cancel a task that waits for its worktree, here or in another worker, and has left no trace so far."""
        here = self._pipeline.running(task_id, episode) is not None
        await self._tasks.bury(task_id, episode, self._pipeline.clock(), unseen=True)
        if not (await self._spread(task_id) or here):
            await self._tasks.unbury(task_id, episode)
            raise TaskNotFound
        try:
            async with asyncio.timeout(None if here else UNSEEN):
                return await self._appeared(task_id, episode)
        except TimeoutError:
            await self._tasks.unbury(task_id, episode)
            raise TaskNotFound from None

    async def _appeared(self, task_id: str, episode: str) -> Task:
        while True:
            run = self._pipeline.running(task_id, episode)
            task = await self._tasks.get(task_id, episode)
            if task is not None:
                return task
            if run is not None and run.task.done():
                await run.receipt()
            await asyncio.sleep(UNSEEN / 20)
