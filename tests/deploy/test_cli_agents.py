"""`skillbus agents` and `skillbus ping`, with workers on a real broker."""

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

import bus
from bus import State, topology
from bus.discovery.presence import Presence
from bus.discovery.vitals import Heartbeat, Info, Stats
from bus.driver import Outgoing, Properties
from bus.target import driver_for
from tests.deploy.conftest import LIMIT, Ended, Home, until
from tests.deploy.test_worker import Crew, crew

__all__ = ["crew"]  # a fixture

Skillbus = Callable[..., Ended]
Run = Callable[..., Any]
DOING = {
    ("tools", "w1-0123abcd"): Stats(slots=64, running=3),
    ("tools", "w10-0123abcd"): Stats(slots=64, state=State.PAUSED),
    ("other", "x"): Stats(state=State.BLOCKED),
}


@pytest.fixture
async def workers(rabbitmq_url: str, unique_prefix: str) -> AsyncIterator[AsyncExitStack]:
    """Three workers of two agents, or what says that they are."""
    async with AsyncExitStack() as stack:
        for (agent, instance), doing in DOING.items():
            about = Info(version="1.2", skills=9, interval_seconds=0.2)
            await stack.enter_async_context(
                Presence(
                    rabbitmq_url,
                    agent,
                    instance=instance,
                    look=lambda doing=doing: doing,  # type: ignore[misc]
                    about=about,
                    prefix=unique_prefix,
                )
            )
        yield stack
    connection = await driver_for(rabbitmq_url).connect("tidy")
    names = bus.Names(unique_prefix)
    await connection.delete(topology.control(names), topology.cards(names))
    await connection.close()


@pytest.fixture
def run(skillbus: Skillbus, monkeypatch: pytest.MonkeyPatch, home: Home, rabbitmq_url: str, unique_prefix: str) -> Run:
    """The command beside the test's own loop."""
    for name, value in (("SKILLBUS_AMQP_URL", rabbitmq_url), ("SKILLBUS_PREFIX", unique_prefix)):
        monkeypatch.setenv(name, value)
        home.environment[name] = value

    async def call(*arguments: str) -> Ended:
        return await asyncio.to_thread(skillbus, *arguments)

    return call


async def test_agents_are_listed_with_their_workers(workers: AsyncExitStack, run: Run) -> None:
    ended = await run("agents")
    assert (ended.code, ended.err) == (0, "3 worker(s) of 2 agent(s)\n")
    rows = [line.split() for line in ended.out.splitlines()]
    assert rows[0] == ["AGENT", "INSTANCE", "STATE", "RUNNING", "SKILLS", "UP", "VERSION"]
    assert [row[:5] for row in rows[1:]] == [
        ["other", "x", "blocked", "0/0", "9"],
        ["tools", "w1-0123abcd", "connected", "3/64", "9"],
        ["tools", "w10-0123abcd", "paused", "0/64", "9"],
    ]
    (one,) = json.loads((await run("agents", "other", "--json")).out)
    assert (one["agent"], one["version"], one["intervalSeconds"], one["deadLettered"]) == ("other", "1.2", 0.2, 0)
    assert one["uptimeSeconds"] > 0


@pytest.mark.parametrize(
    ("who", "code", "said"),
    [
        ("tools", 0, r"✓ tools/w1-0123abcd  connected, 3 of 64 slots in use, \d+ ms\n✗ tools/w10-0123abcd  paused"),
        ("tools/w1", 0, "✓ tools/w1-0123abcd  connected"),
        ("tools/w1-0123abcd", 0, "✓ tools/w1-0123abcd  connected"),
        ("tools/w10", 1, r"error: 1 worker\(s\) of tools answer, and none takes calls: paused\n"),
        ("other", 1, r"error: 1 worker\(s\) of other answer, and none takes calls: blocked\n"),
        ("tools/w", 1, "error: no worker w of the agent tools answers\n"),
        ("nobody", 1, "error: no worker of nobody answers\n"),
        ("NO NAME", 1, "error: INVALID_PARAMS: an agent's name"),
    ],
)
async def test_ping_is_a_probe(workers: AsyncExitStack, run: Run, who: str, code: int, said: str) -> None:
    ended = await run("ping", who)
    assert ended.code == code, ended.err
    assert re.search(said, ended.out + ended.err)
    quiet = await run("ping", who, "--quiet")
    assert (quiet.code, quiet.out) == (code, "")


async def test_ping_tells_programs_who_answered(workers: AsyncExitStack, run: Run) -> None:
    ended = await run("ping", "tools", "--json")
    assert (ended.code, ended.err) == (0, "")
    answers = json.loads(ended.out)
    assert all(each.pop("afterSeconds") >= 0 for each in answers)
    ready, paused = answers
    assert ready == {
        "agent": "tools", "instance": "w1-0123abcd", "ready": True, "state": "connected", "running": 3, "slots": 64
    }  # fmt: skip
    assert (paused["instance"], paused["ready"], paused["state"]) == ("w10-0123abcd", False, "paused")
    none = await run("ping", "tools/w10", "--json")
    assert (none.code, [each["ready"] for each in json.loads(none.out)]) == (1, [False])
    assert await run("ping", "nobody", "--json") == Ended(1, "[]\n", "error: no worker of nobody answers\n")
    assert (await run("ping", "--json", "--quiet")).err == "error: give one of --json and --quiet\n"


async def test_a_broker_without_workers(run: Run) -> None:
    assert await run("ping") == Ended(1, "", "error: no worker of skillbus answers\n")
    ended = await run("agents", "--json")
    assert (ended.code, json.loads(ended.out)) == (0, [])


def test_without_a_broker_there_is_nobody_to_ask(skillbus: Skillbus) -> None:
    for command in (["agents"], ["agents", "--watch"], ["ping"]):
        ended = skillbus(*command)
        assert (ended.code, ended.out) == (1, "")
        assert ended.err.startswith("error: no broker: name it with --amqp-url")
    assert skillbus("ping", "--wait", "soon").code == 1


@pytest.mark.parametrize("wait", ["0", "2d"])
@pytest.mark.parametrize("command", ["agents", "ping"])
def test_a_wait_that_makes_no_sense_is_refused(skillbus: Skillbus, command: str, wait: str) -> None:
    ended = skillbus(command, "--wait", wait)
    assert ended == Ended(1, "", "error: --wait is more than 0 and at most a day\n")


async def test_heartbeats_are_shown_until_an_interrupt(
    workers: AsyncExitStack, run: Run, home: Home, rabbitmq_url: str, unique_prefix: str
) -> None:
    connection = await driver_for(rabbitmq_url).connect("raw")
    with home.start("agents", "--watch", "--json") as process:
        out = process.stdout
        assert out is not None

        async def line_with(what: Callable[[Any], bool]) -> Any:
            while True:
                line = await asyncio.wait_for(asyncio.to_thread(out.readline), 30)
                assert line, process.communicate()
                said = json.loads(line)
                if what(said):
                    return said

        seen = await line_with(lambda said: said["instance"] == "w1-0123abcd")
        assert (seen["state"], seen["running"], seen["slots"], seen["version"]) == ("connected", 3, 64, "1.2")
        assert seen["silent"] is False
        # One that says it once and never again.
        body = Heartbeat("lost", "l1", State.CONNECTED, 0.1).encode()
        await connection.publish(Outgoing(bus.Names(unique_prefix).cards, "", body, Properties(type="heartbeat")))
        assert (await line_with(lambda said: said["silent"]))["agent"] == "lost"
        await workers.aclose()
        await line_with(lambda said: said["leaving"])
        process.send_signal(signal.SIGINT)
        await asyncio.to_thread(process.wait, 30)
        assert process.returncode == 130
    await connection.close()


@pytest.mark.rabbitmq
def test_a_worker_process_is_there_until_it_stops(crew: Crew) -> None:
    home = crew.home
    with home.start("agents", "--watch", "--json") as watching:
        assert watching.stdout is not None
        with crew.worker("--instance", "w1", "--slots", "7") as worker:
            until(lambda: home.run("ping", "--quiet").code == 0, "an answer")
            ended = home.run("ping", "skillbus/w1")
            assert re.fullmatch(r"✓ skillbus/w1-[0-9a-f]{8}  connected, 0 of 7 slots in use, \d+ ms\n", ended.out)
            (listed,) = json.loads(home.run("agents", "--json").out)
            assert re.fullmatch("sha256:[0-9a-f]{64}", listed["cardHash"])
            assert listed["state"] == "connected"
            worker.send_signal(signal.SIGTERM)
            worker.communicate(timeout=LIMIT)
            assert worker.returncode == 0
        beats = [json.loads(watching.stdout.readline())]
        assert not beats[0]["leaving"]
        while not beats[-1]["leaving"]:
            beats.append(json.loads(watching.stdout.readline()))
        assert {(beat["instance"], beat["cardHash"]) for beat in beats} == {(listed["instance"], listed["cardHash"])}
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=LIMIT)
    assert home.run("ping", "skillbus/w1", "--wait", "0.3s").code == 1
