"""The channel that an agent answers one request on."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import uuid4

import orjson

from bus import wire
from bus.driver import Outgoing
from bus.errors import BusError, InvalidAgentResponse, InvalidParams, UnsupportedOperation
from bus.limits import Limits
from bus.link import Link
from bus.message import Request
from bus.names import KEEPALIVE, STREAMING, SUBSCRIBE
from bus.server.events import Events, Scalars
from bus.server.held import Held

KEEPALIVE_BOUNDS = (1.0, 60.0)
"""Seconds between which a caller may choose how long a stream is silent."""

_NO_HEADERS: Scalars = {}


class Channel:
    """See `bus.message.Reply`. `sent` tells that the request is answered, `settled` that the broker has the answer.
    `publish` brings the last reply to the broker and returns whether that settled the request.
    """

    def __init__(
        self,
        request: Request,
        held: Held,
        address: wire.Address,
        replies: Link,
        publish: Callable[[Outgoing], Awaitable[bool]],
        *,
        responder: str,
        limits: Limits,
        keepalive: float,
    ) -> None:
        self._operation = request.operation
        self._address = address
        self._held = held
        self._replies = replies
        self._publish = publish
        self._responder = responder
        self._limits = limits
        self._events: Events | None = None
        self._stream: str | None = None
        if request.operation in STREAMING:
            self._events = Events(replies, held, self._write)
            self._stream = uuid4().hex[:12]
            self._keepalive = _keepalive(request.headers.get(KEEPALIVE), keepalive)
        self._status: dict[str, Any] | None = None
        self._spoke = 0.0
        self._tending: asyncio.Task[None] | None = None
        self.sent = False
        self.settled = False

    @property
    def heard(self) -> bool:
        return self._events is None or self._events.heard

    @property
    def address(self) -> str:
        return wire.write_address(self._address)

    @property
    def accepting(self) -> bool:
        """Whether the agent may end without an answer."""
        return self._held.asked

    async def accept(self) -> bool:
        if self._events is not None:
            await self._events.drain()
        return self._held.accept()

    @property
    def events(self) -> int:
        """How many events were sent before the final reply."""
        return 0 if self._events is None else self._events.count

    async def send(
        self, body: Mapping[str, Any] | bytes, *, final: bool = True, headers: Scalars = _NO_HEADERS
    ) -> None:
        if self.sent:
            raise RuntimeError("the final reply was sent already")
        if not final and self._events is None:
            raise UnsupportedOperation("this operation has one reply")
        encoded = _encode(body, self._limits)
        if headers:
            wire.check_reply_headers(headers, self._limits)
        if final:
            self.sent = True
            await self._end(
                lambda sequence: wire.reply(
                    self._address,
                    self._operation,
                    encoded,
                    responder=self._responder,
                    sequence=sequence,
                    stream=self._stream,
                    headers=headers,
                )
            )
        elif self._events is not None and self._events.heard:
            self._status = _status(body) or self._status
            self._spoke = asyncio.get_running_loop().time()
            await self._events.put(encoded, headers)
            if self._tending is None and not self.sent:
                self._tending = asyncio.create_task(self._tend(self._events), name=f"stream {self._stream}")

    async def fail(self, error: BusError) -> bool:
        """Answer with an error. Returns whether that settled the request."""
        self.sent = True
        await self._end(
            lambda sequence: wire.error_reply(
                self._address,
                self._operation,
                error,
                responder=self._responder,
                sequence=sequence,
                stream=self._stream,
            )
        )
        return self.settled

    def cut(self) -> None:
        """Let a stream that has begun end as a cut, at once: its request is nobody's any more."""
        if self._events is not None and self._events.count and not self.sent:
            self.sent = True
            # Of another run, with which no stream goes on (the binding, S4).
            outgoing = wire.reply(
                self._address,
                self._operation,
                b"{}",
                responder=self._responder,
                final=False,
                stream=uuid4().hex[:12],
            )
            self._replies.publish(outgoing).add_done_callback(lambda done: done.cancelled() or done.exception())

    def close(self) -> None:
        """Nothing more is sent."""
        if self._tending is not None:
            self._tending.cancel()

    def _write(self, sequence: int, body: bytes, headers: Scalars) -> Outgoing:
        return wire.reply(
            self._address,
            self._operation,
            body,
            responder=self._responder,
            sequence=sequence,
            final=False,
            stream=self._stream,
            headers=headers,
        )

    async def _end(self, write: Callable[[int], Outgoing]) -> None:
        if self._events is not None:
            if self._tending is not None:
                self._tending.cancel()
                await asyncio.wait({self._tending})
            await self._events.drain()
        self.settled = await self._publish(write(self.events))

    async def _tend(self, events: Events) -> None:
        loop = asyncio.get_running_loop()
        if self._operation == SUBSCRIBE:
            # It may last for as long as its task does. Whoever has heard its begin takes it up again.
            await events.drain()
            self._held.let_go()
        while events.heard:
            pause = self._spoke + self._keepalive - loop.time()
            if pause <= 0:
                self._spoke = loop.time()
                if self._status is not None:
                    await events.put(orjson.dumps({"statusUpdate": self._status}), _NO_HEADERS)
            elif await _set_within(events.broken, pause):
                await events.mend()


def last_reply(
    address: wire.Address,
    operation: str,
    answer: Mapping[str, Any] | bytes | BusError,
    *,
    responder: str,
    limits: Limits,
) -> Outgoing:
    """The one reply, or the last one of a stream, without a channel. Raises `InvalidAgentResponse`."""
    stream = uuid4().hex[:12] if operation in STREAMING else None
    if isinstance(answer, BusError):
        return wire.error_reply(address, operation, answer, responder=responder, stream=stream)
    return wire.reply(address, operation, _encode(answer, limits), responder=responder, stream=stream)


def _encode(body: Mapping[str, Any] | bytes, limits: Limits) -> bytes:
    try:
        encoded = wire.encode(body)
    except InvalidParams as error:
        raise InvalidAgentResponse(f"the agent's response {error.message.removeprefix('the body ')}") from error
    if len(encoded) > limits.body:
        raise InvalidAgentResponse(
            f"the agent's response has {len(encoded)} bytes, more than {limits.body}",
            metadata={"maxMessageBytes": str(limits.body)},
        )
    return encoded


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def _keepalive(wanted: str | None, default: float) -> float:
    try:
        seconds = float(wanted or "")
    except ValueError:
        return default
    least, most = KEEPALIVE_BOUNDS
    return min(max(seconds, least), most) if seconds > 0 else default  # "nan" is not


def _status(body: Mapping[str, Any] | bytes) -> dict[str, Any] | None:
    """What a keep-alive repeats of an event: ids and state. Not the status's message, which would be said twice."""
    if isinstance(body, bytes):
        if b'"status"' not in body:
            return None
        try:
            body = orjson.loads(body)
        except ValueError:
            return None
    if not isinstance(body, Mapping):
        return None
    for kind, key in (("statusUpdate", "taskId"), ("task", "id")):
        found = body.get(kind)
        if isinstance(found, Mapping) and isinstance(found.get("status"), Mapping):
            status = {name: value for name, value in found["status"].items() if name != "message"}
            return {"taskId": found.get(key), "contextId": found.get("contextId"), "status": status}
    return None
