"""The control exchange: short words to the workers of an agent, and what they answer.

What is said here is never trusted and never needed: a worker that hears of something looks where it is kept. So anyone
who may publish here can wake workers and ask how they are, and can change nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self
from uuid import uuid4

import orjson

from bus import topology
from bus.discovery.vitals import B, Info, Pong, Stats, read_object, type_of
from bus.driver import Binding, Connection, Incoming, Outgoing, Part, Properties, Queue
from bus.errors import BusError, ConnectionLost, InvalidParams, Rejected, Unavailable, Unroutable
from bus.link import Link, Patience, State
from bus.names import MEDIA_TYPE, Names, check_agent
from bus.target import APP_ID, Target, driver_for

CANCEL = "cancel"
PING, INFO, STATS = Pong.KIND, Info.KIND, Stats.KIND
KINDS = (CANCEL, PING, INFO, STATS)
"""What can be said. The last three are questions."""

QUIET = 0.25
"""Seconds without a further answer after which there are no more."""

MOST = 2.0
"""Seconds that answers are waited for at all."""

MAX_BODY = 64 << 10
_MOST_AT_ONCE = 64
_MOST_ANSWERS = 10_000
_EXPIRATION = 60_000

_log = logging.getLogger(__name__)

Handler = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any] | None]]
"""Hears the body of what was said; what it returns is the answer to a question."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[B]):
    """What one worker answered to a question, `after_seconds`."""

    agent: str
    instance: str
    body: B
    after_seconds: float


class Answers(list[Answer[B]]):
    """The answers that came; `malformed` counts what came and was none."""

    malformed = 0


def key(kind: str, agent: str | None = None, instance: str | None = None) -> str:
    """The routing key to all workers, to those of an agent, or to one."""
    if kind not in KINDS:
        raise InvalidParams(f"nothing of the kind {kind!r} is said on the control exchange")
    if agent is None:
        return kind
    return f"{kind}.{check_agent(agent)}" + (f".{instance}" if instance is not None else "")


class Control:
    """One worker's ear and voice on the control exchange.

    `on` has a handler for each kind that it listens to. Handlers run beside each other; one that fails is logged and
    answers nothing. Without `declare` the exchange is only looked for.
    """

    def __init__(
        self,
        target: Target,
        agent: str,
        *,
        instance: str,
        on: Mapping[str, Handler],
        prefix: str = "a2a",
        declare: bool = True,
        patience: Patience | None = None,
    ) -> None:
        self._names = Names(prefix)
        self._agent = check_agent(agent)
        self._instance = instance
        self._on: dict[str, Handler] = dict(on)
        self._driver = driver_for(target)
        self._tasks: set[asyncio.Task[None]] = set()
        name = f"{APP_ID} control {agent}"
        self._own: tuple[Part, ...] = ()
        self._declare = declare
        self._link = Link(self._driver, name, self._set_up, patience=patience or Patience(), check=self._stand)

    async def start(self) -> None:
        """Connect and listen. Raises `Refused` and `ConnectionLost`."""
        await self._link.start()

    async def ready(self) -> None:
        """Wait until it listens. Raises `ConnectionLost` when it is closed."""
        await self._link.ready()

    async def close(self) -> None:
        """Hear no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._link.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def publish(self, kind: str, body: Mapping[str, Any], *, instance: str | None = None) -> bool:
        """Say something to the workers of this agent, this one among them. False when that is not possible now."""
        message = _message(self._names, key(kind, self._agent, instance), kind, body, user=self._driver.user)
        try:
            await self._link.publish(message)
        except Rejected:
            # One listener's queue is full, and the broker doesn't say whose; the others have heard it.
            _log.debug("control: %s was not heard by all", kind)
        except BusError as error:
            _log.info("control: %s was not said: %s", kind, error)
            return False
        return True

    async def send(self, message: Outgoing) -> None:
        """Publish a message of another kind, whether or not anybody hears it. Raises `BusError`."""
        await self._link.publish(message, mandatory=False)

    @property
    def state(self) -> State:
        """What can be heard and said at the moment."""
        return self._link.state

    @property
    def user(self) -> str | None:
        """Who this side is to the broker."""
        return self._driver.user

    async def _set_up(self, connection: Connection) -> None:
        queue = f"{self._names.prefix}.ctl.{self._agent}.{uuid4().hex}"
        keys = [key(kind, *to) for kind in self._on for to in ((), (self._agent,), (self._agent, self._instance))]
        bindings = [Binding(self._names.control, queue, each) for each in keys]
        self._own = (Queue(queue, exclusive=True), *bindings)
        await self._stand(connection)
        await connection.consume(
            queue,
            prefetch=0,
            on_delivery=lambda message: self._on_delivery(connection, message),
            on_cancelled=lambda: self._link.drop("the control queue is gone"),
        )

    async def _stand(self, connection: Connection) -> None:
        shared = (topology.control(self._names), topology.cards(self._names))
        await topology.stand(connection, self._names, *shared, declare=self._declare)
        await connection.declare(*self._own)

    def _on_delivery(self, connection: Connection, message: Incoming) -> None:
        handler = self._on.get(message.properties.type or "")
        if handler is None or len(message.body) > MAX_BODY or len(self._tasks) >= _MOST_AT_ONCE:
            return
        task = asyncio.create_task(self._hear(handler, connection, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _hear(self, handler: Handler, connection: Connection, message: Incoming) -> None:
        asked = message.properties
        kind = asked.type or ""
        try:
            body = await handler(read_object(message.body))
            if body is None or not asked.reply_to or not self._names.allows_reply_to(asked.reply_to, asked.user_id):
                return
            if connection.blocked:
                return  # it would come when nobody waits for it any more
            answer = {**body, "type": type_of(kind), "agent": self._agent, "instance": self._instance}
            properties = Properties(
                type=kind, content_type=MEDIA_TYPE, correlation_id=asked.correlation_id, expiration=_EXPIRATION
            )
            await connection.publish(Outgoing("", asked.reply_to, orjson.dumps(answer), properties))
        except BusError as error:
            _log.debug("control: an answer to %s reached nobody: %s", kind, error)
        except Exception:
            _log.exception("control: %s could not be handled", kind)


async def ask(
    target: Target,
    kind: type[B],
    *,
    agent: str | None = None,
    instance: str | None = None,
    prefix: str = "a2a",
    quiet: float = QUIET,
    most: float = MOST,
) -> Answers[B]:
    """Ask all workers, those of an agent, or one, for their `Pong`, `Info` or `Stats`, and collect the answers.

    Waits until none came for `quiet` seconds after the last, and at most `most` seconds; none is an answer too. Raises
    `Unavailable` when the broker takes no messages, `Refused`, and `ConnectionLost`.
    """
    names, driver = Names(prefix), driver_for(target)
    where = key(kind.KIND, agent, instance)
    connection = await driver.connect(f"{APP_ID} ask {kind.KIND}")
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_MOST_ANSWERS)

    def on_delivery(message: Incoming) -> None:
        with suppress(asyncio.QueueFull):
            arrived.put_nowait((loop.time(), message.body))

    try:
        queue = names.new_reply_queue(driver.user)
        if await connection.missing(topology.control(names)):
            return Answers()  # whoever could answer would listen there
        await connection.declare(topology.replies(queue))
        await connection.consume(queue, prefetch=0, on_delivery=on_delivery, on_cancelled=lambda: None)
        message = _message(names, where, kind.KIND, {}, user=driver.user, reply_to=queue)
        began = loop.time()
        try:
            await _say(connection, message, most)
        except Unroutable:
            return Answers()
        return await _collect(kind, arrived, connection, began, quiet, most)
    finally:
        await connection.close()


async def _say(connection: Connection, message: Outgoing, most: float) -> None:
    """Publish, unless the broker takes no messages: it tells so only to who publishes, and then says nothing more."""
    blocked: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    connection.on_blocked = lambda now: blocked.set_result(now) if now and not blocked.done() else None
    if not connection.blocked:
        published = connection.publish(message)
        waits: set[asyncio.Future[Any]] = {published, blocked}
        await asyncio.wait(waits, timeout=most, return_when=asyncio.FIRST_COMPLETED)
        if published.done():
            return published.result()
        published.cancel()
    raise Unavailable("the broker takes no messages now", metadata={"retryAfterMs": "5000"})


async def _collect(
    kind: type[B],
    arrived: "asyncio.Queue[tuple[float, bytes]]",
    connection: Connection,
    began: float,
    quiet: float,
    most: float,
) -> Answers[B]:
    loop = asyncio.get_running_loop()
    until = loop.time() + most
    found: Answers[B] = Answers()
    while not connection.lost.done():
        wait = min(quiet, until - loop.time()) if found else until - loop.time()
        try:
            at, body = await asyncio.wait_for(arrived.get(), max(wait, 0))
        except TimeoutError:
            return found
        answer = _read(kind, body, at - began)
        if answer is None:
            found.malformed += 1
        else:
            found.append(answer)
    raise ConnectionLost(connection.lost.result())


def _read(kind: type[B], body: bytes, after: float) -> Answer[B] | None:
    members = read_object(body) if len(body) <= MAX_BODY else {}
    agent, instance = members.get("agent"), members.get("instance")
    if members.get("type") != type_of(kind.KIND) or not isinstance(agent, str) or not isinstance(instance, str):
        return None
    said = kind.read(members)
    return None if said is None else Answer(agent, instance, said, after)


def _message(
    names: Names, where: str, kind: str, body: Mapping[str, Any], *, user: str | None, reply_to: str | None = None
) -> Outgoing:
    properties = Properties(
        type=kind,
        content_type=MEDIA_TYPE,
        correlation_id=uuid4().hex,
        reply_to=reply_to,
        expiration=_EXPIRATION,
        user_id=user,
        app_id=APP_ID,
    )
    return Outgoing(names.control, where, orjson.dumps(dict(body)), properties)
