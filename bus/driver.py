"""The narrow driver: all that the client and the server need of a message broker.

There are two: `bus.amqp` for RabbitMQ and `bus.memory` inside the process. One conformance suite holds them together.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from bus.capabilities import Capabilities

Scalar = str | int | bool | float


@dataclass(slots=True)
class Properties:
    """The message properties of AMQP 0-9-1 that the binding uses; `timestamp` is Unix time, `expiration` milliseconds.

    `flaw` says what a driver could not read in a message it received; everything else was read as well as it could be.
    """

    type: str | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    message_id: str | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: int | None = None
    timestamp: int | None = None
    user_id: str | None = None
    app_id: str | None = None
    persistent: bool = False
    headers: Mapping[str, Any] = field(default_factory=dict, repr=False)
    flaw: str | None = None


@dataclass(slots=True)
class Outgoing:
    """A message to publish."""

    exchange: str
    routing_key: str
    body: bytes = field(repr=False)
    properties: Properties


class Incoming(Protocol):
    """A delivery. It knows the connection it came on; settling it after that connection is gone does nothing.

    Only the first `ack` or `reject` counts.
    """

    @property
    def body(self) -> bytes:
        """The exact bytes."""

    @property
    def properties(self) -> Properties:
        """Never fails: what could not be read is missing, and `flaw` says so."""

    @property
    def redelivered(self) -> bool:
        """Whether the broker has delivered it before, to anyone."""

    @property
    def stale(self) -> bool:
        """Whether its connection is gone: the broker will deliver it again, and settling it does nothing."""

    def ack(self) -> bool:
        """Done with it. False when it is stale."""

    def reject(self, *, requeue: bool) -> bool:
        """Give it back to its queue, or give it up to the dead-letter exchange. False when it is stale."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A durable exchange. One that exists already is left as it is."""

    name: str
    kind: Literal["direct", "fanout"]


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue, durable or exclusive to the connection that declares it, never neither."""

    name: str
    exclusive: bool = False
    arguments: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Binding:
    """Messages that an exchange gets for a routing key go to a queue."""

    exchange: str
    queue: str
    key: str = ""


Part = Exchange | Queue | Binding


class Tally(NamedTuple):
    """A queue, counted: `messages` that wait in it, deliveries in somebody's hands left out, and its `consumers`."""

    messages: int
    consumers: int


class Consumer(Protocol):
    """A running subscription to a queue."""

    async def cancel(self) -> None:
        """Stop deliveries; those already delivered stay to be settled. Nothing is delivered once this returns."""

    async def resume(self, prefetch: int) -> None:
        """Subscribe again after `cancel`, with this prefetch: what is unsettled from before need not count.

        Raises `ConnectionLost` or `Refused`.
        """


class Listener(Protocol):
    """A queue of this connection's own, and the subscription to it."""

    @property
    def queue(self) -> str:
        """Its name."""

    async def close(self) -> None:
        """Delete the queue with all that is in it. Never fails: with the connection it would be gone as well."""


class Connection(Protocol):
    """One connection to a broker. It is never mended: once it is lost, another one is made."""

    @property
    def lost(self) -> "asyncio.Future[str]":
        """Done when the connection is gone for any reason, `close` included; the result says why."""

    @property
    def capabilities(self) -> Capabilities:
        """What the broker is, and what follows from its version."""

    @property
    def blocked(self) -> bool:
        """Whether the broker has stopped taking messages (AMQP `connection.blocked`)."""

    on_blocked: Callable[[bool], None] | None
    """Called whenever `blocked` changes."""

    @property
    def waiting_since(self) -> float | None:
        """The loop's time at which the oldest message still without a confirm was given in."""

    def publish(self, message: Outgoing, *, mandatory: bool = True) -> "asyncio.Future[None]":
        """Send a message; the future is done once the broker has confirmed it.

        It fails with `Unroutable` (mandatory, and no queue takes it), `Rejected` (refused) or `ConnectionLost`.
        Never blocks: what goes over the confirm window waits inside. Cancelling the future of a waiting message
        withdraws it.
        """

    async def declare(self, *parts: Part) -> None:
        """Make exchanges, queues and bindings, in this order. Raises `Refused` when one exists with other arguments."""

    async def missing(self, *parts: Part) -> tuple[Part, ...]:
        """The exchanges and queues among them that are not there. Bindings can't be seen. Raises `Refused`."""

    async def delete(self, *parts: Part) -> None:
        """Delete exchanges, and queues with all that is in them; what is not there is no error. Raises `Refused`."""

    async def consumers(self, queue: str) -> int | None:
        """How many consumers a queue has; None when there is no such queue."""

    async def tally(self, queue: str) -> Tally | None:
        """What a queue holds and who reads it; None when there is no such queue. Raises `Refused`."""

    async def consume(
        self,
        queue: str,
        *,
        prefetch: int,
        on_delivery: Callable[[Incoming], None],
        on_cancelled: Callable[[], None],
    ) -> Consumer:
        """Subscribe, with at most `prefetch` deliveries unsettled; 0 means that deliveries need no settling at all.

        `on_delivery` is called in the order of the queue and must not block or raise. `on_cancelled` is called when
        the broker ends the subscription by itself, for example because the queue was deleted.
        """

    async def listen(
        self, queue: str, *, on_delivery: Callable[[Incoming], None], on_cancelled: Callable[[], None]
    ) -> Listener:
        """Make an exclusive queue of this name, and take what comes to it without settling. Callbacks as in `consume`.

        Meant for many short-lived queues. Raises `Refused` and `ConnectionLost`.
        """

    async def close(self) -> None:
        """Close in good order where possible; messages not yet confirmed fail with `ConnectionLost`."""


class Driver(Protocol):
    """A broker that connections can be made to."""

    @property
    def user(self) -> str | None:
        """Who the broker takes this side to be."""

    async def connect(self, name: str) -> Connection:
        """Open a connection; `name` is for the broker's operator. Raises `ConnectionLost` or `Refused`."""


Setup = Callable[[Connection], Awaitable[None]]
"""What has to be made on every new connection: declarations, subscriptions."""
