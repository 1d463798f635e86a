"""Where a client's replies arrive: one queue for the calls with one reply, and one for each stream."""

from collections.abc import Callable

from bus import topology
from bus.client.pending import Call
from bus.driver import Connection, Incoming
from bus.errors import BusError, ConnectionLost, StreamCut
from bus.link import Link
from bus.names import Names

_TRIES = 3


class Inbox:
    """The reply queues on a link for replies. All that arrives goes to `on_reply`.

    `queue` is the one for calls with one reply: it is there with each connection, under another name.
    """

    def __init__(self, link: Link, names: Names, user: str | None, on_reply: Callable[[Incoming], None]) -> None:
        self._link = link
        self._names = names
        self._user = user
        self._on_reply = on_reply
        self.queue = ""

    async def set_up(self, connection: Connection) -> None:
        """Make the queue on a new connection. Raises `Refused` and `ConnectionLost`."""
        queue = self._names.new_reply_queue(self._user)
        await connection.declare(topology.replies(queue))
        await connection.consume(
            queue,
            prefetch=0,
            on_delivery=self._on_reply,
            on_cancelled=lambda: self._link.drop("the reply queue is gone"),
        )
        if not await connection.consumers(queue):
            raise ConnectionLost("the reply queue has no consumer")
        self.queue = queue

    async def open(self, call: Call) -> None:
        """Give a call a queue of its own, on the present connection or the next one; or fail it."""
        tries = 0
        try:
            while call.listener is None and not call.result.done():
                connection = await self._link.ready()
                queue = self._names.new_reply_queue(self._user)
                try:
                    call.listener = await connection.listen(
                        queue,
                        on_delivery=self._on_reply,
                        on_cancelled=lambda: call.fail(StreamCut("the stream's reply queue is gone")),
                    )
                except ConnectionLost:
                    # That the broker refuses another call's queue may take this one's channel.
                    tries += not connection.lost.done()
                    if tries == _TRIES:
                        raise
        except BusError as error:
            call.fail(error)
        finally:
            call.opening = False
