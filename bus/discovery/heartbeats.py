"""Watching servers live: their heartbeats as they come, and who counts as alive when it is asked."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from bus import topology
from bus.discovery.vitals import MISSED, Heartbeat
from bus.driver import Binding, Connection, Incoming
from bus.errors import ConnectionLost
from bus.link import Link, Patience
from bus.names import Names
from bus.target import APP_ID, Target, driver_for

MOST_SERVERS = 10_000
"""Servers that are remembered; of more, the one that was silent longest is forgotten."""

_MOST_WAITING = 1024
_MAX_BODY = 8192


@dataclass(frozen=True, slots=True)
class Sighting:
    """The last that was heard of a server, `age_seconds` ago by the clock of who listens."""

    beat: Heartbeat
    age_seconds: float

    @property
    def alive(self) -> bool:
        """Whether less than three of its own intervals have passed; a server that said goodbye is not listed at all."""
        return self.age_seconds < MISSED * self.beat.interval_seconds


class Registry:
    """Who was heard of, and when. Nobody is marked alive or dead: that is worked out from the age when it is asked."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard: dict[tuple[str, str], tuple[float, Heartbeat]] = {}

    def hear(self, beat: Heartbeat) -> None:
        """Take note of a heartbeat that has just come."""
        key = beat.agent, beat.instance
        self._heard.pop(key, None)
        if beat.leaving:
            return
        self._heard[key] = self._clock(), beat  # at the end: the first is who was silent longest
        if len(self._heard) > MOST_SERVERS:
            del self._heard[next(iter(self._heard))]

    def sightings(self, agent: str | None = None) -> list[Sighting]:
        """Who was heard of, the dead among them, by agent and instance."""
        now = self._clock()
        return [
            Sighting(beat, now - at)
            for (name, _), (at, beat) in sorted(self._heard.items())
            if agent is None or name == agent
        ]

    def alive(self, agent: str | None = None) -> list[Heartbeat]:
        """The last heartbeats of those who are alive now."""
        return [seen.beat for seen in self.sightings(agent) if seen.alive]

    def forget_dead(self) -> list[Heartbeat]:
        """Take those out who are not alive any more; their last heartbeats."""
        dead = [seen.beat for seen in self.sightings() if not seen.alive]
        for beat in dead:
            del self._heard[beat.agent, beat.instance]
        return dead


class Watch:
    """Listens to the heartbeats on a broker. Made by `watch`; iterate it, or ask its `registry`.

    It hears what is said from now on: who was there before is known within one of their intervals; `bus.ask`
    finds them at once. `malformed` counts what was heard and is no heartbeat.
    """

    def __init__(self, target: Target, *, prefix: str, patience: Patience, clock: Callable[[], float]) -> None:
        self._names = Names(prefix)
        self._driver = driver_for(target)
        self._link = Link(self._driver, f"{APP_ID} watch", self._set_up, patience=patience)
        self._beats: asyncio.Queue[Heartbeat | None] = asyncio.Queue()
        self.registry = Registry(clock)
        self.malformed = 0

    async def start(self) -> None:
        """Connect and listen. `watch` has done it already."""
        await self._link.start()

    async def close(self) -> None:
        """Hear no more."""
        await self._link.close()
        self._beats.put_nowait(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Heartbeat:
        """The next heartbeat. Of a reader that is too slow the oldest are dropped; the registry has heard them."""
        beat = await self._beats.get()
        if beat is None:
            self._beats.put_nowait(None)
            raise StopAsyncIteration
        return beat

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def _set_up(self, connection: Connection) -> None:
        # Named as a reply queue is, so that a caller needs no further permission to make it.
        queue = self._names.new_reply_queue(self._driver.user)
        await topology.stand(connection, self._names, topology.cards(self._names), declare=True)
        await connection.declare(topology.replies(queue), Binding(self._names.cards, queue))
        await connection.consume(
            queue,
            prefetch=0,
            on_delivery=self._on_delivery,
            on_cancelled=lambda: self._link.drop("the queue of the watch is gone"),
        )
        if not await connection.consumers(queue):
            raise ConnectionLost("the queue of the watch has no consumer")

    def _on_delivery(self, message: Incoming) -> None:
        beat = Heartbeat.decode(message.body) if len(message.body) <= _MAX_BODY else None
        if beat is None:
            self.malformed += 1
            return
        self.registry.hear(beat)
        if self._beats.qsize() >= _MOST_WAITING:
            self._beats.get_nowait()
        self._beats.put_nowait(beat)


async def watch(
    target: Target,
    *,
    prefix: str = "a2a",
    patience: Patience | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Watch:
    """Listen to the heartbeats of all servers of a prefix. Raises `Refused` and `ConnectionLost`."""
    made = Watch(target, prefix=prefix, patience=patience or Patience(), clock=clock)
    await made.start()
    return made
