"""The control exchange, over both drivers."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

import bus
from bus import topology
from bus.control import CANCEL, INFO, PING, STATS, Answer, Control, ask, key
from bus.driver import Outgoing, Properties
from bus.target import driver_for


@pytest.fixture(params=["memory", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def broker(request: pytest.FixtureRequest) -> bus.Target:
    if request.param == "memory":
        return bus.MemoryBroker()
    url: str = request.getfixturevalue("rabbitmq_url")
    return url


class Ear:
    """Hears what is said, and answers questions with what it has heard."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()

    async def cancel(self, said: Mapping[str, Any]) -> None:
        self.heard.put_nowait(said)
        if said.get("task") == "broken":
            raise RuntimeError("this handler fails")

    async def info(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"asked": asked, "agent": "somebody else"}

    async def next(self) -> Mapping[str, Any]:
        return await asyncio.wait_for(self.heard.get(), 20)


def control(broker: bus.Target, prefix: str, instance: str, ear: Ear, agent: str = "a") -> Control:
    return Control(broker, agent, instance=instance, on={CANCEL: ear.cancel, INFO: ear.info}, prefix=prefix)


async def test_every_worker_of_the_agent_hears_it(broker: bus.Target, unique_prefix: str) -> None:
    ears = [Ear(), Ear(), Ear()]
    async with (
        control(broker, unique_prefix, "w1", ears[0]) as first,
        control(broker, unique_prefix, "w2", ears[1]) as second,
        control(broker, unique_prefix, "w3", ears[2], "another"),
    ):
        assert await first.publish(CANCEL, {"task": "t1"})
        assert await second.publish(CANCEL, {"task": "broken"}, instance="w1")
        assert await second.publish(CANCEL, {"task": "t2"})
        assert [(await ears[0].next())["task"] for _ in range(3)] == ["t1", "broken", "t2"]
        assert [(await ears[1].next())["task"] for _ in range(2)] == ["t1", "t2"]
        assert ears[2].heard.empty()


async def test_questions_and_their_answers(broker: bus.Target, unique_prefix: str) -> None:
    async with (
        control(broker, unique_prefix, "w1", Ear()),
        control(broker, unique_prefix, "w2", Ear()),
        control(broker, unique_prefix, "w1", Ear(), "b"),
    ):
        everyone = await ask(broker, PING, prefix=unique_prefix)
        assert sorted((each.agent, each.instance) for each in everyone) == [("a", "w1"), ("a", "w2"), ("b", "w1")]
        (one,) = await ask(broker, INFO, agent="a", instance="w2", body={"x": 1}, prefix=unique_prefix)
        assert one == Answer(INFO, "a", "w2", {"asked": {"x": 1}})


async def test_nobody_answers(broker: bus.Target, unique_prefix: str) -> None:
    async with control(broker, unique_prefix, "w1", Ear()):
        assert await ask(broker, PING, agent="nobody", prefix=unique_prefix) == []
        assert await ask(broker, STATS, agent="a", prefix=unique_prefix) == []


async def test_what_makes_no_sense_is_not_heard(broker: bus.Target, unique_prefix: str) -> None:
    ear = Ear()
    where = bus.Names(unique_prefix).control
    async with control(broker, unique_prefix, "w1", ear) as speaker:
        driver = broker if isinstance(broker, bus.MemoryBroker) else driver_for(broker)
        connection = await driver.connect("stranger")
        for kind, body in (
            ("cancel", b"{"),
            ("cancel", b"[]"),
            ("frobnicate", b"{}"),
            (None, b""),
            ("cancel", b"x" * 70_000),
        ):
            properties = Properties(type=kind, reply_to="somewhere.else")
            await connection.publish(Outgoing(where, key(CANCEL, "a"), body, properties))
        await connection.close()
        assert await speaker.publish(CANCEL, {"task": "t"})
        heard = [await ear.next() for _ in range(3)]
        assert heard == [{}, {}, {"task": "t"}]
    with pytest.raises(bus.InvalidParams):
        await speaker.publish("frobnicate", {})


async def test_a_worker_hears_again_after_its_connection_was_lost(unique_prefix: str) -> None:
    broker, ear = bus.MemoryBroker(), Ear()
    async with control(broker, unique_prefix, "w1", ear) as speaker:
        assert broker.cut("control") == 1
        assert not await speaker.publish(CANCEL, {"task": "lost"})
        while not await speaker.publish(CANCEL, {"task": "t"}):
            await speaker.ready()
        assert await ear.next() == {"task": "t"}


async def test_a_worker_hears_again_after_the_exchange_was_deleted(broker: bus.Target, unique_prefix: str) -> None:
    ear, quick = Ear(), bus.Patience(check=0.05)
    on = {CANCEL: ear.cancel}
    async with Control(broker, "a", instance="w1", on=on, prefix=unique_prefix, patience=quick) as worker:
        raw = await driver_for(broker).connect("raw")
        await raw.delete(topology.control(bus.Names(unique_prefix)))
        async with asyncio.timeout(20):
            while not await worker.publish(CANCEL, {"task": "t1"}):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert (await ear.next())["task"] == "t1"
        await raw.close()


async def test_only_answers_are_taken_for_answers() -> None:
    good = Answer(PING, "a", "w1", {"n": 1})
    assert Answer.decode(PING, good.encode()) == good
    for body in (b"", b"[]", b"{}", good.encode().replace(b"ping", b"pong"), good.encode().replace(b'"w1"', b"1")):
        assert Answer.decode(PING, body) is None
