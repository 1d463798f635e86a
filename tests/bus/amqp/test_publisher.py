"""Confirms: each message is settled once, in whatever order and bundles the broker answers."""

import asyncio

import pytest

from bus.amqp import frames
from bus.amqp.publisher import Publisher
from bus.driver import Outgoing, Properties
from bus.errors import ConnectionLost, InvalidParams, Rejected, Unroutable
from tests.bus.amqp.test_tap import Transport, a_tap


def message(key: str = "q", *, correlation_id: str = "c") -> Outgoing:
    return Outgoing("", key, b"{}", Properties(correlation_id=correlation_id))


async def a_publisher(window: int = 3) -> tuple[Publisher, Transport]:
    tap, _, transport = await a_tap({})
    publisher = Publisher(tap, window=window)
    publisher.attach(1, 4096)
    assert tap.sinks[1] is publisher
    return publisher, transport


def sent(transport: Transport) -> int:
    return transport.written.count((0x003C0028).to_bytes(4, "big"))


async def test_a_window_of_messages_is_on_the_way() -> None:
    publisher, transport = await a_publisher()
    settled = [publisher.publish(message(), mandatory=True) for _ in range(5)]
    assert transport.written == b""
    await asyncio.sleep(0)
    assert sent(transport) == 3
    publisher.confirmed(2, False, True)
    assert [future.done() for future in settled] == [False, True, False, False, False]
    publisher.flush()
    assert sent(transport) == 4
    publisher.confirmed(3, True, True)
    publisher.flush()
    assert sent(transport) == 5
    assert [future.done() for future in settled] == [True, True, True, False, False]
    publisher.confirmed(5, True, False)
    for future in settled[3:]:
        assert isinstance(future.exception(), Rejected)
    assert publisher.waiting_since is None
    publisher.confirmed(5, True, True)
    publisher.confirmed(99, False, True)


async def test_one_turn_is_one_piece() -> None:
    publisher, transport = await a_publisher(window=100)
    pieces: list[bytes] = []
    transport.write = lambda data: pieces.append(bytes(data))  # type: ignore[method-assign]
    for _ in range(50):
        publisher.publish(message(), mandatory=True)
    publisher.write(b"ack")
    await asyncio.sleep(0)
    assert len(pieces) == 1
    assert pieces[0].endswith(b"ack")


async def test_a_returned_message_is_unroutable_and_no_other() -> None:
    publisher, _ = await a_publisher(window=10)
    header = frames.publish(1, message("q", correlation_id="b"), mandatory=True, frame_max=4096)
    header = header[header.index(b"\x00\x3c\x00\x00\x00\x00") :]
    first = publisher.publish(message("q", correlation_id="a"), mandatory=True)
    optional = publisher.publish(message("q", correlation_id="b"), mandatory=False)
    elsewhere = publisher.publish(message("r", correlation_id="b"), mandatory=True)
    second = publisher.publish(message("q", correlation_id="b"), mandatory=True)
    twin = publisher.publish(message("q", correlation_id="b"), mandatory=True)
    publisher.returned(frames.Return(312, "NO_ROUTE", "", "q"), header)
    assert isinstance(second.exception(), Unroutable)
    assert not any(future.done() for future in (first, optional, elsewhere, twin))
    publisher.returned(frames.Return(312, "NO_ROUTE", "", "q"), header)
    assert isinstance(twin.exception(), Unroutable)
    publisher.returned(frames.Return(312, "NO_ROUTE", "", "q"), header)
    publisher.confirmed(5, True, True)
    for future in (first, optional, elsewhere):
        assert future.exception() is None


async def test_a_lost_connection_fails_all_of_it() -> None:
    publisher, transport = await a_publisher(window=1)
    on_its_way = publisher.publish(message(), mandatory=True)
    waiting = publisher.publish(message(), mandatory=True)
    publisher.lose("cut")
    after = publisher.publish(message(), mandatory=True)
    for future in (on_its_way, waiting, after):
        with pytest.raises(ConnectionLost, match="cut"):
            await future
    assert transport.written == b""


async def test_a_withdrawn_message_is_not_sent() -> None:
    publisher, transport = await a_publisher(window=1)
    publisher.publish(message(), mandatory=True)
    waiting = publisher.publish(message("withdrawn"), mandatory=True)
    third = publisher.publish(message("third"), mandatory=True)
    assert publisher.waiting_since is not None
    waiting.cancel()
    publisher.confirmed(1, False, True)
    await asyncio.sleep(0)
    assert b"withdrawn" not in transport.written
    assert b"third" in transport.written
    third.cancel()
    publisher.confirmed(2, False, True)


async def test_a_full_socket_holds_messages_back() -> None:
    publisher, transport = await a_publisher()
    publisher._tap.pause_writing()
    future = publisher.publish(message(), mandatory=True)
    await asyncio.sleep(0)
    assert transport.written == b""
    assert publisher.waiting_since is not None
    publisher._tap.resume_writing()
    await asyncio.sleep(0)
    assert sent(transport) == 1
    publisher.confirmed(1, False, True)
    await future


async def test_what_cannot_be_written_fails_alone() -> None:
    publisher, transport = await a_publisher()
    bad = publisher.publish(Outgoing("", "q", b"", Properties(message_id="x" * 300)), mandatory=True)
    good = publisher.publish(message(), mandatory=True)
    with pytest.raises(InvalidParams):
        await bad
    await asyncio.sleep(0)
    assert sent(transport) == 1
    publisher.confirmed(1, False, True)
    await good


async def test_nothing_is_consumed_here() -> None:
    publisher, _ = await a_publisher()
    publisher.delivered(frames.Deliver(1, False), b"", b"")
