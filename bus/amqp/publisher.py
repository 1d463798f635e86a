"""A publishing channel with confirms: a window of messages on the way, the rest waiting their turn."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from bus.amqp import frames
from bus.amqp.tap import Tap
from bus.driver import Outgoing
from bus.errors import ConnectionLost, InvalidParams, Rejected, Unroutable

WINDOW = 128
"""Messages on the way without a confirm; more in flight add latency and no speed."""


@dataclass(slots=True)
class _Sent:
    message: Outgoing = field(repr=False)
    mandatory: bool
    settled: "asyncio.Future[None]"
    since: float


class Publisher:
    """Publishes on one channel that is in confirm mode, and that nothing else publishes on."""

    _channel: int
    _frame_max: int

    def __init__(self, tap: Tap, *, window: int = WINDOW) -> None:
        self._tap = tap
        self._window = window
        self._loop = asyncio.get_running_loop()
        self._tag = 0
        self._sent: dict[int, _Sent] = {}
        self._waiting: deque[_Sent] = deque()
        self._buffer: list[bytes] = []
        self._lost: str | None = None

    def attach(self, channel: int, frame_max: int) -> None:
        """Take over a channel opened for this; `frame_max` is the largest frame of the connection, in bytes."""
        self._channel = channel
        self._frame_max = frame_max
        self._tap.sinks[channel] = self
        self._tap.on_writable = self.proceed

    @property
    def waiting_since(self) -> float | None:
        """The loop's time at which the oldest message without a confirm was given in."""
        for sent in self._sent.values():
            return sent.since
        return self._waiting[0].since if self._waiting else None

    def publish(self, message: Outgoing, *, mandatory: bool) -> "asyncio.Future[None]":
        """See `bus.driver.Connection.publish`."""
        settled: asyncio.Future[None] = self._loop.create_future()
        if self._lost is not None:
            settled.set_exception(ConnectionLost(self._lost))
            return settled
        sent = _Sent(message, mandatory, settled, self._loop.time())
        if self._waiting or len(self._sent) >= self._window or not self._tap.writable:
            self._waiting.append(sent)
        else:
            self._send(sent)
        return settled

    def proceed(self) -> None:
        """Send what waits, as far as the window and the socket allow."""
        while self._waiting and len(self._sent) < self._window and self._tap.writable:
            sent = self._waiting.popleft()
            if not sent.settled.done():
                self._send(sent)

    def flush(self) -> None:
        """Hand what was published since the loop's last turn to the socket, in one piece."""
        if self._buffer:
            buffer, self._buffer = self._buffer, []
            self._tap.write(b"".join(buffer))

    def write(self, data: bytes) -> None:
        """Send frames of any channel with the next piece: fewer system calls, same order."""
        if not self._buffer:
            self._loop.call_soon(self.flush)
        self._buffer.append(data)

    def lose(self, reason: str) -> None:
        """The connection is gone: nothing more will be confirmed."""
        self._lost = reason
        self._buffer.clear()
        for sent in (*self._sent.values(), *self._waiting):
            if not sent.settled.done():
                sent.settled.set_exception(ConnectionLost(reason))
        self._sent.clear()
        self._waiting.clear()

    def delivered(self, deliver: frames.Deliver, header: bytes, body: bytes) -> None:
        """Nothing is consumed on this channel."""

    def returned(self, back: frames.Return, header: bytes) -> None:
        """A message came back. The broker names no tag, so it is found by what makes it unique."""
        properties = frames.read_properties(header)
        for sent in self._sent.values():
            message = sent.message
            if (
                sent.mandatory
                and not sent.settled.done()
                and message.routing_key == back.routing_key
                and message.exchange == back.exchange
                and message.properties.correlation_id == properties.correlation_id
                and message.properties.message_id == properties.message_id
            ):
                sent.settled.set_exception(Unroutable(f"no queue takes this message: {back.text}"))
                return

    def confirmed(self, tag: int, multiple: bool, taken: bool) -> None:
        """One message, or all up to it, is the broker's now; or is refused."""
        if multiple:
            for earlier in [each for each in self._sent if each <= tag]:
                self._settle(earlier, taken)
        else:
            self._settle(tag, taken)
        if self._waiting:
            self.proceed()

    def _settle(self, tag: int, taken: bool) -> None:
        sent = self._sent.pop(tag, None)
        if sent is None or sent.settled.done():
            return
        if taken:
            sent.settled.set_result(None)
        else:
            sent.settled.set_exception(Rejected())

    def _send(self, sent: _Sent) -> None:
        try:
            data = frames.publish(self._channel, sent.message, mandatory=sent.mandatory, frame_max=self._frame_max)
        except InvalidParams as error:
            sent.settled.set_exception(error)
            return
        self._tag += 1
        self._sent[self._tag] = sent
        self.write(data)
