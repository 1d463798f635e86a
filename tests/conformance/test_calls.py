"""One call and its answer."""

import asyncio
import time
from typing import Any

import pytest

import bus
from bus import Limits, Reply, Request, Unsigned
from tests.conformance.stage import Stage, soon, until

HELLO = {"role": "ROLE_USER", "parts": [{"text": "hello"}]}


async def echo(request: Request, reply: Reply) -> None:
    await reply.send({"message": {"role": "ROLE_AGENT", "parts": request.payload["message"]["parts"]}})


def agent_raising(error: BaseException) -> bus.Agent:
    async def agent(_request: Request, _reply: Reply) -> None:
        raise error

    return agent


class Recorder:
    """An agent that keeps what it sees."""

    def __init__(self) -> None:
        self.seen: list[Request] = []

    async def __call__(self, request: Request, reply: Reply) -> None:
        self.seen.append(request)
        await reply.send({"ok": True})


async def test_a_message_comes_back(stage: Stage) -> None:
    server = await stage.serve("echo", echo)
    client = await stage.connect()
    response = await client.send("echo", HELLO)
    assert response == {"message": {"role": "ROLE_AGENT", "parts": [{"text": "hello"}]}}
    assert len(client._pending) == 0
    await until(lambda: server.stats().running == 0)
    assert (server.stats().delivered, server.stats().answered, server.stats().stale) == (1, 1, 0)


async def test_a_thousand_calls_at_once_share_two_connections(stage: Stage) -> None:
    running = most = 0

    async def agent(request: Request, reply: Reply) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        await reply.send({"number": request.payload["message"]["metadata"]["number"]})
        running -= 1

    server = await stage.serve("echo", agent, slots=32)
    client = await stage.connect()
    calls = (client.send("echo", {**HELLO, "metadata": {"number": number}}) for number in range(1000))
    responses = await soon(asyncio.gather(*calls), 60)
    assert [response["number"] for response in responses] == list(range(1000))
    assert 1 < most <= 32
    assert client.stats().pending == 0
    assert not client._pending._by_id
    assert server.stats().answered == 1000


async def test_two_servers_share_the_work(stage: Stage) -> None:
    gate = asyncio.Event()

    async def agent(_request: Request, reply: Reply) -> None:
        await gate.wait()
        await reply.send({})

    first = await stage.serve("echo", agent, slots=1)
    second = await stage.serve("echo", agent, slots=1)
    client = await stage.connect()
    calls = asyncio.gather(client.send("echo", HELLO), client.send("echo", HELLO))
    await until(lambda: first.stats().running == second.stats().running == 1)
    gate.set()
    await soon(calls)


async def test_the_agent_sees_what_was_sent(stage: Stage) -> None:
    agent = Recorder()
    await stage.serve("recorder", agent)
    signed: list[Unsigned] = []

    def authorize(request: Unsigned) -> str:
        signed.append(request)
        return "Bearer secret"

    client = await stage.connect(authorize=authorize)
    before = time.time()
    await client.send(
        "recorder",
        {**HELLO, "messageId": "key-1"},
        metadata={"a": 1},
        configuration={"historyLength": 3},
        headers={"a2a-extensions": "urn:x", "traceparent": "00-1-2-01", "tracestate": "k=v"},
        timeout=30,
    )
    (request,) = agent.seen
    assert request.agent == "recorder"
    assert request.operation == "SendMessage"
    assert request.message_id == "key-1"
    assert request.payload["message"]["messageId"] == "key-1"
    assert request.payload["metadata"] == {"a": 1}
    assert request.payload["configuration"] == {"historyLength": 3}
    assert request.authorization == "Bearer secret"
    assert request.caller == stage.driver.user
    assert (request.traceparent, request.tracestate) == ("00-1-2-01", "k=v")
    assert request.headers == {"a2a-extensions": "urn:x"}
    assert not request.redelivered
    assert request.deadline is not None
    assert before + 29.9 < request.deadline < time.time() + 30
    (unsigned,) = signed
    assert unsigned == Unsigned("recorder", "SendMessage", "key-1", request.body, request.deadline)
    assert "secret" not in repr(request)


async def test_a_message_without_an_id_gets_one(stage: Stage) -> None:
    agent = Recorder()
    await stage.serve("recorder", agent)
    client = await stage.connect()
    await client.send("recorder", HELLO)
    await client.send("recorder", HELLO)
    first, second = agent.seen
    assert first.message_id == first.payload["message"]["messageId"]
    assert first.message_id != second.message_id


async def test_any_operation_travels(stage: Stage) -> None:
    agent = Recorder()
    await stage.serve("recorder", agent)
    client = await stage.connect()
    assert await client.request("recorder", "GetTask", {"id": "t-1"}, message_id="k") == {"ok": True}
    assert await client.request("recorder", "ListTasks", b"{}") == {"ok": True}
    assert [request.operation for request in agent.seen] == ["GetTask", "ListTasks"]
    assert agent.seen[0].payload == {"id": "t-1"}
    with pytest.raises(bus.MethodNotFound):
        await client.request("recorder", "DropTables", {})


async def test_the_agent_may_answer_with_bytes(stage: Stage) -> None:
    async def agent(_request: Request, reply: Reply) -> None:
        await reply.send(b'{"task":{"id":"t"}}')

    await stage.serve("echo", agent)
    assert await (await stage.connect()).send("echo", HELLO) == {"task": {"id": "t"}}


@pytest.mark.parametrize("kind", [*bus.ERRORS.values(), bus.AgentNotFound], ids=lambda kind: kind.__name__)
async def test_every_error_of_the_table_arrives(stage: Stage, kind: type[bus.BusError]) -> None:
    server = await stage.serve("failing", agent_raising(kind("what happened", metadata={"limit": "3"})))
    client = await stage.connect()
    with pytest.raises(kind if kind is not bus.AgentNotFound else bus.SkillNotFound) as caught:
        await client.send("failing", HELLO)
    assert (caught.value.code, caught.value.reason) == (kind.code, kind.reason)
    assert caught.value.message == "what happened"
    assert caught.value.metadata == {"limit": "3"}
    await until(lambda: server.stats().failed == 1)


async def test_an_agent_nobody_serves_is_not_found_at_once(stage: Stage) -> None:
    await stage.serve("echo", echo)
    client = await stage.connect()
    with pytest.raises(bus.AgentNotFound):
        await soon(client.send("nobody", HELLO, timeout=3600), 10)
    assert await client.send("echo", HELLO)


async def test_a_client_may_come_before_every_server(stage: Stage) -> None:
    client = await stage.connect()
    with pytest.raises(bus.AgentNotFound):
        await client.send("echo", HELLO)
    await stage.serve("echo", echo)
    assert await client.send("echo", HELLO)


@pytest.mark.parametrize(
    "error", [RuntimeError("hush"), ValueError(), asyncio.CancelledError(), SystemExit(3), bus.ConnectionLost("x")]
)
async def test_an_agent_that_fails_tells_no_details(stage: Stage, error: BaseException) -> None:
    server = await stage.serve("failing", agent_raising(error))
    client = await stage.connect()
    expected = bus.Unavailable if isinstance(error, bus.ConnectionLost) else bus.InternalError
    with pytest.raises(expected) as caught:
        await client.send("failing", HELLO)
    assert "hush" not in caught.value.message
    await until(lambda: server.stats().failed == 1)


async def test_an_agent_that_does_not_answer_is_an_internal_error(stage: Stage) -> None:
    async def agent(_request: Request, _reply: Reply) -> None:
        return

    await stage.serve("mute", agent)
    with pytest.raises(bus.InternalError, match="internal error"):
        await (await stage.connect()).send("mute", HELLO)


async def test_an_agent_answers_once(stage: Stage) -> None:
    again: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def agent(_request: Request, reply: Reply) -> None:
        await reply.send({"n": 1})
        try:
            await reply.send({"n": 2})
        except RuntimeError as error:
            again.set_result(error)
            raise

    server = await stage.serve("eager", agent)
    client = await stage.connect()
    assert await client.send("eager", HELLO) == {"n": 1}
    assert "already" in str(await soon(again))
    await until(lambda: server.stats().running == 0)
    assert server.stats().answered == 1
    assert client.stats().late == 0


async def test_an_error_after_the_answer_reaches_nobody(stage: Stage) -> None:
    async def agent(_request: Request, reply: Reply) -> None:
        await reply.send({"n": 1})
        raise bus.TaskNotFound

    server = await stage.serve("eager", agent)
    assert await (await stage.connect()).send("eager", HELLO) == {"n": 1}
    await until(lambda: server.stats().answered == 1)


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        ({"text": "x" * 2000}, bus.InvalidAgentResponse),
        ({"text": object()}, bus.InvalidAgentResponse),
        (b"[1]", bus.InvalidAgentResponse),
        (b"no json", bus.InvalidAgentResponse),
    ],
)
async def test_a_response_that_is_none(stage: Stage, response: Any, kind: type[bus.BusError]) -> None:
    async def agent(_request: Request, reply: Reply) -> None:
        await reply.send(response)

    await stage.serve("odd", agent, limits=Limits(body=1000))
    with pytest.raises(kind):
        await (await stage.connect()).send("odd", HELLO)


async def test_this_operation_has_one_reply(stage: Stage) -> None:
    async def agent(_request: Request, reply: Reply) -> None:
        await reply.send({}, final=False)

    await stage.serve("chatty", agent)
    with pytest.raises(bus.UnsupportedOperation):
        await (await stage.connect()).send("chatty", HELLO)


async def test_what_may_not_be_sent_is_refused_here(stage: Stage) -> None:
    client = await stage.connect()
    send = client.send
    with pytest.raises(bus.InvalidParams):
        await send("No Such Name", HELLO)
    with pytest.raises(bus.InvalidParams):
        await send("echo", {"parts": object()})
    with pytest.raises(bus.InvalidParams):
        await send("echo", HELLO, timeout=0)
    with pytest.raises(bus.InvalidParams):
        await send("echo", HELLO, timeout=7 * 24 * 3600)
    with pytest.raises(bus.InvalidParams):
        await send("echo", HELLO, headers={"a2a-authorization": "mine"})
    with pytest.raises(bus.InvalidRequest):
        await send("echo", {**HELLO, "text": "x" * (1024 * 1024)})
    with pytest.raises(bus.InvalidRequest):
        await send("echo", HELLO, headers={"a2a-extensions": "x" * 20_000})
    with pytest.raises(bus.InvalidRequest):
        await send("echo", {**HELLO, "messageId": "x" * 256})
    assert client.stats().pending == 0


async def test_a_failing_authorization_fails_the_call(stage: Stage) -> None:
    await stage.serve("echo", echo)

    def authorize(_request: Unsigned) -> str:
        raise PermissionError("no key")

    client = await stage.connect(authorize=authorize)
    with pytest.raises(PermissionError):
        await client.send("echo", HELLO)
    assert client.stats().pending == 0


async def test_a_caller_that_gives_up_leaves_nothing_behind(stage: Stage) -> None:
    started, gate = asyncio.Event(), asyncio.Event()

    async def agent(_request: Request, reply: Reply) -> None:
        started.set()
        await gate.wait()
        await reply.send({})

    await stage.serve("slow", agent)
    client = await stage.connect()
    call = asyncio.create_task(client.send("slow", HELLO))
    await soon(started.wait())
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert client.stats().pending == 0
    gate.set()
    await until(lambda: client.stats().late == 1)


async def test_large_bodies_travel_whole(stage: Stage) -> None:
    await stage.serve("echo", echo)
    client = await stage.connect()
    text = "ü" * 500_000
    response = await client.send("echo", {"parts": [{"text": text}]})
    assert response["message"]["parts"] == [{"text": text}]


async def test_closing_the_client_fails_what_is_pending(stage: Stage) -> None:
    started = asyncio.Event()

    async def agent(_request: Request, _reply: Reply) -> None:
        started.set()
        await asyncio.Event().wait()

    await stage.serve("slow", agent)
    client = await stage.connect()
    call = asyncio.create_task(client.send("slow", HELLO))
    await soon(started.wait())
    await soon(client.close())
    with pytest.raises(bus.ConnectionLost, match="closed"):
        await call
    with pytest.raises(bus.ConnectionLost, match="closed"):
        await client.send("slow", HELLO)
    assert client.state is bus.State.CLOSED
    assert client.stats().pending == 0
