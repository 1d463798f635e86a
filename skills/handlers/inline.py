"""A Python handler inside the worker's own process."""

import asyncio
import logging
from typing import Any

from ..skill import Outcome
from .call import Call
from .command import source_of
from .guest import wire
from .guest.function import Function, HandlerFailed, Unloadable
from .tool import Tool

log = logging.getLogger(__name__)


class Inline:
    """Runs the calls of one tool here, at most `concurrency` at once; the handler is imported with the first.

    An async handler runs in the worker's loop, any other in a thread. Neither can be made to end: one that goes on
    after its call was canceled and the grace is over is given up, and its place stays taken for as long as it runs.
    """

    def __init__(self, tool: Tool) -> None:
        self._tool = tool
        self._places = asyncio.Semaphore(tool.concurrency)
        self._loading: asyncio.Task[Function] | None = None
        self._left: set[asyncio.Task[Any]] = set()

    async def run(self, call: Call) -> Outcome:
        """The outcome of one call."""
        await self._places.acquire()
        held, task = True, asyncio.current_task()
        before = 0 if task is None else task.cancelling()
        try:
            try:
                function = await self._function()
            except Unloadable as error:
                return call.failed(error)
            work = asyncio.create_task(self._work(function, call))
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                if work.cancelled() and (task is None or task.cancelling() == before):
                    return call.failed("the handler ended as if it were canceled")
                held = not await self._let_go(work, call)
                raise
        finally:
            if held:
                self._places.release()

    async def warm(self) -> None:
        """Import the handler. Raises Unloadable."""
        await self._function()

    async def close(self) -> None:
        """Cancel what was given up; threads end with the process."""
        for task in self._left:
            task.cancel()

    async def _work(self, function: Function, call: Call) -> Outcome:
        try:
            output = await function.run(call.input, call.values, call)
            return call.done(wire.decode(wire.encode(output)))  # a copy, with the numbers of any other way
        except HandlerFailed as failed:
            return call.failed(failed, where=failed.where, retryable=failed.retryable)

    async def _let_go(self, work: asyncio.Task[Any], call: Call) -> bool:
        """Cancel the work and wait for its end, for the grace; whether it was given up, with its place."""
        work.cancel()
        try:
            await asyncio.wait((work,), timeout=self._tool.grace)
        finally:
            if given_up := not work.done():
                log.error("%s, call %s: it goes on though it is canceled", self._tool.id, call.context.invocation_id)
                self._left.add(work)
                work.add_done_callback(self._came_back)
            elif not work.cancelled():
                work.exception()  # seen
        return given_up

    def _came_back(self, work: asyncio.Task[Any]) -> None:
        self._left.discard(work)
        self._places.release()

    async def _function(self) -> Function:
        if self._loading is None or (self._loading.done() and self._loading.exception() is not None):
            self._loading = asyncio.create_task(self._load())
        return await asyncio.shield(self._loading)

    async def _load(self) -> Function:
        tool = self._tool
        return await asyncio.to_thread(Function.load, str(tool.folder), source_of(tool), tool.function, tool.takes)
