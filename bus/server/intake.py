"""One lane of a server: its subscription to a queue, which may be off for a while, and the requests from it in hand."""

import asyncio
from collections.abc import Callable

from bus.driver import Connection, Consumer, Incoming
from bus.errors import BusError, ConnectionLost


class Intake:
    """Takes as many requests from a queue as there are slots for them, so that none waits here for another's end.

    Subscribed as long as `wanted` says so, a slot is free, and fewer than `most` requests run that were accepted; None
    is any number. A connection on which that does not succeed is given to `drop`.

    A broker counts the prefetch for each subscription anew, whatever is left from an earlier one. So a subscription
    that begins with some slots taken gets the others alone, and is renewed once the earlier requests have left.
    """

    def __init__(
        self,
        queue: str,
        slots: int,
        on_delivery: "Callable[[Intake, Incoming], None]",
        *,
        wanted: Callable[[], bool],
        drop: Callable[[str], None],
        most: int | None = None,
    ) -> None:
        self._queue = queue
        self._slots = slots
        self._on_delivery = on_delivery
        self._wanted = wanted
        self._drop = drop
        self._most = most
        self._connection: Connection | None = None
        self._consumer: Consumer | None = None
        self._on = False
        self._prefetch = 0
        self._subscription = 0
        self._earlier = 0
        self._turn = asyncio.Lock()
        self._soon: set[asyncio.Task[None]] = set()
        self.held = 0
        """Slots that are taken."""
        self.accepted = 0
        """Requests in hand that have given their slot back."""
        self.accepts = 0
        """How many ever did."""

    def enter(self) -> int:
        """A request takes a slot. Returns what `leave` wants to be told."""
        self.held += 1
        return self._subscription

    def leave(self, entered: int) -> None:
        """A request gives its slot back."""
        self.held -= 1
        if entered != self._subscription:
            self._earlier -= 1
        self.match_soon()

    def accept(self, entered: int) -> None:
        """A request gives its slot back, and stays in hand."""
        self.accepted += 1
        self.accepts += 1
        self.leave(entered)

    def end(self) -> None:
        """An accepted request is done."""
        self.accepted -= 1
        self.match_soon()

    async def begin(self, connection: Connection) -> None:
        """Go on with a new connection. Raises `Refused`, `ConnectionLost`."""
        async with self._turn:
            self._connection, self._consumer, self._on = connection, None, False
            if self._may_take:
                await self._subscribe()

    async def match(self) -> None:
        """Be subscribed, or not, as it is wanted by now. Once this has ended it is so."""
        async with self._turn:
            if self._connection is None:
                return
            try:
                if self._on and (not self._may_take or self._is_narrow) and self._consumer is not None:
                    self._on = False
                    await self._consumer.cancel()
                if not self._on and self._may_take:
                    await self._subscribe()
            except BusError as error:
                self._drop(f"the consumer could not be resumed: {error}")

    def match_soon(self) -> None:
        """The same, without waiting for it."""
        if self._on == self._may_take and not self._is_narrow:
            return
        task = asyncio.create_task(self.match())
        self._soon.add(task)
        task.add_done_callback(self._soon.discard)

    @property
    def _may_take(self) -> bool:
        able = self._wanted() and (self._most is None or self.accepted < self._most)
        return able and (self._on or self.held < self._slots)

    @property
    def _is_narrow(self) -> bool:
        """Whether a quarter of the slots can't be taken, because they belonged to an earlier subscription."""
        return self._on and self._slots - self._prefetch - self._earlier >= max(1, self._slots // 4)

    async def _subscribe(self) -> None:
        if self._connection is None:
            return
        self._subscription += 1
        self._earlier, self._prefetch = self.held, self._slots - self.held
        if self._consumer is not None:
            await self._consumer.resume(self._prefetch)
            self._on = True
            return
        self._consumer = await self._connection.consume(
            self._queue,
            prefetch=self._prefetch,
            on_delivery=lambda message: self._on_delivery(self, message),
            on_cancelled=lambda: self._drop("the broker cancelled the consumer"),
        )
        self._on = True
        if not await self._connection.consumers(self._queue):
            raise ConnectionLost("the agent's queue has no consumer")
