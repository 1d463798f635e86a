"""Calls that are made for other calls: their deadline, their root task, their depth."""

import asyncio
import time
from itertools import pairwise

import pytest

import bus
from bus import Client, Hop, Reply, Request
from bus.deadline import write
from tests.conformance.stage import Mailbox, Stage, soon
from tests.conformance.test_calls import HELLO, Recorder


class Middle:
    """An agent that asks the next one before it answers."""

    def __init__(self, client: Client, to: str, task_id: str | None = None) -> None:
        self.client = client
        self.to = to
        self.task_id = task_id
        self.seen: list[Request] = []

    async def __call__(self, request: Request, reply: Reply) -> None:
        self.seen.append(request)
        parent = request if self.task_id is None else Hop.of(request, self.task_id)
        await reply.send(await self.client.send(self.to, HELLO, within=parent))


async def test_each_hop_is_shorter_and_deeper_and_has_the_same_root(stage: Stage) -> None:
    client, last = await stage.connect(), Recorder()
    first, second = Middle(client, "second", "t-1"), Middle(client, "last", "t-2")
    for name, agent in (("first", first), ("second", second), ("last", last)):
        await stage.serve(name, agent)
    trace = {"traceparent": "00-1-2-01", "tracestate": "k=v"}
    await soon(client.send("first", HELLO, headers=trace, timeout=10))
    requests = [first.seen[0], second.seen[0], last.seen[0]]
    assert [request.depth for request in requests] == [0, 1, 2]
    assert [request.root_task for request in requests] == [None, "t-1", "t-1"]
    assert {(request.traceparent, request.tracestate) for request in requests} == {("00-1-2-01", "k=v")}
    deadlines = [request.deadline or 0 for request in requests]
    for above, below in pairwise(deadlines):
        assert above - 0.502 <= below <= above - 0.5


async def test_a_tenant_stays(stage: Stage) -> None:
    client, last = await stage.connect(), Recorder()
    await stage.serve("first", Middle(client, "last"))
    await stage.serve("last", last)
    await soon(client.request("first", "SendMessage", {"tenant": "acme", "message": HELLO}))
    assert last.seen[0].tenant == "acme"


async def test_with_nothing_left_nothing_is_sent(stage: Stage) -> None:
    client, last = await stage.connect(), Recorder()
    await stage.serve("last", last)
    parent = Hop(time.time() + 0.4, {})
    with pytest.raises(bus.DeadlineExceeded) as caught:
        await client.send("last", HELLO, within=parent)
    assert caught.value.metadata["local"] == "true"
    with pytest.raises(bus.DeadlineExceeded):
        await anext(client.stream("last", "SendStreamingMessage", {"message": HELLO}, within=parent))
    assert client.stats().calls == 0
    assert last.seen == []


async def test_a_stream_ends_before_its_parent(stage: Stage) -> None:
    asked: list[Request] = []

    async def silent(request: Request, reply: Reply) -> None:
        asked.append(request)
        await reply.send({"statusUpdate": {"taskId": "t"}}, final=False)
        await asyncio.Event().wait()

    client = await stage.connect()
    await stage.serve("silent", silent)
    parent = Hop(time.time() + 30, {"a2a-depth": "3"})
    events = client.stream("silent", "SendStreamingMessage", {"message": HELLO}, within=parent)
    assert (await soon(anext(events))).task_id == "t"
    stage.cut("client")
    assert (await soon(anext(events))).task_id == "t"  # taken up again, within the same parent
    await events.aclose()
    first, second = asked
    assert second.operation == "SubscribeToTask"
    assert first.deadline == second.deadline
    assert (first.deadline or 99) <= (parent.deadline or 0) - 0.5
    assert (first.depth, second.depth) == (3, 3)


async def test_a_circle_of_agents_comes_to_an_end(stage: Stage) -> None:
    client = await stage.connect()
    circle = Middle(client, "circle")
    await stage.serve("circle", circle)
    with pytest.raises(bus.InvalidRequest, match="in a circle") as caught:
        await soon(client.send("circle", HELLO, timeout=60))
    assert caught.value.metadata == {"maxDepth": "16"}
    assert [request.depth for request in circle.seen] == list(range(17))


@pytest.mark.parametrize(
    ("headers", "taken"),
    [
        ({"a2a-depth": "16"}, True),
        ({"a2a-depth": 16}, True),
        ({"a2a-depth": "17"}, False),
        ({"a2a-depth": 17}, False),
        ({"a2a-depth": "-1"}, False),
        ({"a2a-depth": True}, False),
        ({"a2a-depth": "x"}, False),
        ({"a2a-depth": "9" * 40}, False),
        ({"a2a-tenant": "acme"}, True),
        ({"a2a-tenant": "other"}, False),
    ],
)
async def test_what_a_server_takes(stage: Stage, headers: dict[str, str | int | bool], taken: bool) -> None:
    agent, mailbox = Recorder(), await stage.listen()
    await stage.serve("agent", agent)
    body = b'{"tenant":"acme","id":"t"}'
    reply = await ask(stage, mailbox, body, {"a2a-deadline": write(time.time() + 30), **headers})
    assert (reply.get("a2a-error") is None) is taken
    assert len(agent.seen) == taken


async def ask(stage: Stage, mailbox: Mailbox, body: bytes, headers: dict[str, str | int | bool]) -> dict[str, object]:
    address = {"reply_to": mailbox.address, "correlation_id": "c-1"}
    await stage.publish("agent", body, type="GetTask", headers=headers, **address)
    return dict((await mailbox.next()).properties.headers)
