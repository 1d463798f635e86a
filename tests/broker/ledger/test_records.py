from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.ledger import records
from broker.ledger.records import EffectRecord, Entry, Object, OutputTooLarge, World
from skills import canonical
from skills.canonical import ref
from tests.vectors import parametrize


@parametrize("world", kind="effect_request")
def test_effect_requests(row: dict[str, Any]) -> None:
    asked = row["input"]
    made = records.effect_request(
        asked["effect"], asked["scope"], asked["cost"], asked["now"], asked["payload"].encode()
    )
    assert made.payload.decode() == row["output"]["bytes"]
    assert len(made.payload) == row["output"]["length"]
    assert made.ref == row["output"]["ref"]


@parametrize("world", kind="effect_record")
def test_effect_records(row: dict[str, Any]) -> None:
    r = row["input"]
    record = EffectRecord(
        r["effect"], r["scope"], r["cost"], r["budgetBefore"], r["budgetAfter"],
        r["allowed"], r["failed"], r["denial"], r["requestRef"], r["resultRef"],
    )  # fmt: skip
    assert record.encode().decode() == row["output"]["json"]
    assert ref(record.encode()) == row["output"]["ref"]
    assert record.is_consistent == row["output"]["consistent"]
    if not record.is_consistent:
        with pytest.raises(ValueError, match="inconsistent"):
            record.as_object()


@parametrize("world", kind="compose_output")
def test_composed_outputs(row: dict[str, Any]) -> None:
    asked = row["input"]
    body = asked.get("finish_output") or asked.get("handler_output") or {}
    effects = [(e["id"], e["status"], e["record"]) for e in asked["effects"]]
    output = records.compose_output(body, asked["plan"], effects)
    assert output.payload.decode() == row["output"]["bytes"]
    assert output.ref == row["output"]["ref"]


@parametrize("world", kind="interface_hash")
def test_interface_hashes(row: dict[str, Any]) -> None:
    assert Object(row["input"], b"").interface_hash == row["output"]


@parametrize("world", kind="commit_chain")
def test_the_chain(row: dict[str, Any]) -> None:
    asked, expected = row["input"], row["output"]
    before = World(asked["world"]["revision"], asked["world"]["stateRoot"], asked["world"]["logHead"])
    transition, interpreter = (ref(asked[name].encode()) for name in ("transitionFn_source", "interpreter_bytes"))
    invocation = records.invocation_id(asked["episode"], asked["task"])
    assert invocation == expected["invocation_id"]
    output_ref = ref(asked["output"].encode())
    record = records.invocation_record(
        invocation=invocation, episode=asked["episode"], skill=asked["skill"],
        transition_fn=transition, interpreter=interpreter,
        input_ref=ref(canonical.encode(canonical.parse(asked["input"]))), output_ref=output_ref,
        plan_ref=asked["plan"], effects=asked["effects"],
    )  # fmt: skip
    assert record.payload.decode() == expected["record"]["json"]
    assert record.ref == expected["record"]["ref"]
    entry = Entry(before.revision + 1, transition, interpreter, before.log_head, record.ref)
    assert entry.encode().decode() == expected["entry"]["json"]
    assert entry.hash == expected["entry"]["hash"]
    world = records.after(before, entry, output_ref)
    assert world.encode().decode() == expected["world"]["json"]
    assert ref(world.encode()) == expected["world"]["ref"]


def test_chains_of_two_episodes_begin_apart() -> None:
    assert records.genesis("a").log_head != records.genesis("b").log_head
    assert records.genesis("a") == records.genesis("a")


def test_the_reserved_member_is_refused() -> None:
    with pytest.raises(ValueError, match="reserved"):
        records.compose_output({"world": 1}, "sha256:x", ())


def test_an_output_over_the_limit_is_refused() -> None:
    with pytest.raises(OutputTooLarge):
        records.compose_output({"text": "x" * records.MAX_OUTPUT}, "sha256:x", ())


@given(st.text(), st.text(), st.integers(0, 99), st.integers(0, 2**40), st.text(), st.text())
def test_two_requests_never_share_their_bytes(
    effect: str, scope: str, cost: int, now: int, other: str, other_scope: str
) -> None:
    one = records.effect_request(effect, scope, cost, now, b"{}")
    two = records.effect_request(other, other_scope, cost, now, b"{}")
    assert (one.payload == two.payload) == ((effect, scope) == (other, other_scope))
