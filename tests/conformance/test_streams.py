"""Streams: one order, one end, and a cut that is never taken for an end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import orjson
import pytest

import bus
from bus import Reply, Request, Retry, StreamCut, StreamEvent
from bus.driver import Queue
from bus.server.events import WINDOW
from tests.conformance.stage import Stage, soon, until

STREAM = "SendStreamingMessage"
HELLO = {"message": {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}}
WORKING = {"state": "TASK_STATE_WORKING", "timestamp": "2026-11-30T15:01:00.000Z"}
COMPLETED = {"state": "TASK_STATE_COMPLETED"}


def task(status: Any = WORKING, **more: Any) -> dict[str, Any]:
    return {"task": {"id": "t-1", "contextId": "c-1", "status": status, **more}}


def update(status: Any = WORKING) -> dict[str, Any]:
    return {"statusUpdate": {"taskId": "t-1", "contextId": "c-1", "status": status}}


def chunk(number: int) -> dict[str, Any]:
    return {"artifactUpdate": {"taskId": "t-1", "contextId": "c-1", "artifact": {"parts": [{"data": number}]}}}


def number(event: StreamEvent) -> Any:
    return event.body["artifactUpdate"]["artifact"]["parts"][0]["data"]


async def everything(events: AsyncIterator[StreamEvent]) -> list[StreamEvent]:
    return [event async for event in events]


class Logged:
    """An agent whose one task has a log: any number may listen, from any place on."""

    def __init__(self, events: int, hold_at: int | None = None) -> None:
        self.log: list[dict[str, Any]] = []
        self.events = events
        self.hold_at = hold_at
        self.gate = asyncio.Event()
        self.grown = asyncio.Condition()
        self.requests: list[Request] = []
        self.replies: list[Reply] = []
        self.writer: asyncio.Task[None] | None = None
        self.forgotten = 0

    async def __call__(self, request: Request, reply: Reply) -> None:
        self.requests.append(request)
        self.replies.append(reply)
        if self.writer is None:
            self.writer = asyncio.create_task(self._write())
        at = 0
        if request.operation == "SubscribeToTask":
            if request.payload["id"] != "t-1":
                raise bus.TaskNotFound
            after = int(request.headers.get("a2a-after-seq", "-1"))
            gap, known = after + 1 < self.forgotten, len(self.log)
            await reply.send(
                task(metadata={"snapshot": True}),
                final=False,
                headers={"a2a-task-seq": known - 1, **({"a2a-gap": True} if gap else {})},
            )
            at = known if gap else after + 1
        while True:
            async with self.grown:
                while len(self.log) <= at:
                    await self.grown.wait()
            event, last = self.log[at], at == self.events - 1
            await reply.send(
                orjson.dumps(event),
                final=last,
                headers={"a2a-task-seq": at, "a2a-task-id": "t-1", "a2a-context-id": "c-1"},
            )
            if last:
                return
            at += 1

    async def _write(self) -> None:
        for place in range(self.events):
            if place == self.hold_at:
                await self.gate.wait()
            event = task() if place == 0 else update(COMPLETED) if place == self.events - 1 else chunk(place)
            async with self.grown:
                self.log.append(event)
                self.grown.notify_all()


async def opened(agent: Logged, requests: int) -> None:
    """Let the task go on once so many requests have come."""
    await until(lambda: len(agent.requests) >= requests)
    agent.gate.set()


async def settled(server: bus.Server, client: bus.Client) -> None:
    """No slot taken, nothing pending."""
    await until(lambda: server.stats().running == 0)
    assert server._work.held == 0
    assert client.stats().pending == 0
    assert not client._pending._by_id


async def test_events_arrive_in_order_and_end_once(stage: Stage) -> None:
    server = await stage.serve("logged", Logged(5))
    client = await stage.connect()
    events = await soon(everything(client.stream("logged", STREAM, HELLO)))
    assert [event.seq for event in events] == [0, 1, 2, 3, 4]
    assert [event.task_seq for event in events] == [0, 1, 2, 3, 4]
    assert [event.final for event in events] == [False] * 4 + [True]
    assert [event.task_id for event in events] == ["t-1"] * 5
    assert events[0].body == task()
    assert [number(event) for event in events[1:4]] == [1, 2, 3]
    assert events[4].body == update(COMPLETED)
    await settled(server, client)
    assert (server.stats().events, server.stats().answered) == (4, 1)
    assert client.stats().late == 0


async def test_what_stands_on_the_wire(stage: Stage) -> None:
    await stage.serve("logged", Logged(3), instance="w1")
    box = await stage.listen()
    body = orjson.dumps(HELLO)
    await stage.publish("logged", body, type=STREAM, reply_to=box.address, correlation_id="c-9")
    replies = [await box.next() for _ in range(3)]
    runs = {reply.properties.headers["a2a-stream"] for reply in replies}
    assert len(runs) == 1
    assert [reply.properties.persistent for reply in replies] == [False, False, True]
    for place, reply in enumerate(replies):
        assert reply.properties.correlation_id == "c-9"
        assert reply.properties.type == STREAM
        final = {"a2a-final": True} if place == 2 else {}
        assert reply.properties.headers == {
            "a2a-seq": place, **final, "a2a-responder": "logged/w1", "a2a-stream": runs.copy().pop(),
            "a2a-task-seq": place, "a2a-task-id": "t-1", "a2a-context-id": "c-1",
        }  # fmt: skip


async def test_twenty_streams_at_once_keep_their_order(stage: Stage) -> None:
    async def agent(request: Request, reply: Reply) -> None:
        for place in range(200):
            await reply.send(chunk(place), final=False)
        await reply.send(update(COMPLETED))

    server = await stage.serve("many", agent)
    client = await stage.connect()
    streams = (
        everything(client.stream("many", STREAM, {"message": {"messageId": f"m-{n}", "parts": []}})) for n in range(20)
    )
    for events in await soon(asyncio.gather(*streams), 60):
        assert [number(event) for event in events[:-1]] == list(range(200))
        assert events[-1].final
    await settled(server, client)
    assert server.stats().events == 4000


async def test_a_silent_agent_is_kept_alive(stage: Stage) -> None:
    gate = asyncio.Event()

    async def agent(_request: Request, reply: Reply) -> None:
        await reply.send(update({**WORKING, "message": {"text": "once"}}), final=False)
        await gate.wait()
        await reply.send(update(COMPLETED))

    server = await stage.serve("silent", agent, keepalive=0.1)
    client = await stage.connect()
    seen = []
    async with aclosing(client.stream("silent", STREAM, HELLO, headers={"a2a-keepalive": "soon"}, idle=1.0)) as events:
        async for event in events:
            seen.append(event)
            if len(seen) == 15:  # longer than the idle time
                gate.set()
    assert [event.seq for event in seen] == list(range(len(seen)))
    # The message of the status is said once.
    assert all(event.body == update() for event in seen[1:-1])
    assert seen[-1].body == update(COMPLETED)
    await settled(server, client)


@pytest.mark.parametrize(("asked", "seconds"), [("0.01", 1.0), ("7", 7.0), ("900", 60.0), ("no", 10.0), ("nan", 10.0)])
def test_how_long_a_stream_is_silent(asked: str, seconds: float) -> None:
    from bus.server.reply import _keepalive

    assert _keepalive(asked, 10.0) == seconds


async def test_silence_is_a_cut(stage: Stage) -> None:
    agent = Logged(3, hold_at=1)
    server = await stage.serve("logged", agent, keepalive=60)
    client = await stage.connect()
    events = client.stream("logged", STREAM, HELLO, headers={"a2a-keepalive": "60"}, idle=0.2, resume=False)
    first = await soon(anext(events))
    assert first.body == task()
    with pytest.raises(StreamCut) as caught:
        await soon(anext(events))
    assert (caught.value.task_id, caught.value.task_seq) == ("t-1", 0)
    agent.gate.set()
    await settled(server, client)


async def test_a_stream_that_broke_off_is_taken_up_again(stage: Stage) -> None:
    agent = Logged(6, hold_at=3)
    server = await stage.serve("logged", agent)
    client = await stage.connect()
    seen: list[StreamEvent] = []
    async with aclosing(client.stream("logged", STREAM, HELLO)) as events:
        async for event in events:
            seen.append(event)
            if len(seen) == 3:
                assert stage.cut("client") == 2
                going_on = asyncio.create_task(opened(agent, 2))
    await soon(going_on)
    assert [event.task_seq for event in seen] == [0, 1, 2, 3, 4, 5]
    assert [event.final for event in seen] == [False] * 5 + [True]
    again = agent.requests[1]
    assert again.operation == "SubscribeToTask"
    assert again.payload == {"id": "t-1"}
    assert again.headers["a2a-after-seq"] == "2"
    await settled(server, client)
    # The first stream's caller was gone; its agent went on and nobody heard it.
    assert agent.replies[0].heard is False
    assert agent.replies[1].heard is True


async def test_without_resuming_a_cut_is_raised(stage: Stage) -> None:
    agent = Logged(6, hold_at=3)
    server = await stage.serve("logged", agent)
    client = await stage.connect()
    events = client.stream("logged", STREAM, HELLO, resume=False)
    for _ in range(3):
        await soon(anext(events))
    stage.cut("client")
    with pytest.raises(StreamCut) as caught:
        await soon(anext(events))
    assert isinstance(caught.value, bus.ConnectionLost)
    assert (caught.value.task_id, caught.value.task_seq) == ("t-1", 2)
    agent.gate.set()
    await settled(server, client)


async def test_what_is_not_kept_any_more_is_a_gap(stage: Stage) -> None:
    agent = Logged(6, hold_at=3)
    await stage.serve("logged", agent)
    client = await stage.connect()
    seen: list[StreamEvent] = []
    async with aclosing(client.stream("logged", STREAM, HELLO)) as events:
        async for event in events:
            seen.append(event)
            if len(seen) == 1:
                agent.forgotten = 5
                stage.cut("client")
                going_on = asyncio.create_task(opened(agent, 2))
    await soon(going_on)
    places = [(event.task_seq, event.gap) for event in seen if event.gap or event.seq != 0 or event is seen[0]]
    assert seen[0].gap is False
    assert (2, True) in places
    assert [place for place, _ in places][-3:] == [3, 4, 5]


async def test_before_the_first_event_the_request_is_sent_again(stage: Stage) -> None:
    agent = Logged(2, hold_at=0)
    server = await stage.serve("logged", agent)
    client = await stage.connect()
    stream = asyncio.create_task(everything(client.stream("logged", STREAM, HELLO)))
    await until(lambda: len(agent.requests) == 1)
    stage.cut("client")
    await until(lambda: len(agent.requests) == 2)
    agent.gate.set()
    assert [event.seq for event in await soon(stream)] == [0, 1]
    assert [request.message_id for request in agent.requests] == ["m-1", "m-1"]
    assert agent.requests[1].headers["a2a-attempt"] == "2"
    await settled(server, client)


async def test_the_server_s_connection_may_break_in_the_middle(stage: Stage) -> None:
    agent = Logged(8, hold_at=4)
    server = await stage.serve("logged", agent)
    client = await stage.connect()
    seen: list[StreamEvent] = []
    async with aclosing(client.stream("logged", STREAM, HELLO)) as events:
        async for event in events:
            seen.append(event)
            if len(seen) == 4:
                stage.cut("server")
                going_on = asyncio.create_task(opened(agent, 2))
    await soon(going_on)
    assert [event.task_seq for event in seen] == list(range(8))
    await settled(server, client)


async def test_a_lost_reply_connection_loses_no_event(stage: Stage) -> None:
    go = asyncio.Event()

    async def agent(_request: Request, reply: Reply) -> None:
        for place in range(50):
            if place == 10:
                await go.wait()
                # What is on its way now is lost with the connection, and sent again.
            if place == 20:
                server._replies.drop("dropped by the test")
            await reply.send(chunk(place), final=False)
        await reply.send(update(COMPLETED))

    server = await stage.serve("many", agent)
    client = await stage.connect()
    stream = asyncio.create_task(everything(client.stream("many", STREAM, HELLO)))
    go.set()
    events = await soon(stream)
    assert [number(event) for event in events[:-1]] == list(range(50))
    await settled(server, client)


async def test_a_server_that_stops_hands_its_stream_over(stage: Stage) -> None:
    agent = Logged(6, hold_at=3)
    first = await stage.serve("logged", agent)
    client = await stage.connect()
    seen: list[StreamEvent] = []
    second = None
    async with aclosing(client.stream("logged", STREAM, HELLO)) as events:
        async for event in events:
            seen.append(event)
            if len(seen) == 3:
                second = await stage.serve("logged", agent)
                await soon(first.stop(0))
                assert first.stats().requeued == 1
                agent.gate.set()
    assert [event.task_seq for event in seen] == [0, 1, 2, 3, 4, 5]
    assert second is not None
    await settled(second, client)


async def test_an_error_after_events_ends_the_stream(stage: Stage) -> None:
    async def agent(_request: Request, reply: Reply) -> None:
        await reply.send(task(), final=False)
        await reply.send(chunk(1), final=False)
        raise bus.BudgetExhausted("nothing left")

    server = await stage.serve("failing", agent)
    client = await stage.connect()
    events = client.stream("failing", STREAM, HELLO)
    seen = [await soon(anext(events)) for _ in range(2)]
    assert [event.seq for event in seen] == [0, 1]
    with pytest.raises(bus.BudgetExhausted, match="nothing left"):
        await soon(anext(events))
    await settled(server, client)
    assert server.stats().failed == 1


async def test_an_error_before_any_event_is_raised(stage: Stage) -> None:
    await stage.serve("logged", Logged(1))
    client = await stage.connect()
    with pytest.raises(bus.TaskNotFound):
        await soon(everything(client.stream("logged", "SubscribeToTask", {"id": "other"})))
    with pytest.raises(bus.AgentNotFound):
        await soon(everything(client.stream("nobody", STREAM, HELLO)))
    with pytest.raises(bus.MethodNotFound):
        await soon(everything(client.stream("logged", "Nothing", HELLO)))
    assert client.stats().pending == 0


async def test_an_agent_that_leaves_without_an_end_fails(stage: Stage) -> None:
    async def agent(_request: Request, reply: Reply) -> None:
        await reply.send(task(), final=False)

    server = await stage.serve("leaving", agent)
    client = await stage.connect()
    with pytest.raises(bus.InternalError):
        await soon(everything(client.stream("leaving", STREAM, HELLO)))
    await settled(server, client)


async def test_nothing_is_sent_after_the_end(stage: Stage) -> None:
    failed: list[BaseException] = []

    async def agent(_request: Request, reply: Reply) -> None:
        await reply.send(task(), final=False)
        await reply.send(update(COMPLETED))
        for final in (False, True):
            try:
                await reply.send(chunk(1), final=final)
            except RuntimeError as error:
                failed.append(error)

    server = await stage.serve("talkative", agent)
    client = await stage.connect()
    assert len(await soon(everything(client.stream("talkative", STREAM, HELLO)))) == 2
    await settled(server, client)
    assert len(failed) == 2
    assert client.stats().late == 0


async def test_one_reply_operations_have_no_events(stage: Stage) -> None:
    async def agent(_request: Request, reply: Reply) -> None:
        await reply.send({}, final=False)

    await stage.serve("eager", agent)
    client = await stage.connect()
    with pytest.raises(bus.UnsupportedOperation):
        await client.request("eager", "GetTask", {"id": "t-1"})


async def test_headers_that_an_agent_may_not_set(stage: Stage) -> None:
    async def agent(_request: Request, reply: Reply) -> None:
        await reply.send(task(), final=False, headers={"a2a-seq": 7})

    await stage.serve("forger", agent)
    client = await stage.connect()
    with pytest.raises(bus.InvalidAgentResponse):
        await soon(everything(client.stream("forger", STREAM, HELLO)))


async def test_three_subscribers_see_the_same(stage: Stage) -> None:
    agent = Logged(40, hold_at=20)
    server = await stage.serve("logged", agent)
    client = await stage.connect()
    starting = asyncio.create_task(everything(client.stream("logged", STREAM, HELLO)))
    await until(lambda: len(agent.log) == 20)
    listening = [
        asyncio.create_task(
            everything(client.stream("logged", "SubscribeToTask", {"id": "t-1"}, headers={"a2a-after-seq": after}))
        )
        for after in ("-1", "7", "19")
    ]
    await until(lambda: len(agent.requests) == 4)
    agent.gate.set()
    whole = [(event.task_seq, event.body) for event in await soon(starting)]
    assert [place for place, _ in whole] == list(range(40))
    for task_of, after in zip(listening, (-1, 7, 19), strict=True):
        first, *rest = await soon(task_of)
        assert first.body["task"]["metadata"] == {"snapshot": True}
        assert [(event.task_seq, event.body) for event in rest] == whole[after + 1 :]
    await settled(server, client)


@pytest.mark.parametrize("operation", [STREAM, "SubscribeToTask"])
async def test_a_reader_that_leaves_stops_the_sending(stage: Stage, operation: str) -> None:
    agent = Logged(2000, hold_at=2)
    server = await stage.serve("logged", agent)
    client = await stage.connect()
    body = HELLO if operation == STREAM else {"id": "t-1"}
    async with aclosing(client.stream("logged", operation, body)) as events:
        queue = (await soon(anext(events))) and await own_queue(client)
        replies = await client._replies.ready()
        assert await replies.consumers(queue) == 1
    assert client.stats().pending == 0
    while await replies.consumers(queue) is not None:  # noqa: ASYNC110 - nothing signals that a queue is gone
        await asyncio.sleep(0.002)
    agent.gate.set()
    await until(lambda: server.stats().running == 0)  # its agent goes on, and is heard by nobody
    assert agent.replies[0].heard is False
    # What had been told, and one window of events on their way.
    assert server.stats().events <= 3 + WINDOW
    await settled(server, client)


async def own_queue(client: bus.Client) -> str:
    """The queue of the one stream of a client."""
    (call,) = client._pending
    assert call.listener is not None
    assert call.listener.queue != client._inbox.queue
    return call.listener.queue


async def test_a_client_that_is_gone_stops_the_sending_and_not_the_task(stage: Stage) -> None:
    sent = 0
    unheard = asyncio.Event()

    async def agent(_request: Request, reply: Reply) -> None:
        nonlocal sent
        while reply.heard:
            await reply.send(chunk(sent), final=False)
            sent += 1
            await asyncio.sleep(0)
        unheard.set()
        before = sent
        await reply.send(chunk(sent), final=False)
        assert sent == before
        await reply.send(update(COMPLETED))

    server = await stage.serve("endless", agent)
    client = await stage.connect()
    events = client.stream("endless", STREAM, HELLO)
    await soon(anext(events))
    closing = asyncio.create_task(client.close())
    with pytest.raises(bus.ConnectionLost) as caught:
        await soon(everything(events))
    assert not isinstance(caught.value, StreamCut)
    await soon(closing)
    await soon(unheard.wait())
    await settled(server, client)
    assert server.stats().unheard == 1


async def by_hand(stage: Stage) -> tuple[bus.Client, Any, Any]:
    """A client, and an agent played by hand: the request's delivery and a way to answer it."""
    arrived: asyncio.Queue[Request] = asyncio.Queue()

    async def agent(request: Request, _reply: Reply) -> None:
        arrived.put_nowait(request)
        await asyncio.Event().wait()

    await stage.serve("hand", agent, slots=8)
    client = await stage.connect(retry=Retry(attempts=2, pause=0.01))
    raw = await stage.raw()

    async def answer(body: Any, sequence: Any, *, call: int = -1, **headers: Any) -> None:
        (*_, correlation) = client._pending._by_id if call < 0 else list(client._pending._by_id)[: call + 1]
        waiting = client._pending.find(correlation)
        assert waiting is not None
        queue = client._inbox.queue if waiting.listener is None else waiting.listener.queue
        message = bus_message(queue, orjson.dumps(body), correlation, {"a2a-seq": sequence, **headers})
        await soon(raw.publish(message))

    return client, arrived, answer


def bus_message(queue: str, body: bytes, correlation: str, headers: dict[str, Any]) -> Any:
    from bus.driver import Outgoing, Properties

    headers = {name.replace("_", "-"): value for name, value in headers.items() if value is not None}
    return Outgoing(
        "", queue, body, Properties(content_type="application/a2a+json", correlation_id=correlation, headers=headers)
    )


async def test_a_duplicate_is_dropped(stage: Stage) -> None:
    client, arrived, answer = await by_hand(stage)
    stream = asyncio.create_task(everything(client.stream("hand", STREAM, HELLO)))
    await soon(arrived.get())
    for sequence in (0, 1, 0, 1, 2):
        await answer(chunk(sequence), sequence)
    await answer(update(COMPLETED), 3, a2a_final=True)
    assert [event.seq for event in await soon(stream)] == [0, 1, 2, 3]


@pytest.mark.parametrize("broken", ["gap", "other run", "no number"])
async def test_a_broken_order_is_a_cut(stage: Stage, broken: str) -> None:
    client, arrived, answer = await by_hand(stage)
    stream = asyncio.create_task(everything(client.stream("hand", STREAM, HELLO, resume=False)))
    await soon(arrived.get())
    await answer(task(), 0, a2a_task_seq=0, a2a_stream="one")
    sequence, run = {"gap": (2, "one"), "other run": (0, "two"), "no number": ("1", "one")}[broken]
    await answer(chunk(2), sequence, a2a_stream=run)
    with pytest.raises(StreamCut) as caught:
        await soon(stream)
    assert (caught.value.task_id, caught.value.task_seq) == ("t-1", 0)
    assert client.stats().pending == 0


async def test_an_error_of_another_run_ends_the_stream(stage: Stage) -> None:
    client, arrived, answer = await by_hand(stage)
    stream = asyncio.create_task(everything(client.stream("hand", STREAM, HELLO)))
    await soon(arrived.get())
    for sequence in range(3):
        await answer(chunk(sequence), sequence, a2a_stream="one")
    await answer(bus.RetriesExhausted().as_json(), 0, a2a_final=True, a2a_error=True)
    with pytest.raises(bus.RetriesExhausted):
        await soon(stream)


async def test_a_task_that_ended_meanwhile_is_handed_over_whole(stage: Stage) -> None:
    client, arrived, answer = await by_hand(stage)
    stream = asyncio.create_task(everything(client.stream("hand", STREAM, HELLO)))
    await soon(arrived.get())
    await answer(task(), 0)
    await answer(chunk(2), 2)
    assert (await soon(arrived.get())).operation == "SubscribeToTask"
    await answer(bus.UnsupportedOperation().as_json(), 0, a2a_final=True, a2a_error=True)
    assert (await soon(arrived.get())).operation == "GetTask"
    await answer(task(COMPLETED)["task"], 0, a2a_final=True)
    _, last = await soon(stream)
    assert (last.body, last.final, last.gap) == (task(COMPLETED), True, True)


async def test_taking_up_again_has_an_end(stage: Stage) -> None:
    client, arrived, answer = await by_hand(stage)
    stream = asyncio.create_task(everything(client.stream("hand", STREAM, HELLO)))
    await soon(arrived.get())
    await answer(task(), 0)
    await answer(chunk(2), 2)
    for _ in range(3):
        assert (await soon(arrived.get())).operation == "SubscribeToTask"
        await answer(chunk(1), 1)
    with pytest.raises(StreamCut) as caught:
        await soon(stream)
    assert caught.value.task_id == "t-1"


async def test_a_stream_without_a_task_cannot_be_taken_up_again(stage: Stage) -> None:
    client, arrived, answer = await by_hand(stage)
    stream = asyncio.create_task(everything(client.stream("hand", STREAM, HELLO)))
    await soon(arrived.get())
    await answer({"message": {"parts": []}}, 0)
    await answer({"message": {"parts": []}}, 2, a2a_final=True)
    with pytest.raises(StreamCut):
        await soon(stream)


async def test_the_deadline_stands_above_all(stage: Stage) -> None:
    agent = Logged(3, hold_at=1)
    server = await stage.serve("logged", agent, keepalive=0.05)
    client = await stage.connect()
    events = client.stream("logged", STREAM, HELLO, timeout=0.5)
    with pytest.raises(bus.DeadlineExceeded) as caught:
        await soon(everything(events))
    assert caught.value.metadata["local"] == "true"
    agent.gate.set()
    await settled(server, client)


async def test_a_slow_reader_is_cut_and_comes_back(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bus.client.leg.BUFFER", 10)
    agent = Logged(100, hold_at=1)
    server = await stage.serve("logged", agent)
    client = await stage.connect()
    seen = []
    async with aclosing(client.stream("logged", STREAM, HELLO, idle=5.0)) as events:
        async for event in events:
            seen.append(event)
            if len(seen) == 1:
                agent.gate.set()
                await until(lambda: server.stats().answered == 1)
            await asyncio.sleep(0)
    assert [event.task_seq for event in seen][:5] == [0, 1, 2, 3, 4]
    assert [event.task_seq for event in seen] == list(range(100))
    assert len(agent.requests) > 1


async def test_cuts_of_a_slow_reader_cost_few_events(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bus.client.leg.BUFFER", 500)
    total = 10_000
    agent = Logged(total)
    server = await stage.serve("logged", agent)
    client = await stage.connect()
    seen = 0
    async with aclosing(client.stream("logged", STREAM, HELLO)) as events:
        async for event in events:
            assert event.task_seq == seen
            seen += 1
            if seen in (1500, 4500):
                stage.cut("client")
            if seen % 1000 == 1:
                (call,) = client._pending
                await until(call.result.done)  # too slow by now, or the rest is all here
    assert seen == total
    assert len(agent.requests) >= 10
    await settled(server, client)
    assert server.stats().events < 2 * total


async def test_no_queue_of_a_stream_is_left(stage: Stage) -> None:
    agent = Logged(3)
    server = await stage.serve("logged", agent)
    client = await stage.connect()
    names: list[str] = []
    for _ in range(5):
        async with aclosing(client.stream("logged", STREAM, HELLO)) as events:
            await soon(anext(events))
            names.append(await own_queue(client))
    await soon(everything(client.stream("logged", STREAM, HELLO)))
    waiting = asyncio.ensure_future(anext(client.stream("nobody", STREAM, HELLO)))
    with pytest.raises(bus.AgentNotFound):
        await soon(waiting)
    replies = await client._replies.ready()
    assert len(set(names)) == 5
    for name in names:
        while await replies.consumers(name) is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    await until(lambda: not client._lookout._tasks)
    await settled(server, client)


async def test_a_stream_whose_queue_is_deleted_is_taken_up_again(stage: Stage) -> None:
    agent = Logged(6, hold_at=3)
    server = await stage.serve("logged", agent)
    client = await stage.connect()
    seen: list[StreamEvent] = []
    async with aclosing(client.stream("logged", STREAM, HELLO, idle=600)) as events:
        async for event in events:
            seen.append(event)
            if len(seen) == 3:
                # Nobody else may delete it.
                await (await client._replies.ready()).delete(Queue(await own_queue(client)))
                going_on = asyncio.create_task(opened(agent, 2))
    await soon(going_on)
    assert [event.task_seq for event in seen] == [0, 1, 2, 3, 4, 5]
    assert client.stats().losses == 0
    await settled(server, client)
