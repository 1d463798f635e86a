"""The worker process: opens the house, serves its agent until a signal, and leaves in good order."""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import bus
from bus import topology
from bus.dead.reader import DeadLetterReader, read_dead_letters
from bus.discovery.vitals import Stats
from bus.driver import Connection
from bus.link import Link
from bus.target import driver_for

from .house import House
from .readiness import Readiness
from .settings import Settings

SIGNALS = (signal.SIGTERM, signal.SIGINT)
LAST_SECONDS = 2.0
"""What a worker that has to stop at once takes to let go of the ledger."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class Worker:
    """Serves one agent from one broker.

    The first signal stops it in order: no new calls, the grace of the settings for the running ones, their replies,
    then the ledger. The second stops it at once: what is running then is left to its redelivery.
    """

    def __init__(
        self, settings: Settings, target: bus.Target, *, declare: bool | None = None, ready_file: Path | None = None
    ) -> None:
        """`declare` makes what the worker needs on the broker, or only looks for it; None is what the settings say.

        `ready_file` is there while calls are taken; see `deploy.readiness`.
        """
        self._settings = settings
        self._ready_file = ready_file
        self._declare = settings.declare if declare is None else declare
        self._target = target
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._house: House | None = None
        self._server: bus.Server | None = None
        self._dead_letters: DeadLetterReader | None = None
        self._beside: list[asyncio.Task[None]] = []

    async def run(self, on_ready: Callable[[House], None]) -> bool:
        """Serve until a signal; whether everything ended in order. Raises what keeps it from starting.

        `on_ready` is called once calls are taken.
        """
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)
        try:
            house = await _unless(self._stop, self._start())
            if house is not None:
                on_ready(house)
                await self._stop.wait()
            in_order = await _unless(self._hurry, self._leave())
            if in_order is None:
                await self._drop()
            return bool(in_order)
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    def _signalled(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            log.warning("%s again: stopping at once", number.name)
            self._hurry.set()
            return
        grace = self._settings.grace_seconds
        log.info("%s: taking no more calls; %d running, at most %g s to end", number.name, self._running, grace)
        self._stop.set()

    async def _start(self) -> House:
        target = self._target
        house = await House.open(self._settings, broker=target if isinstance(target, str) else None)
        try:
            await self._stand()
            server = self._server = await house.serve(self._target, declare=self._declare)

            def state() -> bus.State:
                presence = house.agent.presence  # which learns of an alarm of the broker before the first answer does
                return presence.state if presence is not None else server.state

            readiness = Readiness(state, lambda: server.paused, file=self._ready_file)
            beside = (self._listen(house), self._notify(house), house.hold(server), house.reap(), readiness.run())
            self._beside = [asyncio.create_task(each) for each in beside]
            if self._settings.dead_letters:
                self._beside.append(asyncio.create_task(self._read_dead_letters()))
        except BaseException:
            await house.close()
            raise
        self._house = house
        return house

    async def _stand(self) -> None:
        """All that has to stand on the broker, before the first call is taken."""
        names, agent = bus.Names(self._settings.prefix), self._settings.agent
        parts = topology.whole(names, [agent]).parts

        async def look(connection: Connection) -> None:
            await topology.stand(connection, names, *parts, declare=self._declare, agent=agent)

        link = Link(driver_for(self._target), "skillbus topology", look, patience=bus.Patience())
        await link.start()
        await link.close()

    # Calls are served without what follows, so it neither keeps the worker from starting nor ends it.

    async def _listen(self, house: House) -> None:
        server = self._server

        def stats() -> Stats:
            if server is None:
                return Stats(state=bus.State.CLOSED)
            return Stats.of(server.stats(), state=server.state, slots=self._settings.slots, paused=server.paused)

        try:
            await house.listen(self._target, declare=self._declare, stats=stats)
        except bus.BusError as error:
            log.error("cancels reach this worker late: it can't listen (`skillbus doctor` says more): %s", error)

    async def _notify(self, house: House) -> None:
        try:
            await house.notify()
        except Exception:
            log.exception("this worker sends no push notifications")

    async def _read_dead_letters(self) -> None:
        forever = bus.Patience(connect=None)
        try:
            self._dead_letters = await read_dead_letters(
                self._target, prefix=self._settings.prefix, declare=self._declare, patience=forever
            )
        except bus.BusError as error:
            log.error("this worker does not read the dead letters: %s (`skillbus doctor` says more)", error)

    async def _leave(self) -> bool:
        loop = asyncio.get_running_loop()
        running = self._running
        until = loop.time() + self._settings.grace_seconds
        if self._server is not None:
            await self._server.stop(self._settings.grace_seconds)
        for task in self._beside:
            task.cancel()
        if self._beside:
            await asyncio.wait(self._beside)
        if self._dead_letters is not None:
            await self._dead_letters.stop()
        in_time = not running or loop.time() < until
        if not in_time:
            log.warning("the grace is over and not every call has ended: the rest is left to its redelivery")
        if self._house is not None:
            await self._house.close(max(until - loop.time(), 0.0))
        log.info("stopped")
        return in_time

    async def _drop(self) -> None:
        if self._house is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._house.close(), LAST_SECONDS)

    @property
    def _running(self) -> int:
        return self._server.stats().running if self._server is not None else 0


async def _unless(event: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """What `work` returns; None if the event came first, and it was cancelled."""
    task = asyncio.create_task(work)
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not task.done():
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return None
    return task.result()
