"""Requests that are acknowledged before their end, and answered by whichever server."""

import asyncio
from typing import Any

import pytest

import bus
from bus import Reply, Request, Retry, State
from tests.conformance.stage import Stage, soon, until

HELLO: dict[str, Any] = {"role": "ROLE_USER", "parts": [{"text": "hello"}]}
WORKING = {"task": {"id": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_WORKING"}}}
DONE = {"task": {"id": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_COMPLETED"}}}
ONCE = Retry(attempts=1)


class Long:
    """An agent that accepts each request, and then waits for leave to answer it, or to return without."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        self.runs = 0
        self.accepted: list[bool] = []
        self.opened = asyncio.Event()
        self.answers = True

    async def __call__(self, request: Request, reply: Reply) -> None:
        self.runs += 1
        self.addresses[request.message_id] = reply.address
        if request.operation != "SendMessage":
            await reply.send(WORKING, final=False, headers={"a2a-task-id": "t-1", "a2a-task-seq": 0})
        self.accepted.append(await reply.accept())
        assert await reply.accept() == self.accepted[-1]
        await self.opened.wait()
        if self.answers:
            await reply.send({"id": request.message_id} if request.operation == "SendMessage" else DONE)


async def waiting(stage: Stage, name: str) -> int:
    """Requests in an agent's queue that nobody has acknowledged, and that no consumer holds."""
    tally = await (await stage.raw()).tally(stage.names.queue(name))
    assert tally is not None
    return tally.messages


async def test_what_is_accepted_is_not_delivered_again_when_its_server_dies(stage: Stage) -> None:
    agent = Long()
    first = await stage.serve("long", agent)
    client = await stage.connect(retry=ONCE)
    call = asyncio.create_task(client.send("long", {**HELLO, "messageId": "m-1"}))
    await until(lambda: agent.accepted == [True])
    await first.stop(0)
    assert (first.stats().accepted, first.stats().left, first.stats().requeued) == (1, 1, 0)
    assert await waiting(stage, "long") == 0
    second = await stage.serve("long", agent)
    assert await second.answer(agent.addresses["m-1"], "SendMessage", {"id": "by another"})
    assert await soon(call) == {"id": "by another"}
    assert (agent.runs, second.stats().delivered) == (1, 0)


async def test_what_is_accepted_is_answered_over_a_lost_connection(stage: Stage) -> None:
    agent = Long()
    server = await stage.serve("long", agent)
    client = await stage.connect(retry=ONCE)
    call = asyncio.create_task(client.send("long", {**HELLO, "messageId": "m-1"}))
    await until(lambda: agent.accepted == [True])
    stage.cut("server")
    agent.opened.set()
    assert await soon(call) == {"id": "m-1"}
    assert agent.runs == 1
    await until(lambda: server.stats().running == 0)
    stats = server.stats()
    assert (stats.answered, stats.unanswered, stats.redelivered, stats.stale) == (1, 0, 0, 0)


async def test_an_agent_may_leave_without_an_answer_once_it_has_accepted(stage: Stage) -> None:
    agent = Long()
    agent.answers = False
    agent.opened.set()
    server = await stage.serve("long", agent)
    client = await stage.connect(retry=ONCE)
    call = asyncio.create_task(client.send("long", {**HELLO, "messageId": "m-1"}))
    await until(lambda: server.stats().left == 1)
    assert not call.done()
    assert await server.answer(agent.addresses["m-1"], "SendMessage", bus.Unavailable("no longer"))
    with pytest.raises(bus.Unavailable, match="no longer"):
        await soon(call)


async def test_nobody_hears_an_answer_to_a_caller_who_is_gone(stage: Stage) -> None:
    agent = Long()
    server = await stage.serve("long", agent)
    client = await stage.connect(retry=ONCE)
    call = asyncio.create_task(client.send("long", {**HELLO, "messageId": "m-1"}))
    await until(lambda: agent.accepted == [True])
    await client.close()
    with pytest.raises(bus.ConnectionLost):
        await soon(call)
    assert await server.answer(agent.addresses["m-1"], "SendMessage", {}) is False
    assert server.stats().unheard == 1


@pytest.mark.parametrize("address", ["", "[]", "{}", '["a", "b"]', '["a2a.q.long", "c"]', "[1, 2]", '["x"'])
async def test_what_is_no_address_is_refused(stage: Stage, address: str) -> None:
    server = await stage.serve("long", Long())
    with pytest.raises(bus.InvalidParams, match="no address"):
        await server.answer(address, "SendMessage", {})


async def test_a_stream_that_is_accepted_goes_on_over_a_lost_connection(stage: Stage) -> None:
    agent = Long()
    await stage.serve("long", agent)
    client = await stage.connect(retry=ONCE)
    body = {"message": {**HELLO, "messageId": "m-1"}}
    events = client.stream("long", "SendStreamingMessage", body)
    assert (await soon(anext(events))).body == WORKING
    await until(lambda: agent.accepted == [True])
    stage.cut("server")
    agent.opened.set()
    assert (await soon(anext(events))).body == DONE
    with pytest.raises(StopAsyncIteration):
        await soon(anext(events))
    assert agent.runs == 1


async def test_an_answer_from_elsewhere_makes_a_stream_be_taken_up_again(stage: Stage) -> None:
    agent = Long()
    first = await stage.serve("long", agent)
    client = await stage.connect(retry=ONCE)
    body = {"message": {**HELLO, "messageId": "m-1"}}
    events = client.stream("long", "SendStreamingMessage", body)
    assert (await soon(anext(events))).body == WORKING
    await until(lambda: agent.accepted == [True])
    second = await stage.serve("long", agent)
    assert await second.answer(agent.addresses["m-1"], "SendStreamingMessage", DONE)
    coming = asyncio.ensure_future(anext(events))
    await until(lambda: agent.runs == 2)  # the second is a SubscribeToTask
    agent.opened.set()
    assert (await soon(coming)).body == DONE
    await until(lambda: first.stats().unheard + second.stats().unheard == 1)


async def test_a_server_that_stops_cuts_what_it_has_accepted(stage: Stage) -> None:
    agent = Long()
    first = await stage.serve("long", agent)
    client = await stage.connect(retry=ONCE)
    events = client.stream("long", "SendStreamingMessage", {"message": {**HELLO, "messageId": "m-1"}}, idle=600)
    assert (await soon(anext(events))).body == WORKING
    await until(lambda: agent.accepted == [True])
    await first.stop(0)
    agent.opened.set()
    await stage.serve("long", agent)
    assert (await soon(anext(events))).body == DONE
    assert agent.runs == 2


async def test_accepted_requests_do_not_hold_up_others(stage: Stage) -> None:
    agent = Long()
    server = await stage.serve("long", agent, slots=2)
    client = await stage.connect(retry=ONCE)
    calls = [asyncio.create_task(client.send("long", {**HELLO, "messageId": f"m-{n}"})) for n in range(12)]
    await until(lambda: server.stats().accepted >= 2)
    await until(lambda: not server._work._on)
    assert 2 <= server.stats().accepted <= 4
    assert server.state is State.CONNECTED
    left = await waiting(stage, "long")
    assert left >= 12 - 4
    agent.opened.set()
    answers = await soon(asyncio.gather(*calls))
    assert [answer["id"] for answer in answers] == [f"m-{n}" for n in range(12)]
    assert agent.runs == 12


async def test_a_paused_server_takes_nothing_and_keeps_what_it_has(stage: Stage) -> None:
    here, there = Long(), Long()
    paused = await stage.serve("long", here)
    client = await stage.connect(retry=ONCE)
    first = asyncio.create_task(client.send("long", {**HELLO, "messageId": "m-1"}))
    await until(lambda: here.accepted)
    await paused.pause("the ledger is away")
    assert (paused.state, paused.paused) == (State.PAUSED, "the ledger is away")
    await stage.serve("long", there)
    there.opened.set()
    for number in range(4):
        await soon(client.send("long", {**HELLO, "messageId": f"o-{number}"}))
    assert (here.runs, there.runs) == (1, 4)
    here.opened.set()
    assert await soon(first) == {"id": "m-1"}
    stage.cut("server")
    await until(lambda: paused.stats().losses == 2 and paused.state is State.PAUSED)
    await soon(client.send("long", {**HELLO, "messageId": "o-4"}))
    assert (here.runs, there.runs) == (1, 5)
    for _ in range(3):
        await paused.resume()
        await paused.pause("again")
    await paused.resume()
    assert paused.state is State.CONNECTED
    calls = [client.send("long", {**HELLO, "messageId": f"p-{number}"}) for number in range(20)]
    await soon(asyncio.gather(*calls))
    assert here.runs > 1
