"""The wire between the socket and the AMQP client library, with a branch for messages.

The library keeps what it is good at: the handshake, TLS, heartbeats, channels, declarations. Frames that carry or
settle messages on a channel that has a `Sink` go there, synchronously and in order; all others go to the library.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct
from typing import Protocol, cast

from bus.amqp import frames

_log = logging.getLogger(__name__)

_FRAME = Struct(">BHI")
_INDEX = Struct(">I")
_LIBRARY_QUIET = 5.0
"""Seconds of messages only, after which the library gets a heartbeat, so that it does not take the peer for dead."""


class Sink(Protocol):
    """Takes the messages and confirms of one channel. Its methods must not block; raising ends the connection."""

    def delivered(self, deliver: frames.Deliver, header: bytes, body: bytes) -> None:
        """A message from a queue."""

    def returned(self, back: frames.Return, header: bytes) -> None:
        """A mandatory message that had no queue to go to."""

    def confirmed(self, tag: int, multiple: bool, taken: bool) -> None:
        """The broker has, or has not, taken what was published."""


@dataclass(slots=True)
class _Content:
    """A message of which not all frames are here yet."""

    method: frames.Deliver | frames.Return
    header: bytes | None = None
    missing: int = 0
    chunks: list[bytes] = field(default_factory=list)


class Tap(asyncio.StreamReaderProtocol):
    """The transport's protocol: it feeds `reader` with whatever is not for a sink."""

    def __init__(self, reader: asyncio.StreamReader, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(reader, loop=loop)
        self._loop_time = loop.time
        self._library = reader
        self._wire: asyncio.Transport | None = None
        self._rest = b""
        self._contents: dict[int, _Content] = {}
        self._library_heard = loop.time()
        self.sinks: dict[int, Sink] = {}
        self.heard = loop.time()
        self.writable = True
        self.farewell: tuple[int, str] | None = None
        """Code and text of the broker's `connection.close`."""
        self.on_blocked: Callable[[bool], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        self.on_lost: Callable[[str], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._wire = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost(self._reason(exc))

    def _reason(self, exc: Exception | None) -> str:
        if self.farewell is not None:
            code, text = self.farewell
            return f"the broker closed the connection: {code} {text}"
        return f"the connection broke: {exc}" if exc else "the other side closed the connection"

    def pause_writing(self) -> None:
        super().pause_writing()
        self.writable = False

    def resume_writing(self) -> None:
        super().resume_writing()
        self.writable = True
        if self.on_writable is not None:
            self.on_writable()

    def write(self, data: bytes) -> None:
        """Send whole frames; after the connection is gone, nothing happens."""
        if self._wire is not None and not self._wire.is_closing():
            self._wire.write(data)

    def abort(self) -> None:
        """Drop the connection without a word."""
        if self._wire is not None:
            self._wire.abort()

    def data_received(self, data: bytes) -> None:
        self.heard = self._loop_time()
        if self._rest:
            data = self._rest + data
        try:
            done = self._split(data)
        except Exception:
            _log.exception("dropping a connection whose frames cannot be read")
            self.abort()
            return
        self._rest = data[done:]

    def _split(self, data: bytes) -> int:
        at, size = 0, len(data)
        for_library = []
        while size - at >= frames.OVERHEAD:
            kind, channel, length = _FRAME.unpack_from(data, at)
            if kind not in (frames.METHOD, frames.HEADER, frames.BODY, frames.HEARTBEAT):
                # A broker that speaks another protocol answers with a header of its own: the library explains it.
                for_library.append(data[at:])
                at = size
                break
            end = at + length + frames.OVERHEAD
            if end > size:
                break
            if data[end - 1] != frames.END:
                raise ValueError("a frame does not end where it should")
            if channel == 0 and kind == frames.METHOD:
                self._watch(data[at + 7 : end - 1])
            sink = self.sinks.get(channel)
            if sink is None or not self._take(sink, kind, channel, data[at + 7 : end - 1]):
                for_library.append(data[at:end])
            at = end
        if for_library:
            self._library_heard = self.heard
            super().data_received(b"".join(for_library))
        elif at and self.heard - self._library_heard > _LIBRARY_QUIET:
            self._library_heard = self.heard
            super().data_received(frames.HEARTBEAT_FRAME)
        return at

    def _watch(self, payload: bytes) -> None:
        (index,) = _INDEX.unpack_from(payload)
        if index == frames.CLOSE:
            self.farewell = frames.read_close(payload)
        elif index in (frames.BLOCKED, frames.UNBLOCKED) and self.on_blocked is not None:
            self.on_blocked(index == frames.BLOCKED)

    def _take(self, sink: Sink, kind: int, channel: int, payload: bytes) -> bool:
        if kind == frames.METHOD:
            (index,) = _INDEX.unpack_from(payload)
            if index == frames.DELIVER:
                self._contents[channel] = _Content(frames.read_deliver(payload))
            elif index in (frames.ACK, frames.NACK):
                tag, multiple = frames.read_confirm(payload)
                sink.confirmed(tag, multiple, index == frames.ACK)
            elif index == frames.RETURN:
                self._contents[channel] = _Content(frames.read_return(payload))
            else:
                return False
            return True
        content = self._contents.get(channel)
        if content is None:
            return False
        if kind == frames.HEADER:
            content.header = payload
            content.missing = frames.read_size(payload)
        else:
            content.chunks.append(payload)
            content.missing -= len(payload)
        if content.missing <= 0 and content.header is not None:
            del self._contents[channel]
            if isinstance(content.method, frames.Deliver):
                sink.delivered(content.method, content.header, b"".join(content.chunks))
            else:
                sink.returned(content.method, content.header)
        return True
