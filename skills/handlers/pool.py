"""The hosts of one tool: as many as calls may run at once, started when they are needed, kept warm, replaced."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..skill import Outcome
from .call import Call
from .host import Host, NotStarted
from .tool import Tool

FIRST_PAUSE = 0.25
LONGEST_PAUSE = 30.0

log = logging.getLogger(__name__)


class Pool:
    """Runs the calls of one tool in host processes, at most `concurrency` at once.

    A call that finds no host starts one. When hosts do not start, the next attempt waits, longer each time up to 30
    seconds, and calls meanwhile fail with the reason. A host that breaks is ended, and fails the one call that it had.
    """

    def __init__(self, tool: Tool, environ: Mapping[str, str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self.tool, self._environ, self._clock = tool, environ, clock
        self._places = asyncio.Semaphore(tool.concurrency)
        self._idle: list[Host] = []
        self._starting: list[asyncio.Task[Host]] = []  # for calls that are over; the next ones take them
        self._hosts: set[Host] = set()
        self._ending: set[asyncio.Future[None]] = set()
        self._pause, self._again, self._failure = 0.0, 0.0, NotStarted("", lasting=False)
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """The process ids of the hosts, which are those of their process groups."""
        return sorted(host.pid for host in self._hosts)

    async def run(self, call: Call) -> Outcome:
        """The outcome of one call."""
        async with self._places:
            try:
                host = await self._take()
            except NotStarted as error:
                failed = call.failed(f"its host can't be started: {error}", retryable=not error.lasting)
                log.error("%s: %s", self.tool.id, failed.reason)
                return failed
            try:
                return await host.run(call)
            finally:
                await self._give_back(host)

    async def warm(self) -> None:
        """Start as many hosts as calls may run at once. Raises NotStarted."""
        lacking = self.tool.concurrency - len(self._hosts)
        for host in await asyncio.gather(*(self._start() for _ in range(lacking))):
            await self._give_back(host)

    async def close(self) -> None:
        """End every host; calls that still run fail. Returns when all processes are gone."""
        self._closed = True
        for starting in self._starting:
            starting.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        for host in list(self._hosts):
            self._end(host)
        for _ in range(self.tool.concurrency):  # what is about to start a host finds the pool closed
            await self._places.acquire()
        while self._ending:
            await asyncio.gather(*self._ending, return_exceptions=True)
        for _ in range(self.tool.concurrency):
            self._places.release()

    async def _take(self) -> Host:
        while self._idle:
            host = self._idle.pop()
            if host.usable:
                return host
            await self._give_back(host)
        starting = self._starting.pop() if self._starting else asyncio.create_task(self._start())
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # A handler that takes longer to load than its calls may take would never be loaded otherwise.
            self._starting.append(starting)
            starting.add_done_callback(_seen)
            raise

    async def _start(self) -> Host:
        if self._closed:
            raise NotStarted("the worker is ending", lasting=False)
        if self._clock() < self._again:
            raise NotStarted(str(self._failure), lasting=self._failure.lasting)
        try:
            host = await Host.start(self.tool, self._environ)
        except NotStarted as error:
            self._pause = min(2 * self._pause, LONGEST_PAUSE) or FIRST_PAUSE
            self._again, self._failure = self._clock() + self._pause, error
            raise
        self._pause = 0.0
        self._hosts.add(host)
        log.debug("%s: host %d is ready", self.tool.id, host.pid)
        if self._is_closed():
            await self._give_back(host)
            raise NotStarted("the worker is ending", lasting=False)
        return host

    def _is_closed(self) -> bool:
        return self._closed

    async def _give_back(self, host: Host) -> None:
        """Keep a host for the next call, or end it: before its caller learns of it, nothing of it works on."""
        if host.usable and not self._closed:
            self._idle.append(host)
        elif (ending := self._end(host)) is not None:
            await asyncio.shield(ending)

    def _end(self, host: Host) -> "asyncio.Future[None] | None":
        if host not in self._hosts:
            return None
        self._hosts.discard(host)
        ending = asyncio.ensure_future(host.end(self.tool.grace if host.usable else 0.0))
        self._ending.add(ending)
        ending.add_done_callback(self._ended)
        return ending

    def _ended(self, ending: "asyncio.Future[Any]") -> None:
        self._ending.discard(ending)
        if not ending.cancelled() and (error := ending.exception()) is not None:
            log.error("%s: a host did not end in order: %r", self.tool.id, error)


def _seen(starting: "asyncio.Task[Host]") -> None:
    """Nobody may ask any more how it went."""
    if not starting.cancelled():
        starting.exception()
