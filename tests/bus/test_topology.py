"""What is declared, and what must never be."""

from bus import Names, topology
from bus.driver import Binding, Exchange, Queue


def test_an_agent_s_queue_loses_nothing() -> None:
    parts = topology.agent(Names("p"), "echo", max_length=5)
    queues = {part.name: part for part in parts if isinstance(part, Queue)}
    assert queues["p.q.echo"].arguments == {
        "x-queue-type": "quorum",
        "x-delivery-limit": 5,
        "x-dead-letter-exchange": "p.dead",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",  # without it, dead-lettering at least once is not to be had
        "x-max-length": 5,
    }
    assert queues["p.dead"].arguments["x-queue-type"] == "quorum"
    assert Exchange("p.requests", "direct") in parts
    assert Exchange("p.dead", "fanout") in parts
    assert Binding("p.requests", "p.q.echo", "echo") in parts
    assert Binding("p.dead", "p.dead") in parts


def test_everything_is_there_before_it_is_needed() -> None:
    parts = topology.agent(Names(), "echo")
    made: set[str] = set()
    for part in parts:
        if isinstance(part, Binding):
            assert {part.exchange, part.queue} <= made
        else:
            if isinstance(part, Queue) and "x-dead-letter-exchange" in part.arguments:
                assert part.arguments["x-dead-letter-exchange"] in made
            made.add(part.name)


def test_no_queue_is_transient_and_shared() -> None:
    # RabbitMQ 4.3 refuses them. A queue of ours is durable unless it is exclusive, by its type.
    declared = [
        *topology.agent(Names(), "echo"),
        topology.parked(Names()),
        topology.replies("a2a.reply.alice.1"),
        topology.requests(Names()),
    ]
    for part in declared:
        if isinstance(part, Queue):
            assert part.exclusive is part.name.startswith("a2a.reply.")
            assert not part.exclusive or "x-queue-type" not in part.arguments


def test_what_is_kept_is_kept_in_order_and_not_given_up() -> None:
    # Without a limit on deliveries RabbitMQ 4 gives up after 20, and 3.10 puts what comes back at the end.
    for part in (*topology.dead(Names()), topology.parked(Names())):
        if isinstance(part, Queue):
            assert part.arguments["x-delivery-limit"] == topology.FOREVER
    assert topology.parked(Names()).arguments["x-overflow"] == "drop-head"
