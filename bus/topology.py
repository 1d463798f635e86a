"""What stands on the broker, in one description: the request exchange, an agent's queue, the place for the dead.

Quorum queues with dead-lettering at least once: a message leaves a work queue only when it was acknowledged or when
the dead-letter queue has it. A full queue refuses new messages, so that their sender knows.
"""

from bus.driver import Binding, Exchange, Part, Queue
from bus.names import Names

DELIVERY_LIMIT = 5
"""Redeliveries of one message before it is given up: enough for restarts, an end for one that kills its worker."""

MAX_LENGTH = 10_000
"""Messages that wait in one agent's queue before the next is refused."""

DEAD_MAX_LENGTH = 100_000
"""Messages kept in the dead-letter queue; beyond it, work queues keep theirs until there is room again."""


def requests(names: Names) -> Exchange:
    """The exchange that every request is published to. Without an alternate: what no queue takes is returned."""
    return Exchange(names.requests, "direct")


def agent(names: Names, name: str, *, max_length: int = MAX_LENGTH) -> tuple[Part, ...]:
    """All that one agent needs to be served. A change of an argument needs another queue: the broker refuses it."""
    work, dead = names.queue(name), names.dead
    return (
        Exchange(dead, "fanout"),
        Queue(
            dead,
            arguments={"x-queue-type": "quorum", "x-max-length": DEAD_MAX_LENGTH, "x-overflow": "reject-publish"},
        ),
        Binding(dead, dead),
        requests(names),
        Queue(
            work,
            arguments={
                "x-queue-type": "quorum",
                "x-delivery-limit": DELIVERY_LIMIT,
                "x-dead-letter-exchange": dead,
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
