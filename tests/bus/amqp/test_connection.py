"""What only RabbitMQ can do to a driver."""

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import bus
from bus import Backoff, Patience, Reply, Request, State, topology
from bus.amqp import frames
from bus.amqp.connection import Amqp, AmqpConnection
from bus.driver import Outgoing, Properties, Queue
from tests.bus.amqp.test_tap import m
from tests.conformance.proxy import Proxy
from tests.conformance.stage import RabbitStage, soon, until
from tests.conformance.test_calls import HELLO, echo
from tests.conformance.test_limits import Gate

pytestmark = pytest.mark.rabbitmq

QUICK = Patience(connect=5.0, backoff=Backoff(first=0.01, most=0.1))


@pytest.fixture
async def stage(unique_prefix: str, rabbitmq_url: str) -> AsyncIterator[RabbitStage]:
    async with RabbitStage(unique_prefix, rabbitmq_url) as made:
        yield made


@pytest.fixture
async def proxy(rabbitmq_url: str) -> AsyncIterator[Proxy]:
    async with Proxy(rabbitmq_url) as made:
        yield made


def rabbit(url: str, **parts: str) -> str:
    """The URL with another user, password or vhost."""
    before, _, host = url.removeprefix("amqp://").rpartition("@")
    user, _, password = before.partition(":")
    user, password = parts.get("user", user), parts.get("password", password)
    return f"amqp://{user}:{password}@{host.rstrip('/')}/{parts.get('vhost', '')}"


POISON: dict[str, tuple[int, bytes]] = {
    # name: presence flags and bytes of the properties beside correlation id and reply address
    "a timestamp in the year 200000": (1 << 6, (6_000_000_000_000).to_bytes(8, "big")),
    "a timestamp beyond all years": (1 << 6, b"\x7f" + b"\xff" * 7),
    "a message id that is not UTF-8": (1 << 7, b"\x02\xff\xfe"),
    "a type that is not UTF-8": (1 << 5, b"\x02\xff\xfe"),
    "a content encoding that is not UTF-8": (1 << 14, b"\x02\xff\xfe"),
    "a header that is not UTF-8": (1 << 13, b"\x00\x00\x00\x0a\x02a2S\x00\x00\x00\x02\xff\xfe"),
    "a header's name that is not UTF-8": (1 << 13, b"\x00\x00\x00\x04\x02\xff\xfeV"),
    "a header twice": (1 << 13, b"\x00\x00\x00\x08\x01at\x01\x01at\x00"),
    "headers that nest": (
        1 << 13,
        b"\x00\x00\x03\xea\x01a" + b"".join(b"A" + (5 * n).to_bytes(4, "big") for n in range(199, -1, -1)),
    ),
}


@pytest.mark.parametrize("name", POISON)
async def test_poison_is_answered_and_costs_no_connection(
    stage: RabbitStage, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await stage.serve("echo", echo)
    box = await stage.listen()
    flag, data = POISON[name]
    correlation, reply_to = b"\x03c-1", bytes((len(box.address),)) + box.address.encode()
    by_flag = sorted([(flag, data), (1 << 10, correlation), (1 << 9, reply_to)], reverse=True)
    flags, properties = sum(each for each, _ in by_flag), b"".join(each for _, each in by_flag)
    with monkeypatch.context() as patch:
        patch.setattr(frames, "_write_properties", lambda _: (flags, properties))
        connection = await stage.raw()
        sending = connection.publish(Outgoing(stage.names.requests, "echo", b"{}", Properties()))
    await soon(sending)
    reply = await box.next()
    assert reply.properties.correlation_id == "c-1"
    assert reply.properties.headers["a2a-error"] is True
    assert await (await stage.connect()).send("echo", HELLO)
    assert server.stats().losses == 0
    assert server.stats().redelivered == 0


async def test_wrong_credentials_are_refused_and_not_shown(rabbitmq_url: str) -> None:
    url = rabbit(rabbitmq_url, user="guest", password="hush-hush")
    with pytest.raises(bus.Refused) as caught:
        await soon(bus.connect(url))
    assert "hush-hush" not in str(caught.value)
    assert "hush-hush" not in repr(Amqp(url))


async def test_a_vhost_that_is_not_there_is_refused(rabbitmq_url: str) -> None:
    with pytest.raises(bus.Refused):
        await soon(bus.connect(rabbit(rabbitmq_url, vhost="nowhere")))


async def test_a_port_where_nobody_listens() -> None:
    server = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(bus.ConnectionLost):
        await soon(bus.connect(f"amqp://127.0.0.1:{port}/", patience=Patience(connect=0.3)))


async def test_a_host_that_speaks_no_amqp() -> None:
    async def talk(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(bus.Unavailable):
            await soon(bus.connect(f"amqp://127.0.0.1:{port}/", patience=Patience(connect=0.3)))


def test_urls() -> None:
    assert Amqp("amqp://alice:x@host/").user == "alice"
    assert Amqp("amqp://host/").user == "guest"
    assert Amqp("amqps://host/?auth=EXTERNAL").user is None
    assert "heartbeat=15" in repr(Amqp("amqp://host/"))
    assert "heartbeat=3" in repr(Amqp("amqp://host/?heartbeat=3"))
    with pytest.raises(ValueError, match="amqp"):
        Amqp("http://host/")


async def test_a_user_cannot_be_forged(rabbitmq_url: str, unique_prefix: str) -> None:
    connection = await Amqp(rabbitmq_url).connect("test")
    queue = f"{unique_prefix}.q"
    await connection.declare(Queue(queue, exclusive=True))
    with pytest.raises(bus.ConnectionLost, match="user_id"):
        await soon(connection.publish(Outgoing("", queue, b"", Properties(user_id="somebody"))))
    assert "user_id" in await soon(connection.lost)
    await connection.close()


async def test_an_exchange_that_is_not_there_ends_the_connection(rabbitmq_url: str, unique_prefix: str) -> None:
    connection = await Amqp(rabbitmq_url).connect("test")
    with pytest.raises(bus.ConnectionLost, match="no exchange"):
        await soon(connection.publish(Outgoing(f"{unique_prefix}.x", "k", b"", Properties())))
    await connection.close()


async def test_a_client_is_there_again_after_its_channel_was_closed(stage: RabbitStage) -> None:
    await stage.serve("echo", echo)
    client = await stage.connect()
    connection = await client._requests.ready()
    lost = connection.publish(Outgoing(f"{stage.prefix}.x", "k", b"", Properties()))
    with pytest.raises(bus.ConnectionLost):
        await soon(lost)
    assert await soon(client.send("echo", HELLO))
    assert client.stats().losses == 1


async def test_a_missing_queue_is_seen_and_costs_nothing(rabbitmq_url: str, unique_prefix: str) -> None:
    connection = await Amqp(rabbitmq_url).connect("test")
    assert await connection.consumers(f"{unique_prefix}.nowhere") is None
    with pytest.raises(bus.Refused):
        await connection.consume(
            f"{unique_prefix}.nowhere", prefetch=1, on_delivery=lambda _: None, on_cancelled=lambda: None
        )
    await connection.close()


async def test_returns_find_their_message_among_many(rabbitmq_url: str, unique_prefix: str) -> None:
    connection = await Amqp(rabbitmq_url, window=20).connect("test")
    queue = f"{unique_prefix}.q"
    await connection.declare(Queue(queue, exclusive=True))

    def message(number: int) -> Outgoing:
        key = queue if number % 3 else f"{unique_prefix}.nowhere"
        return Outgoing("", key, b"x", Properties(correlation_id=f"c-{number}", message_id="same"))

    settled = [connection.publish(message(number)) for number in range(300)]
    await soon(asyncio.wait(settled))
    for number, future in enumerate(settled):
        assert isinstance(future.exception(), bus.Unroutable if number % 3 == 0 else type(None))
    assert connection.waiting_since is None
    await connection.close()


async def test_bodies_of_any_size(rabbitmq_url: str, unique_prefix: str) -> None:
    connection = await Amqp(rabbitmq_url).connect("test")
    queue = f"{unique_prefix}.q"
    await connection.declare(Queue(queue, exclusive=True))
    got: asyncio.Queue[Any] = asyncio.Queue()
    await connection.consume(queue, prefetch=0, on_delivery=got.put_nowait, on_cancelled=lambda: None)
    for size in (0, 1, 131_063, 131_064, 131_065, 262_128, 3_000_000):
        await soon(connection.publish(Outgoing("", queue, b"x" * size, Properties())))
        assert len((await soon(got.get())).body) == size
    await connection.close()


async def test_a_blocked_connection_is_seen(proxy: Proxy, unique_prefix: str) -> None:
    client = await bus.connect(proxy.url, prefix=unique_prefix)
    import pamqp.commands as c

    await proxy.inject(m(c.Connection.Blocked("low on memory"), 0))
    await until(lambda: client.state is State.BLOCKED)
    with pytest.raises(bus.Unavailable):
        await client.send("echo", HELLO)
    await proxy.inject(m(c.Connection.Unblocked(), 0))
    await until(lambda: client.state is State.CONNECTED)
    with pytest.raises(bus.AgentNotFound):
        await client.send("echo", HELLO)
    await client.close()


async def test_a_silent_broker_is_dead(proxy: Proxy, unique_prefix: str) -> None:
    client = await bus.connect(f"{proxy.url}?heartbeat=1", prefix=unique_prefix, patience=QUICK)
    proxy.freeze()
    await until(lambda: client.stats().losses == 2)
    proxy.cut()
    proxy.thaw()
    await soon(client.ready())
    await client.close()


async def test_an_idle_connection_lives(proxy: Proxy, unique_prefix: str) -> None:
    client = await bus.connect(f"{proxy.url}?heartbeat=1", prefix=unique_prefix)
    connection = await client._requests.ready()
    assert isinstance(connection, AmqpConnection)
    heard = connection._tap.heard
    await until(lambda: connection._tap.heard > heard + 3)
    assert client.stats().losses == 0
    await client.close()


async def test_a_restart_of_the_consumer_s_channel_rebuilds(stage: RabbitStage) -> None:
    gate = Gate()
    server = await stage.serve("slow", gate)
    client = await stage.connect()
    call = asyncio.create_task(client.send("slow", HELLO))
    await soon(gate.started.get())
    connection = await server._requests.ready()
    assert isinstance(connection, AmqpConnection)
    # An acknowledgement the broker does not know closes the channel, as its consumer timeout does.
    connection.write(frames.ack(2, 999))
    again: Request = await soon(gate.started.get())
    assert again.redelivered
    gate.opened.set()
    assert await soon(call)
    assert server.stats().losses == 1


async def test_a_second_consumer_on_the_dead_letters(stage: RabbitStage) -> None:
    await stage.serve("echo", echo)
    connection = await stage.raw()
    assert await connection.consumers(stage.names.dead) == 0
    await stage.dead_letters()
    assert await connection.consumers(stage.names.dead) == 1
    assert await connection.consumers(stage.names.queue("echo")) == 1


async def test_any_aio_pika_program_can_call(stage: RabbitStage, rabbitmq_url: str) -> None:
    await stage.serve("echo", echo)
    async with await aio_pika.connect(rabbitmq_url) as connection, connection.channel() as channel:
        queue = await channel.declare_queue(f"{stage.prefix}.reply.guest.abc", exclusive=True)
        exchange = await channel.get_exchange(stage.names.requests)
        message = aio_pika.Message(
            b'{"message":{"messageId":"m","parts":[]}}',
            type="SendMessage",
            content_type="application/a2a+json",
            message_id="m",
            correlation_id="c",
            reply_to=queue.name,
            headers={"a2a-version": "1.0"},
        )
        await exchange.publish(message, "echo")
        async with queue.iterator(timeout=10) as replies:
            reply = await anext(replies)
            await reply.ack()
    assert reply.correlation_id == "c"
    assert reply.headers["a2a-final"] is True
    assert reply.body == b'{"message":{"role":"ROLE_AGENT","parts":[]}}'


async def test_over_tls(rabbitmq_url: str, unique_prefix: str, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    async with Proxy(rabbitmq_url, context) as proxy:
        assert proxy.url.startswith("amqps://")
        with pytest.raises(bus.Refused, match="certificate"):
            await soon(bus.connect(proxy.url))
        url = f"{proxy.url}?cafile={certificate}"
        serving, connecting = bus.serve(url, "echo", echo, prefix=unique_prefix), bus.connect(url, prefix=unique_prefix)
        async with await serving, await connecting as client:
            text = "x" * 300_000
            response = await client.send("echo", {"parts": [{"text": text}]})
            assert response["message"]["parts"] == [{"text": text}]
    connection = await Amqp(rabbitmq_url).connect("cleaning")
    assert await connection.consumers(f"{unique_prefix}.q.echo") == 0
    await connection.close()


def self_signed(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = folder / "certificate.pem", folder / "key.pem"
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate_file, key_file


async def test_what_the_server_declares_may_be_there_already(stage: RabbitStage) -> None:
    connection = await stage.raw()
    for _ in range(2):
        await connection.declare(*topology.agent(stage.names, "echo"))
    await stage.serve("echo", echo)


async def test_the_agent_s_reply_may_be_large(stage: RabbitStage) -> None:
    async def agent(_request: Request, reply: Reply) -> None:
        await reply.send({"text": "x" * 900_000})

    await stage.serve("large", agent)
    response = await (await stage.connect()).send("large", HELLO)
    assert len(response["text"]) == 900_000
