"""Brings last replies to the broker, over lost connections, for as long as somebody may wait for them."""

import asyncio
from collections.abc import Callable

from bus.driver import Outgoing
from bus.errors import ConnectionLost, Rejected, Unroutable
from bus.link import Link
from bus.server.stats import ServerStats

_PAUSE = 0.2
_TRIES = 2


class Outbox:
    """The last replies of one server. Those that nobody hears are counted as `unheard`."""

    def __init__(self, replies: Link, stats: ServerStats) -> None:
        self._replies = replies
        self._stats = stats

    async def bring(self, reply: Outgoing) -> bool:
        """Whether the caller's queue has it; False when that is gone, or takes no more.

        Waits for the broker to come back. Raises `ConnectionLost` when the server is closed, another `BusError` for
        what can't be sent at all.
        """
        heard = await self.bring_unless(lambda: False, reply)
        return heard is True

    async def bring_unless(self, needless: Callable[[], bool], reply: Outgoing) -> bool | None:
        """As `bring`; None when the connection was lost and then it was `needless`."""
        tries = 0
        while True:
            try:
                await self._replies.publish(reply)
            except Unroutable:
                # The caller is gone. The outcome is the agent's to keep.
                self._stats.unheard += 1
                return False
            except ConnectionLost:
                if needless():
                    return None
                # A delivery stays where it is meanwhile: with all slots taken, the server takes no more.
                await self._replies.ready()
            except Rejected:
                # The caller's own queue takes no more. Whoever makes such a queue must not hold a worker up with it.
                tries += 1
                if tries == _TRIES:
                    self._stats.unheard += 1
                    return False
                await asyncio.sleep(_PAUSE)
            else:
                return True
