"""The driver inside the process: a broker that keeps RabbitMQ's promises for all that the bus uses of it.

For tests, and for agents that share one process. Nothing is durable: it forgets when the process ends.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from bus.capabilities import Capabilities
from bus.driver import Binding, Consumer, Exchange, Incoming, Listener, Outgoing, Part, Queue, Tally
from bus.errors import ConnectionLost, Refused, Rejected, Unroutable
from bus.memory.queue import MemoryConsumer, MemoryListener, MemoryQueue, Stored


class MemoryBroker:
    """A broker in this process and this event loop. Give it to `bus.serve` and `bus.connect` in place of a URL.

    `user` is who the clients are to it. The methods that break things are for tests.
    """

    def __init__(self, user: str = "guest") -> None:
        self._user = user
        self._exchanges: dict[str, Exchange] = {}
        self._bindings: dict[str, list[Binding]] = {}
        self._queues: dict[str, MemoryQueue] = {}
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

    def drop_queue(self, name: str) -> None:
        """Delete a queue by the hand of its only reader, who need not be told."""
        if name in self._queues:
            self._queues[name].consumers.clear()
            self.delete_queue(name)

    def delete(self, part: Part) -> None:
        """Delete an exchange with its bindings, or a queue."""
        if isinstance(part, Exchange):
            self._exchanges.pop(part.name, None)
            self._bindings.pop(part.name, None)
        elif isinstance(part, Queue):
            self.delete_queue(part.name)

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
                self._queues[part.name] = MemoryQueue(part, owner, self.route)
            elif queue.part != part or (part.exclusive and queue.owner is not owner):
                raise Refused(f"the broker refuses: the queue {part.name} exists with other arguments")
        else:
            if part.exchange not in self._exchanges or part.queue not in self._queues:
                raise Refused(f"the broker refuses: no exchange {part.exchange} or no queue {part.queue}")
            if part not in self._bindings[part.exchange]:
                self._bindings[part.exchange].append(part)

    def has(self, part: Part) -> bool:
        """Whether there is such an exchange or queue, or what was asked for is neither."""
        if isinstance(part, Exchange):
            return part.name in self._exchanges
        return not isinstance(part, Queue) or part.name in self._queues

    def find(self, name: str) -> MemoryQueue | None:
        """A queue by its name."""
        return self._queues.get(name)

    def route(self, message: Outgoing) -> list[MemoryQueue] | None:
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
                self.drop_queue(queue.part.name)
            else:
                queue.release(connection)


class MemoryConnection:
    """See `bus.driver.Connection`."""

    capabilities = Capabilities("the broker inside this process")
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

    async def missing(self, *parts: Part) -> tuple[Part, ...]:
        """See `bus.driver.Connection.missing`."""
        await self._turn()
        return tuple(part for part in parts if not self._broker.has(part))

    async def delete(self, *parts: Part) -> None:
        """See `bus.driver.Connection.delete`."""
        await self._turn()
        for part in parts:
            self._broker.delete(part)

    async def consumers(self, queue: str) -> int | None:
        """See `bus.driver.Connection.consumers`."""
        found = await self.tally(queue)
        return None if found is None else found.consumers

    async def tally(self, queue: str) -> Tally | None:
        """See `bus.driver.Connection.tally`."""
        await self._turn()
        found = self._broker.find(queue)
        return None if found is None else Tally(len(found.ready), len(found.consumers))

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
        consumer = MemoryConsumer(found, self, prefetch, on_delivery, on_cancelled)
        found.consumers.append(consumer)
        found.wake()
        return consumer

    async def listen(
        self, queue: str, *, on_delivery: Callable[[Incoming], None], on_cancelled: Callable[[], None]
    ) -> Listener:
        """See `bus.driver.Connection.listen`."""
        await self.declare(Queue(queue, exclusive=True))
        await self.consume(queue, prefetch=0, on_delivery=on_delivery, on_cancelled=on_cancelled)
        return MemoryListener(queue, self._broker)

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
            else:
                room = [queue for queue in queues if queue.has_room]
                for queue in room:
                    queue.put(Stored.of(message, self._loop.time()))
                if len(room) < len(queues):
                    settled.set_exception(Rejected())  # as RabbitMQ does, which tells nothing of those that took it
                else:
                    settled.set_result(None)
