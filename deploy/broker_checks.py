"""What the doctor looks at on the message broker. It makes two queues, which end with their connections."""

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
from .management import vhost_of
from .permissions import Permissions
from .settings import Settings
from .topology_broker import TopologyBroker

CONNECT = 10.0
BLOCKED = 3.0
"""Seconds after which a broker that takes no message counts as one that will not."""

FULL = 0.8
"""The part of a queue's limit from which it is told of."""

ALARM = "an alarm"

_UP = "check that the broker is up and that the host and port of --amqp-url are right"


class BrokerChecks:
    """The checks of one broker, in their order: the later ones use the connection that the first has made."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._names = bus.Names(settings.prefix)
        self._agent = settings.agent
        self._url = settings.amqp_url.get_secret_value() if settings.amqp_url is not None else None
        self._user = None if self._url is None else driver_for(self._url).user
        self._connection: Connection | None = None

    def checks(self) -> list[Check]:
        """The first one alone tells whether there is anything to look at."""
        return [
            Check("rabbitmq", self._reach, _UP, CONNECT),
            Check("topology", self._topology, _UP),
            Check("agent", self._served, _UP),
            Check("dead letters", self._dead_letters, _UP),
            Check("permissions", self._permissions, _UP),
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

    async def _topology(self) -> Sequence[Finding]:
        """Whether what stands there is what `bus.topology` describes."""
        if self._connection is None:
            return []
        async with TopologyBroker(self._settings) as broker:
            planned = await broker.plan()
            problem = broker.problem
        found = [failed("topology", f"{each.subject} {each.text}", each.fix) for each in planned.by_hand]
        if planned.missing:
            worse = doubtful if self._settings.declare else failed
            missing = ", ".join(each.subject for each in planned.missing)
            fix = "`skillbus topology apply`" + ("; a worker makes it too (declare)" if self._settings.declare else "")
            found.append(worse("topology", f"a worker needs what is not there: {missing}", fix))
        if planned.policies:
            limits = "; ".join(f"{each.subject} {each.text}" for each in planned.limits)
            fix = "`skillbus topology apply`, or leave them as they are: the ceilings in the queues' arguments hold"
            found.append(doubtful("topology", limits, fix))
        if planned.unseen:
            fix = "name RabbitMQ's management API (management_url), with a user that has the tag management"
            found.append(doubtful("topology", f"not looked at: {', '.join(planned.unseen)}: {problem}", fix))
        return found or [well("topology", f"all under {self._names.prefix} stands as described")]

    async def _served(self) -> Sequence[Finding]:
        if self._connection is None:
            return []
        work = await self._lane(self._connection, self._names.queue(self._agent))
        asking = await self._lane(self._connection, self._names.ask(self._agent))
        return [asking if not work.fix and asking.fix else work]

    async def _lane(self, connection: Connection, name: str) -> Finding:
        tally = await connection.tally(name)
        if tally is None:
            fix = "`skillbus topology apply`, then `skillbus worker`"
            return doubtful("agent", f"no worker has served {self._agent!r}: there is no {name}", fix)
        text = f"{name}: {tally.messages} waiting, {tally.consumers} worker(s)"
        if not tally.consumers:
            worse = failed if tally.messages else doubtful
            fix = "start a worker: `skillbus worker`; if one runs, its log says what keeps it from reading the queue"
            return worse("agent", f"{text}: nobody takes them", fix)
        if tally.messages >= FULL * topology.MAX_LENGTH:
            return doubtful("agent", f"{text}, and {topology.MAX_LENGTH} are the limit", "start more workers")
        return well("agent", text)

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

    async def _permissions(self) -> Sequence[Finding]:
        """What the user may do as a worker and as a caller. Either will do: they need not be the same user."""
        if self._connection is None:
            return []
        has_exchange = not await self._connection.missing(topology.requests(self._names))
        own = f"{self._names.control}.{self._agent}.{uuid4().hex}"
        began = time.monotonic()
        user, vhost = self._user or "USER", vhost_of(self._url or "")
        grant = f"for a worker: `{Permissions.worker(self._names, self._agent).command(user, vhost)}`"
        serving = await self._exchange_message(grant, Queue(own, exclusive=True), "", own)
        if serving is not None and ALARM in serving.text:
            return [serving]
        replies = topology.replies(self._names.new_reply_queue(self._user))
        to = (self._names.requests, f"doctor-{uuid4().hex}") if has_exchange else ()
        grant = f"for a caller: `{Permissions.caller(self._names, user).command(user, vhost)}`"
        calling = await self._exchange_message(grant, replies, *to)
        if calling is not None and ALARM in calling.text:
            return [calling]  # nobody knows what this user may do as a caller
        took = f"({(time.monotonic() - began) * 1000:.0f} ms)"
        if serving is not None and calling is not None:
            return [serving, calling] if serving != calling else [serving]
        if serving is not None:
            text = f"declares, writes and reads as a caller {took}, not as a worker: {serving.text}"
        elif calling is not None:
            text = f"declares, writes and reads as a worker {took}, not as a caller: {calling.text}"
        else:
            text = f"declares, writes and reads under {self._names.prefix} as a worker and as a caller {took}"
        return [well("permissions", text if has_exchange else f"{text}; {self._names.requests} is not there yet")]

    async def _exchange_message(self, grant: str, queue: Queue, *to: str) -> Finding | None:
        """Declare and read a queue, write to an exchange under a key, and get it back where it leads to the queue.

        `grant` says how to mend what is refused.
        """
        # A connection of its own, since a refused write costs it.
        connection = await driver_for(self._url or "").connect("skillbus doctor")
        arrived = asyncio.Event()
        try:
            await connection.declare(queue)
        except bus.Refused as error:
            return failed("permissions", f"may not declare {queue.name}: {error.message}", grant)
        else:
            try:
                await connection.consume(
                    queue.name, prefetch=0, on_delivery=lambda _: arrived.set(), on_cancelled=lambda: None
                )
            except bus.Refused as error:
                return failed("permissions", f"may not read {queue.name}: {error.message}", grant)
            if not to:
                return None
            exchange, key = to
            # Twice: a broker with an alarm takes the first, and reads no more of who has written once.
            for _ in range(2):
                problem = await self._write(grant, connection, exchange, key)
                if problem is not None:
                    return problem
            if not exchange:
                await arrived.wait()
            return None
        finally:
            with suppress(bus.BusError):
                await connection.close()

    async def _write(self, grant: str, connection: Connection, exchange: str, key: str) -> Finding | None:
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
                return failed("permissions", f"the broker takes no messages now: it has {ALARM}", fix)
            return failed("permissions", f"{where} confirms no message within {BLOCKED:g} s", _UP)
        error = sending.exception()
        if error is None or isinstance(error, bus.Unroutable):
            return None
        fix = grant if "ACCESS_REFUSED" in str(error) else _UP
        return failed("permissions", f"may not write to {where}: {error}", fix)

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
