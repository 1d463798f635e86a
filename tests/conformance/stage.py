"""A broker with everything on it that a conformance test needs, and the hands to break it."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Self

import aio_pika

import bus
from bus import Backoff, Client, MemoryBroker, Names, Patience, Server
from bus.driver import Connection, Driver, Exchange, Incoming, Outgoing, Properties
from bus.target import driver_for
from tests.conformance.proxy import Proxy

PATIENCE = Patience(connect=20.0, confirm=20.0, backoff=Backoff(first=0.02, most=0.2))
WAIT = 20.0


async def soon(awaitable: Awaitable[Any], seconds: float = WAIT) -> Any:
    """The result, or a failure of the test."""
    async with asyncio.timeout(seconds):
        return await awaitable


async def until(condition: Callable[[], object], seconds: float = WAIT) -> None:
    """Come back when the condition holds; nothing signals a count."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


class Stage(ABC):
    """One broker for one test, under a prefix of its own."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.names = Names(prefix)
        self._open = AsyncExitStack()
        self._raw: Connection | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    @property
    @abstractmethod
    def driver(self) -> Driver:
        """A driver that nothing is done to."""

    @property
    @abstractmethod
    def server_target(self) -> bus.Target:
        """What servers connect to."""

    @property
    @abstractmethod
    def client_target(self) -> bus.Target:
        """What clients connect to."""

    @abstractmethod
    def cut(self, side: str) -> int:
        """Break the connections of one side, `server` or `client`."""

    @abstractmethod
    def set_reachable(self, side: str, reachable: bool) -> None:
        """Let one side's new connections fail, or succeed again."""

    @abstractmethod
    async def delete_queue(self, name: str) -> None:
        """Delete a queue under its consumers."""

    @abstractmethod
    async def delete_exchange(self, name: str) -> None:
        """Delete an exchange, and with it its bindings."""

    async def serve(self, name: str, agent: bus.Agent, **options: Any) -> Server:
        options = {"prefix": self.prefix, "patience": PATIENCE, **options}
        server = await bus.serve(self.server_target, name, agent, **options)
        self._open.push_async_callback(server.stop, 0)
        return server

    async def connect(self, **options: Any) -> Client:
        options = {"prefix": self.prefix, "patience": PATIENCE, **options}
        client = await bus.connect(self.client_target, **options)
        self._open.push_async_callback(client.close)
        return client

    async def raw(self) -> Connection:
        """A bare connection of the driver, that no cut reaches."""
        if self._raw is None:
            self._raw = await self.driver.connect("raw")
            self._open.push_async_callback(self._raw.close)
        return self._raw

    async def publish(self, agent: str, body: bytes, **properties: Any) -> None:
        """Publish a request by hand; what is not given is as it should be, and None leaves it out."""
        headers = {"a2a-version": "1.0", **properties.pop("headers", {})}
        given = {
            "type": "SendMessage",
            "content_type": "application/a2a+json",
            "message_id": "m-1",
            "user_id": self.driver.user,
            "persistent": True,
            "headers": {key: value for key, value in headers.items() if value is not None},
            **properties,
        }
        message = Outgoing(self.names.requests, agent, body, Properties(**given))
        await soon((await self.raw()).publish(message))

    async def listen(self) -> "Mailbox":
        """A reply queue read by hand."""
        queue = self.names.new_reply_queue(self.driver.user)
        connection = await self.raw()
        await connection.declare(bus_queue(queue))
        return await Mailbox.on(connection, queue, prefetch=0)

    async def dead_letters(self) -> "Mailbox":
        """The dead-letter queue read by hand."""
        return await Mailbox.on(await self.raw(), self.names.dead, prefetch=10)


def bus_queue(name: str) -> Any:
    from bus.topology import replies

    return replies(name)


class Mailbox:
    """The messages of a queue, in order."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.messages: asyncio.Queue[Incoming] = asyncio.Queue()

    @classmethod
    async def on(cls, connection: Connection, queue: str, *, prefetch: int) -> Self:
        box = cls(queue)
        await connection.consume(
            queue, prefetch=prefetch, on_delivery=box.messages.put_nowait, on_cancelled=lambda: None
        )
        return box

    async def next(self) -> Incoming:
        """The next message; it is acknowledged."""
        message: Incoming = await soon(self.messages.get())
        message.ack()
        return message


class MemoryStage(Stage):
    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        self.broker = MemoryBroker()

    @property
    def driver(self) -> Driver:
        return self.broker

    @property
    def server_target(self) -> bus.Target:
        return self.broker

    @property
    def client_target(self) -> bus.Target:
        return self.broker

    def cut(self, side: str) -> int:
        return self.broker.cut(side)

    def set_reachable(self, side: str, reachable: bool) -> None:
        self.broker.set_reachable(reachable)

    async def delete_queue(self, name: str) -> None:
        self.broker.delete_queue(name)

    async def delete_exchange(self, name: str) -> None:
        self.broker.delete(Exchange(name, "direct"))


class RabbitStage(Stage):
    def __init__(self, prefix: str, url: str) -> None:
        super().__init__(prefix)
        self._url = url
        self._driver = driver_for(url)
        self._agents: set[str] = set()
        self.proxies = {"server": Proxy(url), "client": Proxy(url)}

    async def __aenter__(self) -> Self:
        self._open.push_async_callback(self._delete_all)
        for proxy in self.proxies.values():
            await self._open.enter_async_context(proxy)
        return self

    @property
    def driver(self) -> Driver:
        return self._driver

    @property
    def server_target(self) -> bus.Target:
        return self.proxies["server"].url

    @property
    def client_target(self) -> bus.Target:
        return self.proxies["client"].url

    def cut(self, side: str) -> int:
        return self.proxies[side].cut()

    def set_reachable(self, side: str, reachable: bool) -> None:
        self.proxies[side].refusing = not reachable

    async def serve(self, name: str, agent: bus.Agent, **options: Any) -> Server:
        server = await super().serve(name, agent, **options)
        self._agents.add(name)
        return server

    async def delete_queue(self, name: str) -> None:
        async with await aio_pika.connect(self._url) as connection, connection.channel() as channel:
            await channel.queue_delete(name)

    async def delete_exchange(self, name: str) -> None:
        async with await aio_pika.connect(self._url) as connection, connection.channel() as channel:
            await channel.exchange_delete(name)

    async def _delete_all(self) -> None:
        for agent in self._agents or {"none"}:
            await bus.remove(self._url, agent, prefix=self.prefix, shared=True)
