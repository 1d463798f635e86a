"""Queues that are full, deadlines that pass, replies that do not come."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import bus
from bus import Limits, Reply, Request, Retry
from tests.conformance.stage import Stage, soon, until
from tests.conformance.test_calls import HELLO, echo

BODY = b'{"message":{"messageId":"m-1","role":"ROLE_USER","parts":[]}}'


class Gate:
    """An agent that answers once it may."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.started: asyncio.Queue[Request] = asyncio.Queue()

    async def __call__(self, request: Request, reply: Reply) -> None:
        self.started.put_nowait(request)
        await self.opened.wait()
        await reply.send({"id": request.message_id})


def taken(client: bus.Client) -> bool:
    """Whether the broker has confirmed all that is pending."""
    return all(call.uncertain for call in client._pending)


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def test_a_full_queue_is_unavailable(stage: Stage) -> None:
    gate = Gate()
    await stage.serve("slow", gate, slots=1, max_length=3)
    client = await stage.connect(retry=Retry(attempts=1))
    calls = []
    full: bus.BusError | None = None
    for number in range(12):  # the limit of a quorum queue is soft
        calls.append(asyncio.create_task(client.send("slow", {**HELLO, "messageId": f"m-{number}"})))
        if number == 0:
            await soon(gate.started.get())
        await until(lambda: calls[-1].done() or (len(client._pending) == len(calls) and taken(client)))
        if calls[-1].done():
            with pytest.raises(bus.Unavailable) as caught:
                await calls.pop()
            full = caught.value
            break
    assert full is not None
    assert full.code == -31014
    assert int(full.metadata["retryAfterMs"]) > 0
    assert 3 <= len(calls) <= 8
    gate.opened.set()
    responses = await soon(asyncio.gather(*calls))
    assert [response["id"] for response in responses] == [f"m-{number}" for number in range(len(calls))]
    assert await client.send("slow", HELLO)


async def test_a_deadline_that_passed_in_the_queue_is_answered_and_not_run(stage: Stage) -> None:
    gate = Gate()
    server = await stage.serve("slow", gate, slots=1, limits=Limits(skew=0.0))
    client = await stage.connect()
    first = asyncio.create_task(client.send("slow", HELLO))
    await soon(gate.started.get())
    box = await stage.listen()
    await stage.publish("slow", BODY, reply_to=box.address, correlation_id="c", headers={"a2a-deadline": ago(0)})
    gate.opened.set()
    assert await soon(first)
    reply = await box.next()
    assert b"-31008" in reply.body
    assert b"DEADLINE_EXCEEDED" in reply.body
    assert gate.started.empty()
    await until(lambda: server.stats().refused == 1)


async def test_clocks_may_differ_a_little(stage: Stage) -> None:
    await stage.serve("echo", echo)
    box = await stage.listen()
    for seconds, answered in ((1.0, True), (3.0, False)):
        deadline = {"a2a-deadline": ago(seconds)}
        await stage.publish("echo", BODY, reply_to=box.address, correlation_id="c", headers=deadline)
        assert ("a2a-error" not in (await box.next()).properties.headers) is answered


async def test_what_expires_in_the_queue_is_dead_lettered(stage: Stage) -> None:
    gate = Gate()
    await stage.serve("slow", gate, slots=1)
    dead = await stage.dead_letters()
    client = await stage.connect()
    first = asyncio.create_task(client.send("slow", HELLO))
    await soon(gate.started.get())
    with pytest.raises(bus.DeadlineExceeded) as caught:
        await client.send("slow", {**HELLO, "messageId": "late"}, timeout=0.2)
    assert caught.value.metadata == {"local": "true", "attempts": "1"}
    letter = await dead.next()
    assert letter.properties.message_id == "late"
    assert letter.properties.expiration is None
    assert letter.properties.headers["x-death"][0]["reason"] == "expired"
    gate.opened.set()
    assert await soon(first)
    assert gate.started.empty()


async def test_no_answer_in_time_is_a_local_error(stage: Stage) -> None:
    gate = Gate()
    await stage.serve("slow", gate)
    client = await stage.connect()
    with pytest.raises(bus.DeadlineExceeded) as caught:
        await soon(client.send("slow", HELLO, timeout=0.3))
    assert caught.value.metadata["local"] == "true"
    assert client.stats().pending == 0
    gate.opened.set()
    await until(lambda: client.stats().late == 1)


async def test_a_deadline_that_passes_where_nobody_serves_says_so(stage: Stage) -> None:
    gate = Gate()
    server = await stage.serve("slow", gate)
    client = await stage.connect()
    assert await client.servers("slow") == 1
    await server.stop()
    assert await client.servers("slow") == 0
    assert await client.servers("nobody") == 0
    with pytest.raises(bus.DeadlineExceeded, match="nobody serves the agent") as caught:
        await soon(client.send("slow", HELLO, timeout=0.3))
    assert caught.value.metadata == {"local": "true", "attempts": "1", "servers": "0"}
    assert client.stats().pending == 0
    # It waits for whoever serves it next, as far as its deadline goes.
    call = asyncio.create_task(client.send("slow", {**HELLO, "messageId": "kept"}))
    await until(lambda: len(client._pending) == 1 and taken(client))
    await stage.serve("slow", gate)
    gate.opened.set()
    assert await soon(call) == {"id": "kept"}


async def test_a_look_at_who_serves_ends_with_its_client(stage: Stage) -> None:
    client = await stage.connect()
    looking = asyncio.create_task(client.servers("slow"))
    await asyncio.sleep(0)
    await client.close()
    assert await soon(looking) in (None, 0)


async def test_limits_are_met_to_the_byte(stage: Stage) -> None:
    async def fine(_request: Request, reply: Reply) -> None:
        await reply.send({})

    limits = Limits(body=300, depth=4, parts=3, headers=400)
    server = await stage.serve("fine", fine, limits=limits)
    client = await stage.connect(limits=limits)
    free = await stage.connect()
    name = "a2a-" + "x" * 124  # 128 bytes

    def padded(size: int) -> bytes:
        start = b'{"message":{"messageId":"m","role":"ROLE_USER","parts":[]},"metadata":{"x":"'
        return start + b"y" * (size - len(start) - 3) + b'"}}'

    def nested(depth: int) -> dict[str, object]:
        value: dict[str, object] = {}
        for _ in range(depth - 1):
            value = {"x": value}
        return value

    own = len("a2a-version1.0") + len("a2a-deadline2026-11-30T15:01:00.000Z")  # written into each request
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"body": padded(300)}, {"body": padded(301)}),
        ({"body": {"message": {"parts": [{}] * 3}}}, {"body": {"message": {"parts": [{}] * 4}}}),
        ({"body": nested(4)}, {"body": nested(5)}),
        ({"headers": {name: "x" * (400 - 128 - own)}}, {"headers": {name: "x" * (401 - 128 - own)}}),
        ({"headers": {name: "x"}}, {"headers": {name + "x": "x"}}),
    ]
    for good, bad in cases:
        for caller in (client, free):
            given = {"body": {}, "message_id": "m", **good}
            assert await soon(caller.request("fine", "SendMessage", **given)) == {}
            given = {"body": {}, "message_id": "m", **bad}
            with pytest.raises(bus.InvalidRequest):
                await soon(caller.request("fine", "SendMessage", **given))
    # What a client knows to be too much it does not even send. No other client knows of names that are too long.
    await until(lambda: server.stats().refused == len(cases) - 1)
    assert server.stats().delivered == 3 * len(cases) - 1


async def test_no_reply_sends_again_under_the_same_message_id(stage: Stage) -> None:
    gate = Gate()
    await stage.serve("slow", gate)
    client = await stage.connect(retry=Retry(attempts=3, first_reply=0.05, pause=0.02))
    call = asyncio.create_task(client.send("slow", {**HELLO, "messageId": "same"}))
    attempts = [await soon(gate.started.get()) for _ in range(3)]
    assert {request.message_id for request in attempts} == {"same"}
    assert [request.headers.get("a2a-attempt") for request in attempts] == [None, "2", "3"]
    assert {request.deadline for request in attempts} == {attempts[0].deadline}
    gate.opened.set()
    assert await soon(call) == {"id": "same"}
    await until(lambda: client.stats().late == 2)
    assert client.stats().resent == 2
    assert gate.started.empty()


async def test_a_server_runs_no_more_than_its_slots(stage: Stage) -> None:
    gate = Gate()
    server = await stage.serve("slow", gate, slots=2)
    client = await stage.connect()
    calls = asyncio.gather(*(client.send("slow", HELLO) for _ in range(5)))
    await soon(gate.started.get())
    await soon(gate.started.get())
    await until(lambda: len(client._pending) == 5 and taken(client))
    assert server.stats().running == 2
    gate.opened.set()
    await soon(calls)
    assert server.stats().delivered == 5


async def test_slots_and_names_have_bounds(stage: Stage) -> None:
    with pytest.raises(bus.InvalidParams):
        await stage.serve("echo", echo, slots=0)
    with pytest.raises(bus.InvalidParams):
        await stage.serve("echo", echo, slots=2001)
    with pytest.raises(bus.InvalidParams):
        await stage.serve("Echo", echo)
    with pytest.raises(bus.InvalidParams):
        await stage.connect(prefix="not a prefix")


async def test_a_queue_with_other_arguments_is_refused(stage: Stage) -> None:
    await stage.serve("echo", echo, max_length=10)
    with pytest.raises(bus.Refused):
        await soon(stage.serve("echo", echo, max_length=11))


async def test_what_was_served_can_be_removed(stage: Stage) -> None:
    server = await stage.serve("echo", echo)
    client = await stage.connect()
    await soon(client.send("echo", HELLO))
    await server.stop()
    for _ in range(2):  # what is gone already is no error
        await bus.remove(stage.server_target, "echo", prefix=stage.prefix)
    assert await (await stage.raw()).consumers(stage.names.queue("echo")) is None
    await stage.serve("echo", echo)
    again = await stage.connect()
    await soon(again.send("echo", HELLO))
