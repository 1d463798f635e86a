"""The calls that a client waits for: each is registered, settled exactly once, and removed, whatever happens."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bus.driver import Incoming
from bus.order import Order


@dataclass(slots=True, eq=False)
class Call:
    """One call, over all of its attempts.

    `underway` tells that the newest attempt was given to the broker and can still be answered; `uncertain` that some
    attempt may have arrived, so that an error of a later one no longer says that nothing happened. `on_reply` takes
    the replies to a call that has more than one; `started` tells that the first of them is here.
    """

    order: Order
    result: "asyncio.Future[dict[str, Any]]"
    attempts: int = 0
    resends: int = 0
    on_reply: Callable[[Incoming], None] | None = None
    started: bool = False
    underway: bool = False
    uncertain: bool = False
    timer: asyncio.TimerHandle | None = None
    publishing: "asyncio.Future[None] | None" = None
    correlation_ids: list[str] = field(default_factory=list)

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

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, call: Call) -> bool:
        return call in self._calls

    def __iter__(self) -> Iterator[Call]:
        return iter(tuple(self._calls))

    def add(self, call: Call) -> None:
        """Register a call."""
        self._calls.add(call)

    def attempt(self, call: Call, correlation_id: str) -> None:
        """Register one more attempt of a call."""
        call.correlation_ids.append(correlation_id)
        self._by_id[correlation_id] = call

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
