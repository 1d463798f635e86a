"""A link is there again after whatever happens to it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bus import Backoff, ConnectionLost, MemoryBroker, Patience, Refused, State
from bus.driver import Connection, Outgoing, Properties
from bus.link import Link
from bus.memory.broker import MemoryConnection
from tests.conformance.stage import soon, until

QUICK = Patience(connect=5.0, confirm=0.2, backoff=Backoff(first=0.001, most=0.01))


class Setup:
    """Counts, and fails when told to."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.errors: list[Exception] = []

    async def __call__(self, connection: Connection) -> None:
        self.connections.append(connection)
        if self.errors:
            raise self.errors.pop(0)


def a_link(broker: MemoryBroker, setup: Callable[[Connection], Any], **options: Any) -> Link:
    return Link(broker, "test", setup, **{"patience": QUICK, **options})


def state(link: Link) -> State:
    """Read anew each time, which a type checker does not expect of a property."""
    return link.state


async def test_it_is_set_up_again_after_each_loss() -> None:
    broker, setup, events = MemoryBroker(), Setup(), []
    link = a_link(broker, setup, on_up=lambda: events.append("up"), on_down=lambda: events.append("down"))
    assert state(link) is State.DOWN
    await soon(link.start())
    for losses in (1, 2, 3):
        broker.cut()
        assert state(link) is State.DOWN
        await until(lambda losses=losses: link.losses == losses)  # type: ignore[misc]
        assert await soon(link.ready()) is setup.connections[-1]
        assert state(link) is State.CONNECTED
    assert len(setup.connections) == 4
    assert len(set(map(id, setup.connections))) == 4
    await soon(link.close())
    assert state(link) is State.CLOSED
    assert events == ["up", "down"] * 4
    with pytest.raises(ConnectionLost):
        await link.ready()


async def test_a_setup_that_fails_is_tried_again() -> None:
    broker, setup = MemoryBroker(), Setup()
    setup.errors = [ConnectionLost("during setup"), ConnectionLost("again")]
    link = a_link(broker, setup)
    await soon(link.start())
    assert len(setup.connections) == 3
    setup.errors = [RuntimeError("a bug"), Refused("permissions changed")]
    broker.cut()
    await until(lambda: len(setup.connections) == 6)
    await soon(link.ready())
    await link.close()


@pytest.mark.parametrize("error", [Refused("no"), RuntimeError("a bug")])
async def test_a_refusal_at_first_is_told_at_once(error: Exception) -> None:
    setup = Setup()
    setup.errors = [error]
    link = a_link(MemoryBroker(), setup)
    with pytest.raises(type(error)):
        await soon(link.start())
    assert state(link) is State.CLOSED


async def test_patience_for_the_first_connection_ends() -> None:
    broker = MemoryBroker()
    broker.set_reachable(False)
    link = a_link(broker, Setup(), patience=Patience(connect=0.05, backoff=Backoff(first=0.001, most=0.01)))
    with pytest.raises(ConnectionLost, match="the broker is not there"):
        await soon(link.start())
    forever = a_link(broker, Setup(), patience=Patience(connect=None, backoff=Backoff(first=0.001, most=0.01)))
    starting = asyncio.create_task(forever.start())
    await until(lambda: forever.state is State.DOWN)
    assert not starting.done()
    broker.set_reachable(True)
    await soon(starting)
    await forever.close()


async def test_a_connection_that_breaks_during_setup_is_not_used() -> None:
    broker = MemoryBroker()
    cuts = 2

    async def setup(connection: Connection) -> None:
        nonlocal cuts
        if cuts:
            cuts -= 1
            broker.cut()

    link = a_link(broker, setup)
    await soon(link.start())
    assert cuts == 0
    assert not (await link.ready()).lost.done()
    await link.close()


async def test_it_can_be_dropped() -> None:
    broker, setup = MemoryBroker(), Setup()
    link = a_link(broker, setup)
    link.drop("before it is there")
    await soon(link.start())
    link.drop("once")
    link.drop("twice")
    await until(lambda: len(setup.connections) == 2 and state(link) is State.CONNECTED)
    await link.close()


async def test_a_broker_that_confirms_nothing_is_left() -> None:
    broker, setup = MemoryBroker(), Setup()
    link = a_link(broker, setup)
    await soon(link.start())
    connection = setup.connections[0]
    assert isinstance(connection, MemoryConnection)
    connection._take = lambda: None  # type: ignore[method-assign]
    message = Outgoing("", "nobody", b"", Properties())
    with pytest.raises(ConnectionLost):
        await soon(link.publish(message))
    await until(lambda: len(setup.connections) == 2)
    # A broker that says that it is short of memory is another matter.
    broker.set_blocked(True)
    assert state(link) is State.BLOCKED
    waiting = link.publish(message)
    await asyncio.wait({waiting}, timeout=4 * QUICK.confirm)
    assert not waiting.done()
    broker.set_blocked(False)
    assert state(link) is State.CONNECTED
    with pytest.raises(Exception, match="no queue"):
        await soon(waiting)
    assert link.losses == 1
    await link.close()


async def test_publishing_without_a_connection_fails() -> None:
    link = a_link(MemoryBroker(), Setup())
    with pytest.raises(ConnectionLost):
        await link.publish(Outgoing("", "q", b"", Properties()))
    await link.close()


def test_pauses_grow_and_vary() -> None:
    backoff = Backoff(first=1.0, most=10.0)
    for failures, longest in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 10.0), (500, 10.0)):
        pauses = {backoff.pause(failures) for _ in range(50)}
        assert all(longest / 2 <= pause <= longest for pause in pauses)
        assert len(pauses) > 1


def test_the_worse_state_counts() -> None:
    assert State.worse(State.CONNECTED, State.BLOCKED) is State.BLOCKED
    assert State.worse(State.DOWN, State.CONNECTING) is State.DOWN
    assert State.worse(State.CLOSED, State.DOWN) is State.CLOSED


async def test_what_has_to_stand_is_looked_at_again() -> None:
    broker, setup = MemoryBroker(), Setup()
    answers: list[Exception | None] = [None, ConnectionLost("asked in vain"), Refused("it is another one now"), None]
    looked: list[Connection] = []
    done = asyncio.Event()

    async def check(connection: Connection) -> None:
        looked.append(connection)
        if not answers:
            done.set()
        elif (error := answers.pop(0)) is not None:
            raise error

    link = a_link(broker, setup, patience=replace(QUICK, check=0.001), check=check)
    await soon(link.start())
    await soon(done.wait())
    assert link.losses == 1
    first, second = setup.connections
    assert looked[:5] == [first] * 3 + [second] * 2
    await link.close()
    count = len(looked)
    await asyncio.sleep(0.01)
    assert len(looked) == count
