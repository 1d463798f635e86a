"""The serving side: takes requests from an agent's queue, runs the agent, answers, and only then acknowledges."""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from bus import topology, wire
from bus.driver import Connection, Driver, Incoming, Outgoing
from bus.errors import (
    BusError,
    ConnectionLost,
    DeadlineExceeded,
    InternalError,
    InvalidParams,
    InvalidRequest,
    Unavailable,
)
from bus.limits import Limits
from bus.link import Link, Patience, State
from bus.message import Agent, Request
from bus.names import SUBSCRIBE, WORK, Names, check_agent
from bus.server.held import Held
from bus.server.intake import Intake
from bus.server.outbox import Outbox
from bus.server.reply import Channel, last_reply
from bus.server.stats import ServerStats
from bus.target import APP_ID, Target, driver_for

_log = logging.getLogger(__name__)

SLOTS = 64

ASKING_SLOTS = 32
"""Requests that ask, and bring no work, which one server answers at once; these slots are beside those for work."""

SUBSCRIPTIONS = 1000
"""Streams of tasks that one server tells to those who took them up; they take no slot once they have begun."""

MOST_SLOTS = 2000
"""The largest prefetch that a quorum queue allows."""

GRACE = 30.0
"""Seconds that running calls get to end when a server stops."""

KEEPALIVE = 10.0
"""Seconds of an agent's silence after which a stream that has begun says that it lives."""

_LAST_GRACE = 5.0


async def serve(
    target: Target,
    agent_name: str,
    agent: Agent,
    *,
    prefix: str = "a2a",
    slots: int = SLOTS,
    instance: str | None = None,
    limits: Limits | None = None,
    max_length: int | None = None,
    declare: bool = True,
    keepalive: float = KEEPALIVE,
    patience: Patience | None = None,
) -> "Server":
    """Serve an agent from a broker: an `amqp://` or `amqps://` URL, or a `MemoryBroker`.

    Any number of servers may serve one agent; each runs at most `slots` calls at once, and answers `ASKING_SLOTS`
    requests beside them that ask for tasks or cards, cancel, or subscribe. `instance` names this one to
    callers. `max_length` is how much work may wait in the agent's queue, the same for all of its servers; None is
    `bus.topology.LENGTH_CEILING`, and a policy of the broker may say less. `declare` makes what has to stand on the
    broker; without it the server only looks, at every connection, and needs no permission to configure.
    `keepalive` is how many seconds a stream is silent when its caller does not ask for another time. Raises
    `Refused` when the broker will not have it (`Undeclared` when it may only look and something is missing; once it
    was up it keeps trying), `ConnectionLost` when it can't be reached within the patience.
    """
    if not 1 <= slots <= MOST_SLOTS:
        raise InvalidParams(f"a server has 1 to {MOST_SLOTS} slots")
    server = Server(
        driver_for(target),
        check_agent(agent_name),
        agent,
        names=Names(prefix),
        slots=slots,
        instance=instance or uuid4().hex[:8],
        limits=limits or Limits(),
        max_length=max_length,
        declare=declare,
        keepalive=keepalive,
        patience=patience or Patience(),
    )
    await server.start()
    return server


class Server:
    """Serves one agent. Made by `serve`, ended by `stop` or as an async context manager.

    The agent runs in a task of its own for each request, and a lost connection does not end it: its reply still goes
    out, and the request is delivered and run once more, with `redelivered` set. Whoever must not act twice keeps a
    ledger by `message_id`.

    A request that was accepted before its end gives its slot back. When as many as there are slots run, the server
    takes no more work until there is less; at most twice as many run at once. What asks has slots of its own, and a
    subscription is acknowledged with its first event: its caller takes it up again when it breaks off.
    """

    def __init__(
        self,
        driver: Driver,
        agent_name: str,
        agent: Agent,
        *,
        names: Names,
        slots: int,
        instance: str,
        limits: Limits,
        max_length: int | None,
        declare: bool,
        keepalive: float,
        patience: Patience,
    ) -> None:
        self._agent_name = agent_name
        self._agent = agent
        self._names = names
        self._responder = f"{agent_name}/{instance}"
        self._limits = limits
        self._parts = topology.agent(names, agent_name, max_length=max_length)
        self._declare = declare
        self._keepalive = keepalive
        self._stats = ServerStats()
        self._tasks: set[asyncio.Task[None]] = set()
        self._too_late: list[Incoming] = []
        self._paused: str | None = None
        self._stopping = False
        self._closed = asyncio.Event()
        self._requests = Link(
            driver, f"{APP_ID} server {agent_name} requests", self._set_up, patience=patience, check=self._stand
        )
        self._replies = Link(driver, f"{APP_ID} server {agent_name} replies", _nothing_to_set_up, patience=patience)
        options: dict[str, Any] = {"wanted": self._may_take, "drop": self._requests.drop}
        self._work = Intake(names.queue(agent_name), slots, self._on_delivery, most=slots, **options)
        self._asking = Intake(names.ask(agent_name), ASKING_SLOTS, self._on_delivery, **options)
        self._outbox = Outbox(self._replies, self._stats)

    async def start(self) -> None:
        """Connect and begin. `bus.serve` has done it already."""
        try:
            await self._replies.start()
            await self._requests.start()
        except BaseException:
            await self.stop(0)
            raise

    @property
    def state(self) -> State:
        """What the server can do at the moment."""
        if self._stopping:
            return State.CLOSED
        state = State.worse(self._requests.state, self._replies.state)
        return State.worse(state, State.PAUSED) if self._paused is not None else state

    @property
    def paused(self) -> str | None:
        """Why the server takes no requests, when it was told so."""
        return self._paused

    def stats(self) -> ServerStats:
        """A copy of the counts."""
        losses = self._requests.losses + self._replies.losses
        accepted = self._work.accepts + self._asking.accepts
        return replace(self._stats, running=len(self._tasks), accepted=accepted, losses=losses)

    async def ready(self) -> None:
        """Wait until the server is connected. Raises `ConnectionLost` when it is stopped."""
        await self._replies.ready()
        await self._requests.ready()

    async def pause(self, reason: str) -> None:
        """Take no more requests, so that other servers get them; those that are here stay. `reason` is told."""
        self._paused = reason
        await asyncio.gather(self._work.match(), self._asking.match())

    async def resume(self) -> None:
        """Take requests again."""
        self._paused = None
        await asyncio.gather(self._work.match(), self._asking.match())

    async def answer(self, address: str, operation: str, answer: Mapping[str, Any] | bytes | BusError) -> bool:
        """Answer a request that some server of this agent has accepted; whether its caller was there to hear it.

        `address` is what `Reply.address` was, `operation` that of the request. To a stream it is the last event: a
        caller who has seen others takes the stream up again. Waits until the broker is there. Raises `InvalidParams`
        for what is no address, `InvalidAgentResponse`, and `ConnectionLost` when the server is stopped.
        """
        to = wire.read_address(self._names, address)
        return await self._outbox.bring(
            last_reply(to, operation, answer, responder=self._responder, limits=self._limits)
        )

    async def stop(self, grace: float = GRACE) -> None:
        """Take no more requests, let the running ones end within `grace` seconds, give the others back, and close."""
        if self._stopping:
            await self._closed.wait()
            return
        self._stopping = True
        try:
            await asyncio.gather(self._work.match(), self._asking.match())
            # Not before the consumer is gone, or it would get them again, and again, up to the delivery limit.
            for message in self._too_late:
                self._stats.requeued += 1
                message.reject(requeue=True)
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=grace)
            if self._tasks:
                for task in self._tasks:
                    task.cancel()
                _, deaf = await asyncio.wait(self._tasks, timeout=_LAST_GRACE)
                for _ in deaf:
                    _log.error("a call of agent %s does not let itself be cancelled; it is abandoned", self._agent_name)
        finally:
            await asyncio.gather(self._requests.close(), self._replies.close())
            self._closed.set()

    async def wait_closed(self) -> None:
        """Wait until the server has stopped."""
        await self._closed.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.stop()

    async def _set_up(self, connection: Connection) -> None:
        if self._stopping:
            return
        await self._stand(connection)
        await self._asking.begin(connection)
        await self._work.begin(connection)

    def _may_take(self) -> bool:
        return self._paused is None and not self._stopping

    async def _stand(self, connection: Connection) -> None:
        name = self._agent_name
        await topology.stand(connection, self._names, *self._parts, declare=self._declare, agent=name)

    def _on_delivery(self, lane: Intake, message: Incoming) -> None:
        self._stats.delivered += 1
        if message.redelivered:
            self._stats.redelivered += 1
        if self._stopping:
            self._too_late.append(message)
            return
        # Outside of the driver's callback, so that no event of the connection ends a running agent.
        task = asyncio.create_task(self._handle(Held(message, lane)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, held: Held) -> None:
        try:
            await self._settle(held)
        finally:
            held.leave()

    async def _settle(self, held: Held) -> None:
        message = held.message
        address = wire.return_address(self._names, message.properties)
        if address is None:
            # The broker keeps the headers of what it dead-letters, the short-lived authorization among them.
            self._stats.dead_lettered += 1
            _log.warning("agent %s: dead-lettered a message that cannot be answered", self._agent_name)
            message.reject(requeue=False)
            return
        try:
            settled = await self._answer(held, address)
        except asyncio.CancelledError:
            self._give_back(held)
            raise
        except Exception:
            _log.exception("agent %s: dead-lettered a message that could not be handled", self._agent_name)
            self._stats.dead_lettered += 1
            message.reject(requeue=False)
            return
        if settled and not held.accepted and not message.ack():
            self._stats.stale += 1

    def _give_back(self, held: Held) -> None:
        if held.accepted:
            self._stats.left += 1
        else:
            self._stats.requeued += 1
            held.message.reject(requeue=True)

    async def _answer(self, held: Held, address: wire.Address) -> bool:
        operation = held.message.properties.type
        try:
            request = self._read(held)
        except BusError as error:
            settled = await self._publish(held, self._error(address, operation, error))
            self._stats.refused += settled
            return settled
        reply = Channel(
            request,
            held,
            address,
            self._replies,
            lambda outgoing: self._publish(held, outgoing),
            responder=self._responder,
            limits=self._limits,
            keepalive=self._keepalive,
        )
        try:
            problem = await self._run(request, reply)
            if reply.sent:
                if problem is not None:
                    _log.error("agent %s: an error after the final reply reached nobody: %s", self._agent_name, problem)
                self._stats.answered += reply.settled
                return reply.settled
            if problem is None and held.asked:
                self._stats.left += held.accepted
                self._stats.unanswered += not held.accepted
                return held.accepted
            settled = await reply.fail(problem or InternalError())
            self._stats.failed += settled
            return settled
        except asyncio.CancelledError:
            if held.accepted:
                reply.cut()
            raise
        finally:
            self._stats.events += reply.events
            reply.close()

    def _read(self, held: Held) -> Request:
        now = time.time()
        request = wire.read_request(self._agent_name, held.message, self._limits, now)
        if held.lane is self._asking:
            if request.operation in WORK:
                raise InvalidRequest(f"{request.operation} is work: this lane is for what asks")
            if request.operation == SUBSCRIBE and self._asking.accepted >= SUBSCRIPTIONS:
                raise Unavailable("the server tells as many streams as it can", metadata={"retryAfterMs": "5000"})
        if request.deadline is not None and now > request.deadline + self._limits.skew:
            raise DeadlineExceeded
        return request

    async def _run(self, request: Request, reply: Channel) -> BusError | None:
        try:
            await self._agent(request, reply)
        except BusError as error:
            return error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if reply.settled or task is None or not task.cancelling():
                _log.warning("agent %s: a call was cancelled from within", self._agent_name)
                return None
            raise
        except BaseException as error:
            # Whatever it is, it is this call's alone: a worker that it ended would meet the same message again.
            if isinstance(error, KeyboardInterrupt):
                raise
            _log.exception("agent %s: an agent's call failed", self._agent_name)
            return None
        if not reply.sent and not reply.accepting:
            _log.error("agent %s: an agent returned without a final reply", self._agent_name)
        return None

    def _error(self, address: wire.Address, operation: str | None, error: BusError) -> Outgoing:
        return wire.error_reply(address, operation, error, responder=self._responder)

    async def _publish(self, held: Held, reply: Outgoing) -> bool:
        try:
            if await self._outbox.bring_unless(lambda: held.stale, reply) is None:
                self._stats.unanswered += 1
                return False
        except ConnectionLost:
            self._give_back(held)
            return False
        except BusError as error:
            _log.error("agent %s: dead-lettered a message whose reply cannot be sent: %s", self._agent_name, error)
            self._stats.dead_lettered += 1
            held.message.reject(requeue=False)
            return False
        return True


async def _nothing_to_set_up(_connection: Connection) -> None:
    """Replies go to the default exchange, which is always there."""
