"""What arrives from RabbitMQ on the channel of a consumer."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from bus.amqp import frames
from bus.driver import Incoming, Properties


class Carrier(Protocol):
    """The connection that deliveries come on and are settled on."""

    @property
    def lost(self) -> "asyncio.Future[str]":
        """Done when it is gone."""

    def write(self, data: bytes) -> None:
        """Send frames."""


class Subscription:
    """What a consumer's channel gets from the tap."""

    def __init__(
        self, connection: Carrier, channel: int, on_delivery: Callable[[Incoming], None], *, settles: bool
    ) -> None:
        self._connection = connection
        self._channel = channel
        self._on_delivery = on_delivery
        self._settles = settles

    def delivered(self, deliver: frames.Deliver, header: bytes, body: bytes) -> None:
        properties = frames.read_properties(header)
        self._on_delivery(
            Delivery(
                self._connection,
                self._channel,
                deliver.tag if self._settles else 0,
                deliver.redelivered,
                properties,
                body,
            )
        )

    def returned(self, back: frames.Return, header: bytes) -> None:
        """Nothing is published on this channel."""

    def confirmed(self, tag: int, multiple: bool, taken: bool) -> None:
        """Nothing is published on this channel."""


@dataclass(slots=True)
class Delivery:
    """See `bus.driver.Incoming`. A tag of 0 is settled: the broker closes the channel when it is told so twice."""

    connection: Carrier = field(repr=False)
    channel: int
    tag: int
    redelivered: bool
    properties: Properties
    body: bytes = field(repr=False)

    @property
    def stale(self) -> bool:
        return self.connection.lost.done()

    def ack(self) -> bool:
        if self.stale:
            return False
        if self.tag:
            self.connection.write(frames.ack(self.channel, self.tag))
            self.tag = 0
        return True

    def reject(self, *, requeue: bool) -> bool:
        if self.stale:
            return False
        if self.tag:
            self.connection.write(frames.reject(self.channel, self.tag, requeue=requeue))
            self.tag = 0
        return True
