"""The branch in the wire: messages to their sink, all else to the library, however the bytes arrive."""

import asyncio
from typing import Any

import pamqp.frame
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from bus.amqp import frames
from bus.amqp.tap import Tap


class Sink:
    def __init__(self) -> None:
        self.got: list[Any] = []

    def delivered(self, deliver: frames.Deliver, header: bytes, body: bytes) -> None:
        self.got.append((deliver.tag, frames.read_properties(header).correlation_id, body))

    def returned(self, back: frames.Return, header: bytes) -> None:
        self.got.append((back.code, back.routing_key, frames.read_properties(header).correlation_id))

    def confirmed(self, tag: int, multiple: bool, taken: bool) -> None:
        self.got.append((tag, multiple, taken))


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.aborted = False
        self.written = b""

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def write(self, data: Any) -> None:
        self.written += data


async def a_tap(sinks: dict[int, Sink]) -> tuple[Tap, asyncio.StreamReader, Transport]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    tap = Tap(reader, loop)
    transport = Transport()
    tap.connection_made(transport)
    tap.sinks.update(sinks)
    return tap, reader, transport


def m(frame: Any, channel: int) -> bytes:
    return pamqp.frame.marshal(frame, channel)


def message(method: Any, channel: int, body: bytes, size: int = 50) -> bytes:
    header = ContentHeader(body_size=len(body), properties=commands.Basic.Properties(correlation_id="c"))
    chunks = [ContentBody(body[at : at + size]) for at in range(0, len(body), size)]
    return b"".join(m(frame, channel) for frame in (method, header, *chunks))


async def rest(tap: Tap, reader: asyncio.StreamReader) -> bytes:
    tap.eof_received()
    return await reader.read()


OPEN_OK = m(commands.Channel.OpenOk(), 1)
CANCEL = m(commands.Basic.Cancel("tag"), 1)
FOREIGN = message(commands.Basic.Deliver("t", 9, False, "", "q"), 2, b"not tapped")
STREAM = (
    OPEN_OK
    + message(commands.Basic.Deliver("t", 5, True, "x", "q"), 1, b"ab" * 100)
    + m(commands.Basic.Ack(3, True), 1)
    + FOREIGN
    + message(commands.Basic.Return(312, "NO_ROUTE", "x", "q"), 1, b"back")
    + m(commands.Basic.Nack(4), 1)
    + CANCEL
    + message(commands.Basic.Deliver("t", 6, False, "x", "q"), 1, b"")
    + m(Heartbeat(), 0)
)
GOT = [(5, "c", b"ab" * 100), (3, True, True), (312, "q", "c"), (4, False, False), (6, "c", b"")]


@given(st.lists(st.integers(1, 70), min_size=1, max_size=30))
def test_any_cutting_of_the_stream_gives_the_same(sizes: list[int]) -> None:
    async def run() -> None:
        sink = Sink()
        tap, reader, transport = await a_tap({1: sink})
        data, at = STREAM, 0
        while data:
            tap.data_received(data[: sizes[at % len(sizes)]])
            data = data[sizes[at % len(sizes)] :]
            at += 1
        assert sink.got == GOT
        assert await rest(tap, reader) == OPEN_OK + FOREIGN + CANCEL + m(Heartbeat(), 0)
        assert not transport.aborted

    asyncio.run(run())


async def test_messages_of_two_channels_may_interleave() -> None:
    one, two = Sink(), Sink()
    tap, _, _ = await a_tap({1: one, 2: two})
    first = message(commands.Basic.Deliver("t", 1, False, "", "q"), 1, b"x" * 40, size=20)
    second = message(commands.Basic.Deliver("t", 2, False, "", "q"), 2, b"y" * 40, size=20)
    cuts_1, cuts_2 = cut(first), cut(second)
    for a, b in zip(cuts_1, cuts_2, strict=True):
        tap.data_received(a + b)
    assert one.got == [(1, "c", b"x" * 40)]
    assert two.got == [(2, "c", b"y" * 40)]


def cut(data: bytes) -> list[bytes]:
    found = []
    while data:
        end = 8 + int.from_bytes(data[3:7], "big")
        found.append(data[:end])
        data = data[end:]
    return found


async def test_a_broken_frame_drops_the_connection() -> None:
    tap, _, transport = await a_tap({})
    tap.data_received(OPEN_OK[:-1] + b"!")
    assert transport.aborted
    tap.write(b"after")
    assert transport.written == b""


async def test_a_sink_that_raises_drops_the_connection() -> None:
    class Raising(Sink):
        def confirmed(self, tag: int, multiple: bool, taken: bool) -> None:
            raise RuntimeError("as a test")

    tap, _, transport = await a_tap({1: Raising()})
    tap.data_received(m(commands.Basic.Ack(1), 1))
    assert transport.aborted


async def test_another_protocol_is_the_library_s_to_explain() -> None:
    tap, reader, _ = await a_tap({})
    tap.data_received(b"AMQP\x00\x01\x00\x00")
    assert await rest(tap, reader) == b"AMQP\x00\x01\x00\x00"


async def test_the_library_hears_a_heartbeat_while_only_messages_flow() -> None:
    sink = Sink()
    tap, reader, _ = await a_tap({1: sink})
    clock = iter((100.0, 101.0, 104.0, 107.0, 108.0))
    tap._loop_time = lambda: next(clock)
    tap.data_received(OPEN_OK)
    for _ in range(4):
        tap.data_received(m(commands.Basic.Ack(1), 1))
    assert tap.heard == 108.0
    assert await rest(tap, reader) == OPEN_OK + frames.HEARTBEAT_FRAME


async def test_events_are_told() -> None:
    events: list[Any] = []
    tap, _, _ = await a_tap({})
    blocked = m(commands.Connection.Blocked("memory"), 0)
    unblocked = m(commands.Connection.Unblocked(), 0)
    tap.data_received(blocked)  # nobody listens yet
    tap.on_blocked = events.append
    tap.on_writable = lambda: events.append("writable")
    tap.on_lost = events.append
    tap.data_received(blocked + unblocked)
    assert events == [True, False]
    tap.pause_writing()
    held = not tap.writable
    tap.resume_writing()
    assert held
    assert tap.writable
    tap.connection_lost(OSError("reset"))
    tap.connection_lost(None)
    tap.data_received(m(commands.Connection.Close(320, "CONNECTION_FORCED", 0, 0), 0))
    tap.connection_lost(None)
    assert events[2:] == [
        "writable",
        "the connection broke: reset",
        "the other side closed the connection",
        "the broker closed the connection: 320 CONNECTION_FORCED",
    ]
