"""The control exchange, over both drivers."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

import bus
from bus import topology
from bus.discovery.control import CANCEL, INFO, PING, Control, ask, key
from bus.discovery.vitals import Info, Pong, Stats
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
        return {"version": "7", "agent": "somebody else", "type": "something else", "unknown": 1}

    async def pong(self, _asked: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"state": "connected"}

    async def next(self) -> Mapping[str, Any]:
        return await asyncio.wait_for(self.heard.get(), 20)


def control(broker: bus.Target, prefix: str, instance: str, ear: Ear, agent: str = "a") -> Control:
    on = {CANCEL: ear.cancel, INFO: ear.info, PING: ear.pong}
    return Control(broker, agent, instance=instance, on=on, prefix=prefix)


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
        everyone = await ask(broker, Pong, prefix=unique_prefix)
        assert sorted((each.agent, each.instance) for each in everyone) == [("a", "w1"), ("a", "w2"), ("b", "w1")]
        assert {each.body for each in everyone} == {Pong(bus.State.CONNECTED)}
        assert all(0 < each.after_seconds < 20 for each in everyone)
        (one,) = await ask(broker, Info, agent="a", instance="w2", prefix=unique_prefix)
        assert (one.agent, one.instance, one.body) == ("a", "w2", Info(version="7"))


async def test_nobody_answers(broker: bus.Target, unique_prefix: str) -> None:
    assert await ask(broker, Pong, prefix=unique_prefix) == []
    async with control(broker, unique_prefix, "w1", Ear()):
        assert await ask(broker, Pong, agent="nobody", prefix=unique_prefix) == []
        assert await ask(broker, Stats, agent="a", prefix=unique_prefix) == []


async def test_only_answers_are_taken_for_answers(broker: bus.Target, unique_prefix: str) -> None:
    told: list[Mapping[str, Any]] = [
        {"state": "connected", "running": 1}, {"state": "well"}, {"state": 7}, {},
        {"state": "connected", "running": -1}, {"state": "connected", "running": True},
        {"state": "connected", "slots": "many"},
    ]  # fmt: skip

    async def pong(_asked: Mapping[str, Any]) -> Mapping[str, Any]:
        return told.pop()

    count = len(told)
    controls = [
        Control(broker, "a", instance=f"w{number}", on={PING: pong}, prefix=unique_prefix) for number in range(count)
    ]
    try:
        for each in controls:
            await each.start()
        found = await ask(broker, Pong, prefix=unique_prefix, quiet=0.5, most=20.0)
    finally:
        for each in controls:
            await each.close()
    assert [answer.body for answer in found] == [Pong(bus.State.CONNECTED, running=1)]
    assert found.malformed == count - 1


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


async def test_a_broker_that_takes_nothing_is_told_at_once(unique_prefix: str) -> None:
    broker = bus.MemoryBroker()
    async with control(broker, unique_prefix, "w1", Ear()):
        broker.set_blocked(True)
        with pytest.raises(bus.Unavailable) as caught:
            await ask(broker, Pong, prefix=unique_prefix, most=600.0)
        assert int(caught.value.metadata["retryAfterMs"]) > 0
        broker.set_blocked(False)
        assert len(await ask(broker, Pong, prefix=unique_prefix)) == 1
