"""What stands on the broker, in one description: exchanges, queues, bindings, and the policies over the queues.

Quorum queues with dead-lettering at least once: a message leaves a work queue only when it was acknowledged or when
the dead-letter queue has it. A full queue refuses new messages, so that their sender knows.

What can't change while a queue stands is its arguments: type, dead-letter exchange, strategy, overflow. Limits are
policies, which an operator may change at any time. The arguments hold a ceiling for each limit, since RabbitMQ takes
the lower of the two (measured on 3.10.8): so a broker without any policy is safe too.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bus.driver import Binding, Connection, Exchange, Part, Queue, Scalar
from bus.errors import Undeclared
from bus.names import Names

DELIVERY_LIMIT = 5
"""Redeliveries of one message before it is given up: enough for restarts, an end for one that kills its worker."""

DELIVERY_CEILING = 10
"""Redeliveries where no policy says less."""

MAX_LENGTH, LENGTH_CEILING = 10_000, 100_000
"""Messages that wait in one lane of an agent before the next is refused: by policy, and where no policy says less."""

MAX_BYTES, BYTES_CEILING = 1 << 30, 8 << 30
"""The same in bytes."""

DEAD_MAX_LENGTH, DEAD_LENGTH_CEILING = 100_000, 1_000_000
"""Messages kept in the dead-letter queue; beyond it, work queues keep theirs until there is room again."""

PARKED_MAX_LENGTH, PARKED_LENGTH_CEILING = 10_000, 100_000
PARKED_MAX_BYTES, PARKED_BYTES_CEILING = 1 << 30, 8 << 30
"""What is kept for people; beyond either, the oldest go, so that nobody's absence stops the dead-letter queue."""

FOREVER = 1_000_000
"""A delivery limit that is never reached. Without one, RabbitMQ 4 takes 20, and earlier ones lose the order of what
is given back."""

PRIORITY = 10
"""Of the policies: above one for all queues of a virtual host, since for each queue one policy alone holds."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits of the queues whose names match `pattern`. Where several policies match, the highest priority holds."""

    name: str
    pattern: str
    definition: Mapping[str, Scalar]
    priority: int = PRIORITY


@dataclass(frozen=True, slots=True)
class Topology:
    """All that has to stand on a broker; `parts` are in an order in which they can be made."""

    parts: tuple[Part, ...]
    policies: tuple[Policy, ...]


def whole(names: Names, agents: Iterable[str]) -> Topology:
    """The whole for a prefix and its agents. Raises `InvalidParams` for what is no agent's name."""
    parts: list[Part] = []
    shared = (parked(names), control(names), cards(names))
    for part in (*(part for name in agents for part in (*agent(names, name), *batch(names, name))), *shared):
        if part not in parts:
            parts.append(part)
    return Topology(tuple(parts), policies(names))


def policies(names: Names) -> tuple[Policy, ...]:
    """The limits in force, one policy for each kind of queue."""
    start = re.escape(names.prefix)
    work = {"max-length": MAX_LENGTH, "max-length-bytes": MAX_BYTES, "delivery-limit": DELIVERY_LIMIT}
    kept = {"max-length": PARKED_MAX_LENGTH, "max-length-bytes": PARKED_MAX_BYTES}
    return (
        Policy(f"{names.prefix}.q", rf"^{start}\.q\.", work),
        Policy(names.dead, rf"^{start}\.dead$", {"max-length": DEAD_MAX_LENGTH}),
        Policy(names.parked, rf"^{start}\.parked$", kept),
    )


def requests(names: Names) -> Exchange:
    """The exchange that every request is published to. Without an alternate: what no queue takes is returned."""
    return Exchange(names.requests, "direct")


def control(names: Names) -> Exchange:
    """The exchange of short words to the workers. Its keys are `kind`, `kind.agent` and `kind.agent.instance`."""
    return Exchange(names.control, "direct")


def cards(names: Names) -> Exchange:
    """Where workers say that they live. What is said there is kept by nobody."""
    return Exchange(names.cards, "fanout")


def dead(names: Names) -> tuple[Part, ...]:
    """Where the work queues put what could not be answered."""
    limits: dict[str, Scalar] = {"x-max-length": DEAD_LENGTH_CEILING, "x-delivery-limit": FOREVER}
    return (
        Exchange(names.dead, "fanout"),
        Queue(names.dead, arguments={"x-queue-type": "quorum", "x-overflow": "reject-publish", **limits}),
        Binding(names.dead, names.dead),
    )


def parked(names: Names) -> Queue:
    """Where the reader of the dead letters keeps them for people."""
    limits = {
        "x-max-length": PARKED_LENGTH_CEILING,
        "x-max-length-bytes": PARKED_BYTES_CEILING,
        "x-delivery-limit": FOREVER,
    }
    return Queue(names.parked, arguments={"x-queue-type": "quorum", "x-overflow": "drop-head", **limits})


def agent(names: Names, name: str, *, max_length: int | None = None) -> tuple[Part, ...]:
    """All that one agent needs to be served: a lane for its work, one for what it is asked, and where both lead.

    `max_length` is that of the work. A change of an argument needs another queue: the broker refuses it.
    """
    return (
        *dead(names),
        requests(names),
        *_lane(names, names.queue(name), name, max_length),
        *_lane(names, names.ask(name), names.ask_key(name), None),
    )


def batch(names: Names, name: str) -> tuple[Part, ...]:
    """The lane for an agent's work that can wait; it needs what `agent` makes."""
    return _lane(names, names.batch(name), names.batch_key(name), None)


def _lane(names: Names, queue: str, key: str, max_length: int | None) -> tuple[Part, ...]:
    arguments: dict[str, Scalar] = {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": names.dead,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        "x-delivery-limit": DELIVERY_CEILING,
        "x-max-length": LENGTH_CEILING if max_length is None else max_length,
        "x-max-length-bytes": BYTES_CEILING,
    }
    return (Queue(queue, arguments=arguments), Binding(names.requests, queue, key))


def replies(queue: str) -> Queue:
    """A client's reply queue: it lives and dies with the connection, so nobody waits at a queue that nobody reads."""
    return Queue(queue, exclusive=True)


async def stand(connection: Connection, names: Names, *parts: Part, declare: bool, agent: str | None = None) -> None:
    """See to it that parts stand on the broker: make them, or only look, which needs no permission to configure.

    Looking tells of exchanges and queues; bindings and arguments show nobody themselves who may not configure. Raises
    `Refused`; `Undeclared` names what is missing and the command that makes it.
    """
    if declare:
        await connection.declare(*parts)
        return
    missing = await connection.missing(*parts)
    if missing:
        command = f"skillbus topology apply --prefix {names.prefix}" + (f" --agent {agent}" if agent else "")
        raise Undeclared(f"the broker has no {', no '.join(map(describe, missing))}: make it with `{command}`")


def describe(part: Part) -> str:
    """A part in words."""
    if isinstance(part, Exchange):
        return f"exchange {part.name}"
    if isinstance(part, Queue):
        return f"queue {part.name}"
    return f"binding {part.exchange} → {part.queue} ({part.key!r})"
