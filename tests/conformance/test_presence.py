"""Servers that say how they are, and who listens to that."""

import asyncio
from typing import Any

import pytest

from bus import State
from bus.discovery.control import CANCEL, ask, key
from bus.discovery.heartbeats import Registry, Watch, watch
from bus.discovery.presence import Presence
from bus.discovery.vitals import Heartbeat, Info, Pong, Stats
from bus.driver import Binding, Outgoing, Properties, Queue
from tests.conformance.stage import PATIENCE, MemoryStage, Stage, soon, until
from tests.conformance.test_calls import echo

NAMES = {"server": "control", "client": "watch"}
"""What the connections of either side are called."""


def present(stage: Stage, instance: str, **options: Any) -> Presence:
    about = Info(version="1.2", card_hash="sha256:00", interval_seconds=options.pop("interval", 0.05))
    given: dict[str, Any] = {"look": Stats, "about": about, "prefix": stage.prefix, "patience": PATIENCE, **options}
    return Presence(stage.server_target, "a", instance=instance, **given)


async def listening(stage: Stage) -> Watch:
    return await watch(stage.client_target, prefix=stage.prefix, patience=PATIENCE)


async def test_a_server_beats_and_says_goodbye(stage: Stage) -> None:
    server = await stage.serve("a", echo, slots=3)
    async with await listening(stage) as heard:
        look = lambda: Stats.of(server.stats(), state=server.state, slots=3)  # noqa: E731
        async with present(stage, "w1", look=look):
            first, second = await soon(anext(heard)), await soon(anext(heard))
            assert first == second == Heartbeat("a", "w1", State.CONNECTED, 0.05, "1.2", "sha256:00", slots=3)
            assert heard.registry.alive("a") == [second]
        last = await soon(anext(heard))
        while not last.leaving:
            last = await soon(anext(heard))
        assert last.state is State.CLOSED
        assert heard.registry.sightings() == []
        assert heard.malformed == 0


async def test_who_says_no_goodbye_is_alive_until_its_own_intervals_are_over(stage: Stage) -> None:
    now = 0.0
    async with await watch(
        stage.client_target, prefix=stage.prefix, patience=PATIENCE, clock=lambda: now
    ) as heard, present(stage, "slow", interval=100.0):  # fmt: skip
        beat = await soon(anext(heard))
        for now, alive in ((0.0, True), (299.9, True), (300.0, False), (299.0, True)):
            (seen,) = heard.registry.sightings()
            assert (seen.age_seconds, seen.alive) == (now, alive)
            assert heard.registry.alive() == ([beat] if alive else [])
        now = 300.0
        assert heard.registry.forget_dead() == [beat]
        assert heard.registry.sightings() == []


async def test_both_sides_find_each_other_again(stage: Stage) -> None:
    async with await listening(stage) as heard, present(stage, "w1"):
        for side in ("server", "client"):
            await soon(anext(heard))
            assert stage.cut(NAMES[side] if isinstance(stage, MemoryStage) else side)
            heard.registry = Registry()
            await until(lambda: heard.registry.alive("a"))


async def test_a_listener_that_takes_no_more_silences_nobody(stage: Stage) -> None:
    said: list[str] = []

    async def hear(body: Any) -> None:
        said.append(body["task"])

    async with await listening(stage) as heard, present(stage, "w1", on={CANCEL: hear}) as presence:
        await soon(anext(heard))
        queue = stage.names.new_reply_queue(stage.driver.user)
        full = Queue(queue, exclusive=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        to = (Binding(stage.names.cards, queue), Binding(stage.names.control, queue, key(CANCEL, "a")))
        connection = await stage.driver.connect("hoarder")
        await connection.declare(full, *to)
        async with asyncio.timeout(20):
            while (await connection.tally(queue)) != (1, 0):  # noqa: ASYNC110 - nothing signals it
                await asyncio.sleep(0.01)
        for _ in range(5):
            await soon(anext(heard))
        assert await presence.publish(CANCEL, {"task": "t"}), "it was not said to those who take it"
        await until(lambda: said == ["t"])
        await connection.close()


async def test_it_answers_at_once(stage: Stage) -> None:
    server = await stage.serve("a", echo, slots=2)
    look = lambda: Stats.of(server.stats(), state=server.state, slots=2)  # noqa: E731
    async with present(stage, "w1", look=look), present(stage, "w2", look=lambda: Stats(state=State.PAUSED)):
        client = await stage.connect()
        await client.send("a", {"messageId": "m", "parts": []})
        await until(lambda: server.stats().answered == 1)
        pongs = {each.instance: each.body for each in await ask(stage.client_target, Pong, prefix=stage.prefix)}
        assert pongs == {"w1": Pong(State.CONNECTED, 0, 2), "w2": Pong(State.PAUSED)}
        (info,) = await ask(stage.client_target, Info, agent="a", instance="w1", prefix=stage.prefix)
        assert (info.body.version, info.body.card_hash, info.body.slots) == ("1.2", "sha256:00", 2)
        assert info.body.software.startswith("skillbus")
        (stats,) = await ask(stage.client_target, Stats, agent="a", instance="w1", prefix=stage.prefix)
        assert (stats.body.delivered, stats.body.answered, stats.body.state) == (1, 1, State.CONNECTED)
        assert stats.body.uptime_seconds > 0


async def test_what_is_no_heartbeat_is_counted(stage: Stage) -> None:
    async with await listening(stage) as heard, present(stage, "w1", interval=100.0):
        await soon(anext(heard))
        good = Heartbeat("b", "w9", State.CONNECTED, 1.0).encode()
        connection = await stage.raw()
        for body in (b"", b"{}", good.replace(b"connected", b"well"), b"x" * 10_000, good):
            message = Outgoing(stage.names.cards, "", body, Properties(type="heartbeat", user_id=stage.driver.user))
            await soon(connection.publish(message, mandatory=False))
        assert (await soon(anext(heard))).agent == "b"
        assert heard.malformed == 4
        assert [seen.beat.agent for seen in heard.registry.sightings()] == ["a", "b"]


async def test_a_watch_that_is_closed_ends(stage: Stage) -> None:
    heard = await listening(stage)
    reading = asyncio.create_task(anext(heard))
    await heard.close()
    with pytest.raises(StopAsyncIteration):
        await soon(reading)
    assert [beat async for beat in heard] == []


async def test_an_interval_has_bounds(stage: Stage) -> None:
    for interval in (0.0, -1.0, 1e9):
        with pytest.raises(ValueError, match="heartbeats lie more than 0"):
            present(stage, "w1", interval=interval)
