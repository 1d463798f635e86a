"""What the doctor looks at on the message broker. It makes one queue, which ends with its connection."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from uuid import uuid4

import bus
from bus import topology
from bus.capabilities import NEWEST
from bus.driver import Connection, Outgoing, Properties, Queue
from bus.target import driver_for

from .doctor import Check, Finding, doubtful, failed, well
from .settings import Settings

CONNECT = 10.0
BLOCKED = 3.0
"""Seconds after which a broker that takes no message counts as one that will not."""

FULL = 0.8
"""The part of a queue's limit from which it is told of."""

_UP = "check that the broker is up and that the host and port of --amqp-url are right"


class BrokerChecks:
    """The checks of one broker, in their order: the later ones use the connection that the first has made."""

    def __init__(self, settings: Settings) -> None:
        self._names = bus.Names(settings.prefix)
        self._agent = settings.agent
        self._url = settings.amqp_url.get_secret_value() if settings.amqp_url is not None else None
        self._user = None if self._url is None else driver_for(self._url).user
        self._connection: Connection | None = None

    def checks(self) -> list[Check]:
        """The first one alone tells whether there is anything to look at."""
        return [
            Check("rabbitmq", self._reach, _UP, CONNECT),
            Check("queues", self._queues, _UP),
            Check("agent", self._served, _UP),
            Check("dead letters", self._dead_letters, _UP),
            Check("permissions", self._exchange_message, _UP),
        ]

    async def close(self) -> None:
        """Let go of the broker."""
        if self._connection is not None:
            with suppress(bus.BusError):
                await self._connection.close()

    async def _reach(self) -> Sequence[Finding]:
        if self._url is None:
            return [well("rabbitmq", "in process: none configured")]
        try:
            self._connection = await driver_for(self._url).connect("skillbus doctor")
        except bus.Refused as error:
            return [failed("rabbitmq", error.message, self._way_in(error.message))]
        except bus.ConnectionLost as error:
            return [failed("rabbitmq", error.message, self._way_in(error.message))]
        broker = self._connection.capabilities
        if not broker.is_tabled:
            newest = f"{NEWEST[0]}.{NEWEST[1]}"
            text = f"{broker} is not in the table of this Skillbus, which ends with RabbitMQ {newest}"
            return [doubtful("rabbitmq", text, "look for a newer Skillbus; until then, try it before you rely on it")]
        able = ", ".join(capability.name for capability in broker.known)
        return [well("rabbitmq", f"{broker}, as {self._user or 'its certificate says'}; {able}")]

    async def _queues(self) -> Sequence[Finding]:
        """Whether what stands there is what a worker would declare."""
        if self._connection is None:
            return []
        parts = (*topology.agent(self._names, self._agent), topology.parked(self._names))
        found = []
        for queue in (part for part in parts if isinstance(part, Queue)):
            if await self._connection.tally(queue.name) is None:
                continue
            try:
                await self._connection.declare(queue)
            except bus.Refused as error:
                found.append(self._other(queue, error.message))
        there = "as a worker declares them"
        return found or [well("queues", f"those under {self._names.prefix} are {there}, or not there yet")]

    def _other(self, queue: Queue, text: str) -> Finding:
        if "ACCESS_REFUSED" in text:
            return doubtful("queues", f"may not look into {queue.name}: {text}", self._grant("configure"))
        fix = f"empty it, delete it (`rabbitmqctl delete_queue {queue.name}`) and start a worker, which makes it anew"
        return failed("queues", f"{queue.name} stands there with other arguments: {text}", fix)

    async def _served(self) -> Sequence[Finding]:
        if self._connection is None:
            return []
        name = self._names.queue(self._agent)
        tally = await self._connection.tally(name)
        if tally is None:
            return [doubtful("agent", f"no worker has served {self._agent!r}: there is no {name}", "`skillbus worker`")]
        text = f"{name}: {tally.messages} waiting, {tally.consumers} worker(s)"
        if not tally.consumers:
            worse = failed if tally.messages else doubtful
            fix = "start a worker: `skillbus worker`; if one runs, its log says what keeps it from reading the queue"
            return [worse("agent", f"{text}: nobody takes them", fix)]
        if tally.messages >= FULL * topology.MAX_LENGTH:
            return [doubtful("agent", f"{text}, and {topology.MAX_LENGTH} are the limit", "start more workers")]
        return [well("agent", text)]

    async def _dead_letters(self) -> Sequence[Finding]:
        if self._connection is None:
            return []
        dead = await self._connection.tally(self._names.dead)
        parked = await self._connection.tally(self._names.parked)
        if dead is not None and dead.messages and not dead.consumers:
            text = f"{dead.messages} in {self._names.dead}, and nobody reads them: their callers wait in vain"
            return [failed("dead letters", text, "let a worker run with dead_letters = true, which is the default")]
        if parked is not None and parked.messages:
            text = f"{parked.messages} parked"
            if parked.messages >= FULL * topology.PARKED_MAX_LENGTH:
                text += f": beyond {topology.PARKED_MAX_LENGTH} the oldest are dropped"
            return [doubtful("dead letters", text, "`skillbus dead list`, then requeue or drop them")]
        return [well("dead letters", "none")]

    async def _exchange_message(self) -> Sequence[Finding]:
        """Declare, write and read under the prefix, last of all: a refused write costs the connection."""
        connection = self._connection
        if connection is None:
            return []
        queue = self._names.new_reply_queue(self._user)
        arrived = asyncio.Event()
        began = time.monotonic()
        try:
            await connection.declare(topology.replies(queue))
        except bus.Refused as error:
            return [failed("permissions", f"may not declare {queue}: {error.message}", self._grant("configure"))]
        try:
            await connection.consume(queue, prefetch=0, on_delivery=lambda _: arrived.set(), on_cancelled=lambda: None)
        except bus.Refused as error:
            return [failed("permissions", f"may not read {queue}: {error.message}", self._grant("read"))]
        # Asked before anything is written: a broker with an alarm reads no more of who has written once.
        has_exchange = await connection.tally(self._names.queue(self._agent)) is not None
        for _ in range(2):
            problem = await self._write(connection, "", queue)
            if problem is not None:
                return [problem]
        await arrived.wait()
        took = f"declares, writes and reads under {self._names.prefix} ({(time.monotonic() - began) * 1000:.0f} ms)"
        if not has_exchange:
            return [well("permissions", f"{took}; {self._names.requests} is not there yet")]
        problem = await self._write(connection, self._names.requests, f"doctor-{uuid4().hex}")
        return [problem or well("permissions", took)]

    async def _write(self, connection: Connection, exchange: str, key: str) -> Finding | None:
        """What keeps a message from being taken. One that no queue takes was taken."""
        sending = connection.publish(Outgoing(exchange, key, b"", Properties(user_id=self._user)))
        await asyncio.wait({sending}, timeout=BLOCKED)
        where = exchange or "the default exchange"
        if not sending.done():
            sending.cancel()
            if connection.blocked:
                fix = (
                    "`rabbitmq-diagnostics alarms` names the memory or disk alarm: give the node more, or drain queues"
                )
                return failed("permissions", "the broker takes no messages now: it has an alarm", fix)
            return failed("permissions", f"{where} confirms no message within {BLOCKED:g} s", _UP)
        error = sending.exception()
        if error is None or isinstance(error, bus.Unroutable):
            return None
        fix = self._grant("write") if "ACCESS_REFUSED" in str(error) else _UP
        return failed("permissions", f"may not write to {where}: {error}", fix)

    def _grant(self, what: str) -> str:
        prefix = self._names.prefix.replace(".", r"\.")
        pattern = rf"^({prefix}\..*|amq\.default)$"
        return (
            f"grant {what}: `rabbitmqctl set_permissions -p VHOST {self._user or 'USER'} '{pattern}' '{pattern}' "
            f"'{pattern}'`"
        )

    def _way_in(self, text: str) -> str:
        lower = text.lower()
        if "must not be used" in lower:
            return "upgrade RabbitMQ"
        if "certificate" in lower:
            return "name the broker's authority in the URL (?cafile=FILE), and call it by the name in its certificate"
        if "vhost" in lower:
            return (
                "make the virtual host (`rabbitmqctl add_vhost NAME`), let the user in, or mend the end of --amqp-url"
            )
        if "access_refused" in lower or "refuses" in lower or "login" in lower:
            return "mend the user or the password in SKILLBUS_AMQP_URL (`rabbitmqctl change_password USER`)"
        return _UP
