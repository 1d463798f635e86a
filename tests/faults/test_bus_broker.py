"""The message broker dies, hangs and runs out of memory; no call that it took is lost."""

import asyncio
import os
import signal

import pytest

import bus
from bus import Backoff, Patience, Reply, Request, Retry, State
from deploy.rabbitmq import PrivateNode
from tests.conformance.stage import soon, until

HELLO = {"role": "ROLE_USER", "parts": [{"text": "hello"}]}
PATIENCE = Patience(connect=30.0, confirm=20.0, backoff=Backoff(first=0.05, most=0.5))
RETRY = Retry(attempts=10, first_reply=20.0)


# RabbitMQ 3.10.8 writes the directory of its quorum queues to the disk now and then: one that is killed within about a
# second of a queue's creation comes back with that queue empty and without a leader, for good. No client can help it.
SETTLED = 2.5


class Counting:
    """An agent that counts its runs by message id, and holds some until it may go on."""

    def __init__(self) -> None:
        self.runs: dict[str, int] = {}
        self.opened = asyncio.Event()

    async def __call__(self, request: Request, reply: Reply) -> None:
        self.runs[request.message_id] = self.runs.get(request.message_id, 0) + 1
        await self.opened.wait()
        await reply.send({"id": request.message_id})


async def test_calls_survive_a_killed_broker(rabbitmq_node: PrivateNode, unique_prefix: str) -> None:
    agent = Counting()
    serving = bus.serve(rabbitmq_node.url, "slow", agent, prefix=unique_prefix, slots=8, patience=PATIENCE)
    connecting = bus.connect(rabbitmq_node.url, prefix=unique_prefix, patience=PATIENCE, retry=RETRY)
    async with await serving as server, await connecting as client:
        ids = [f"k-{number}" for number in range(40)]
        calls = asyncio.gather(*(client.send("slow", {**HELLO, "messageId": key}) for key in ids))
        await until(lambda: server.stats().running == 8)
        await asyncio.sleep(SETTLED)
        await asyncio.to_thread(rabbitmq_node.kill)
        await until(lambda: server.state is not State.CONNECTED and client.state is not State.CONNECTED)
        agent.opened.set()  # eight calls end while nobody is there to take their replies
        await asyncio.to_thread(rabbitmq_node.start)
        responses = await soon(calls, 60)
        assert [response["id"] for response in responses] == ids
        assert set(agent.runs) == set(ids)
        assert client.stats().pending == 0
        assert server.stats().unanswered == 8
        assert await soon(client.send("slow", HELLO))


async def test_a_broker_that_restarts_again_and_again(rabbitmq_node: PrivateNode, unique_prefix: str) -> None:
    agent = Counting()
    agent.opened.set()
    serving = bus.serve(rabbitmq_node.url, "echo", agent, prefix=unique_prefix, patience=PATIENCE)
    connecting = bus.connect(rabbitmq_node.url, prefix=unique_prefix, patience=PATIENCE, retry=RETRY)
    async with await serving as server, await connecting as client:
        done = 0
        stop = asyncio.Event()

        async def caller(name: int) -> None:
            nonlocal done
            number = 0
            while not stop.is_set():
                key = f"k-{name}-{number}"
                assert await client.send("echo", {**HELLO, "messageId": key}) == {"id": key}
                done += 1
                number += 1

        await asyncio.sleep(SETTLED)
        callers = asyncio.gather(*(caller(name) for name in range(16)))
        for end in (rabbitmq_node.stop, rabbitmq_node.kill):
            before = done
            await until(lambda before=before: done > before + 100)  # type: ignore[misc]
            await asyncio.to_thread(end)
            await asyncio.to_thread(rabbitmq_node.start)
        before = done
        await until(lambda: done > before + 100, 60)
        stop.set()
        await soon(callers, 60)
        assert len(agent.runs) == done
        assert client.stats().pending == 0
        connection = await server._requests.ready()
        assert client.state is server.state is State.CONNECTED
        assert await connection.consumers(f"{unique_prefix}.q.echo") == 1


async def test_a_broker_short_of_memory_is_unavailable(rabbitmq_node: PrivateNode, unique_prefix: str) -> None:
    agent = Counting()
    agent.opened.set()
    serving = bus.serve(rabbitmq_node.url, "echo", agent, prefix=unique_prefix, patience=PATIENCE)
    connecting = bus.connect(rabbitmq_node.url, prefix=unique_prefix, patience=PATIENCE, retry=RETRY)
    async with await serving, await connecting as client:
        assert await client.send("echo", HELLO)
        await asyncio.to_thread(rabbitmq_node.ctl, "set_vm_memory_high_watermark", "0.000001")
        try:
            # A broker tells of its alarm only to who publishes.
            call = asyncio.create_task(client.send("echo", {**HELLO, "messageId": "held"}))
            await until(lambda: client.state is State.BLOCKED)
            with pytest.raises(bus.Unavailable) as caught:
                await soon(client.send("echo", HELLO), 5)
            assert "retryAfterMs" in caught.value.metadata
            assert not call.done()
        finally:
            await asyncio.to_thread(rabbitmq_node.ctl, "set_vm_memory_high_watermark", "0.6")
        assert await soon(call) == {"id": "held"}
        assert client.state is State.CONNECTED
        assert await client.send("echo", HELLO)
        assert client.stats().losses == 0


async def test_a_broker_that_hangs_is_left_and_found_again(rabbitmq_node: PrivateNode, unique_prefix: str) -> None:
    agent = Counting()
    agent.opened.set()
    url = f"{rabbitmq_node.url}?heartbeat=2"
    serving = bus.serve(url, "echo", agent, prefix=unique_prefix, patience=PATIENCE)
    connecting = bus.connect(url, prefix=unique_prefix, patience=PATIENCE, retry=RETRY)
    async with await serving as server, await connecting as client:
        assert await client.send("echo", HELLO)
        pid = rabbitmq_node.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        call = asyncio.create_task(client.send("echo", {**HELLO, "messageId": "meanwhile"}))
        await until(lambda: client.stats().losses >= 2 and server.stats().losses >= 2)
        os.kill(pid, signal.SIGCONT)
        assert await soon(call, 60) == {"id": "meanwhile"}
