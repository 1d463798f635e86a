"""Connections, consumers and queues that go away in the middle of everything."""

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

import bus
from bus import Backoff, Patience, Reply, Request, Retry, State, topology
from bus.driver import Outgoing, Properties
from tests.conformance.stage import PATIENCE, Stage, soon, until
from tests.conformance.test_calls import HELLO, echo
from tests.conformance.test_limits import Gate


async def test_a_running_call_survives_the_loss_of_its_connection(stage: Stage) -> None:
    gate = Gate()
    server = await stage.serve("slow", gate)
    client = await stage.connect()
    call = asyncio.create_task(client.send("slow", {**HELLO, "messageId": "key"}))
    first = await soon(gate.started.get())
    assert stage.cut("server") == 2
    second = await soon(gate.started.get())
    assert (first.message_id, first.redelivered) == ("key", False)
    assert (second.message_id, second.redelivered) == ("key", True)
    await soon(server.ready())
    gate.opened.set()
    assert await soon(call) == {"id": "key"}
    await until(lambda: server.stats().running == 0)
    # Both runs answered, the caller got one answer; the first run's acknowledgement went nowhere.
    assert server.stats().answered == 2
    assert server.stats().stale == 1
    assert server.stats().redelivered == 1
    await until(lambda: client.stats().late == 1)
    assert client.stats().pending == 0


async def test_a_reply_that_found_no_connection_leaves_the_answer_to_the_redelivery(stage: Stage) -> None:
    gate = Gate()
    server = await stage.serve("slow", gate)
    client = await stage.connect()
    call = asyncio.create_task(client.send("slow", HELLO))
    await soon(gate.started.get())
    stage.set_reachable("server", False)
    stage.cut("server")
    await until(lambda: server.state in (State.DOWN, State.CONNECTING) and server.stats().losses == 2)
    gate.opened.set()
    await until(lambda: server.stats().unanswered == 1)
    assert server.stats().running == 0
    stage.set_reachable("server", True)
    assert await soon(call)
    await until(lambda: server.stats().answered == 1)
    assert client.stats().late == 0


async def test_a_reply_waits_for_its_own_connection(stage: Stage) -> None:
    gate = Gate()
    server = await stage.serve("slow", gate)
    client = await stage.connect()
    call = asyncio.create_task(client.send("slow", HELLO))
    await soon(gate.started.get())
    server._replies.drop("dropped by the test")
    await until(lambda: server._replies.losses == 1)
    gate.opened.set()
    assert await soon(call)
    await until(lambda: server.stats().answered == 1)
    assert server.stats().redelivered == 0


async def test_a_message_that_kills_its_worker_is_given_up(stage: Stage) -> None:
    runs = 0

    async def agent(_request: Request, _reply: Reply) -> None:
        nonlocal runs
        runs += 1
        server._requests.drop("as if the process had died")
        await asyncio.Event().wait()

    server = await stage.serve("poison", agent)
    dead = await stage.dead_letters()
    client = await stage.connect()
    call = asyncio.create_task(client.send("poison", {**HELLO, "messageId": "bad"}))
    letter = await dead.next()
    assert letter.properties.message_id == "bad"
    assert letter.properties.headers["x-death"][0]["reason"] == "delivery_limit"
    assert runs == topology.DELIVERY_CEILING + 1
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_deleted_queue_is_made_again(stage: Stage) -> None:
    server = await stage.serve("echo", echo)
    client = await stage.connect()
    await client.send("echo", HELLO)
    await stage.delete_queue(stage.names.queue("echo"))
    await until(lambda: server.stats().losses == 1 and server.state is State.CONNECTED)
    assert await client.send("echo", HELLO)


async def test_an_exchange_that_goes_missing_is_noticed_and_made_again(stage: Stage) -> None:
    """Nothing tells a server of it: a worker that runs on would be found by nobody."""
    server = await stage.serve("echo", echo, patience=replace(PATIENCE, check=0.05))
    client = await stage.connect(retry=Retry(attempts=100, first_reply=0.2, pause=0.05))
    await client.send("echo", HELLO)
    await stage.delete_exchange(stage.names.requests)
    async with asyncio.timeout(20):
        while True:
            try:
                assert await client.send("echo", HELLO)
                break
            except bus.AgentNotFound:
                await asyncio.sleep(0.05)
    assert server.stats().losses == 0  # what runs and what waits is not disturbed
    assert server.state is State.CONNECTED


async def test_a_lost_reply_queue_is_replaced_and_the_call_answered(stage: Stage) -> None:
    gate = Gate()
    await stage.serve("slow", gate)
    client = await stage.connect()
    call = asyncio.create_task(client.send("slow", {**HELLO, "messageId": "key"}))
    await soon(gate.started.get())
    queue = client._inbox.queue
    client._replies.drop("the reply queue is gone")
    again = await soon(gate.started.get())
    assert again.message_id == "key"
    assert client._inbox.queue != queue
    gate.opened.set()
    assert await soon(call) == {"id": "key"}


async def test_a_client_sends_again_after_its_connections_were_cut(stage: Stage) -> None:
    gate = Gate()
    server = await stage.serve("slow", gate)
    client = await stage.connect()
    calls = asyncio.gather(*(client.send("slow", {**HELLO, "messageId": f"k-{n}"}) for n in range(20)))
    first = [await soon(gate.started.get()) for _ in range(20)]
    assert stage.cut("client") == 2
    second = [await soon(gate.started.get()) for _ in range(20)]
    assert sorted(r.message_id for r in first) == sorted(r.message_id for r in second)
    assert all(request.headers["a2a-attempt"] == "2" for request in second)
    gate.opened.set()
    assert [response["id"] for response in await soon(calls)] == [f"k-{n}" for n in range(20)]
    await until(lambda: server.stats().running == 0)
    assert server.stats().unheard == 20
    assert client.stats().pending == 0
    assert client.stats().late == 0


async def test_a_call_made_while_the_broker_is_away_is_sent_when_it_is_back(stage: Stage) -> None:
    await stage.serve("echo", echo)
    client = await stage.connect()
    stage.set_reachable("client", False)
    stage.cut("client")
    await until(lambda: client.state in (State.DOWN, State.CONNECTING))
    call = asyncio.create_task(client.send("echo", HELLO))
    with pytest.raises(bus.DeadlineExceeded) as caught:
        await client.send("echo", HELLO, timeout=0.1)
    assert caught.value.metadata == {"local": "true", "attempts": "0"}
    stage.set_reachable("client", True)
    assert await soon(call)
    await soon(client.ready())
    assert client.state is State.CONNECTED
    assert client.stats().losses == 2


async def test_many_calls_survive_many_cuts(stage: Stage) -> None:
    runs: dict[str, int] = {}

    async def agent(request: Request, reply: Reply) -> None:
        runs[request.message_id] = runs.get(request.message_id, 0) + 1
        await reply.send({"id": request.message_id})

    await stage.serve("echo", agent, slots=16)
    client = await stage.connect(retry=Retry(attempts=100, first_reply=1.0, pause=0.1))
    calls = asyncio.gather(*(client.send("echo", {**HELLO, "messageId": f"k-{n}"}) for n in range(400)))
    for goal, side in ((40, "server"), (80, "client"), (120, "server"), (160, "client")):
        await until(lambda goal=goal: len(runs) >= goal)  # type: ignore[misc]
        stage.cut(side)
    assert [response["id"] for response in await soon(calls, 60)] == [f"k-{n}" for n in range(400)]
    assert client.stats().pending == 0
    assert not client._pending._by_id


async def test_a_reply_for_a_client_that_is_gone_is_counted(stage: Stage) -> None:
    gate = Gate()
    server = await stage.serve("slow", gate)
    client = await stage.connect()
    call = asyncio.create_task(client.send("slow", HELLO))
    await soon(gate.started.get())
    await client.close()
    with pytest.raises(bus.ConnectionLost):
        await call
    gate.opened.set()
    await until(lambda: server.stats().unheard == 1)
    await until(lambda: server.stats().answered == 1)
    assert server.stats().stale == 0


async def test_a_late_reply_never_raises(stage: Stage) -> None:
    await stage.serve("echo", echo)
    client = await stage.connect()
    connection = await stage.raw()
    odd: list[dict[str, Any]] = [{"a2a-final": True}, {}, {"a2a-final": "odd"}]
    for number, headers in enumerate(odd, start=1):
        properties = Properties(correlation_id=f"unknown-{number}", headers=headers)
        await soon(connection.publish(Outgoing("", client._inbox.queue, b"?", properties)))
    await soon(connection.publish(Outgoing("", client._inbox.queue, b"", Properties())))
    await until(lambda: client.stats().late == 4)
    assert await client.send("echo", HELLO)


async def test_stopping_lets_running_calls_end(stage: Stage) -> None:
    gate = Gate()
    server = await stage.serve("slow", gate, slots=4)
    client = await stage.connect()
    calls = [asyncio.create_task(client.send("slow", HELLO)) for _ in range(4)]
    for _ in calls:
        await soon(gate.started.get())
    stop = asyncio.create_task(server.stop(10))
    closed = asyncio.create_task(server.wait_closed())
    await until(lambda: server.state is State.CLOSED)
    waiting = asyncio.create_task(client.send("slow", HELLO))
    await asyncio.sleep(0)
    gate.opened.set()
    await soon(asyncio.gather(*calls))
    await soon(stop)
    await soon(closed)
    await soon(server.stop(0))
    assert server.stats().answered == 4
    assert server.stats().running == 0
    # What came after it stopped is the next server's.
    assert not waiting.done()
    await stage.serve("slow", gate, slots=4)
    assert await soon(waiting)


async def test_stopping_gives_back_what_does_not_end(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    first = await stage.serve("slow", gate)
    client = await stage.connect()
    call = asyncio.create_task(client.send("slow", {**HELLO, "messageId": "key"}))
    await soon(gate.started.get())
    await soon(first.stop(0.05))
    assert first.stats().requeued == 1
    assert first.stats().running == 0
    gate.opened.set()
    await stage.serve("slow", gate)
    again = await soon(gate.started.get())
    assert (again.message_id, again.redelivered) == ("key", True)
    assert await soon(call) == {"id": "key"}
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_broker_that_is_not_there(stage: Stage) -> None:
    stage.set_reachable("client", False)
    with pytest.raises(bus.ConnectionLost, match="no connection within"):
        await stage.connect(patience=Patience(connect=0.3, backoff=Backoff(first=0.02, most=0.05)))
    connecting = asyncio.create_task(stage.connect(patience=PATIENCE))
    await asyncio.sleep(0)
    stage.set_reachable("client", True)
    assert (await soon(connecting)).state is State.CONNECTED
