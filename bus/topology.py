"""What stands on the broker, in one description: the request exchange, an agent's queue, the place for the dead.

Quorum queues with dead-lettering at least once: a message leaves a work queue only when it was acknowledged or when
the dead-letter queue has it. A full queue refuses new messages, so that their sender knows.
"""

from bus.driver import Binding, Exchange, Part, Queue, Scalar
from bus.names import Names

DELIVERY_LIMIT = 5
"""Redeliveries of one message before it is given up: enough for restarts, an end for one that kills its worker."""

MAX_LENGTH = 10_000
"""Messages that wait in one agent's queue before the next is refused."""

DEAD_MAX_LENGTH = 100_000
"""Messages kept in the dead-letter queue; beyond it, work queues keep theirs until there is room again."""

PARKED_MAX_LENGTH = 10_000
PARKED_MAX_BYTES = 1024 * 1024 * 1024
"""What is kept for people; beyond either, the oldest go, so that nobody's absence stops the dead-letter queue."""

FOREVER = 1_000_000
"""A delivery limit that is never reached. Without one, RabbitMQ 4 takes 20, and earlier ones lose the order of what
is given back."""


def requests(names: Names) -> Exchange:
    """The exchange that every request is published to. Without an alternate: what no queue takes is returned."""
    return Exchange(names.requests, "direct")


def dead(names: Names) -> tuple[Part, ...]:
    """Where the work queues put what could not be answered."""
    limits: dict[str, Scalar] = {"x-max-length": DEAD_MAX_LENGTH, "x-delivery-limit": FOREVER}
    return (
        Exchange(names.dead, "fanout"),
        Queue(names.dead, arguments={"x-queue-type": "quorum", "x-overflow": "reject-publish", **limits}),
        Binding(names.dead, names.dead),
    )


def parked(names: Names) -> Queue:
    """Where the reader of the dead letters keeps them for people."""
    limits = {"x-max-length": PARKED_MAX_LENGTH, "x-max-length-bytes": PARKED_MAX_BYTES, "x-delivery-limit": FOREVER}
    return Queue(names.parked, arguments={"x-queue-type": "quorum", "x-overflow": "drop-head", **limits})


def agent(names: Names, name: str, *, max_length: int = MAX_LENGTH) -> tuple[Part, ...]:
    """All that one agent needs to be served. A change of an argument needs another queue: the broker refuses it."""
    work = names.queue(name)
    return (
        *dead(names),
        requests(names),
        Queue(
            work,
            arguments={
                "x-queue-type": "quorum",
                "x-delivery-limit": DELIVERY_LIMIT,
                "x-dead-letter-exchange": names.dead,
                "x-dead-letter-strategy": "at-least-once",
                "x-overflow": "reject-publish",
                "x-max-length": max_length,
            },
        ),
        Binding(names.requests, work, name),
    )


def replies(queue: str) -> Queue:
    """A client's reply queue: it lives and dies with the connection, so nobody waits at a queue that nobody reads."""
    return Queue(queue, exclusive=True)
