"""The events of one stream on their way to the broker: in order, a bounded number of them at once."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping

from bus.driver import Outgoing
from bus.errors import ConnectionLost, Unroutable
from bus.link import Link
from bus.server.held import Held

_log = logging.getLogger(__name__)

WINDOW = 32
"""Events of one stream without a confirm; the next one waits, so that a slow broker slows its agent down."""

Scalars = Mapping[str, str | int | bool]


class Events:
    """Publishes the events of one stream on the connection for replies, which has one channel to publish on.

    `write` makes the message of an event from its number, its body and its headers. Events that were on their way
    when the connection was lost are sent again on the next one, with their numbers: whoever got them drops them.
    `heard` is False when there is no use in sending more: the caller's queue is gone, or another run answers.
    `broken` is set when the connection was lost.
    """

    def __init__(self, replies: Link, held: Held, write: Callable[[int, bytes, Scalars], Outgoing]) -> None:
        self._replies = replies
        self._held = held
        self._write = write
        self._turn = asyncio.Lock()
        self._sent: deque[tuple[Outgoing, asyncio.Future[None]]] = deque()
        self._refused = False
        self.count = 0
        self.heard = True
        self.broken = asyncio.Event()

    async def put(self, body: bytes, headers: Scalars) -> None:
        """Send one event; it gets its number in the moment in which it is given to the connection."""
        async with self._turn:
            while self._sent and (len(self._sent) >= WINDOW or self._sent[0][1].done()) and self.heard:
                await self._settle()
            if self.heard:
                self._publish(self._write(self.count, body, headers))
                self.count += 1

    async def mend(self) -> None:
        """Send again what a lost connection took."""
        self.broken.clear()
        async with self._turn:
            while self._sent and self._sent[0][1].done() and self.heard:
                await self._settle()

    async def drain(self) -> None:
        """Wait until the broker has all of them, or nobody hears."""
        async with self._turn:
            while self._sent and self.heard:
                await self._settle()

    def _publish(self, event: Outgoing) -> None:
        published = self._replies.publish(event)
        self._sent.append((event, published))
        published.add_done_callback(self._note)

    def _note(self, published: "asyncio.Future[None]") -> None:
        error = None if published.cancelled() else published.exception()
        if isinstance(error, Unroutable):
            self.heard = False
        elif isinstance(error, ConnectionLost):
            self.broken.set()

    async def _settle(self) -> None:
        _, published = self._sent[0]
        if not published.done():
            await asyncio.wait({published})
        error = published.exception()
        if isinstance(error, ConnectionLost):
            await self._again()
        else:
            self._sent.popleft()
            if error is not None and not isinstance(error, Unroutable):
                # Its number is missing, which tells the caller that the stream is cut.
                level = logging.DEBUG if self._refused else logging.WARNING  # a caller may have made its queue so
                self._refused = True
                _log.log(level, "an event of a stream was not taken: %s", error)

    async def _again(self) -> None:
        try:
            await self._replies.ready()
        except ConnectionLost:
            self.heard = False
            return
        if self._held.stale:
            # The request is delivered again, and its next run answers.
            self.heard = False
            return
        events, self._sent = self._sent, deque()
        for event, published in events:
            if not published.done() or published.exception() is not None:
                self._publish(event)
