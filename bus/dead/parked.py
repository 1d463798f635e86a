"""The parked letters, in the hands of a person: looked at, sent once more, or dropped."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bus.dead.letter import Letter
from bus.driver import Connection, Incoming
from bus.errors import ConnectionLost
from bus.message import Authorize
from bus.names import Names
from bus.target import APP_ID, Target, driver_for

MOST = 2000
"""The largest prefetch that a quorum queue allows."""

QUIET = 3.0
"""Seconds without a letter after which somebody else must have taken those that were counted."""


@asynccontextmanager
async def parked_letters(target: Target, *, prefix: str = "a2a") -> AsyncIterator["Parked"]:
    """The parked letters of a broker. Raises `Refused` and `ConnectionLost`."""
    driver = driver_for(target)
    connection = await driver.connect(f"{APP_ID} parked letters")
    try:
        yield Parked(connection, Names(prefix), driver.user)
    finally:
        await connection.close()


class Parked:
    """The parked letters over one connection. Made by `parked_letters`.

    A letter that was read stays in this reader's hands until the connection closes, and nobody else sees it meanwhile.
    Then those that were neither sent nor dropped go back. RabbitMQ puts what comes back behind what came back before,
    so the order holds as long as all of them, at most `MOST`, are taken at once, by one reader at a time.
    """

    def __init__(self, connection: Connection, names: Names, user: str | None) -> None:
        self._connection = connection
        self._names = names
        self._user = user
        self._in_hand: dict[str, list[Incoming]] = {}

    async def count(self) -> int:
        """How many letters wait, without those in somebody's hands."""
        tally = await self._connection.tally(self._names.parked)
        return 0 if tally is None else tally.messages

    async def read(self) -> list[Letter]:
        """Take the oldest letters that are in nobody's hands, up to `MOST`; one that was parked twice comes once."""
        found: dict[str, Letter] = {}
        ready = min(await self.count(), MOST)
        for message in await self._take(ready) if ready else ():
            letter = Letter.read(message)
            self._in_hand.setdefault(letter.id, []).append(message)
            found.setdefault(letter.id, letter)
        return list(found.values())

    async def find(self, start: str) -> list[Letter]:
        """The letters whose id begins with `start`, among as many as it takes to find one."""
        while letters := await self.read():
            if found := [letter for letter in letters if letter.id.startswith(start)]:
                return found
        return []

    async def requeue(self, letter: Letter, *, seconds: float, authorize: Authorize | None = None) -> None:
        """Send the request of a letter that was read once more, and drop the letter when the broker has it.

        It has `seconds` to be answered. Raises `InvalidRequest` for one that can't be sent, `Unroutable` when nobody
        serves its agent, `Rejected` when the queue is full: the letter stays.
        """
        message = letter.request(self._names, now=time.time(), seconds=seconds, user=self._user, authorize=authorize)
        await self._connection.publish(message)
        self.drop(letter)

    def drop(self, letter: Letter) -> None:
        """Forget a letter that was read, with every copy of it in hand."""
        for message in self._in_hand.pop(letter.id, ()):
            message.ack()

    async def _take(self, count: int) -> list[Incoming]:
        # Reading by subscription and not by `basic.get`: only so does a property that is no UTF-8 cost no connection.
        arrived: asyncio.Queue[Incoming] = asyncio.Queue()
        taken: list[Incoming] = []
        consumer = await self._connection.consume(
            self._names.parked, prefetch=count, on_delivery=arrived.put_nowait, on_cancelled=lambda: None
        )
        try:
            while len(taken) < count:
                async with asyncio.timeout(QUIET):
                    taken.append(await arrived.get())
        except TimeoutError:
            if self._connection.lost.done():
                raise ConnectionLost(self._connection.lost.result()) from None
        finally:
            await consumer.cancel()
        while not arrived.empty():
            taken.append(arrived.get_nowait())
        return taken
