"""What an agent is asked does not wait behind its work, and no server takes more than it has slots for."""

import asyncio
from contextlib import aclosing
from typing import Any

import orjson
import pytest

import bus
from bus import Reply, Request, Retry
from bus.server.server import ASKING_SLOTS
from tests.conformance.stage import Stage, soon, until

HELLO: dict[str, Any] = {"role": "ROLE_USER", "parts": [{"text": "hello"}]}
TASK = {"id": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_WORKING"}}
DONE = {"id": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_CANCELED"}}
ONCE = Retry(attempts=1)
ASKED = sorted(bus.OPERATIONS - {"SendMessage", "SendStreamingMessage", "SubscribeToTask"})


class Busy:
    """An agent whose work, and whose subscriptions, last until a cancel comes."""

    def __init__(self, *, accepts: bool = False) -> None:
        self.accepts = accepts
        self.begun = 0
        self.subscribers = 0
        self.canceled = asyncio.Event()

    async def __call__(self, request: Request, reply: Reply) -> None:
        match request.operation:
            case "SendMessage":
                self.begun += 1
                if self.accepts:
                    await reply.accept()
                await self.canceled.wait()
                await reply.send({"task": DONE})
            case "SubscribeToTask":
                await reply.send({"task": TASK}, final=False, headers={"a2a-task-id": "t-1", "a2a-task-seq": 0})
                self.subscribers += 1
                await self.canceled.wait()
                await reply.send({"task": DONE}, headers={"a2a-task-id": "t-1", "a2a-task-seq": 1})
            case "CancelTask":
                self.canceled.set()
                await reply.send(DONE)
            case _:
                await reply.send({"asked": request.operation})


async def waiting(stage: Stage, queue: str) -> int:
    tally = await (await stage.raw()).tally(queue)
    assert tally is not None
    return tally.messages


@pytest.mark.parametrize("accepts", [False, True], ids=["held", "accepted"])
async def test_what_asks_reaches_a_server_whose_slots_are_all_in_use(stage: Stage, accepts: bool) -> None:
    agent = Busy(accepts=accepts)
    server = await stage.serve("busy", agent, slots=1)
    client = await stage.connect(retry=ONCE)
    calls = [asyncio.create_task(client.send("busy", HELLO)) for _ in range(5)]
    # One more is in hand when the first has been accepted before the server could stop taking.
    await until(lambda: agent.begun >= 1 and not server._work._on if accepts else agent.begun == 1)
    for operation in ASKED:
        if operation != "CancelTask":
            assert await soon(client.request("busy", operation, {"id": "t-1"})) == {"asked": operation}
    assert not any(call.done() for call in calls)
    assert await soon(client.request("busy", "CancelTask", {"id": "t-1"})) == DONE
    for call in calls:
        assert await soon(call) == {"task": DONE}
    await until(lambda: server.stats().running == 0)
    assert (server._work.held, server._work.accepted, server._asking.held) == (0, 0, 0)


async def test_a_hundred_subscribers_leave_room_for_a_cancel(stage: Stage) -> None:
    agent = Busy()
    server = await stage.serve("busy", agent, slots=1)
    client = await stage.connect(retry=ONCE)

    async def subscribe() -> list[dict[str, Any]]:
        return [event.body async for event in client.stream("busy", "SubscribeToTask", {"id": "t-1"})]

    assert ASKING_SLOTS < 100
    subscribers = [asyncio.create_task(subscribe()) for _ in range(100)]
    await until(lambda: agent.subscribers == 100)
    await until(lambda: server.stats().accepted == 100)
    assert server._asking.held == 0
    assert await soon(client.request("busy", "CancelTask", {"id": "t-1"})) == DONE
    for events in await soon(asyncio.gather(*subscribers)):
        assert events == [{"task": TASK}, {"task": DONE}]
    await until(lambda: server.stats().running == 0)
    assert server._asking.accepted == 0


async def test_subscriptions_have_a_bound_and_a_cancel_has_none(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bus.server.server.SUBSCRIPTIONS", 2)
    agent = Busy()
    server = await stage.serve("busy", agent)
    client = await stage.connect(retry=ONCE)
    body = {"id": "t-1"}
    async with (
        aclosing(client.stream("busy", "SubscribeToTask", body)) as one,
        aclosing(client.stream("busy", "SubscribeToTask", body)) as two,
        aclosing(client.stream("busy", "SubscribeToTask", body)) as three,
    ):
        await soon(anext(one))
        await soon(anext(two))
        await until(lambda: server._asking.accepted == 2)
        with pytest.raises(bus.Unavailable) as caught:
            await soon(anext(three))
        assert "retryAfterMs" in caught.value.metadata
        assert await soon(client.request("busy", "CancelTask", body)) == DONE
        assert (await soon(anext(one))).final


async def test_a_server_takes_no_more_work_than_it_has_slots(stage: Stage) -> None:
    full, free = Busy(), Busy()
    await stage.serve("busy", full, slots=2)
    client = await stage.connect(retry=ONCE)
    calls = [asyncio.create_task(client.send("busy", HELLO)) for _ in range(2)]
    await until(lambda: full.begun == 2)
    calls += [asyncio.create_task(client.send("busy", HELLO)) for _ in range(3)]
    while await waiting(stage, stage.names.queue("busy")) != 3:  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    await stage.serve("busy", free, slots=3)
    await until(lambda: free.begun == 3)
    assert full.begun == 2
    full.canceled.set()
    free.canceled.set()
    await soon(asyncio.gather(*calls))


async def test_a_subscription_anew_counts_what_is_in_hand(stage: Stage) -> None:
    agent = Busy()
    server = await stage.serve("busy", agent, slots=4)
    client = await stage.connect(retry=ONCE)
    calls = [asyncio.create_task(client.send("busy", HELLO)) for _ in range(3)]
    await until(lambda: agent.begun == 3)
    await server.pause("for a moment")
    calls += [asyncio.create_task(client.send("busy", HELLO)) for _ in range(6)]
    while await waiting(stage, stage.names.queue("busy")) != 6:  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    await server.resume()
    await until(lambda: agent.begun == 4)
    assert await soon(client.request("busy", "GetTask", {"id": "t-1"})) == {"asked": "GetTask"}
    assert await waiting(stage, stage.names.queue("busy")) == 5
    assert server._work.held == 4
    agent.canceled.set()
    await soon(asyncio.gather(*calls))
    await until(lambda: server._work.held == 0)
    # Nothing is left of the earlier subscription, and all slots can be taken again.
    await until(lambda: server._work._prefetch == 4)


async def test_a_paused_server_takes_nothing_of_either_lane(stage: Stage) -> None:
    here, there = Busy(), Busy()
    paused = await stage.serve("busy", here)
    await paused.pause("the ledger is away")
    client = await stage.connect(retry=ONCE)
    asking = asyncio.create_task(client.request("busy", "GetTask", {"id": "t-1"}))
    while await waiting(stage, stage.names.ask("busy")) != 1:  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    assert paused.stats().delivered == 0
    await paused.resume()
    assert await soon(asking) == {"asked": "GetTask"}
    await paused.stop()
    asking = asyncio.create_task(client.request("busy", "GetTask", {"id": "t-1"}))
    await stage.serve("busy", there)
    assert await soon(asking) == {"asked": "GetTask"}


async def test_work_does_not_come_by_the_lane_for_asking(stage: Stage) -> None:
    agent = Busy()
    server = await stage.serve("busy", agent)
    box = await stage.listen()
    body = orjson.dumps({"message": {**HELLO, "messageId": "m-1"}})
    for number, operation in enumerate(("SendMessage", "SendStreamingMessage")):
        where = {"reply_to": box.address, "correlation_id": f"c-{number}"}
        await stage.publish("busy.ask", body, type=operation, **where)
        assert orjson.loads((await box.next()).body)["details"][0]["reason"] == "INVALID_REQUEST"
    # What asks is answered by either.
    await stage.publish("busy", b'{"id": "t-1"}', type="GetTask", reply_to=box.address, correlation_id="c-2")
    assert orjson.loads((await box.next()).body) == {"asked": "GetTask"}
    assert agent.begun == 0
    assert server.stats().refused == 2


async def test_without_a_server_what_asks_says_so(stage: Stage) -> None:
    server = await stage.serve("busy", Busy())
    client = await stage.connect(retry=ONCE)
    await server.stop()
    with pytest.raises(bus.DeadlineExceeded) as caught:
        await soon(client.request("busy", "GetTask", {"id": "t-1"}, timeout=0.3))
    assert caught.value.metadata["servers"] == "0"
    with pytest.raises(bus.AgentNotFound):
        await soon(client.request("nobody", "GetTask", {"id": "t-1"}))
