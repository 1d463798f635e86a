"""A server's presence while its broker, or itself, can do little."""

import asyncio

import pytest

import bus
from bus import MemoryBroker, Pong, Presence, State, Stats, ask, watch
from tests.conformance.stage import soon, until


def present(broker: MemoryBroker, doing: Stats) -> Presence:
    return Presence(broker, "a", instance="w1", look=lambda: doing, about=bus.Info(interval_seconds=0.02))


async def test_an_alarm_holds_the_heartbeats_and_is_seen_in_the_state() -> None:
    broker = MemoryBroker()
    async with await watch(broker) as heard, present(broker, Stats(running=2)) as presence:
        await soon(anext(heard))
        broker.set_blocked(True)
        assert presence.stats().state is State.BLOCKED
        assert presence.stats().running == 2
        await until(lambda: not heard.registry.alive())
        broker.set_blocked(False)
        await until(lambda: heard.registry.alive())
        assert [answer.body for answer in await ask(broker, Pong, quiet=0.05)] == [Pong(State.CONNECTED, running=2)]


async def test_a_presence_ends_in_an_alarm_too() -> None:
    broker = MemoryBroker()
    async with await watch(broker) as heard:
        presence = present(broker, Stats())
        await presence.start()
        await soon(anext(heard))
        broker.set_blocked(True)
        await asyncio.sleep(0)
        await soon(presence.close(), 5)


@pytest.mark.parametrize("state", [State.CLOSED, State.DOWN, State.PAUSED])
async def test_the_worse_of_two_states_is_told(state: State) -> None:
    broker = MemoryBroker()
    async with present(broker, Stats(state=state)) as presence:
        assert presence.state is state
        broker.set_blocked(True)
        assert presence.state is State.worse(state, State.BLOCKED)
