"""The driver for RabbitMQ over AMQP 0-9-1. The only module that touches aio-pika.

aio-pika opens the connection and its channels, declares and subscribes. Messages themselves go past it: see
`bus.amqp.tap` and `bus.amqp.frames`.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import aio_pika
import aiormq
from aio_pika.abc import AbstractChannel, ConnectionParameter
from yarl import URL

from bus.amqp.delivery import Subscription
from bus.amqp.listeners import Listeners, never
from bus.amqp.publisher import WINDOW, Publisher
from bus.amqp.tap import Tap
from bus.capabilities import Capabilities, capabilities
from bus.driver import Binding, Consumer, Exchange, Incoming, Listener, Outgoing, Part, Queue, Tally
from bus.errors import ConnectionLost, Refused

_T = TypeVar("_T")

HEARTBEAT = 15
"""Seconds; a peer that is silent for two of them is dead."""

TIMEOUT = 20.0
"""Seconds for the broker to answer anything that is asked of it."""

_CLOSE_TIMEOUT = 3.0
_FRAME_MAX = 131_072

_REFUSALS = (
    aiormq.AuthenticationError,
    aiormq.ProbableAuthenticationError,
    aiormq.ConnectionNotAllowed,
    aiormq.ChannelAccessRefused,
    aiormq.ChannelPreconditionFailed,
    aiormq.ChannelLockedResource,
    aiormq.IncompatibleProtocolError,
    ssl.SSLCertVerificationError,
)
_REFUSAL_CODES = (403, 530)


class Amqp:
    """A RabbitMQ broker at an `amqp://` or `amqps://` URL.

    TLS is configured in the URL as in aio-pika: `cafile`, `certfile`, `keyfile`; `auth=external` takes the identity
    from the certificate. The password never shows in a log or an error.
    """

    def __init__(self, url: str, *, window: int = WINDOW, heartbeat: int = HEARTBEAT) -> None:
        parsed = URL(url)
        if parsed.scheme not in ("amqp", "amqps"):
            raise ValueError("a broker's URL begins with amqp:// or amqps://")
        self._heartbeat = int(parsed.query.get("heartbeat", heartbeat))
        self._url = parsed.update_query(heartbeat=self._heartbeat)
        self._window = window

    def __repr__(self) -> str:
        return f"Amqp({str(self._url.with_password('***') if self._url.password else self._url)!r})"

    @property
    def user(self) -> str | None:
        """The user of the URL; unknown when a certificate says who it is."""
        return None if self._url.query.get("auth", "").lower() == "external" else self._url.user or "guest"

    async def connect(self, name: str) -> "AmqpConnection":
        """See `bus.driver.Driver.connect`."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        tap = Tap(reader, loop)
        raw = _RawConnection(
            self._url, client_properties={"connection_name": name}, transport_factory=_TapTransport(reader, tap)
        )
        try:
            await _answer(raw.connect(timeout=TIMEOUT))
            connection = AmqpConnection(raw, tap, window=self._window, heartbeat=self._heartbeat)
            await connection.open()
        except BaseException as error:
            tap.abort()
            if isinstance(error, ConnectionLost) and tap.farewell is not None and tap.farewell[0] in _REFUSAL_CODES:
                raise Refused(f"the broker refuses: {tap.farewell[1]}") from error
            raise
        return connection


class _RawConnection(aio_pika.Connection):
    PARAMETERS = (
        *aio_pika.Connection.PARAMETERS,
        ConnectionParameter(name="transport_factory", parser=lambda given: given, is_kwarg=True),
    )


class _TapTransport(aiormq.TransportFactory):
    def __init__(self, reader: asyncio.StreamReader, tap: Tap) -> None:
        self._reader = reader
        self._tap = tap

    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        provider = kwargs.pop("ssl_context_provider")
        context = await provider.get_context() if url.scheme == "amqps" else None
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(
            lambda: self._tap, url.host or "localhost", url.port or 0, ssl=context, **kwargs
        )
        return self._reader, asyncio.StreamWriter(transport, self._tap, self._reader, loop)


class AmqpConnection:
    """A connection with one channel for publishing, one for each consumer, and short-lived ones for declarations."""

    capabilities: Capabilities
    on_blocked: Callable[[bool], None] | None = None
    blocked = False

    def __init__(self, raw: aio_pika.Connection, tap: Tap, *, window: int, heartbeat: int) -> None:
        self._raw = raw
        self._tap = tap
        self._loop = asyncio.get_running_loop()
        self._publisher = Publisher(tap, window=window)
        self._lasting: list[AbstractChannel] = []
        self._heartbeat = heartbeat
        self._pulse: asyncio.TimerHandle | None = None
        self._listeners = Listeners(self, tap)
        self.lost: asyncio.Future[str] = self._loop.create_future()
        tap.on_lost = self._lose
        tap.on_blocked = self._block
        raw.close_callbacks.add(self._on_closed)

    async def open(self) -> None:
        """Open the publishing channel. Raises `Refused` for a broker that breaks a promise of ours."""
        channel = await self._open_channel(confirms=True, lasting=True)
        underlay = await channel.get_underlay_channel()
        self.capabilities = capabilities(underlay.connection.server_properties)
        if self.capabilities.refusal is not None:
            raise Refused(self.capabilities.refusal)
        self._publisher.attach(underlay.number, underlay.connection.connection_tune.frame_max or _FRAME_MAX)
        self._check_pulse()

    @property
    def waiting_since(self) -> float | None:
        """See `bus.driver.Connection.waiting_since`."""
        return self._publisher.waiting_since

    def publish(self, message: Outgoing, *, mandatory: bool = True) -> "asyncio.Future[None]":
        """See `bus.driver.Connection.publish`."""
        return self._publisher.publish(message, mandatory=mandatory)

    async def declare(self, *parts: Part) -> None:
        """See `bus.driver.Connection.declare`."""
        channel = await self._open_channel()
        try:
            for part in parts:
                if isinstance(part, Exchange):
                    # Looking needs no permission to configure, declaring does; but a miss costs the channel.
                    try:
                        await self.ask(channel.get_exchange(part.name))
                        continue
                    except _Missing:
                        channel = await self._open_channel()
                await self.ask(_declare(channel, part))
        finally:
            await self._close_channel(channel)

    async def missing(self, *parts: Part) -> tuple[Part, ...]:
        """See `bus.driver.Connection.missing`."""
        missing: list[Part] = []
        channel = await self._open_channel()
        try:
            for part in parts:
                if isinstance(part, Binding):
                    continue
                looking = (
                    channel.get_exchange(part.name)
                    if isinstance(part, Exchange)
                    else channel.declare_queue(part.name, passive=True)
                )
                try:
                    await self.ask(looking)
                except _Missing:  # which cost the channel
                    missing.append(part)
                    channel = await self._open_channel()
        finally:
            await self._close_channel(channel)
        return tuple(missing)

    async def delete(self, *parts: Part) -> None:
        """See `bus.driver.Connection.delete`."""
        channel = await self._open_channel()
        try:
            for part in parts:
                if isinstance(part, Exchange):
                    await self.ask(channel.exchange_delete(part.name))
                elif isinstance(part, Queue):
                    await self.ask(channel.queue_delete(part.name))
        finally:
            await self._close_channel(channel)

    async def consumers(self, queue: str) -> int | None:
        """See `bus.driver.Connection.consumers`."""
        found = await self.tally(queue)
        return None if found is None else found.consumers

    async def tally(self, queue: str) -> Tally | None:
        """See `bus.driver.Connection.tally`."""
        channel = await self._open_channel()
        try:
            found = await self.ask(channel.declare_queue(queue, passive=True))
        except _Missing:
            return None
        finally:
            await self._close_channel(channel)
        counted = found.declaration_result
        return Tally(counted.message_count or 0, counted.consumer_count or 0)

    async def consume(
        self,
        queue: str,
        *,
        prefetch: int,
        on_delivery: Callable[[Incoming], None],
        on_cancelled: Callable[[], None],
    ) -> Consumer:
        """See `bus.driver.Connection.consume`."""
        channel = await self._open_channel(lasting=True)
        underlay = await channel.get_underlay_channel()
        self._tap.sinks[underlay.number] = Subscription(self, underlay.number, on_delivery, settles=bool(prefetch))
        underlay.on_consumer_cancel_callbacks.add(lambda _: on_cancelled())
        consumer = _AmqpConsumer(self, underlay, queue)
        await consumer.resume(prefetch)
        return consumer

    async def listen(
        self, queue: str, *, on_delivery: Callable[[Incoming], None], on_cancelled: Callable[[], None]
    ) -> Listener:
        """See `bus.driver.Connection.listen`."""
        return await self._listeners.add(queue, on_delivery, on_cancelled)

    async def close(self) -> None:
        """See `bus.driver.Connection.close`."""
        self._publisher.flush()
        # The library waits for the broker, which need not be there any more.
        closing = asyncio.ensure_future(self._finish())
        closing.add_done_callback(_forget)
        await asyncio.wait({closing}, timeout=_CLOSE_TIMEOUT)
        closing.cancel()
        self._lose("closed")
        self._tap.abort()

    def write(self, data: bytes) -> None:
        """Send frames with the next piece."""
        self._publisher.write(data)

    async def ask(self, question: Awaitable[_T]) -> _T:
        """The broker's answer. Raises `Refused` or `ConnectionLost`, and nothing of aio-pika's."""
        return await _answer(question, self.lost)

    async def open_raw(self, *, lasting: bool) -> aiormq.abc.AbstractChannel:
        """A channel of the library below; with one that is `lasting` the connection ends as well."""
        return await (await self._open_channel(lasting=lasting)).get_underlay_channel()

    async def _open_channel(self, *, confirms: bool = False, lasting: bool = False) -> AbstractChannel:
        channel = self._raw.channel(publisher_confirms=confirms, on_return_raises=confirms)
        await self.ask(channel.initialize())
        if lasting:
            self._lasting.append(channel)
            channel.close_callbacks.add(self._on_closed)
        return channel

    async def _finish(self) -> None:
        await self._raw.close()
        for channel in self._lasting:
            await channel.closed()
        await asyncio.sleep(0)  # for the last callbacks of the library

    async def _close_channel(self, channel: AbstractChannel) -> None:
        if not channel.is_closed and not self.lost.done():
            with suppress(ConnectionLost, Refused):
                await self.ask(channel.close())

    def _on_closed(self, _sender: object, error: BaseException | None) -> None:
        self._lose(f"closed by the broker: {error}" if isinstance(error, Exception) else "closed")

    def _lose(self, reason: str) -> None:
        if self.lost.done():
            return
        self.lost.set_result(reason)
        if self._pulse is not None:
            self._pulse.cancel()
        self._tap.sinks.clear()
        self._publisher.lose(reason)

    def _block(self, blocked: bool) -> None:
        self.blocked = blocked
        if self.on_blocked is not None:
            self.on_blocked(blocked)

    def _check_pulse(self) -> None:
        if self._heartbeat <= 0 or self.lost.done():
            return
        if self._loop.time() - self._tap.heard > 2 * self._heartbeat:
            self._lose("the broker has fallen silent")
            self._tap.abort()
            return
        self._pulse = self._loop.call_later(self._heartbeat / 2, self._check_pulse)


@dataclass(slots=True)
class _AmqpConsumer:
    connection: AmqpConnection
    channel: aiormq.abc.AbstractChannel
    queue: str
    tag: str = ""

    async def cancel(self) -> None:
        with suppress(ConnectionLost, Refused):
            await self.connection.ask(self.channel.basic_cancel(self.tag))

    async def resume(self, prefetch: int) -> None:
        if prefetch:
            await self.connection.ask(self.channel.basic_qos(prefetch_count=prefetch))
        # On the same channel, where what was delivered before is still to be settled.
        consuming = self.channel.basic_consume(self.queue, never, no_ack=not prefetch)
        self.tag = str((await self.connection.ask(consuming)).consumer_tag)


class _Missing(Refused):
    """The queue or exchange is not there."""


async def _declare(channel: AbstractChannel, part: Part) -> None:
    if isinstance(part, Exchange):
        await channel.declare_exchange(part.name, part.kind, durable=True)
    elif isinstance(part, Binding):
        queue = await channel.get_queue(part.queue, ensure=False)
        await queue.bind(part.exchange, part.key)
    else:
        await channel.declare_queue(
            part.name, durable=not part.exclusive, exclusive=part.exclusive, arguments=dict(part.arguments)
        )


async def _answer(question: Awaitable[_T], lost: "asyncio.Future[str] | None" = None) -> _T:
    # In a task of its own: the library cancels whoever waits for it when a connection breaks, which must not look
    # like a cancellation of the caller.
    task = asyncio.ensure_future(question)
    task.add_done_callback(_forget)
    try:
        waits: set[asyncio.Future[Any]] = {task} if lost is None else {task, lost}
        await asyncio.wait(waits, timeout=TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not task.done():
            task.cancel()
    if not task.done() or task.cancelled():
        raise ConnectionLost(lost.result() if lost is not None and lost.done() else "the broker does not answer")
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, aiormq.ChannelNotFoundEntity):
        raise _Missing(f"the broker refuses: {_text(error)}") from error
    if isinstance(error, _REFUSALS):
        raise Refused(f"the broker refuses: {_text(error)}") from error
    if isinstance(error, aiormq.AMQPError | OSError | TimeoutError | aiormq.ChannelInvalidStateError):
        raise ConnectionLost(f"the connection to the broker failed: {_text(error)}") from error
    raise error


def _forget(task: "asyncio.Future[Any]") -> None:
    if not task.cancelled():
        task.exception()


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
