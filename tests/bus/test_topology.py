"""What has to stand on a broker, what must never, and what a server does that may only look."""

import re
from dataclasses import replace

import pytest

import bus
from bus import Names, topology
from bus.driver import Binding, Exchange, Part, Queue
from bus.target import driver_for
from tests.conformance.stage import PATIENCE, soon, until
from tests.conformance.test_calls import HELLO, echo

WHOLE = topology.whole(Names("p"), ["echo", "other"])
QUEUES = {part.name: part for part in WHOLE.parts if isinstance(part, Queue)}


def test_an_agent_s_queue_loses_nothing() -> None:
    parts = topology.agent(Names("p"), "echo", max_length=5)
    queues = {part.name: part for part in parts if isinstance(part, Queue)}
    assert queues["p.q.echo"].arguments == {
        "x-queue-type": "quorum",
        "x-delivery-limit": 10,
        "x-dead-letter-exchange": "p.dead",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",  # without it, dead-lettering at least once is not to be had
        "x-max-length": 5,
        "x-max-length-bytes": 8 << 30,
    }
    assert queues["p.dead"].arguments["x-queue-type"] == "quorum"
    assert Exchange("p.requests", "direct") in parts
    assert Exchange("p.dead", "fanout") in parts
    assert Binding("p.requests", "p.q.echo", "echo") in parts
    assert Binding("p.dead", "p.dead") in parts


def test_the_whole_holds_every_agent_and_what_they_share_once() -> None:
    assert len([part for part in WHOLE.parts if part == Exchange("p.requests", "direct")]) == 1
    assert set(QUEUES) == {"p.dead", "p.parked"} | {
        f"p.q.{agent}{lane}" for agent in ("echo", "other") for lane in ("", ".ask", ".batch")
    }
    assert QUEUES["p.q.echo"].arguments == QUEUES["p.q.echo.ask"].arguments
    assert Binding("p.requests", "p.q.echo.ask", "echo.ask") in WHOLE.parts
    assert QUEUES["p.q.echo"].arguments == QUEUES["p.q.echo.batch"].arguments
    assert Binding("p.requests", "p.q.echo.batch", "echo.batch") in WHOLE.parts
    assert {Exchange("p.ctl", "direct"), Exchange("p.cards", "fanout")} <= set(_exchanges(WHOLE.parts))


@pytest.mark.parametrize("lane", ["ask", "batch"])
def test_no_agent_has_the_name_of_another_s_lane(lane: str) -> None:
    with pytest.raises(bus.InvalidParams, match=lane):
        topology.agent(Names(), f"echo.{lane}")


@pytest.mark.parametrize("parts", [WHOLE.parts, topology.agent(Names(), "echo")])
def test_everything_is_there_before_it_is_needed(parts: tuple[Part, ...]) -> None:
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
    for part in (*WHOLE.parts, topology.replies("a2a.reply.alice.1")):
        if isinstance(part, Queue):
            assert part.exclusive is part.name.startswith("a2a.reply.")
            assert not part.exclusive or "x-queue-type" not in part.arguments


def test_what_is_kept_is_kept_in_order_and_not_given_up() -> None:
    # Without a limit on deliveries RabbitMQ 4 gives up after 20, and 3.10 puts what comes back at the end.
    for name in ("p.dead", "p.parked"):
        assert QUEUES[name].arguments["x-delivery-limit"] == topology.FOREVER
        (policy,) = [policy for policy in WHOLE.policies if re.search(policy.pattern, name)]
        assert "delivery-limit" not in policy.definition
    assert QUEUES["p.parked"].arguments["x-overflow"] == "drop-head"


def test_every_queue_has_one_policy_whose_limits_lie_below_the_ceilings() -> None:
    for queue in QUEUES.values():
        (policy,) = [policy for policy in WHOLE.policies if re.search(policy.pattern, queue.name)]
        for limit, value in policy.definition.items():
            ceiling = queue.arguments.get(f"x-{limit}")
            assert isinstance(ceiling, int)
            assert isinstance(value, int)
            assert value < ceiling
    for stranger in ("pq.echo", "p-dead", "p.dead.x", "p.requests", "xp.q.echo"):
        assert not [policy for policy in WHOLE.policies if re.search(policy.pattern, stranger)]


@pytest.fixture(params=["memory", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def broker(request: pytest.FixtureRequest) -> bus.Target:
    if request.param == "memory":
        return bus.MemoryBroker()
    url: str = request.getfixturevalue("rabbitmq_url")
    return url


async def test_a_server_that_may_only_look_says_what_is_missing(broker: bus.Target, unique_prefix: str) -> None:
    names = Names(unique_prefix)
    with pytest.raises(bus.Undeclared) as caught:
        await bus.serve(broker, "echo", echo, prefix=unique_prefix, declare=False)
    text = caught.value.message
    for part in topology.agent(names, "echo"):
        assert isinstance(part, Binding) or topology.describe(part) in text
    assert f"skillbus topology apply --prefix {unique_prefix} --agent echo" in text
    with pytest.raises(bus.Undeclared, match=names.parked):
        await bus.read_dead_letters(broker, prefix=unique_prefix, declare=False)
    connection = await driver_for(broker).connect("test")
    assert await connection.missing(*topology.agent(names, "echo")) != ()  # it made none of it
    await connection.close()


async def test_a_queue_that_is_gone_is_taken_up_once_it_is_there_again(broker: bus.Target, unique_prefix: str) -> None:
    parts = topology.agent(Names(unique_prefix), "echo")
    connection = await driver_for(broker).connect("test")
    await connection.declare(*parts)
    try:
        options = {"prefix": unique_prefix, "patience": replace(PATIENCE)}
        async with (
            await bus.serve(broker, "echo", echo, declare=False, **options) as server,  # type: ignore[arg-type]
            await bus.connect(broker, **options) as client,  # type: ignore[arg-type]
        ):
            assert await soon(client.send("echo", HELLO))
            await connection.delete(Queue(Names(unique_prefix).queue("echo")))
            await until(lambda: server.state is not bus.State.CONNECTED)
            with pytest.raises(bus.AgentNotFound):
                await soon(client.send("echo", HELLO))
            await connection.declare(*parts)
            await soon(server.ready())
            assert await soon(client.send("echo", HELLO))
    finally:
        await connection.close()
        await bus.remove(broker, "echo", prefix=unique_prefix, shared=True)


def _exchanges(parts: tuple[Part, ...]) -> list[Exchange]:
    return [part for part in parts if isinstance(part, Exchange)]
