"""What only the client does: blocked brokers, resends, and their limits."""

import asyncio

import pytest

import bus
from bus import Backoff, MemoryBroker, Patience, Reply, Request, Retry, State
from tests.conformance.stage import soon, until
from tests.conformance.test_calls import HELLO, echo
from tests.conformance.test_limits import Gate, taken

QUICK = Patience(connect=5.0, backoff=Backoff(first=0.001, most=0.01))


async def test_a_blocked_broker_is_unavailable_at_once() -> None:
    broker = MemoryBroker()
    async with await bus.serve(broker, "echo", echo) as server, await bus.connect(broker) as client:
        broker.set_blocked(True)
        assert client.state is State.BLOCKED
        assert server.state is State.BLOCKED
        with pytest.raises(bus.Unavailable) as caught:
            await soon(client.send("echo", HELLO, timeout=3600), 5)
        assert int(caught.value.metadata["retryAfterMs"]) > 0
        broker.set_blocked(False)
        assert await soon(client.send("echo", HELLO))


async def test_a_reply_waits_while_the_broker_is_blocked() -> None:
    broker, gate = MemoryBroker(), Gate()
    async with await bus.serve(broker, "slow", gate) as server, await bus.connect(broker) as client:
        call = asyncio.create_task(client.send("slow", HELLO))
        await soon(gate.started.get())
        broker.set_blocked(True)
        gate.opened.set()
        await asyncio.sleep(0)
        broker.set_blocked(False)
        assert await soon(call)
        assert server.stats().redelivered == 0


async def test_a_stream_that_is_cut_while_the_broker_is_blocked_waits_and_goes_on() -> None:
    broker, gate = MemoryBroker(), Gate()
    working = {"task": {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}}
    ended = {"statusUpdate": {"taskId": "t", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"}}}

    async def agent(request: Request, reply: Reply) -> None:
        await reply.send(working, final=False, headers={"a2a-task-seq": 0})
        if request.operation == "SubscribeToTask":
            gate.started.put_nowait(request)
            await reply.send(ended, headers={"a2a-task-seq": 1})
        else:
            await asyncio.Event().wait()

    server = await bus.serve(broker, "slow", agent, patience=QUICK)
    async with await bus.connect(broker, patience=QUICK) as client:
        stream = client.stream("slow", "SendStreamingMessage", {"message": HELLO})
        assert (await soon(anext(stream))).body == working
        broker.set_blocked(True)
        assert broker.cut("client replies") == 1
        last = asyncio.create_task(anext(stream))
        await until(lambda: client.state is State.BLOCKED)
        await asyncio.wait({last}, timeout=0.1)
        assert not last.done()
        with pytest.raises(bus.Unavailable):
            await client.send("slow", HELLO)
        broker.set_blocked(False)
        assert (await soon(last)).body == ended
        await stream.aclose()
    await server.stop(0)


async def test_nothing_is_sent_again_while_the_broker_is_blocked() -> None:
    broker, gate = MemoryBroker(), Gate()
    retry = Retry(attempts=5, first_reply=0.02, pause=0.01)
    async with await bus.serve(broker, "slow", gate), await bus.connect(broker, retry=retry) as client:
        call = asyncio.create_task(client.send("slow", HELLO))
        await soon(gate.started.get())
        broker.set_blocked(True)
        resent = client.stats().resent
        await asyncio.wait({call}, timeout=0.2)
        assert client.stats().resent == resent
        broker.set_blocked(False)
        await until(lambda: client.stats().resent > resent)
        gate.opened.set()
        assert await soon(call)


async def test_a_later_attempt_that_is_refused_does_not_end_the_call() -> None:
    broker, gate = MemoryBroker(), Gate()
    server = await bus.serve(broker, "slow", gate, slots=1, max_length=1)
    retry = Retry(attempts=4, first_reply=0.02, pause=0.01)
    async with server, await bus.connect(broker, retry=retry) as client:
        call = asyncio.create_task(client.send("slow", {**HELLO, "messageId": "key"}))
        await soon(gate.started.get())
        # The second attempt fills the queue, the third and the fourth are refused.
        await until(lambda: client.stats().resent == 3)
        await until(lambda: taken(client))
        assert not call.done()
        gate.opened.set()
        assert await soon(call) == {"id": "key"}


async def test_an_agent_that_went_away_after_the_first_attempt() -> None:
    broker = MemoryBroker()
    gate = Gate()
    server = await bus.serve(broker, "slow", gate)
    retry = Retry(attempts=2, first_reply=0.02, pause=0.01)
    async with await bus.connect(broker, retry=retry) as client:
        call = asyncio.create_task(client.send("slow", HELLO, timeout=0.5))
        await soon(gate.started.get())
        stopping = asyncio.create_task(server.stop(10))
        await until(lambda: server.state is State.CLOSED)
        broker.delete_queue("a2a.q.slow")
        with pytest.raises(bus.DeadlineExceeded):
            await soon(call)
        gate.opened.set()
        await soon(stopping)


async def test_one_attempt_only() -> None:
    broker, gate = MemoryBroker(), Gate()
    retry = Retry(attempts=1, first_reply=0.01, pause=0.01)
    async with await bus.serve(broker, "slow", gate), await bus.connect(broker, retry=retry) as client:
        with pytest.raises(bus.DeadlineExceeded) as caught:
            await client.send("slow", HELLO, timeout=0.2)
        assert caught.value.metadata["attempts"] == "1"
        gate.opened.set()


async def test_each_attempt_is_signed_anew() -> None:
    broker, gate = MemoryBroker(), Gate()
    signed: list[bus.Unsigned] = []

    def authorize(unsigned: bus.Unsigned) -> str:
        signed.append(unsigned)
        return f"proof {len(signed)}"

    retry = Retry(attempts=2, first_reply=0.02, pause=0.01)
    connecting = bus.connect(broker, authorize=authorize, retry=retry)
    async with await bus.serve(broker, "slow", gate), await connecting as client:
        call = asyncio.create_task(client.send("slow", HELLO))
        first, second = [await soon(gate.started.get()) for _ in range(2)]
        assert (first.authorization, second.authorization) == ("proof 1", "proof 2")
        assert signed[0] == signed[1]
        gate.opened.set()
        await soon(call)


async def test_a_reply_that_is_not_the_last_is_left_alone() -> None:
    from bus.driver import Outgoing, Properties

    broker, gate = MemoryBroker(), Gate()
    async with await bus.serve(broker, "slow", gate), await bus.connect(broker) as client:
        call = asyncio.create_task(client.send("slow", {**HELLO, "messageId": "key"}))
        await soon(gate.started.get())
        (correlation_id,) = client._pending._by_id
        connection = await broker.connect("raw")
        properties = Properties(correlation_id=correlation_id, headers={"a2a-seq": 0})
        await soon(connection.publish(Outgoing("", client._inbox.queue, b"{}", properties)))
        assert not call.done()
        gate.opened.set()
        assert await soon(call) == {"id": "key"}


@pytest.mark.parametrize(
    ("body", "headers"), [(b"?", {}), (b"[]", {}), (b"?", {"a2a-error": True}), (b"{}", {"a2a-error": True})]
)
async def test_a_reply_that_cannot_be_read_ends_the_call(body: bytes, headers: dict[str, bool]) -> None:
    from bus.driver import Outgoing, Properties

    broker, gate = MemoryBroker(), Gate()
    async with await bus.serve(broker, "slow", gate), await bus.connect(broker) as client:
        call = asyncio.create_task(client.send("slow", HELLO))
        await soon(gate.started.get())
        (correlation_id,) = client._pending._by_id
        connection = await broker.connect("raw")
        properties = Properties(correlation_id=correlation_id, headers={"a2a-final": True, **headers})
        await soon(connection.publish(Outgoing("", client._inbox.queue, body, properties)))
        with pytest.raises((bus.InvalidAgentResponse, bus.InternalError)):
            await soon(call)
        gate.opened.set()


async def test_the_key_of_a_message_in_a_body() -> None:
    broker, gate = MemoryBroker(), Gate()
    gate.opened.set()
    async with await bus.serve(broker, "echo", gate), await bus.connect(broker) as client:
        body = {"message": {**HELLO, "messageId": "key"}}
        assert await client.request("echo", "SendMessage", body) == {"id": "key"}
        encoded = b'{"message":{"messageId":"key"}}'
        assert await client.request("echo", "SendMessage", encoded, message_id="key") == {"id": "key"}
        with pytest.raises(bus.InvalidRequest, match="differ"):
            await client.request("echo", "SendMessage", encoded)
        with pytest.raises(bus.InvalidParams):
            await client.send("echo", {**HELLO, "messageId": 7})


async def test_two_prefixes_do_not_meet() -> None:
    broker = MemoryBroker()
    async with await bus.serve(broker, "echo", echo, prefix="one"):
        async with await bus.connect(broker, prefix="two") as client:
            with pytest.raises(bus.AgentNotFound):
                await client.send("echo", HELLO)
        async with await bus.connect(broker, prefix="one") as client:
            assert await client.send("echo", HELLO)


async def test_a_soak_leaves_no_trace() -> None:
    broker = MemoryBroker()
    numbers = iter(range(10_000))

    async def agent(request: Request, reply: Reply) -> None:
        match next(numbers) % 5:
            case 0:
                raise bus.TaskNotFound
            case 1:
                raise ValueError
            case 2:
                await asyncio.sleep(0.05)
        await reply.send({})

    retry = Retry(attempts=2, first_reply=0.03, pause=0.001)
    server = await bus.serve(broker, "mixed", agent, slots=200, patience=QUICK)
    async with server, await bus.connect(broker, retry=retry, patience=QUICK) as client:
        calls = [asyncio.create_task(client.send("mixed", HELLO, timeout=0.04 + n % 3)) for n in range(600)]
        for n, call in enumerate(calls):
            if n % 7 == 0:
                call.cancel()
            if n == 300:
                broker.cut("client")
        await soon(asyncio.gather(*calls, return_exceptions=True))
        assert client.stats().pending == 0
        assert not client._pending._by_id
        await until(lambda: server.stats().running == 0)


def test_waits_between_attempts() -> None:
    retry = Retry()
    for resends, pause in ((0, 1.0), (1, 2.0), (2, 4.0)):
        for _ in range(20):
            assert 15 + pause * 0.8 <= retry.wait(resends) <= 15 + pause * 1.2
