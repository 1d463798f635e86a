"""The calls that a client waits for: each is registered, settled exactly once, and removed, whatever happens."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import uuid4

from bus.client.order import Order
from bus.driver import Incoming, Listener
from bus.errors import AgentNotFound, ConnectionLost, Rejected, Unavailable, Unroutable


@dataclass(slots=True, eq=False)
class Call:
    """One call, over all of its attempts.

    `underway` tells that the newest attempt was given to the broker and can still be answered; `uncertain` that some
    attempt may have arrived, so that an error of a later one no longer says that nothing happened. `on_reply` takes
    the replies to a call that has more than one; `started` tells that the first of them is here. They come by a
    `listener` of their own, so that its end tells the other side that nobody hears them; `opening` it takes a moment.
    """

    order: Order
    result: "asyncio.Future[dict[str, Any]]"
    attempts: int = 0
    resends: int = 0
    on_reply: Callable[[Incoming], None] | None = None
    started: bool = False
    listener: Listener | None = None
    opening: bool = False
    underway: bool = False
    uncertain: bool = False
    timer: asyncio.TimerHandle | None = None
    publishing: "asyncio.Future[None] | None" = None
    correlation_ids: list[str] = field(default_factory=list)

    def note(self, done: "asyncio.Future[None]") -> None:
        """What became of an attempt at the broker."""
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self.uncertain = True
        elif isinstance(error, ConnectionLost):
            self.uncertain = True
            if done is self.publishing:
                self.underway = False
        elif self.uncertain:
            # An earlier attempt may be running: what became of this one says nothing about the call.
            pass
        elif isinstance(error, Unroutable):
            self.fail(AgentNotFound())
        elif isinstance(error, Rejected):
            self.fail(Unavailable("the agent's queue is full", metadata={"retryAfterMs": "1000"}))
        else:
            self.fail(error)

    def succeed(self, response: dict[str, Any]) -> None:
        """Settle with the response, unless it is settled."""
        if not self.result.done():
            self.result.set_result(response)

    def fail(self, error: BaseException) -> None:
        """Settle with an error, unless it is settled."""
        if not self.result.done():
            self.result.set_exception(error)


class Pending:
    """Calls by the correlation ids of their attempts: any attempt may bring the answer."""

    def __init__(self) -> None:
        self._calls: set[Call] = set()
        self._by_id: dict[str, Call] = {}
        self._number = count(1)
        self.origin = uuid4().hex

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, call: Call) -> bool:
        return call in self._calls

    def __iter__(self) -> Iterator[Call]:
        return iter(tuple(self._calls))

    def add(self, call: Call) -> None:
        """Register a call."""
        self._calls.add(call)

    def attempt(self, call: Call) -> str:
        """Register one more attempt of a call, under a correlation id that was never used before."""
        correlation_id = f"{self.origin}-{next(self._number)}"
        call.correlation_ids.append(correlation_id)
        self._by_id[correlation_id] = call
        return correlation_id

    def find(self, correlation_id: str | None) -> Call | None:
        """The call that waits for this reply, if one still does."""
        call = self._by_id.get(correlation_id) if correlation_id else None
        return None if call is None or call.result.done() else call

    def remove(self, call: Call) -> None:
        """Forget a call, its timer, and what of it was not sent yet."""
        self._calls.discard(call)
        for correlation_id in call.correlation_ids:
            self._by_id.pop(correlation_id, None)
        if call.timer is not None:
            call.timer.cancel()
        if call.publishing is not None:
            call.publishing.cancel()
