"""The driver inside the process: a broker that keeps RabbitMQ's promises for all that the bus uses of it.

For tests, and for agents that share one process. Nothing is durable: it forgets when the process ends.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bus.driver import Binding, Consumer, Exchange, Incoming, Outgoing, Part, Properties, Queue
from bus.errors import ConnectionLost, Refused, Rejected, Unroutable

_log = logging.getLogger(__name__)


class MemoryBroker:
    """A broker in this process and this event loop. Give it to `bus.serve` and `bus.connect` in place of a URL.

    `user` is who the clients are to it. The methods that break things are for tests.
    """

    def __init__(self, user: str = "guest") -> None:
        self._user = user
        self._exchanges: dict[str, Exchange] = {}
        self._bindings: dict[str, list[Binding]] = {}
        self._queues: dict[str, _Queue] = {}
        self._connections: list[MemoryConnection] = []
        self._reachable = True
        self._blocked = False

    @property
    def user(self) -> str:
        """See `bus.driver.Driver.user`."""
        return self._user

    async def connect(self, name: str) -> "MemoryConnection":
        """See `bus.driver.Driver.connect`."""
        await asyncio.sleep(0)
        if not self._reachable:
            raise ConnectionLost("the broker is not there")
        connection = MemoryConnection(self, name, blocked=self._blocked)
        self._connections.append(connection)
        return connection

    def cut(self, name: str = "") -> int:
        """Break the connections whose name contains `name`, as a network would. Returns how many."""
        broken = [connection for connection in self._connections if name in connection.name]
        for connection in broken:
            connection.lose("cut")
        return len(broken)

    def set_reachable(self, reachable: bool) -> None:
        """Let new connections fail, or succeed again."""
        self._reachable = reachable

    def set_blocked(self, blocked: bool) -> None:
        """Stop taking messages, as a broker short of memory does, or take them again."""
        self._blocked = blocked
        for connection in self._connections:
            connection.set_blocked(blocked)

    def delete_queue(self, name: str) -> None:
        """Delete a queue with its messages; its consumers are cancelled."""
        queue = self._queues.pop(name, None)
        if queue is not None:
            for exchange, bindings in self._bindings.items():
                self._bindings[exchange] = [binding for binding in bindings if binding.queue != name]
            queue.delete()

    def cancel_consumers(self, name: str) -> None:
        """Cancel the consumers of a queue, as a broker that moves the queue does."""
        self._queues[name].cancel_consumers()

    def depth(self, name: str) -> int:
        """How many messages wait in a queue."""
        return len(self._queues[name].ready)

    def declare(self, part: Part, owner: "MemoryConnection") -> None:
        """Make an exchange, a queue or a binding."""
        if isinstance(part, Exchange):
            self._exchanges.setdefault(part.name, part)
            self._bindings.setdefault(part.name, [])
        elif isinstance(part, Queue):
            queue = self._queues.get(part.name)
            if queue is None:
                self._queues[part.name] = _Queue(self, part, owner)
            elif queue.part != part or (part.exclusive and queue.owner is not owner):
                raise Refused(f"the broker refuses: the queue {part.name} exists with other arguments")
        else:
            if part.exchange not in self._exchanges or part.queue not in self._queues:
                raise Refused(f"the broker refuses: no exchange {part.exchange} or no queue {part.queue}")
            if part not in self._bindings[part.exchange]:
                self._bindings[part.exchange].append(part)

    def find(self, name: str) -> "_Queue | None":
        """A queue by its name."""
        return self._queues.get(name)

    def route(self, message: Outgoing) -> "list[_Queue] | None":
        """The queues that take a message; None when there is no such exchange."""
        if not message.exchange:
            queue = self._queues.get(message.routing_key)
            return [] if queue is None else [queue]
        exchange = self._exchanges.get(message.exchange)
        if exchange is None:
            return None
        names = {
            binding.queue
            for binding in self._bindings[exchange.name]
            if exchange.kind == "fanout" or binding.key == message.routing_key
        }
        return [self._queues[name] for name in names]

    def forget(self, connection: "MemoryConnection") -> None:
        """A connection is gone: what it had not settled goes back, what was its own goes with it."""
        if connection in self._connections:
            self._connections.remove(connection)
        for queue in list(self._queues.values()):
            if queue.part.exclusive and queue.owner is connection:
                self.delete_queue(queue.part.name)
            else:
                queue.release(connection)


class MemoryConnection:
    """See `bus.driver.Connection`."""

    on_blocked: Callable[[bool], None] | None = None

    def __init__(self, broker: MemoryBroker, name: str, *, blocked: bool) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._held: deque[tuple[Outgoing, bool, asyncio.Future[None], float]] = deque()
        self.name = name
        self.blocked = blocked
        self.lost: asyncio.Future[str] = self._loop.create_future()

    @property
    def waiting_since(self) -> float | None:
        """See `bus.driver.Connection.waiting_since`."""
        return self._held[0][3] if self._held else None

    def publish(self, message: Outgoing, *, mandatory: bool = True) -> "asyncio.Future[None]":
        """See `bus.driver.Connection.publish`."""
        settled: asyncio.Future[None] = self._loop.create_future()
        if self.lost.done():
            settled.set_exception(ConnectionLost(self.lost.result()))
        else:
            self._held.append((message, mandatory, settled, self._loop.time()))
            self._loop.call_soon(self._take)
        return settled

    async def declare(self, *parts: Part) -> None:
        """See `bus.driver.Connection.declare`."""
        await self._turn()
        for part in parts:
            self._broker.declare(part, self)

    async def consumers(self, queue: str) -> int | None:
        """See `bus.driver.Connection.consumers`."""
        await self._turn()
        found = self._broker.find(queue)
        return None if found is None else len(found.consumers)

    async def consume(
        self,
        queue: str,
        *,
        prefetch: int,
        on_delivery: Callable[[Incoming], None],
        on_cancelled: Callable[[], None],
    ) -> Consumer:
        """See `bus.driver.Connection.consume`."""
        await self._turn()
        found = self._broker.find(queue)
        if found is None or (found.part.exclusive and found.owner is not self):
            raise Refused(f"the broker refuses: no queue {queue}")
        consumer = _Consumer(found, self, prefetch, on_delivery, on_cancelled)
        found.consumers.append(consumer)
        found.wake()
        return consumer

    async def close(self) -> None:
        """See `bus.driver.Connection.close`."""
        await asyncio.sleep(0)
        self.lose("closed")

    def lose(self, reason: str) -> None:
        """The connection is gone."""
        if self.lost.done():
            return
        self.lost.set_result(reason)
        for _, _, settled, _ in self._held:
            if not settled.done():
                settled.set_exception(ConnectionLost(reason))
        self._held.clear()
        self._broker.forget(self)

    def set_blocked(self, blocked: bool) -> None:
        """The broker stops or begins to take messages."""
        if blocked != self.blocked:
            self.blocked = blocked
            if self.on_blocked is not None:
                self.on_blocked(blocked)
            self._loop.call_soon(self._take)

    async def _turn(self) -> None:
        await asyncio.sleep(0)
        if self.lost.done():
            raise ConnectionLost(self.lost.result())

    def _take(self) -> None:
        while self._held and not self.blocked and not self.lost.done():
            message, mandatory, settled, _ = self._held.popleft()
            if settled.cancelled():
                continue
            sender = message.properties.user_id
            queues = self._broker.route(message)
            if queues is None or sender not in (None, self._broker.user):
                self._held.appendleft((message, mandatory, settled, 0.0))
                self.lose(f"no exchange {message.exchange}" if queues is None else "the user id is forged")
            elif not queues and mandatory:
                settled.set_exception(Unroutable())
            elif not all(queue.has_room for queue in queues):
                settled.set_exception(Rejected())
            else:
                for queue in queues:
                    queue.put(_Stored.of(message, self._loop.time()))
                settled.set_result(None)


@dataclass(slots=True)
class _Stored:
    exchange: str
    routing_key: str
    body: bytes
    properties: Properties
    expires: float | None
    deliveries: int = 0

    @classmethod
    def of(cls, message: Outgoing, now: float) -> "_Stored":
        properties = replace(message.properties, headers=dict(message.properties.headers))
        expires = None if properties.expiration is None else now + properties.expiration / 1000
        return cls(message.exchange, message.routing_key, message.body, properties, expires)


class _Queue:
    """A queue: in order, prefetch per consumer, a limit on deliveries, expiry at its head as quorum queues do."""

    def __init__(self, broker: MemoryBroker, part: Queue, owner: MemoryConnection) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._woken = False
        self._timer: asyncio.TimerHandle | None = None
        self.part = part
        self.owner = owner
        self.ready: deque[_Stored] = deque()
        self.consumers: deque[_Consumer] = deque()
        self.unsettled: dict[_Delivery, None] = {}
        self._max_length = _number(part.arguments.get("x-max-length"))
        self._delivery_limit = _number(part.arguments.get("x-delivery-limit"))
        self._dead = part.arguments.get("x-dead-letter-exchange")

    @property
    def has_room(self) -> bool:
        return self._max_length is None or len(self.ready) < self._max_length

    def put(self, message: _Stored) -> None:
        self.ready.append(message)
        self.wake()

    def wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._deliver)

    def settle(self, delivery: "_Delivery") -> bool:
        if delivery not in self.unsettled:  # settled before, or the queue was deleted
            return False
        del self.unsettled[delivery]
        delivery.consumer.held -= 1
        self.wake()
        return True

    def give_back(self, deliveries: "list[_Delivery]") -> None:
        for delivery in reversed(deliveries):
            message = delivery.message
            if self._delivery_limit is not None and message.deliveries > self._delivery_limit:
                self.give_up(message, "delivery_limit")
            else:
                self.ready.appendleft(message)
        self.wake()

    def give_up(self, message: _Stored, reason: str) -> None:
        self.wake()
        if not isinstance(self._dead, str):
            return
        death = {"queue": self.part.name, "reason": reason, "count": 1, "exchange": message.exchange}
        headers = {**message.properties.headers, "x-death": [death], "x-first-death-reason": reason}
        properties = replace(message.properties, headers=headers, expiration=None)
        outgoing = Outgoing(self._dead, message.routing_key, message.body, properties)
        for queue in self._broker.route(outgoing) or ():
            queue.put(_Stored.of(outgoing, self._loop.time()))

    def release(self, connection: MemoryConnection) -> None:
        self.consumers = deque(consumer for consumer in self.consumers if consumer.connection is not connection)
        left = [delivery for delivery in self.unsettled if delivery.consumer.connection is connection]
        for delivery in left:
            del self.unsettled[delivery]
        if left:
            self.give_back(left)

    def cancel_consumers(self) -> None:
        cancelled, self.consumers = self.consumers, deque()
        for consumer in cancelled:
            self._loop.call_soon(consumer.on_cancelled)

    def delete(self) -> None:
        self.ready.clear()
        self.unsettled.clear()
        if self._timer is not None:
            self._timer.cancel()
        self.cancel_consumers()

    def _deliver(self) -> None:
        self._woken = False
        self._expire()
        while self.ready and (consumer := self._next_consumer()) is not None:
            delivery = _Delivery(self.ready.popleft(), self, consumer)
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

    def _next_consumer(self) -> "_Consumer | None":
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
class _Consumer:
    queue: _Queue
    connection: MemoryConnection
    prefetch: int
    on_delivery: Callable[[Incoming], None]
    on_cancelled: Callable[[], None]
    held: int = 0

    async def cancel(self) -> None:
        await asyncio.sleep(0)
        if self in self.queue.consumers:
            self.queue.consumers.remove(self)


class _Delivery:
    """See `bus.driver.Incoming`."""

    __slots__ = ("body", "consumer", "message", "properties", "queue", "redelivered")

    def __init__(self, message: _Stored, queue: _Queue, consumer: _Consumer) -> None:
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
