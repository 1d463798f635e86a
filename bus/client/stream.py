"""A stream as its reader sees it: one order of events, over as many legs as lost connections make of it."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol
from uuid import uuid4

import orjson

from bus.client.leg import Leg, StreamEvent
from bus.client.order import Order
from bus.client.pending import Call
from bus.client.retry import Retry
from bus.driver import Incoming
from bus.errors import BusError, ConnectionLost, DeadlineExceeded, StreamCut, Unavailable, UnsupportedOperation
from bus.limits import Limits
from bus.names import AFTER, GET_TASK, KEEPALIVE, SUBSCRIBE

IDLE = 30.0
"""Seconds without any event after which a stream counts as cut: three keep-alives that did not come."""

MENDS = 3
"""Times in a row that a stream is taken up again without an event in between. This runs nothing twice."""

_ENDED = frozenset(
    {"TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED", "TASK_STATE_REJECTED"}
    | {"TASK_STATE_INPUT_REQUIRED", "TASK_STATE_AUTH_REQUIRED"}
)
"""The states in which a stream ends (A2A 1.0, section 3.1.6)."""


class Caller(Protocol):
    """What a stream needs of its client."""

    def begin(self, order: Order, on_reply: Callable[[Incoming], None] | None = None, *, new: bool = True) -> Call:
        """Send a request; its replies go to `on_reply`. `new` work is refused while the broker is blocked."""

    def end(self, call: Call) -> None:
        """Forget it."""

    async def answer(self, order: Order) -> dict[str, Any]:
        """One request and its one answer."""


def keepalive(idle: float) -> dict[str, str]:
    """The headers that ask for three keep-alives within the idle time, as they come by default."""
    return {} if idle >= IDLE else {KEEPALIVE: str(max(1, int(idle / 3)))}


class Stream:
    """See `bus.client.client.Client.stream`. `order` is the request that it begins with."""

    def __init__(self, caller: Caller, order: Order, retry: Retry, limits: Limits, idle: float, resume: bool) -> None:
        self._caller = caller
        self._order = order
        self._retry = retry
        self._limits = limits
        self._idle = idle
        self._resume = resume
        self._task_id: str | None = None
        self._task_seq: int | None = None
        self._begun = False
        self._sent = False

    async def events(self) -> AsyncGenerator[StreamEvent, None]:
        """All events, up to the end."""
        cuts = 0
        while True:
            resumed, heard = self._begun, False
            leg = Leg(self._limits)
            try:
                leg.attach(self._begin(leg, resumed))
                try:
                    while (event := await leg.next(self._idle)) is not None:
                        known = resumed and self._is_known(event, first=not heard)
                        heard = True
                        self._task_id = event.task_id or self._task_id
                        if known:
                            continue
                        cuts = 0
                        self._begun = True
                        if event.task_seq is not None:
                            self._task_seq = event.task_seq
                        yield event
                finally:
                    self._caller.end(leg.call)
                    leg.close()
                return
            except StreamCut as cut:
                cuts += 1
                hopeless = self._begun and self._task_id is None
                if not self._resume or hopeless or cuts > MENDS:
                    raise self._cut(cut.message) from cut
            except BusError as error:
                if not resumed or heard or _is_own(error):
                    raise
                if isinstance(error, UnsupportedOperation) and (last := await self._last(error)) is not None:
                    yield last
                    return
                cuts += 1
                if not isinstance(error, Unavailable) or cuts > MENDS:
                    raise self._cut(f"the stream cannot be taken up again: {error.message}") from error
            if cuts > 1:
                await asyncio.sleep(min(self._retry.pause * 2.0 ** (cuts - 2), max(0.0, self._left)))

    @property
    def _left(self) -> float:
        return self._order.expires - asyncio.get_running_loop().time()

    def _begin(self, leg: Leg, resumed: bool) -> Call:
        if self._left <= 0:
            raise DeadlineExceeded("the stream did not end before the deadline", metadata={"local": "true"})
        order = self._about_task(SUBSCRIBE) if resumed else self._order
        new, self._sent = not self._sent, True
        return self._caller.begin(order, leg.take, new=new)

    def _about_task(self, operation: str) -> Order:
        headers = dict(self._order.headers)
        if operation == SUBSCRIBE and self._task_seq is not None:
            headers[AFTER] = str(self._task_seq)
        tenant = orjson.loads(self._order.body).get("tenant")
        body = orjson.dumps({"id": self._task_id, **({"tenant": tenant} if tenant else {})})
        return replace(self._order, operation=operation, body=body, message_id=uuid4().hex, headers=headers)

    def _is_known(self, event: StreamEvent, *, first: bool) -> bool:
        """Whether an event of a stream that was taken up again tells nothing new."""
        if event.final or event.gap or event.task_seq is None or self._task_seq is None:
            return False
        return (first and "task" in event.body) or event.task_seq <= self._task_seq

    async def _last(self, error: BusError) -> StreamEvent | None:
        """The whole task in place of the events that were missed, when it has come to its end meanwhile."""
        try:
            task = await self._caller.answer(self._about_task(GET_TASK))
        except BusError as other:
            raise self._cut(f"the stream cannot be taken up again: {other.message}") from error
        status = task.get("status")
        if not isinstance(status, Mapping) or status.get("state") not in _ENDED:
            return None
        return StreamEvent({"task": task}, 0, None, final=True, gap=True, task_id=self._task_id)

    def _cut(self, message: str) -> StreamCut:
        return StreamCut(message, task_id=self._task_id, task_seq=self._task_seq)


def _is_own(error: BusError) -> bool:
    """Whether this client itself has given up."""
    return isinstance(error, ConnectionLost) or (
        isinstance(error, DeadlineExceeded) and error.metadata.get("local") == "true"
    )
