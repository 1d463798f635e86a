"""A look at whether anybody serves an agent, which never takes long."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from bus.errors import BusError
from bus.link import Link

LOOK = 1.0
"""Seconds that a look may take."""


class Lookout:
    """Looks over a link that nothing is published on, so that an alarm of the broker does not hold it up."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._tasks: set[asyncio.Task[Any]] = set()

    async def servers(self, queue: str) -> int | None:
        """How many servers take what comes to a queue now; None when that could not be seen within `LOOK`."""
        looking: asyncio.Task[int | None] = self.begin(self._count(queue))
        await asyncio.wait({looking}, timeout=LOOK)
        if not looking.done():
            looking.cancel()  # it may have to wait for the broker even so
            return None
        return None if looking.cancelled() else looking.result()

    def begin(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Do it beside all else, until `close`."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Give up what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _count(self, queue: str) -> int | None:
        try:
            return await (await self._link.ready()).consumers(queue) or 0
        except BusError:
            return None
