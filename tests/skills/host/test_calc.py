import time
import tracemalloc
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skills import Plan, admit_plan
from skills.host import calc
from tests.vectors import rows

CALC = calc()


def answer(arguments: Any) -> str:
    plan = CALC.plan(arguments)
    assert not plan.effects
    assert plan.result is not None
    admit_plan(plan.as_json(), CALC.contract.effects)
    text: str = plan.result["text"]
    text.encode()
    return text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"expr": "1+1"}, "2"),
        ({"expr": True}, "True"),
        ({"expr": 1.5}, "1.5"),
        ({"expr": Decimal("1E+3")}, "1000.0"),
        ({"expr": None, "query": "2*3"}, "6"),
        ({"expr": [1]}, "error: could not evaluate '[1]' (unsupported expression)"),
        ({"expr": {}, "query": "2"}, "2"),
        ({"unknown": 1, "expr": "4"}, "4"),
        ({"expr": "\ud800"}, r"error: could not evaluate '\ud800' ('utf-8' codec can't encode character '\ud800' in"),
        ({"expr": "1 + '\ud800"}, "error: "),
        ({"expr": 10**5000}, "error: Exceeds the limit (4300 digits)"),
        ({"expr": "1" * 6000}, f"error: could not evaluate '{'1' * 200}…' (the expression is longer than 5000 char"),
        ("1+1", "error: arguments must be a JSON object"),
        (None, "error: arguments must be a JSON object"),
    ],
)  # fmt: skip
def test_it_answers_with_text(arguments: Any, text: str) -> None:
    assert answer(arguments).startswith(text)


def test_arguments_that_are_no_object_are_a_refusal_and_a_bad_expression_is_an_answer() -> None:
    assert CALC.plan([]).refused
    assert CALC.plan({"expr": "1/0"}) == Plan.answer({"text": "error: could not evaluate '1/0' (division by zero)"})


def test_a_value_without_end_is_an_error() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert answer({"expr": deep}) == "error: the value is nested too deeply"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_any_argument_has_an_answer(value: Any) -> None:
    answer({"expr": value})


LONG = "the expression is longer than 5000 characters"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("1" * 1_048_000, LONG),
        ("." * 1_048_000, LONG),
        ("1" + " " * 1_048_000 + "1", LONG),
        ([[1] * 10] * 20_000, "error: the value takes more than 5000 characters"),
        ({"x": "y" * 1_048_000}, "error: the value takes more than 5000 characters"),
    ],
    ids=["digits", "points", "spaces", "lists", "text"],
)
def test_what_is_too_long_is_not_looked_at(value: Any, says: str) -> None:
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        found = answer({"expr": value})
        best = min(best, time.process_time() - began)
    assert says in found
    assert best < 0.02
    tracemalloc.start()
    try:
        CALC.plan({"expr": value})
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_its_contract() -> None:
    contract = CALC.contract
    assert (contract.id, contract.access, contract.effects, contract.output_mode) == ("calc", None, (), "text/plain")
    [row] = [row for row in rows("host-tools.policy", kind="metadata") if row["input"]["tool"] == "calc"]
    assert {"name": contract.id, **contract.risk.model_dump()} == row["output"]
