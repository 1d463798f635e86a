"""The comparison of the description with what was seen: pure, so every broker that can be thought of is tried."""

import shlex
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus import Names, topology
from bus.driver import Binding, Exchange, Part, Queue, Scalar
from bus.topology import Policy
from deploy.topology import ARGUMENTS, BINDINGS, POLICIES, Kind, Plan, Seen, command, plan

NAMES = Names("p")
WHOLE = topology.whole(NAMES, ["a", "b"])
EMPTY = Seen({}, {}, frozenset(), {})
QUEUES = [part for part in WHOLE.parts if isinstance(part, Queue)]
BOUND = [part for part in WHOLE.parts if isinstance(part, Binding)]


def compared(seen: Seen) -> Plan:
    return plan(WHOLE, seen, prefix="p")


def made(seen: Seen, parts: tuple[Part, ...], policies: tuple[Policy, ...] = ()) -> Seen:
    """What is seen after a broker made these: what stands already stays as it is, policies are replaced."""
    exchanges, queues = dict(seen.exchanges), dict(seen.queues)
    bindings = set(seen.bindings) if seen.bindings is not None else None
    for part in parts:
        if isinstance(part, Exchange):
            exchanges.setdefault(part.name, part.kind)
        elif isinstance(part, Queue):
            queues.setdefault(part.name, part.arguments)
        else:
            assert part.exchange in exchanges
            assert part.queue in queues
            if bindings is not None:
                bindings.add(part)
    told = None if seen.policies is None else {**seen.policies, **{policy.name: policy for policy in policies}}
    return Seen(exchanges, queues, None if bindings is None else frozenset(bindings), told)


COMPLETE = made(EMPTY, WHOLE.parts, WHOLE.policies)


def test_everything_is_missing_on_an_empty_broker_and_nothing_on_a_complete_one() -> None:
    planned = compared(EMPTY)
    assert (planned.parts, planned.policies) == (WHOLE.parts, WHOLE.policies)
    assert {each.kind for each in planned.differences} == {Kind.MISSING}
    assert planned.unseen == ()
    assert planned.by_hand == ()
    assert compared(COMPLETE) == Plan(())


names = st.sampled_from([*(part.name for part in QUEUES), "p.q.c", "elsewhere"])
arguments: st.SearchStrategy[Mapping[str, Scalar]] = st.sampled_from(
    [*(part.arguments for part in QUEUES), {"x-queue-type": "classic"}, {}]
)
keys = st.sampled_from(["", "a", "a.batch", "b", "c"])
exchange_names = st.sampled_from(["p.requests", "p.dead", "p.ctl", "p.cards", "p.other", "amq.direct"])
policies = st.builds(
    Policy,
    st.sampled_from([*(policy.name for policy in WHOLE.policies), "p.mine", "everything"]),
    st.sampled_from([*(policy.pattern for policy in WHOLE.policies), ".*", "(", "^x$"]),
    st.dictionaries(st.sampled_from(["max-length", "delivery-limit"]), st.integers(1, 10), max_size=2),
    st.sampled_from([0, 10, 20]),
)
brokers = st.builds(
    Seen,
    st.dictionaries(exchange_names, st.sampled_from(["direct", "fanout", "topic", "fanout, durable False"])),
    st.dictionaries(names, arguments),
    st.frozensets(st.one_of(st.sampled_from(BOUND), st.builds(Binding, exchange_names, names, keys))),
    st.lists(policies).map(lambda found: {policy.name: policy for policy in found}),
)


@given(brokers)
def test_applying_twice_makes_nothing_the_second_time(seen: Seen) -> None:
    first = compared(seen)
    after = made(seen, first.parts, first.policies)
    second = compared(after)
    assert (second.parts, second.policies) == ((), ())
    # what is left is what a person has to do, or what need not be wrong; and it was told the first time
    assert second.drift == second.by_hand
    assert set(map(repr, second.drift)) <= set(map(repr, first.drift))
    # whatever stood before stands as it was
    assert seen.queues.items() <= after.queues.items()
    assert seen.exchanges.items() <= after.exchanges.items()


@given(brokers)
def test_every_drift_is_mended_or_says_how(seen: Seen) -> None:
    for each in compared(seen).drift:
        assert (each.change is None) is bool(each.fix)
        assert each.text


def one(planned: Plan) -> tuple[Kind, str, str]:
    (each,) = planned.differences
    return each.kind, each.subject, each.text


def test_a_limit_that_was_changed_by_hand() -> None:
    limits = {**WHOLE.policies[0].definition, "max-length": 5}
    changed = replace(
        COMPLETE, policies={**(COMPLETE.policies or {}), "p.q": replace(WHOLE.policies[0], definition=limits)}
    )
    assert one(compared(changed)) == (Kind.DIFFERENT, "policy p.q", "max-length is 5, not 10000")
    assert compared(changed).policies == (WHOLE.policies[0],)


@pytest.mark.parametrize(("priority", "drifts"), [(9, 0), (10, 6), (11, 6)])
def test_a_policy_that_may_stand_in_the_way(priority: int, drifts: int) -> None:
    other = Policy("all", r"^p\.q", {"max-length": 1}, priority)
    seen = replace(COMPLETE, policies={**(COMPLETE.policies or {}), "all": other})
    planned = compared(seen)
    assert len(planned.by_hand) == len(planned.differences) == drifts
    for each in planned.differences:
        assert "is under the policy all (max-length 1)" in each.text
        assert "rabbitmqctl clear_policy all" in each.fix
    without = plan(replace(WHOLE, policies=()), seen, prefix="p")
    assert without == Plan(())


def test_a_queue_with_other_arguments_is_left_to_people() -> None:
    other = {**QUEUES[0].arguments, "x-max-length": 3, "x-expires": 9}
    planned = plan(
        WHOLE, replace(COMPLETE, queues={**COMPLETE.queues, QUEUES[0].name: other}), prefix="p", vhost="my v"
    )
    kind, subject, text = one(planned)
    assert (kind, subject) == (Kind.DIFFERENT, f"queue {QUEUES[0].name}")
    assert text == "x-max-length is 3, not 1000000; x-expires is 9, not set"
    assert f"rabbitmqctl -p 'my v' delete_queue {QUEUES[0].name}" in planned.by_hand[0].fix
    assert planned.parts == ()


def test_an_exchange_of_another_kind() -> None:
    planned = compared(replace(COMPLETE, exchanges={**COMPLETE.exchanges, "p.requests": "topic"}))
    assert one(planned) == (Kind.DIFFERENT, "exchange p.requests", "is topic, not direct")
    assert planned.parts == ()


def test_what_is_there_besides() -> None:
    others: dict[str, Mapping[str, Scalar]] = {"p.q.c": {}, "q.q.a": {}}
    extra = {
        Binding("p.requests", "p.q.c", "c"),
        Binding("p.requests", "p.q.c", "a"),
        Binding("amq.direct", "p.q.a", "x"),
    }
    seen = replace(
        COMPLETE,
        queues={**COMPLETE.queues, **others},
        bindings=frozenset(extra | (COMPLETE.bindings or frozenset())),
        policies={**(COMPLETE.policies or {}), "p.mine": Policy("p.mine", "^nothing$", {})},
    )
    planned = compared(seen)
    assert {each.kind for each in planned.differences} == {Kind.EXTRA}
    told = {each.subject: each.drift for each in planned.differences}
    # Another agent is its own affair; who listens to ours, or speaks into our queue, is not.
    assert told == {
        "queue p.q.c": False,
        "policy p.mine": False,
        "binding p.requests → p.q.c ('a')": True,
        "binding amq.direct → p.q.a ('x')": True,
    }


def test_what_could_not_be_looked_at_is_said_and_bindings_are_made_to_be_sure() -> None:
    seen = Seen(COMPLETE.exchanges, {**COMPLETE.queues, "p.dead": None})
    planned = compared(seen)
    assert planned.differences == ()
    assert planned.unseen == (BINDINGS, POLICIES, ARGUMENTS)
    assert planned.parts == tuple(BOUND)
    assert plan(replace(WHOLE, policies=()), seen, prefix="p").unseen == (BINDINGS, ARGUMENTS)


def test_the_command_for_a_policy() -> None:
    words = shlex.split(command(WHOLE.policies[0], "my v"))
    assert words[:4] == ["rabbitmqctl", "set_policy", "-p", "my v"]
    assert words[-3:] == [
        "p.q",
        r"^p\.q\.",
        '{"max-length": 10000, "max-length-bytes": 1073741824, "delivery-limit": 5}',
    ]
    assert "-p" not in shlex.split(command(WHOLE.policies[0]))
