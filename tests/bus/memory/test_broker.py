"""The broker inside the process keeps RabbitMQ's rules beyond what the suite for both drivers asks."""

import asyncio
from typing import Any

import pytest

from bus import ConnectionLost, MemoryBroker, Refused, Rejected, Unroutable
from bus.driver import Binding, Exchange, Incoming, Outgoing, Properties, Queue
from bus.memory.broker import MemoryConnection
from tests.conformance.stage import soon, until

WORK = Queue("work", arguments={"x-delivery-limit": 2, "x-dead-letter-exchange": "dead", "x-max-length": 3})
PARTS = (
    Exchange("dead", "fanout"),
    Queue("dead"),
    Binding("dead", "dead"),
    Exchange("requests", "direct"),
    WORK,
    Binding("requests", "work", "key"),
)


def message(body: bytes = b"x", **properties: Any) -> Outgoing:
    return Outgoing("requests", "key", body, Properties(**properties))


class Reader:
    """A consumer that keeps what it gets."""

    def __init__(self) -> None:
        self.got: asyncio.Queue[Incoming] = asyncio.Queue()
        self.cancelled = asyncio.Event()

    async def on(self, connection: MemoryConnection, queue: str, prefetch: int = 10) -> "Reader":
        self.consumer = await connection.consume(
            queue, prefetch=prefetch, on_delivery=self.got.put_nowait, on_cancelled=self.cancelled.set
        )
        return self

    async def next(self) -> Incoming:
        found: Incoming = await soon(self.got.get())
        return found


async def a_connection(broker: MemoryBroker) -> MemoryConnection:
    connection = await broker.connect("test")
    await connection.declare(*PARTS)
    return connection


async def test_order_prefetch_and_acknowledgement() -> None:
    broker = MemoryBroker()
    connection = await a_connection(broker)
    reader = await Reader().on(connection, "work", prefetch=2)
    for body in (b"1", b"2", b"3", b"4"):
        await connection.publish(message(body))
    first, second = await reader.next(), await reader.next()
    assert (first.body, second.body) == (b"1", b"2")
    assert reader.got.empty()
    assert broker.depth("work") == 2
    assert first.ack()
    assert first.ack()
    assert not first.stale
    third = await reader.next()
    assert third.body == b"3"
    assert reader.got.empty()


async def test_what_is_given_back_keeps_its_place() -> None:
    connection = await a_connection(MemoryBroker())
    reader = await Reader().on(connection, "work", prefetch=1)
    await connection.publish(message(b"1"))
    await connection.publish(message(b"2"))
    first = await reader.next()
    first.reject(requeue=True)
    first.reject(requeue=True)
    again = await reader.next()
    assert (again.body, again.redelivered, again.properties.headers) == (b"1", True, {"x-delivery-count": 1})
    again.ack()
    assert (await reader.next()).body == b"2"


async def test_the_delivery_limit_ends_in_the_dead_letters() -> None:
    connection = await a_connection(MemoryBroker())
    reader = await Reader().on(connection, "work")
    dead = await Reader().on(connection, "dead")
    await connection.publish(message(b"bad"))
    for _ in range(3):
        (await reader.next()).reject(requeue=True)
    letter = await dead.next()
    assert letter.body == b"bad"
    assert letter.properties.headers["x-first-death-reason"] == "delivery_limit"
    assert reader.got.empty()


async def test_expiry_at_the_head() -> None:
    broker = MemoryBroker()
    connection = await a_connection(broker)
    dead = await Reader().on(connection, "dead")
    await connection.publish(message(b"long", expiration=100))
    await connection.publish(message(b"short", expiration=1))
    assert [(await dead.next()).body for _ in range(2)] == [b"long", b"short"]
    assert broker.depth("work") == 0


async def test_a_full_queue_and_no_queue() -> None:
    connection = await a_connection(MemoryBroker())
    for _ in range(3):
        await connection.publish(message())
    with pytest.raises(Rejected):
        await connection.publish(message())
    with pytest.raises(Unroutable):
        await connection.publish(Outgoing("requests", "other", b"", Properties()))
    await connection.publish(Outgoing("requests", "other", b"", Properties()), mandatory=False)
    with pytest.raises(Unroutable):
        await connection.publish(Outgoing("", "nowhere", b"", Properties()))


@pytest.mark.parametrize("wrong", [Outgoing("nowhere", "k", b"", Properties()), message(user_id="somebody")])
async def test_what_ends_a_connection(wrong: Outgoing) -> None:
    connection = await a_connection(MemoryBroker())
    good = connection.publish(message(user_id="guest"))
    bad = connection.publish(wrong)
    after = connection.publish(message())
    await good
    for future in (bad, after):
        with pytest.raises(ConnectionLost):
            await soon(future)
    assert connection.lost.done()
    with pytest.raises(ConnectionLost):
        await connection.publish(message())
    with pytest.raises(ConnectionLost):
        await connection.declare(*PARTS)


async def test_a_lost_connection_gives_back_and_takes_its_own_with_it() -> None:
    broker = MemoryBroker()
    first, second = await a_connection(broker), await a_connection(broker)
    reader = await Reader().on(first, "work")
    await first.declare(Queue("mine", exclusive=True))
    await second.publish(message(b"1"))
    await second.publish(message(b"2"))
    held = [await reader.next(), await reader.next()]
    with pytest.raises(Refused):
        await second.consume("mine", prefetch=1, on_delivery=lambda _: None, on_cancelled=lambda: None)
    with pytest.raises(Refused):
        await second.declare(Queue("mine", exclusive=True))
    await first.close()
    assert await second.consumers("mine") is None
    assert await second.consumers("work") == 0
    assert all(delivery.stale for delivery in held)
    assert not held[0].ack()
    assert not held[1].reject(requeue=True)
    other = await Reader().on(second, "work")
    assert [(await other.next()).body for _ in range(2)] == [b"1", b"2"]


async def test_cancelled_and_deleted() -> None:
    broker = MemoryBroker()
    connection = await a_connection(broker)
    reader = await Reader().on(connection, "work")
    await connection.publish(message())
    held = await reader.next()
    broker.cancel_consumers("work")
    await soon(reader.cancelled.wait())
    assert await connection.consumers("work") == 0
    await connection.publish(message(b"later", expiration=1000))
    assert broker.depth("work") == 1
    again = await Reader().on(connection, "work")
    assert (await again.next()).body == b"later"
    broker.delete_queue("work")
    broker.delete_queue("work")
    await soon(again.cancelled.wait())
    assert held.ack()
    assert held.reject(requeue=False)
    with pytest.raises(Unroutable):
        await connection.publish(message())
    with pytest.raises(Refused):
        await connection.consume("work", prefetch=1, on_delivery=lambda _: None, on_cancelled=lambda: None)
    with pytest.raises(Refused):
        await connection.declare(Binding("requests", "work", "key"))


async def test_a_consumer_cancels_itself() -> None:
    broker = MemoryBroker()
    connection = await a_connection(broker)
    reader = await Reader().on(connection, "work")
    await reader.consumer.cancel()
    await reader.consumer.cancel()
    await connection.publish(message())
    assert broker.depth("work") == 1
    assert not reader.cancelled.is_set()


async def test_a_consumer_that_raises_loses_its_connection() -> None:
    connection = await a_connection(MemoryBroker())

    def explode(_: Incoming) -> None:
        raise RuntimeError("as a test")

    await connection.consume("work", prefetch=1, on_delivery=explode, on_cancelled=lambda: None)
    await connection.publish(message())
    assert await soon(connection.lost) == "a consumer raised"


async def test_without_settling() -> None:
    connection = await a_connection(MemoryBroker())
    reader = await Reader().on(connection, "work", prefetch=0)
    for _ in range(3):
        await connection.publish(message())
    for _ in range(3):
        assert (await reader.next()).ack()
    await connection.publish(message())


async def test_blocked_and_withdrawn() -> None:
    broker = MemoryBroker()
    connection = await a_connection(broker)
    told: list[bool] = []
    connection.on_blocked = told.append
    broker.set_blocked(True)
    broker.set_blocked(True)
    first, second = connection.publish(message(b"withdrawn")), connection.publish(message(b"sent"))
    assert connection.waiting_since is not None
    first.cancel()
    late = await broker.connect("late")
    assert late.blocked
    broker.set_blocked(False)
    await soon(second)
    assert not connection._held
    assert told == [True, False]
    reader = await Reader().on(connection, "work")
    assert (await reader.next()).body == b"sent"


async def test_cuts_by_name() -> None:
    broker = MemoryBroker()
    one, two = await broker.connect("client one"), await broker.connect("server two")
    assert broker.cut("client") == 1
    assert one.lost.done()
    assert not two.lost.done()
    assert broker.cut() == 1
    assert broker.cut() == 0


async def test_two_consumers_take_turns() -> None:
    connection = await a_connection(MemoryBroker())
    one, two = await Reader().on(connection, "work"), await Reader().on(connection, "work")
    for _ in range(3):
        await connection.publish(message())
    await until(lambda: one.got.qsize() + two.got.qsize() == 3)
    assert {one.got.qsize(), two.got.qsize()} == {1, 2}
