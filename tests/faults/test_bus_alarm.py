"""A real memory alarm: new work is refused, what is under way waits, everybody says so, and nothing is lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import bus
from bus import Reply, Request, State
from bus.discovery.control import ask
from bus.discovery.heartbeats import watch
from bus.discovery.presence import Presence
from bus.discovery.vitals import Info, Pong, Stats
from deploy.rabbitmq import PrivateNode
from tests.conformance.stage import soon, until
from tests.faults.conftest import Site
from tests.faults.test_bus_broker import HELLO, PATIENCE, RETRY, Counting


@asynccontextmanager
async def alarm(node: PrivateNode) -> AsyncIterator[None]:
    await asyncio.to_thread(node.ctl, "set_vm_memory_high_watermark", "0.000001")
    try:
        yield
    finally:
        await asyncio.to_thread(node.ctl, "set_vm_memory_high_watermark", "0.6")


async def test_an_alarm_is_seen_on_both_sides(
    rabbitmq_node: PrivateNode, unique_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    agent, url = Counting(), rabbitmq_node.url
    options = {"prefix": unique_prefix, "patience": PATIENCE}
    async with (
        await bus.serve(url, "slow", agent, **options) as server,  # type: ignore[arg-type]
        await bus.connect(url, retry=RETRY, **options) as client,  # type: ignore[arg-type]
        await watch(url, **options) as heard,  # type: ignore[arg-type]
        Presence(
            url, "slow", instance="w1", look=lambda: Stats.of(server.stats(), state=server.state, slots=64),
            about=Info(interval_seconds=0.2), **options,  # type: ignore[arg-type]
        ) as presence,
    ):  # fmt: skip
        pending = asyncio.create_task(client.send("slow", {**HELLO, "messageId": "pending"}))
        await until(lambda: server.stats().running == 1 and heard.registry.alive())
        async with alarm(rabbitmq_node):
            # Its heartbeat tells the worker, long before it has an answer to send.
            await until(lambda: presence.state is State.BLOCKED)
            assert presence.stats().running == 1
            await until(lambda: not heard.registry.alive())
            # A client learns of it by its next call, which waits; the ones after it are refused.
            held = asyncio.create_task(client.send("slow", {**HELLO, "messageId": "held"}))
            await until(lambda: client.state is State.BLOCKED)
            with pytest.raises(bus.Unavailable) as caught:
                await soon(client.send("slow", HELLO), 5)
            assert int(caught.value.metadata["retryAfterMs"]) > 0
            with pytest.raises(bus.Unavailable):
                await soon(ask(url, Pong, prefix=unique_prefix, most=60.0))
            # An answer that can't go out makes the server itself say it.
            agent.opened.set()
            await until(lambda: server.state is State.BLOCKED)
            assert await client.servers("slow") == 1
            assert not pending.done()
            assert not held.done()
        assert await soon(asyncio.gather(pending, held)) == [{"id": "pending"}, {"id": "held"}]
        await until(lambda: presence.state is State.CONNECTED and heard.registry.alive())
        (answer,) = await ask(url, Pong, prefix=unique_prefix)
        assert answer.body == Pong(State.CONNECTED, slots=64)
        assert agent.runs == {"pending": 1, "held": 1}
        assert client.stats().losses == server.stats().losses == 0
    for words in ("the broker takes no messages now: a memory or disk alarm", "the broker takes messages again"):
        assert words in caplog.text
    await bus.remove(url, "slow", prefix=unique_prefix, shared=True)


async def test_a_stream_lives_through_an_alarm(rabbitmq_node: PrivateNode, unique_prefix: str) -> None:
    go, url = asyncio.Event(), rabbitmq_node.url
    events = [
        {"task": {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}},
        {"statusUpdate": {"taskId": "t", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"}}},
    ]

    async def agent(request: Request, reply: Reply) -> None:
        await reply.send(events[0], final=False)
        await go.wait()
        await reply.send(events[1])

    serving = bus.serve(url, "slow", agent, prefix=unique_prefix, patience=PATIENCE)
    connecting = bus.connect(url, prefix=unique_prefix, patience=PATIENCE)
    async with await serving as server, await connecting as client:
        stream = client.stream("slow", "SendStreamingMessage", {"message": {**HELLO, "messageId": "m"}})
        assert (await soon(anext(stream))).body == events[0]
        last = asyncio.create_task(anext(stream))
        async with alarm(rabbitmq_node):
            go.set()
            await until(lambda: server.state is State.BLOCKED)
            assert not last.done()
        assert (await soon(last)).body == events[1]
        assert [event async for event in stream] == []
        assert client.stats().losses == 0
    await bus.remove(url, "slow", prefix=unique_prefix, shared=True)


async def test_a_worker_that_has_nothing_to_say_is_not_ready_in_an_alarm(
    fragile_site: Site, rabbitmq_node: PrivateNode, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    await fragile_site.worker("--ready-file", str(ready))
    await until(ready.exists)
    async with alarm(rabbitmq_node):
        await until(lambda: not ready.exists(), 30)  # by its next heartbeat, at most 10 s later
    await until(ready.exists)
