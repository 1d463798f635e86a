"""The events of a stream on their way: the window, lost connections, callers that are gone."""

import asyncio
from typing import Any, cast

import pytest

from bus.driver import Outgoing, Properties
from bus.errors import ConnectionLost, Rejected, Unroutable
from bus.link import Link
from bus.server.events import WINDOW, Events
from bus.server.held import Held
from tests.conformance.stage import soon


class Line:
    """A connection for replies, and a delivery, that do as they are told."""

    def __init__(self) -> None:
        self.published: list[tuple[Outgoing, asyncio.Future[None]]] = []
        self.back = asyncio.Event()
        self.closed = False
        self.stale = False

    def publish(self, message: Outgoing) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.published.append((message, future))
        return future

    async def ready(self) -> None:
        await self.back.wait()
        if self.closed:
            raise ConnectionLost

    @property
    def numbers(self) -> list[Any]:
        return [message.properties.headers["n"] for message, _ in self.published]

    def events(self) -> Events:
        return Events(
            cast("Link", self),
            cast("Held", self),
            lambda number, body, headers: Outgoing("", "q", body, Properties(headers={"n": number, **headers})),
        )

    def settle(self, error: Exception | None = None) -> None:
        """Confirm, or fail, all that is on its way."""
        for _, future in self.published:
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)


async def test_a_slow_broker_slows_the_agent_down() -> None:
    line = Line()
    events = line.events()
    for _ in range(WINDOW):
        await soon(events.put(b"", {}))
    late = asyncio.create_task(events.put(b"", {}))
    later = asyncio.create_task(events.put(b"", {}))
    await asyncio.sleep(0)
    assert len(line.published) == WINDOW
    line.published[0][1].set_result(None)
    await soon(late)
    assert len(line.published) == WINDOW + 1
    assert not later.done()
    line.settle()
    await soon(later)
    assert line.numbers == list(range(WINDOW + 2))
    draining = asyncio.create_task(events.drain())
    await asyncio.sleep(0)
    assert not draining.done()
    line.settle()
    await soon(draining)


async def test_what_a_connection_took_along_is_sent_again_in_order() -> None:
    line = Line()
    events = line.events()
    for _ in range(3):
        await events.put(b"", {})
    line.published[0][1].set_result(None)
    line.settle(ConnectionLost())
    await soon(events.broken.wait())
    mending = asyncio.create_task(events.mend())
    following = asyncio.create_task(events.put(b"", {}))
    await asyncio.sleep(0)
    assert line.numbers == [0, 1, 2]
    line.back.set()
    await soon(mending)
    await soon(following)
    assert line.numbers == [0, 1, 2, 1, 2, 3]
    line.settle()
    await soon(events.drain())
    assert events.heard


async def test_a_caller_that_is_gone_hears_nothing_more() -> None:
    line = Line()
    events = line.events()
    await events.put(b"", {})
    line.settle(Unroutable())
    await asyncio.sleep(0)
    assert events.heard is False
    await soon(events.put(b"", {}))
    await soon(events.drain())
    assert (line.numbers, events.count) == ([0], 1)


async def test_the_next_run_answers_what_is_delivered_again() -> None:
    line = Line()
    events = line.events()
    await events.put(b"", {})
    line.stale = True
    line.settle(ConnectionLost())
    line.back.set()
    await soon(events.drain())
    assert events.heard is False
    assert line.numbers == [0]


async def test_a_server_that_closes_sends_nothing_again() -> None:
    line = Line()
    line.closed = True
    line.back.set()
    events = line.events()
    await events.put(b"", {})
    line.settle(ConnectionLost())
    await soon(events.mend())
    assert events.heard is False


async def test_an_event_that_is_refused_is_a_gap(caplog: pytest.LogCaptureFixture) -> None:
    line = Line()
    events = line.events()
    for _ in range(5):
        await soon(events.put(b"", {}))
        line.settle(Rejected())
    await soon(events.put(b"", {}))
    line.settle()
    await soon(events.drain())
    assert line.numbers == [0, 1, 2, 3, 4, 5]
    assert events.heard
    assert caplog.text.count("was not taken") == 1, "whoever makes its own queue so must not fill the log"
