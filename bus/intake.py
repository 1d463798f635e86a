"""A server's subscription to its queue, which may be off for a while."""

import asyncio
from collections.abc import Callable

from bus.driver import Connection, Consumer, Incoming
from bus.errors import BusError, ConnectionLost


class Intake:
    """Subscribed as long as `wanted` says so. A connection on which that does not succeed is given to `drop`."""

    def __init__(
        self,
        queue: str,
        prefetch: int,
        on_delivery: Callable[[Incoming], None],
        *,
        wanted: Callable[[], bool],
        drop: Callable[[str], None],
    ) -> None:
        self._queue = queue
        self._prefetch = prefetch
        self._on_delivery = on_delivery
        self._wanted = wanted
        self._drop = drop
        self._connection: Connection | None = None
        self._consumer: Consumer | None = None
        self._on = False
        self._turn = asyncio.Lock()
        self._soon: set[asyncio.Task[None]] = set()

    async def begin(self, connection: Connection) -> None:
        """Go on with a new connection. Raises `Refused`, `ConnectionLost`."""
        async with self._turn:
            self._connection, self._consumer, self._on = connection, None, False
            if self._wanted():
                await self._switch()

    async def match(self) -> None:
        """Be subscribed, or not, as it is wanted by now. Once this has ended it is so."""
        async with self._turn:
            if self._connection is None or self._wanted() == self._on:
                return
            try:
                await self._switch()
            except BusError as error:
                self._drop(f"the consumer could not be resumed: {error}")

    async def _switch(self) -> None:
        if self._consumer is not None and self._on:
            self._on = False
            await self._consumer.cancel()
        elif self._consumer is not None:
            await self._consumer.resume()
            self._on = True
        elif self._connection is not None:
            self._consumer = await self._connection.consume(
                self._queue,
                prefetch=self._prefetch,
                on_delivery=self._on_delivery,
                on_cancelled=lambda: self._drop("the broker cancelled the consumer"),
            )
            self._on = True
            if not await self._connection.consumers(self._queue):
                raise ConnectionLost("the agent's queue has no consumer")

    def match_soon(self) -> None:
        """The same, without waiting for it."""
        task = asyncio.create_task(self.match())
        self._soon.add(task)
        task.add_done_callback(self._soon.discard)
