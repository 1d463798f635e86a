"""What only the server does."""

import asyncio
import logging

import pytest

import bus
from bus import Backoff, MemoryBroker, Patience, Reply, Request, State
from bus.driver import Connection, Outgoing
from tests.conformance.stage import soon, until
from tests.conformance.test_calls import HELLO, echo
from tests.conformance.test_limits import Gate

QUICK = Patience(connect=5.0, backoff=Backoff(first=0.001, most=0.01))


async def test_each_side_has_two_connections_with_names() -> None:
    broker = MemoryBroker()
    async with await bus.serve(broker, "echo", echo), await bus.connect(broker):
        names = sorted(connection.name.partition(" ")[2] for connection in broker._connections)
        assert names == ["client replies", "client requests", "server echo replies", "server echo requests"]
    assert not broker._connections


async def test_nothing_secret_reaches_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    broker = MemoryBroker()

    async def agent(request: Request, _reply: Reply) -> None:
        raise RuntimeError(f"failed for {request}")

    connecting = bus.connect(broker, authorize=lambda _: "Bearer hush-hush")
    async with await bus.serve(broker, "failing", agent), await connecting as client:
        with pytest.raises(bus.InternalError) as caught:
            await client.send("failing", HELLO)
        assert "hush" not in str(caught.value)
    assert "an agent's call failed" in caplog.text
    assert "hush" not in caplog.text


async def test_a_call_that_does_not_let_itself_be_cancelled_is_abandoned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bus.server.server._LAST_GRACE", 0.05)
    broker, started, end = MemoryBroker(), asyncio.Event(), asyncio.Event()

    async def agent(_request: Request, _reply: Reply) -> None:
        started.set()
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue

    server = await bus.serve(broker, "deaf", agent)
    async with await bus.connect(broker) as client:
        call = asyncio.create_task(client.send("deaf", HELLO))
        await soon(started.wait())
        await soon(server.stop(0.01))
        assert "abandoned" in caplog.text
        assert broker.depth("a2a.q.deaf") == 1  # its connection gave it back
        end.set()
        await until(lambda: server.stats().running == 0)
        call.cancel()


async def test_an_answer_that_was_taken_is_not_given_back() -> None:
    broker, answered = MemoryBroker(), asyncio.Event()

    async def agent(_request: Request, reply: Reply) -> None:
        await reply.send({"done": True})
        answered.set()
        await asyncio.Event().wait()

    server = await bus.serve(broker, "lingering", agent)
    async with await bus.connect(broker) as client:
        assert await client.send("lingering", HELLO) == {"done": True}
        await soon(answered.wait())
        await soon(server.stop(0.01))
        assert server.stats().answered == 1
        assert server.stats().requeued == 0
        assert broker.depth("a2a.q.lingering") == 0


@pytest.mark.parametrize(("refusals", "unheard"), [(1, 0), (7, 1)])
async def test_a_callers_queue_that_takes_no_more_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, refusals: int, unheard: int
) -> None:
    monkeypatch.setattr("bus.server.outbox._PAUSE", 0.001)
    broker = MemoryBroker()
    async with await bus.serve(broker, "echo", echo) as server, await bus.connect(broker) as client:

        def publish(message: Outgoing) -> "asyncio.Future[None]":
            nonlocal refusals
            if refusals:
                refusals -= 1
                refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                refused.set_exception(bus.Rejected())
                return refused
            return real(message)

        real = server._replies.publish
        monkeypatch.setattr(server._replies, "publish", publish)
        call = asyncio.ensure_future(client.send("echo", HELLO, timeout=30))
        await until(lambda: server.stats().answered == 1)
        assert server.stats().unheard == unheard
        assert (server.stats().requeued, server.stats().redelivered) == (0, 0)
        refusals = 0
        assert await soon(client.send("echo", HELLO))
        assert (await soon(asyncio.wait({call}, timeout=0.1)))[0] or unheard
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


async def test_a_reply_that_cannot_be_written_ends_in_the_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = MemoryBroker()
    async with await bus.serve(broker, "echo", echo) as server, await bus.connect(broker) as client:

        def publish(_message: Outgoing) -> "asyncio.Future[None]":
            failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            failed.set_exception(bus.InvalidParams("too long"))
            return failed

        monkeypatch.setattr(server._replies, "publish", publish)
        call = asyncio.create_task(client.send("echo", HELLO))
        await until(lambda: server.stats().dead_lettered == 1 and server.stats().running == 0)
        assert broker.depth("a2a.dead") == 1
        call.cancel()


async def test_a_failure_of_our_own_ends_in_the_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = MemoryBroker()
    async with await bus.serve(broker, "echo", echo) as server, await bus.connect(broker) as client:
        with monkeypatch.context() as patch:
            patch.setattr("bus.wire.read_request", lambda *_: 1 / 0)
            call = asyncio.create_task(client.send("echo", HELLO))
            await until(lambda: server.stats().dead_lettered == 1)
        call.cancel()
        assert await client.send("echo", HELLO)


async def test_a_server_that_stops_while_its_replies_have_no_way_out_gives_them_back() -> None:
    broker, gate = MemoryBroker(), Gate()
    server = await bus.serve(broker, "slow", gate, patience=QUICK)
    async with await bus.connect(broker) as client:
        call = asyncio.create_task(client.send("slow", HELLO))
        await soon(gate.started.get())
        broker.set_reachable(False)
        server._replies.drop("dropped by the test")
        await until(lambda: server._replies.losses == 1)
        gate.opened.set()
        await asyncio.sleep(0)
        await soon(server.stop(0.01))
        assert server.stats().requeued == 1
        broker.set_reachable(True)
        async with await bus.serve(broker, "slow", gate) as second:
            assert await soon(call)
            assert second.stats().redelivered == 1


async def test_what_arrives_while_it_stops_goes_back() -> None:
    broker, gate = MemoryBroker(), Gate()
    server = await bus.serve(broker, "slow", gate)
    async with await bus.connect(broker) as client:
        cancelling, may_cancel = asyncio.Event(), asyncio.Event()
        consumer = server._work._consumer
        assert consumer is not None
        cancel = consumer.cancel

        class Slow:
            async def cancel(self) -> None:
                cancelling.set()
                await may_cancel.wait()
                await cancel()

            async def resume(self, prefetch: int) -> None:
                raise AssertionError

        server._work._consumer = Slow()
        stopping = asyncio.create_task(server.stop(0))
        await soon(cancelling.wait())
        call = asyncio.create_task(client.send("slow", HELLO))
        await until(lambda: server.stats().delivered == 1)
        assert server.stats().requeued == 0
        may_cancel.set()
        await soon(stopping)
        assert gate.started.empty()
        assert server.stats().requeued == 1
        gate.opened.set()
        async with await bus.serve(broker, "slow", gate) as second:
            assert await soon(call)
            assert (second.stats().delivered, second.stats().redelivered) == (1, 1)


async def test_a_server_that_stops_does_not_come_back() -> None:
    broker, gate = MemoryBroker(), Gate()
    server = await bus.serve(broker, "slow", gate, patience=QUICK)
    async with await bus.connect(broker) as client:
        call = asyncio.create_task(client.send("slow", HELLO))
        await soon(gate.started.get())
        stopping = asyncio.create_task(server.stop(10))
        await until(lambda: server.state is State.CLOSED)
        broker.cut("server")
        await soon(server._requests.ready())
        connection = await broker.connect("raw")
        assert await connection.consumers("a2a.q.slow") == 0
        gate.opened.set()
        await soon(stopping)
        with pytest.raises(bus.ConnectionLost):
            await server.ready()
        call.cancel()


async def test_a_consumer_that_is_not_there_after_all_is_asked_for_again() -> None:
    broker = MemoryBroker()
    async with await bus.serve(broker, "echo", echo, patience=QUICK) as server:
        missing = 2

        async def consumers(_connection: Connection, _queue: str) -> int:
            nonlocal missing
            missing -= missing > 0
            return 0 if missing else 1

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("bus.memory.broker.MemoryConnection.consumers", consumers)
            broker.cut("requests")
            await until(lambda: missing == 0)
            await soon(server.ready())
        async with await bus.connect(broker) as client:
            assert await client.send("echo", HELLO)


async def test_a_consumer_that_the_broker_cancels_comes_back() -> None:
    broker = MemoryBroker()
    async with await bus.serve(broker, "echo", echo, patience=QUICK) as server, await bus.connect(broker) as client:
        broker.cancel_consumers("a2a.q.echo")
        await until(lambda: server.stats().losses == 1 and server.state is State.CONNECTED)
        assert await soon(client.send("echo", HELLO))


async def test_a_second_stop_waits_for_the_first() -> None:
    server = await bus.serve(MemoryBroker(), "echo", echo)
    await soon(asyncio.gather(server.stop(), server.stop(), server.wait_closed()))
    assert server.state is State.CLOSED


async def test_a_server_that_cannot_start_leaves_nothing() -> None:
    broker = MemoryBroker()
    async with await bus.serve(broker, "echo", echo, max_length=5):
        before = len(broker._connections)
        with pytest.raises(bus.Refused):
            await soon(bus.serve(broker, "echo", echo, max_length=6))
        await until(lambda: len(broker._connections) == before)


async def test_targets() -> None:
    with pytest.raises(ValueError, match="amqp"):
        await bus.connect("http://host/")
    with pytest.raises(ValueError, match="amqp"):
        await bus.serve("redis://host/", "echo", echo)
