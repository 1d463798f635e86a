"""A queue of the broker inside the process: in order, with prefetch, a limit on deliveries, expiry and dead letters."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from bus.driver import Incoming, Outgoing, Properties, Queue
from bus.errors import ConnectionLost, Refused

_log = logging.getLogger(__name__)


class Holder(Protocol):
    """The connection that a consumer or an exclusive queue belongs to."""

    @property
    def lost(self) -> "asyncio.Future[str]":
        """Done when the connection is gone."""

    def lose(self, reason: str) -> None:
        """The connection is gone."""


@dataclass(slots=True)
class Stored:
    """A message in a queue; `expires` is the loop's time."""

    exchange: str
    routing_key: str
    body: bytes
    properties: Properties
    expires: float | None
    deliveries: int = 0

    @classmethod
    def of(cls, message: Outgoing, now: float) -> "Stored":
        properties = replace(message.properties, headers=dict(message.properties.headers))
        expires = None if properties.expiration is None else now + properties.expiration / 1000
        return cls(message.exchange, message.routing_key, message.body, properties, expires)


class MemoryQueue:
    """A queue: in order, prefetch per consumer, a limit on deliveries, expiry at its head as quorum queues do."""

    def __init__(self, part: Queue, owner: Holder, route: "Callable[[Outgoing], list[MemoryQueue] | None]") -> None:
        self._route = route
        self._loop = asyncio.get_running_loop()
        self._woken = False
        self._timer: asyncio.TimerHandle | None = None
        self.part = part
        self.owner = owner
        self.deleted = False
        self.ready: deque[Stored] = deque()
        self.consumers: deque[MemoryConsumer] = deque()
        self.unsettled: dict[MemoryDelivery, None] = {}  # in order of delivery
        self._max_length = _number(part.arguments.get("x-max-length"))
        self._delivery_limit = _number(part.arguments.get("x-delivery-limit"))
        self._dead = part.arguments.get("x-dead-letter-exchange")

    @property
    def has_room(self) -> bool:
        """Whether it takes one more message."""
        return self._max_length is None or len(self.ready) < self._max_length

    def put(self, message: Stored) -> None:
        """Take a message."""
        self.ready.append(message)
        self.wake()

    def wake(self) -> None:
        """Deliver what can be delivered, in the loop's next turn."""
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._deliver)

    def settle(self, delivery: "MemoryDelivery") -> bool:
        """Strike a delivery off. False when there is nothing to strike."""
        if delivery not in self.unsettled:  # settled before, or the queue was deleted
            return False
        del self.unsettled[delivery]
        delivery.consumer.held -= 1
        self.wake()
        return True

    def give_back(self, deliveries: "list[MemoryDelivery]") -> None:
        """Put deliveries back where they came from, or give them up when they have been delivered too often."""
        for delivery in reversed(deliveries):
            message = delivery.message
            if self._delivery_limit is not None and message.deliveries > self._delivery_limit:
                self.give_up(message, "delivery_limit")
            else:
                self.ready.appendleft(message)
        self.wake()

    def give_up(self, message: Stored, reason: str) -> None:
        """Pass a message to the dead-letter exchange, if there is one."""
        self.wake()
        if not isinstance(self._dead, str):
            return
        death = {"queue": self.part.name, "reason": reason, "count": 1, "exchange": message.exchange}
        headers = {**message.properties.headers, "x-death": [death], "x-first-death-reason": reason}
        properties = replace(message.properties, headers=headers, expiration=None)
        outgoing = Outgoing(self._dead, message.routing_key, message.body, properties)
        for queue in self._route(outgoing) or ():
            queue.put(Stored.of(outgoing, self._loop.time()))

    def release(self, connection: Holder) -> None:
        """Forget the consumers of a connection, and give back what they held."""
        self.consumers = deque(consumer for consumer in self.consumers if consumer.connection is not connection)
        left = [delivery for delivery in self.unsettled if delivery.consumer.connection is connection]
        for delivery in left:
            del self.unsettled[delivery]
        if left:
            self.give_back(left)

    def cancel_consumers(self) -> None:
        """End all subscriptions, and tell them."""
        cancelled, self.consumers = self.consumers, deque()
        for consumer in cancelled:
            self._loop.call_soon(consumer.on_cancelled)

    def delete(self) -> None:
        """Drop everything."""
        self.deleted = True
        self.ready.clear()
        self.unsettled.clear()
        if self._timer is not None:
            self._timer.cancel()
        self.cancel_consumers()

    def _deliver(self) -> None:
        self._woken = False
        self._expire()
        while self.ready and (consumer := self._next_consumer()) is not None:
            delivery = MemoryDelivery(self.ready.popleft(), self, consumer)
            delivery.message.deliveries += 1
            if consumer.prefetch:
                self.unsettled[delivery] = None
                consumer.held += 1
            try:
                consumer.on_delivery(delivery)
            except Exception:
                _log.exception("a consumer raised")
                consumer.connection.lose("a consumer raised")
            self._expire()

    def _next_consumer(self) -> "MemoryConsumer | None":
        for _ in range(len(self.consumers)):
            self.consumers.rotate(-1)
            consumer = self.consumers[-1]
            if not consumer.prefetch or consumer.held < consumer.prefetch:
                return consumer
        return None

    def _expire(self) -> None:
        now = self._loop.time()
        while self.ready and self.ready[0].expires is not None and self.ready[0].expires <= now:
            self.give_up(self.ready.popleft(), "expired")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.ready and self.ready[0].expires is not None:
            self._timer = self._loop.call_at(self.ready[0].expires, self.wake)


@dataclass(slots=True, eq=False)
class MemoryConsumer:
    """See `bus.driver.Consumer`."""

    queue: MemoryQueue
    connection: Holder
    prefetch: int
    on_delivery: Callable[[Incoming], None]
    on_cancelled: Callable[[], None]
    held: int = 0

    async def cancel(self) -> None:
        await asyncio.sleep(0)
        if self in self.queue.consumers:
            self.queue.consumers.remove(self)

    async def resume(self, prefetch: int) -> None:
        await asyncio.sleep(0)
        if self.connection.lost.done():
            raise ConnectionLost(self.connection.lost.result())
        if self.queue.deleted:
            raise Refused("the broker refuses: the queue is gone")
        self.prefetch = prefetch + self.held  # as with RabbitMQ, which counts anew
        if self not in self.queue.consumers:
            self.queue.consumers.append(self)
            self.queue.wake()


class Dropper(Protocol):
    """The broker that a queue stands on."""

    def drop_queue(self, name: str) -> None:
        """Delete a queue, and tell nobody."""


@dataclass(frozen=True, slots=True)
class MemoryListener:
    """See `bus.driver.Listener`."""

    queue: str
    broker: Dropper

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.broker.drop_queue(self.queue)


class MemoryDelivery:
    """See `bus.driver.Incoming`."""

    __slots__ = ("body", "consumer", "message", "properties", "queue", "redelivered")

    def __init__(self, message: Stored, queue: MemoryQueue, consumer: MemoryConsumer) -> None:
        self.message = message
        self.queue = queue
        self.consumer = consumer
        self.body = message.body
        self.redelivered = message.deliveries > 0
        self.properties = replace(message.properties, headers=dict(message.properties.headers))
        if self.redelivered:
            self.properties.headers = {**self.properties.headers, "x-delivery-count": message.deliveries}

    @property
    def stale(self) -> bool:
        return self.consumer.connection.lost.done()

    def ack(self) -> bool:
        if self.stale:
            return False
        self.queue.settle(self)
        return True

    def reject(self, *, requeue: bool) -> bool:
        if self.stale:
            return False
        if self.queue.settle(self):
            if requeue:
                self.queue.give_back([self])
            else:
                self.queue.give_up(self.message, "rejected")
        return True


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) else None
