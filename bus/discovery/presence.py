"""A server's presence: it answers `ping`, `info` and `stats`, and says by a heartbeat that it lives."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from bus.discovery.control import INFO, PING, STATS, Control, Handler
from bus.discovery.vitals import MISSED, MOST_INTERVAL, Heartbeat, Info, Pong, Stats
from bus.driver import Outgoing, Properties
from bus.errors import BusError
from bus.link import Patience, State
from bus.names import MEDIA_TYPE, Names
from bus.target import APP_ID, Target

_log = logging.getLogger(__name__)

_GOODBYE = 1.0
"""Seconds that the last word may take."""


class Presence:
    """One server, as others see it. Use it as an async context manager, or `start` and `close` it.

    `look` tells how the server does at the moment, `about` what does not change. `on` has handlers for what else is
    said on the control exchange. A heartbeat goes out every `about.interval_seconds`, and a last one when it is closed.

    What is said here is kept by nobody and proves nothing: whoever may publish on the broker may say it too.
    """

    def __init__(
        self,
        target: Target,
        agent: str,
        *,
        instance: str,
        look: Callable[[], Stats],
        about: Info | None = None,
        on: Mapping[str, Handler] | None = None,
        prefix: str = "a2a",
        declare: bool = True,
        patience: Patience | None = None,
    ) -> None:
        self._agent = agent
        self._instance = instance
        self._look = look
        self._about = replace(about or Info(), software=APP_ID)
        if not 0 < self._about.interval_seconds <= MOST_INTERVAL:
            raise ValueError(f"heartbeats lie more than 0 and at most {MOST_INTERVAL:g} s apart")
        self._exchange = Names(prefix).cards
        answers: dict[str, Handler] = {PING: self._pong, INFO: self._info, STATS: self._stats}
        self._control = Control(
            target,
            agent,
            instance=instance,
            on={**answers, **(on or {})},
            prefix=prefix,
            declare=declare,
            patience=patience,
        )
        self._began = 0.0
        self._beating: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect, listen, and begin to beat. Raises `Refused` and `ConnectionLost`."""
        self._began = asyncio.get_running_loop().time()
        await self._control.start()
        self._beating = asyncio.create_task(self._beat(), name=f"heartbeat of {self._agent}/{self._instance}")

    async def close(self) -> None:
        """Say goodbye, and answer no more."""
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()
            await asyncio.wait({beating})
            if self._control.state is State.CONNECTED:
                with suppress(BusError, TimeoutError):
                    await asyncio.wait_for(self._control.send(self._message(leaving=True)), _GOODBYE)
        await self._control.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def state(self) -> State:
        """The server's, or `BLOCKED` as soon as it is known here: RabbitMQ tells of an alarm only to who publishes."""
        return self.stats().state

    def stats(self) -> Stats:
        """How the server does."""
        found = self._look()
        blocked = State.BLOCKED if self._control.state is State.BLOCKED else State.CONNECTED
        uptime = asyncio.get_running_loop().time() - self._began
        return replace(found, state=State.worse(found.state, blocked), uptime_seconds=round(uptime, 3))

    async def publish(self, kind: str, body: Mapping[str, Any]) -> bool:
        """Say something to the workers of this agent, this one among them. False when that is not possible now."""
        return await self._control.publish(kind, body)

    async def _pong(self, _asked: Mapping[str, Any]) -> Mapping[str, Any]:
        now = self.stats()
        return Pong(now.state, now.running, now.slots).as_json()

    async def _info(self, _asked: Mapping[str, Any]) -> Mapping[str, Any]:
        return replace(self._about, slots=self._look().slots).as_json()

    async def _stats(self, _asked: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.stats().as_json()

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._control.ready()
                # While the broker is blocked this waits, and the next one follows at once.
                await self._control.send(self._message())
            except BusError as error:
                # Lost, closed, or refused for a queue of one listener that is full: the others are told the next one.
                _log.debug("a heartbeat of %s/%s was not taken by all: %s", self._agent, self._instance, error)
            await asyncio.sleep(max(self._about.interval_seconds - (loop.time() - began), 0.0))

    def _message(self, *, leaving: bool = False) -> Outgoing:
        now, about = self.stats(), self._about
        beat = Heartbeat(
            self._agent,
            self._instance,
            State.CLOSED if leaving else now.state,
            about.interval_seconds,
            version=about.version,
            card_hash=about.card_hash,
            slots=now.slots,
            running=now.running,
            leaving=leaving,
        )
        properties = Properties(
            type=Heartbeat.KIND,
            content_type=MEDIA_TYPE,
            correlation_id=uuid4().hex,
            expiration=int(MISSED * about.interval_seconds * 1000),
            user_id=self._control.user,
            app_id=APP_ID,
        )
        return Outgoing(self._exchange, "", beat.encode(), properties)
