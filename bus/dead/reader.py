"""The reader of the dead-letter queue: nobody waits for an answer that will not come, and nothing disappears unseen."""

import asyncio
import logging
import time
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from bus import topology, wire
from bus.dead.letter import NOBODY, Letter
from bus.driver import Connection, Consumer, Driver, Incoming, Outgoing
from bus.errors import BusError, ConnectionLost, Rejected, Unroutable
from bus.link import Link, Patience, State
from bus.names import Names
from bus.target import APP_ID, Target, driver_for

_log = logging.getLogger(__name__)

PREFETCH = 32
GRACE = 2.0
"""Seconds that letters in hand get when a reader stops; the next reader gets those that were not done."""

_MOST_DELIVERIES = 20
"""Deliveries after which a letter is taken to be what costs its readers their connections."""

_PAUSE = 0.2
_LONGEST_PAUSE = 10.0
_RESPONDER = "dead-letters"


@dataclass(slots=True)
class DeadLetterStats:
    """Counts since the reader was made. `answered` are the letters whose caller still had its reply queue."""

    read: int = 0
    answered: int = 0
    parked: int = 0
    losses: int = 0


async def read_dead_letters(
    target: Target, *, prefix: str = "a2a", declare: bool = True, patience: Patience | None = None
) -> "DeadLetterReader":
    """Read the dead letters of a broker until `stop`. `declare` and what is raised are as with `bus.serve`."""
    reader = DeadLetterReader(driver_for(target), Names(prefix), patience or Patience(), declare=declare)
    await reader.start()
    return reader


class DeadLetterReader:
    """Answers the caller of each dead letter, parks the letter for people, and only then acknowledges it.

    Any number of readers may share a queue. Each letter is answered and parked at least once: a reader that dies
    between the two leaves the letter to the next one. The second answer finds nobody waiting, because a caller takes
    the first; the second copy has the same id, by which `bus.dead.parked` knows it.
    """

    def __init__(self, driver: Driver, names: Names, patience: Patience, *, declare: bool = True) -> None:
        self._names = names
        self._declare = declare
        self._stats = DeadLetterStats()
        self._tasks: set[asyncio.Task[None]] = set()
        self._consumer: Consumer | None = None
        self._stopping = False
        self._link = Link(driver, f"{APP_ID} dead letters", self._set_up, patience=patience)

    async def start(self) -> None:
        """Connect and begin. `read_dead_letters` has done it already."""
        await self._link.start()

    @property
    def state(self) -> State:
        """What the reader can do at the moment."""
        return self._link.state

    def stats(self) -> DeadLetterStats:
        """A copy of the counts."""
        return replace(self._stats, losses=self._link.losses)

    async def stop(self, grace: float = GRACE) -> None:
        """Take no more letters, finish those in hand within `grace` seconds, and close."""
        self._stopping = True
        if self._consumer is not None:
            await self._consumer.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.stop()

    async def _set_up(self, connection: Connection) -> None:
        if self._stopping:
            return
        parts = (*topology.dead(self._names), topology.parked(self._names))
        await topology.stand(connection, self._names, *parts, declare=self._declare)
        self._consumer = await connection.consume(
            self._names.dead,
            prefetch=PREFETCH,
            on_delivery=self._on_delivery,
            on_cancelled=lambda: self._link.drop("the broker cancelled the consumer"),
        )

    def _on_delivery(self, message: Incoming) -> None:
        if self._stopping:
            return  # it goes back when the connection closes
        self._stats.read += 1
        task = asyncio.create_task(self._take(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, message: Incoming) -> None:
        letter = Letter.dead(message, self._names)
        # The answer comes first: a caller waits for it, and it must not wait for room among what people look at.
        answered = await self._answer(message, letter)
        if answered is not None and await self._park(message, letter, answered):
            _log.warning("dead letter %s (%s, from %s): answered %s", letter.id, letter.reason, letter.queue, answered)
            message.ack()

    async def _answer(self, message: Incoming, letter: Letter) -> str | None:
        """The reason of the error that the caller was sent, or that there was nobody; None if that is open."""
        address = wire.return_address(self._names, letter.properties)
        if address is None:
            return NOBODY
        error = letter.error
        reply = wire.error_reply(address, letter.properties.type, error, responder=_RESPONDER)
        try:
            await self._publish(message, reply)
        except Unroutable:
            return NOBODY
        except ConnectionLost:
            return None
        except BusError as problem:
            _log.warning("the caller of the dead letter %s can't be answered: %s", letter.id, problem)
            return NOBODY
        self._stats.answered += 1
        return error.reason

    async def _publish(self, message: Incoming, outgoing: Outgoing) -> None:
        # A letter may come before the link calls its connection ready.
        connection = await self._link.ready()
        if message.stale:
            raise ConnectionLost("the letter is somebody else's now")
        await connection.publish(outgoing)

    async def _park(self, message: Incoming, letter: Letter, answered: str) -> bool:
        outgoing = letter.parked_as(self._names, answered, time.time())
        if _deliveries(message) > _MOST_DELIVERIES:
            _log.error("the dead letter %s came again and again: it is kept without its properties", letter.id)
            outgoing = _bare(letter, self._names, answered)
        pause = _PAUSE
        while not message.stale:
            try:
                await self._publish(message, outgoing)
            except Unroutable:
                self._link.drop(f"the queue {self._names.parked} is gone")
                return False
            except ConnectionLost:
                return False
            except Rejected:
                _log.error("the queue %s takes no more: the dead letters wait", self._names.parked)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            except BusError:
                _log.exception("the dead letter %s is kept without its properties", letter.id)
                outgoing = _bare(letter, self._names, answered)
            else:
                self._stats.parked += 1
                return True
        return False


def _deliveries(message: Incoming) -> int:
    count = message.properties.headers.get("x-delivery-count")
    return count if isinstance(count, int) else 0


def _bare(letter: Letter, names: Names, answered: str) -> Outgoing:
    bare = Letter(letter.id, letter.reason, letter.queue, "", "", None, type(letter.properties)(), letter.body)
    return bare.parked_as(names, answered, time.time())
