"""The many short-lived queues of one connection to RabbitMQ: two channels for all of them."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from bus.amqp import frames
from bus.amqp.delivery import Delivery
from bus.amqp.tap import Tap
from bus.driver import Incoming
from bus.errors import ConnectionLost, Refused

_T = TypeVar("_T")

Channel = Any
"""A channel of the library, which `bus.amqp.connection` alone knows."""


class Opener(Protocol):
    """The connection that they belong to."""

    @property
    def lost(self) -> "asyncio.Future[str]":
        """Done when it is gone."""

    def write(self, data: bytes) -> None:
        """Send frames."""

    async def ask(self, question: Awaitable[_T]) -> _T:
        """The broker's answer. Raises `Refused` or `ConnectionLost`."""

    async def open_raw(self, *, lasting: bool) -> Channel:
        """A channel; with one that is `lasting` the connection ends as well."""


@dataclass(frozen=True, slots=True)
class AmqpListener:
    """See `bus.driver.Listener`."""

    queue: str
    listeners: "Listeners"

    async def close(self) -> None:
        await self.listeners.remove(self.queue)


class Listeners:
    """Makes queues on one channel, and reads them all on another.

    The broker closes the channel on which it refuses something: reading must not end with that.
    """

    def __init__(self, connection: Opener, tap: Tap) -> None:
        self._connection = connection
        self._tap = tap
        self._turn = asyncio.Lock()
        self._making: Channel | None = None
        self._reading: Channel | None = None
        self._number = 0
        self._open: dict[bytes, tuple[Callable[[Incoming], None], Callable[[], None]]] = {}

    async def add(
        self, queue: str, on_delivery: Callable[[Incoming], None], on_cancelled: Callable[[], None]
    ) -> AmqpListener:
        """Make a queue and read it. Raises `Refused` and `ConnectionLost`."""
        making, reading = await self._channels()
        await self._connection.ask(making.queue_declare(queue, exclusive=True, auto_delete=True))
        self._open[queue.encode()] = (on_delivery, on_cancelled)
        try:
            await self._connection.ask(reading.basic_consume(queue, never, no_ack=True, consumer_tag=queue))
        except BaseException:
            await self.remove(queue)
            raise
        return AmqpListener(queue, self)

    async def remove(self, queue: str) -> None:
        """Read a queue no more, by which the broker deletes it; if the connection is still there."""
        if self._open.pop(queue.encode(), None) is None or self._reading is None:
            return
        with suppress(ConnectionLost, Refused):
            await self._connection.ask(self._reading.basic_cancel(queue, nowait=True))

    def delivered(self, deliver: frames.Deliver, header: bytes, body: bytes) -> None:
        """One message, for one of them."""
        found = self._open.get(deliver.consumer)
        if found is not None:
            properties = frames.read_properties(header)
            found[0](Delivery(self._connection, self._number, 0, deliver.redelivered, properties, body))

    def returned(self, back: frames.Return, header: bytes) -> None:
        """Nothing is published on this channel."""

    def confirmed(self, tag: int, multiple: bool, taken: bool) -> None:
        """Nothing is published on this channel."""

    async def _channels(self) -> tuple[Channel, Channel]:
        if self._connection.lost.done():
            raise ConnectionLost(self._connection.lost.result())
        async with self._turn:
            if self._making is None or self._making.is_closed:
                self._making = await self._connection.open_raw(lasting=False)
            if self._reading is None:
                self._reading = await self._connection.open_raw(lasting=True)
                self._number = self._reading.number
                self._tap.sinks[self._number] = self
                self._reading.on_consumer_cancel_callbacks.add(self._cancelled)
            return self._making, self._reading

    def _cancelled(self, frame: Any) -> None:
        found = self._open.pop((frame.consumer_tag or "").encode(), None)
        if found is not None:
            found[1]()


async def never(_message: object) -> None:
    """Where the library would bring a delivery, had the tap not taken it."""
