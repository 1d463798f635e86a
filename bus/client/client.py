"""The calling side: one request, one answer, over as many attempts and connections as that takes."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from bus import topology, wire
from bus.client.inbox import Inbox
from bus.client.leg import StreamEvent
from bus.client.lookout import Lookout
from bus.client.order import NO_HEADERS, Order, order
from bus.client.pending import Call, Pending
from bus.client.retry import Retry
from bus.client.stats import ClientStats
from bus.client.stream import IDLE, Stream, keepalive
from bus.driver import Driver, Incoming
from bus.errors import (
    BusError,
    ConnectionLost,
    DeadlineExceeded,
    InvalidParams,
    StreamCut,
    Unavailable,
)
from bus.hop import Parent
from bus.limits import Limits
from bus.link import Link, Patience, State
from bus.message import Authorize, Unsigned
from bus.names import FINAL, SEND_MESSAGE, Names
from bus.target import APP_ID, Target, driver_for


async def connect(
    target: Target,
    *,
    authorize: Authorize | None = None,
    prefix: str = "a2a",
    limits: Limits | None = None,
    retry: Retry | None = None,
    patience: Patience | None = None,
) -> "Client":
    """A client of the agents on a broker: an `amqp://` or `amqps://` URL, or a `MemoryBroker`.

    `authorize` gives the value of the authorization header for each attempt of each request. Raises `Refused` when
    the broker will not have this user, `ConnectionLost` when it can't be reached within the patience.
    """
    client = Client(
        driver_for(target), Names(prefix), authorize, limits or Limits(), retry or Retry(), patience or Patience()
    )
    await client.start()
    return client


class Client:
    """Calls agents. Made by `connect`, closed by `close` or as an async context manager.

    Any number of calls can be under way at once; they share two connections, one to send and one to listen.
    """

    def __init__(
        self,
        driver: Driver,
        names: Names,
        authorize: Authorize | None,
        limits: Limits,
        retry: Retry,
        patience: Patience,
    ) -> None:
        self._driver = driver
        self._names = names
        self._authorize = authorize
        self._limits = limits
        self._retry = retry
        self._pending = Pending()
        self._stats = ClientStats()
        self._closed = False
        self._requests = Link(
            driver,
            f"{APP_ID} client requests",
            lambda connection: connection.declare(topology.requests(names)),
            patience=patience,
            on_up=self._resume,
        )
        self._replies = Link(
            driver,
            f"{APP_ID} client replies",
            lambda connection: self._inbox.set_up(connection),
            patience=patience,
            on_up=self._resume,
            on_down=self._replies_lost,
        )
        self._inbox = Inbox(self._replies, names, driver.user, self._on_reply)
        self._lookout = Lookout(self._replies)

    async def start(self) -> None:
        """Connect. `bus.connect` has done it already."""
        try:
            await self._replies.start()
            await self._requests.start()
        except BaseException:
            await self.close()
            raise

    @property
    def state(self) -> State:
        """What the client can do at the moment."""
        return State.worse(self._requests.state, self._replies.state)

    def stats(self) -> ClientStats:
        """A copy of the counts."""
        losses = self._requests.losses + self._replies.losses
        return replace(self._stats, pending=len(self._pending), losses=losses)

    async def ready(self) -> None:
        """Wait until both connections are there. Raises `ConnectionLost` when the client is closed."""
        await self._requests.ready()
        await self._replies.ready()

    async def servers(self, agent: str) -> int | None:
        """How many servers take an agent's calls at the moment; None when the broker does not say so within a second.

        None of them need be free. Raises `InvalidParams` for what is no agent's name.
        """
        return await self._lookout.servers(self._names.queue(agent))

    async def send(
        self,
        agent: str,
        message: Mapping[str, Any],
        *,
        metadata: Mapping[str, Any] | None = None,
        configuration: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
        timeout: float = 60.0,
        within: Parent | None = None,
    ) -> dict[str, Any]:
        """Send a message to an agent (A2A 1.0, section 3.1.1) and return its `SendMessageResponse`.

        A message without a `messageId` gets a fresh one; one that has it is the same message however often it is
        sent. Raises as `request` does.
        """
        message_id = message.get("messageId") or uuid4().hex
        if not isinstance(message_id, str):
            raise InvalidParams("a messageId is a string")
        body: dict[str, Any] = {"message": {**message, "messageId": message_id}}
        if configuration is not None:
            body["configuration"] = configuration
        if metadata is not None:
            body["metadata"] = metadata
        return await self.request(
            agent, SEND_MESSAGE, body, message_id=message_id, headers=headers, timeout=timeout, within=within
        )

    async def request(
        self,
        agent: str,
        operation: str,
        body: Mapping[str, Any] | bytes,
        *,
        message_id: str | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
        timeout: float = 60.0,
        authorization: str | None = None,
        within: Parent | None = None,
    ) -> dict[str, Any]:
        """Call one operation of an agent (A2A 1.0, section 5.3) and return its response object.

        `message_id` is the idempotency key; without it, the `messageId` of a message in the body, or a fresh one. A
        body that is encoded already needs it. `headers` are further service parameters (`a2a-extensions`,
        `traceparent`), `timeout` is seconds over all attempts. `authorization` stands in place of what the client's
        `authorize` would give.

        `within` is the call that this one is made for: the `Request` that an agent answers, a `Hop`, or the context
        of a skill's handler. Half a second of its deadline is kept from this one, its root task, depth, tenant and
        trace go along, so that a cancel of the root ends this one too, and the agent learns how deep it stands.

        Raises the error that the agent answered with, and by itself: `AgentNotFound` when nobody serves such an agent;
        `Unavailable` when its queue is full or the broker takes no messages; `DeadlineExceeded`, with `local` in the
        metadata, when no answer came in time, or `within` leaves none, and with `servers` of `0` when there was nobody
        to give it; `ConnectionLost` when the client is closed; `InvalidParams`, `InvalidRequest` or `MethodNotFound`
        for what may not be sent.
        """
        return await self.answer(
            order(
                agent,
                operation,
                body,
                self._limits,
                message_id=message_id,
                headers=headers,
                timeout=timeout,
                authorization=authorization,
                within=within,
            )
        )

    async def stream(
        self,
        agent: str,
        operation: str,
        body: Mapping[str, Any] | bytes,
        *,
        message_id: str | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
        timeout: float = 3600.0,
        idle: float = IDLE,
        resume: bool = True,
        authorization: str | None = None,
        within: Parent | None = None,
    ) -> AsyncGenerator[StreamEvent, None]:
        """Call a streaming operation of an agent and hand its events over in order; the iteration ends at the last.

        A stream that breaks off is taken up again: before its first event by sending the same message id, later by
        `SubscribeToTask`, after the last place in the task's log that was seen. Without `resume`, or when that does
        not succeed, `StreamCut` is raised; it is never an end. `idle` is how many seconds without any event, a
        keep-alive included, make a cut; `timeout` is seconds for the whole. Leave the iteration early with `aclose`:
        the server stops sending, and the task goes on.

        Raises as `request` does, at the first event as later.
        """
        first = order(
            agent,
            operation,
            body,
            self._limits,
            message_id=message_id,
            headers={**keepalive(idle), **headers},
            timeout=timeout,
            authorization=authorization,
            within=within,
        )
        async with aclosing(Stream(self, first, self._retry, self._limits, idle, resume).events()) as events:
            async for event in events:
                yield event

    async def answer(self, order: Order) -> dict[str, Any]:
        """The one answer to an order. For `request` and `stream`."""
        call = self.begin(order)
        try:
            return await call.result
        finally:
            self.end(call)

    def begin(self, order: Order, on_reply: Callable[[Incoming], None] | None = None, *, new: bool = True) -> Call:
        """Send a request and have its replies brought to the call, until `end`. For `answer` and `stream`.

        While the broker is blocked, `new` work is refused, and what goes on with older work waits.
        """
        if self._closed:
            raise ConnectionLost("the client is closed")
        if new and self._requests.state is State.BLOCKED:
            # Waiting here would only hide from the caller that the broker is in distress.
            raise Unavailable("the broker takes no messages now", metadata={"retryAfterMs": "5000"})
        call = Call(order, asyncio.get_running_loop().create_future(), on_reply=on_reply)
        if on_reply is not None:
            # At once, and not when what was heard before is read: until then the server would go on sending.
            call.result.add_done_callback(lambda _: self._hang_up(call))
        self._stats.calls += 1
        self._pending.add(call)
        if self._up:
            self._attempt(call)
        else:
            self._set_timer(call, self._limits.horizon)
        return call

    def end(self, call: Call) -> None:
        """Forget a call. The server of a stream learns of it by its next event."""
        self._pending.remove(call)
        self._hang_up(call)

    async def close(self) -> None:
        """Close the connections; calls that are pending fail with `ConnectionLost`."""
        self._closed = True
        for call in self._pending:
            call.fail(ConnectionLost("the client was closed before the answer came"))
        await asyncio.gather(self._requests.close(), self._replies.close())
        await self._lookout.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def _up(self) -> bool:
        return {self._requests.state, self._replies.state} <= {State.CONNECTED, State.BLOCKED}

    def _attempt(self, call: Call) -> None:
        order = call.order
        if call.on_reply is not None and call.listener is None:
            self._set_timer(call, self._limits.horizon)
            if not call.opening:
                call.opening = True
                self._lookout.begin(self._listen(call))
            return
        reply_to = self._inbox.queue if call.listener is None else call.listener.queue
        call.attempts += 1
        if call.attempts > 1:
            self._stats.resent += 1
        if call.publishing is not None and not call.publishing.done():
            call.publishing.cancel()  # what still waits for its turn is not sent twice
            call.uncertain = True
        try:
            authorization = self._sign(order)
        except Exception as error:
            call.fail(error)
            return
        message = wire.request(
            self._names,
            order.agent,
            order.operation,
            order.body,
            message_id=order.message_id,
            address=wire.Address(reply_to, self._pending.attempt(call)),
            deadline=order.deadline,
            now=time.time(),
            user=self._driver.user,
            app_id=APP_ID,
            authorization=authorization,
            headers=order.headers,
            attempt=call.attempts,
        )
        call.underway = True
        call.publishing = published = self._requests.publish(message)
        published.add_done_callback(call.note)
        self._set_timer(call, self._retry.wait(call.resends))

    async def _listen(self, call: Call) -> None:
        await self._inbox.open(call)
        if call not in self._pending or call.result.done():
            self._hang_up(call)
        elif self._up:
            self._attempt(call)

    def _hang_up(self, call: Call) -> None:
        listener, call.listener = call.listener, None
        if listener is not None and not self._closed:
            self._lookout.begin(listener.close())

    def _sign(self, order: Order) -> str | None:
        if self._authorize is None or order.authorization is not None:
            return order.authorization
        return self._authorize(Unsigned(order.agent, order.operation, order.message_id, order.body, order.deadline))

    def _set_timer(self, call: Call, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if call.timer is not None:
            call.timer.cancel()
        call.timer = loop.call_at(min(loop.time() + seconds, call.order.expires), self._overdue, call)

    def _overdue(self, call: Call) -> None:
        if asyncio.get_running_loop().time() >= call.order.expires:
            self._lookout.begin(self._give_up(call))
        elif call.started or call.resends + 1 >= self._retry.attempts:
            self._set_timer(call, self._limits.horizon)
        elif self.state is State.CONNECTED:
            call.resends += 1
            self._attempt(call)
        else:
            self._set_timer(call, self._retry.pause)

    async def _give_up(self, call: Call) -> None:
        message, detail = "no answer came before the deadline", {"local": "true", "attempts": str(call.attempts)}
        lane = self._names.lane(call.order.agent, call.order.operation)
        if not call.started and await self._lookout.servers(lane) == 0:
            message, detail["servers"] = f"{message}: nobody serves the agent", "0"
        if call in self._pending:
            call.fail(DeadlineExceeded(message, metadata=detail))

    def _resume(self) -> None:
        for call in self._pending if self._up else ():
            if not call.underway and not call.started and not call.result.done():
                self._attempt(call)

    def _replies_lost(self) -> None:
        for call in self._pending:
            call.underway, call.listener = False, None
            if call.started:
                call.fail(StreamCut("the connection was lost in the middle of a stream"))

    def _on_reply(self, message: Incoming) -> None:
        call = self._pending.find(message.properties.correlation_id)
        if call is None:
            self._stats.late += 1
        elif call.on_reply is not None:
            call.on_reply(message)
        elif message.properties.headers.get(FINAL) is True:
            try:
                call.succeed(wire.read_reply(message, self._limits))
            except BusError as error:
                call.fail(error)
