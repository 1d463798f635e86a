"""What each version of RabbitMQ can do: one table, read once at connect.

Every promise of the binding is built so that one code path keeps it from 3.10 on, so what stands here is for those who
look: a version that breaks a promise is refused where the connection is made, and `skillbus doctor` tells the rest.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Version = tuple[int, int, int]

PRODUCT = "RabbitMQ"

NEWEST: Version = (4, 3, 0)
"""The newest release series that the table knows; a later one is taken for it."""


@dataclass(frozen=True, slots=True)
class Capability:
    """Something that brokers `since` one version do, and those `until` another; None has no bound."""

    name: str
    meaning: str
    since: Version | None = None
    until: Version | None = None

    def holds(self, version: Version) -> bool:
        """Whether a broker of this version does it."""
        return (self.since is None or version >= self.since) and (self.until is None or version < self.until)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Versions from `since` up to, not including, `until` that break a promise, and what to do about it."""

    since: Version
    until: Version
    reason: str


# What is not told otherwise is read in RabbitMQ's documentation; (measured) was seen on 3.10.8.
TABLE: tuple[Capability, ...] = (
    Capability(
        "safe-dead-letters", "a quorum queue keeps a dead letter until the dead-letter queue has it", since=(3, 10, 0)
    ),
    Capability("quorum-expiry", "a quorum queue lets messages expire", since=(3, 10, 0)),
    Capability(
        "queue-consumer-timeout", "how long a delivery may stay unsettled can be set for one queue", since=(3, 12, 0)
    ),
    Capability("stream-filter", "a stream can be read by a filter", since=(3, 13, 0)),
    Capability(
        "client-deaths-ignored", "an x-death header that a client copies is not taken for a cycle", since=(4, 0, 0)
    ),
    Capability(
        "default-delivery-limit", "a quorum queue without a limit gives up after 20 deliveries", since=(4, 0, 0)
    ),
    Capability("two-priorities", "a quorum queue serves two classes, two to one", since=(4, 0, 0), until=(4, 3, 0)),
    Capability("priorities", "a quorum queue serves 32 priorities, strictly", since=(4, 3, 0)),
    Capability("native-amqp-1.0", "AMQP 1.0 without a plugin", since=(4, 0, 0)),
    Capability("small-messages", "a message has at most 16 MiB unless configured, not 128", since=(4, 0, 0)),
    Capability("khepri", "queues and bindings can be kept in Khepri", since=(4, 0, 0)),
    Capability(
        "nack-counts", "a message that is given back counts towards the delivery limit (measured)", until=(4, 3, 0)
    ),
    Capability("delayed-retry", "a quorum queue can wait before it delivers again", since=(4, 3, 0)),
    Capability("timeout-cancels", "a delivery held too long ends its consumer, not the whole channel", since=(4, 3, 0)),
    Capability("no-transient-queues", "a shared queue that is not durable is refused", since=(4, 3, 0)),
)

REFUSED: tuple[Refusal, ...] = (
    Refusal(
        (0, 0, 0),
        (3, 10, 0),
        "its quorum queues neither expire messages nor keep dead letters safe: use 3.10 or later",
    ),
    Refusal(
        (3, 13, 0),
        (3, 13, 3),
        "it drops messages on their way to the dead-letter queue (rabbitmq-server #11159): use 3.13.3 or later",
    ),
)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a broker is, by what it says of itself, and what follows from it.

    `version` is None where the broker is no RabbitMQ, or its version can't be read: then nothing is known of it.
    """

    product: str
    text: str = ""
    version: Version | None = field(default=None)

    def __str__(self) -> str:
        return f"{self.product} {self.text}".rstrip()

    def __contains__(self, name: str) -> bool:
        """Whether the broker has the capability of this name."""
        return any(capability.name == name for capability in self.known)

    @property
    def known(self) -> tuple[Capability, ...]:
        """The rows of the table that hold for this broker."""
        version = self.version
        return () if version is None else tuple(capability for capability in TABLE if capability.holds(version))

    @property
    def refusal(self) -> str | None:
        """Why this broker must not be used; None when it may be."""
        for each in REFUSED:
            if self.version is not None and each.since <= self.version < each.until:
                return f"{self} must not be used: {each.reason}"
        return None

    @property
    def is_tabled(self) -> bool:
        """Whether the table was made with a broker of this series in view."""
        return self.version is not None and self.version[:2] <= NEWEST[:2]


def capabilities(server_properties: Mapping[str, Any]) -> Capabilities:
    """What follows from the properties that a broker sends when a connection is opened. Never raises."""
    product, text = _text(server_properties.get("product")), _text(server_properties.get("version"))
    numbers = re.match(r"(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?", text, re.ASCII)
    if product != PRODUCT or numbers is None:
        return Capabilities(product or "an unnamed broker", text)
    major, minor, patch = (int(number or 0) for number in numbers.groups())
    return Capabilities(product, text, (major, minor, patch))


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return "".join(c for c in value if c.isprintable())[:100] if isinstance(value, str) else ""
