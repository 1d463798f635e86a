"""A connection that is there again after it was lost: one supervisor, which rebuilds the whole and mends nothing."""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from bus.driver import Connection, Driver, Outgoing, Setup
from bus.errors import BusError, ConnectionLost

_log = logging.getLogger(__name__)


class State(StrEnum):
    """What a link, a client or a server can do at the moment; of two links, the worse one counts."""

    CONNECTED = "connected"
    PAUSED = "paused"
    """A server that was told to take no requests."""
    BLOCKED = "blocked"
    """The broker takes no messages now (a memory or disk alarm); what it has, it still delivers."""
    CONNECTING = "connecting"
    DOWN = "down"
    """Waiting before the next attempt to connect."""
    CLOSED = "closed"

    @classmethod
    def worse(cls, one: "State", other: "State") -> "State":
        """The one of two that allows less."""
        return max(one, other, key=list(cls).index)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between attempts to connect, in seconds: `first`, doubled each time up to `most`, shortened by chance.

    The chance keeps a hundred workers from coming back in the same moment.
    """

    first: float = 0.1
    most: float = 10.0

    def pause(self, failures: int) -> float:
        """The pause after so many failures in a row."""
        longest = min(self.most, self.first * 2.0 ** min(failures - 1, 30))
        return longest * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a link waits, in seconds.

    `connect` for the first connection, None for ever; later ones are tried for as long as the link is open. `confirm`
    for the broker to take a message before the connection counts as broken. `check` between two looks at whether what
    has to stand on the broker still does: nobody tells of an exchange or a binding that is gone.
    """

    connect: float | None = 30.0
    confirm: float = 30.0
    check: float = 30.0
    backoff: Backoff = Backoff()


class Link:
    """Keeps one connection to the broker, set up the same way each time.

    `setup` makes on every new connection what has to be there. `on_up` and `on_down` are called, without waiting,
    when the connection is ready and when it is lost. `check` mends from time to time what may have gone missing since,
    or raises `Refused` where only a new connection helps.
    """

    def __init__(
        self,
        driver: Driver,
        name: str,
        setup: Setup,
        *,
        patience: Patience,
        on_up: Callable[[], None] | None = None,
        on_down: Callable[[], None] | None = None,
        check: Setup | None = None,
    ) -> None:
        self._driver = driver
        self._name = name
        self._setup = setup
        self._check = check
        self._patience = patience
        self._on_up = on_up
        self._on_down = on_down
        self._connection: Connection | None = None
        self._state = State.DOWN
        self._up = asyncio.Event()
        self._dropped: asyncio.Future[str] | None = None
        self._first: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._last_error: BusError | None = None
        self.losses = 0

    @property
    def state(self) -> State:
        """What the link can do at the moment."""
        if self._connection is None:
            return self._state
        if self._connection.lost.done():
            return State.DOWN
        return State.BLOCKED if self._connection.blocked else State.CONNECTED

    async def start(self) -> None:
        """Connect for the first time. Raises `Refused` at once, `ConnectionLost` when the patience is over."""
        self._first = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(), name=f"link {self._name}")
        try:
            async with asyncio.timeout(self._patience.connect):
                await self._first
        except TimeoutError:
            await self.close()
            raise ConnectionLost(f"no connection within {self._patience.connect:g} s: {self._last_error}") from None
        except BaseException:
            await self.close()
            raise

    async def ready(self) -> Connection:
        """The connection, once there is one. Raises `ConnectionLost` when the link is closed."""
        while self._state is not State.CLOSED:
            if self._connection is None:
                await self._up.wait()
            elif self._connection.lost.done():
                await asyncio.sleep(0)  # the supervisor has its turn and sees it too
            else:
                return self._connection
        raise ConnectionLost("closed")

    def publish(self, message: Outgoing, *, mandatory: bool = True) -> "asyncio.Future[None]":
        """Publish on the present connection; fails with `ConnectionLost` while there is none."""
        if self._connection is not None:
            return self._connection.publish(message, mandatory=mandatory)
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        failed.set_exception(ConnectionLost())
        return failed

    def drop(self, reason: str) -> None:
        """Give the present connection up and build a new one."""
        if self._dropped is not None and not self._dropped.done():
            self._dropped.set_result(reason)

    async def close(self) -> None:
        """Close for good; whoever waits for the link is told."""
        self._state = State.CLOSED
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._first is not None:
            self._first.cancel()
        self._leave()
        self._up.set()
        if self._closing:
            await asyncio.wait(self._closing)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            self._state = State.CONNECTING
            try:
                await self._enter()
            except Exception as error:
                self._fail(error)
            else:
                since = loop.time()
                _log.info("%s: connected", self._name)
                reason = await self._watch()
                self._leave()
                self.losses += 1
                # A connection that breaks at once counts as one that could not be made.
                if loop.time() - since > self._patience.backoff.most:
                    failures = 0
                _log.warning("%s: connection lost: %s", self._name, reason)
            failures += 1
            self._state = State.DOWN
            await asyncio.sleep(self._patience.backoff.pause(failures))

    async def _enter(self) -> None:
        self._dropped = asyncio.get_running_loop().create_future()
        connection = await self._driver.connect(self._name)
        try:
            await self._setup(connection)
            if connection.lost.done():
                raise ConnectionLost(connection.lost.result())
        except BaseException:
            self._discard(connection)
            raise
        self._connection = connection
        connection.on_blocked = self._blocked
        self._up.set()
        if self._first is not None and not self._first.done():
            self._first.set_result(None)
        if self._on_up is not None:
            self._on_up()

    async def _watch(self) -> str:
        connection, dropped = self._connection, self._dropped
        if connection is None or dropped is None:
            return "closed"
        ends: list[asyncio.Future[str]] = [dropped, connection.lost]
        if self._check is not None:
            ends.append(asyncio.create_task(self._keep_looking(connection, self._check)))
        loop = asyncio.get_running_loop()
        limit = self._patience.confirm
        try:
            while True:
                await asyncio.wait(ends, timeout=limit / 4, return_when=asyncio.FIRST_COMPLETED)
                for end in ends:
                    if end.done():
                        return end.result()
                since = connection.waiting_since
                if since is not None and not connection.blocked and loop.time() - since > limit:
                    return f"the broker confirmed nothing for {limit:g} s"
        finally:
            for looking in ends[2:]:
                looking.cancel()

    async def _keep_looking(self, connection: Connection, check: Setup) -> str:
        """Returns what is wrong, once something is."""
        while True:
            await asyncio.sleep(self._patience.check)
            if connection.blocked:
                continue  # the broker reads nothing of it
            try:
                await check(connection)
            except ConnectionLost as error:
                # Whether the connection is gone is told by the connection itself.
                _log.info("%s: could not be checked: %s", self._name, error)
            except Exception as error:
                return f"what has to stand does not: {error!r}"

    def _blocked(self, blocked: bool) -> None:
        if blocked:
            _log.warning("%s: the broker takes no messages now: a memory or disk alarm", self._name)
        else:
            _log.warning("%s: the broker takes messages again", self._name)

    def _leave(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._up.clear()
        self._discard(connection)
        if self._on_down is not None:
            self._on_down()

    def _discard(self, connection: Connection) -> None:
        # A broken connection may take its time to close, and the new one does not depend on it.
        task = asyncio.create_task(connection.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _fail(self, error: Exception) -> None:
        self._last_error = error if isinstance(error, BusError) else None
        if isinstance(error, BusError):
            _log.warning("%s: cannot connect: %s", self._name, error)
        else:
            _log.error("%s: cannot set the connection up", self._name, exc_info=error)
        first = self._first
        if first is not None and not first.done() and not isinstance(error, ConnectionLost):
            first.set_exception(error)
