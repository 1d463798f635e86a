from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skills.canonical import ref
from skills.contract import Effect
from skills.plan import Plan, PlanLawError, admit_finish, admit_plan
from tests.vectors import parametrize


@parametrize("world", kind="plan_law")
def test_plan_laws(row: dict[str, Any]) -> None:
    declared = [Effect(name=e["effect"], scope=e["scope"], cost=e["cost"]) for e in row["input"]["declared"]]
    if "law" in row["output"]:
        with pytest.raises(PlanLawError) as caught:
            admit_plan(row["input"]["output"], declared)
        assert caught.value.law == row["output"]["law"]
    else:
        data = admit_plan(row["input"]["output"], declared)
        assert data.decode() == row["output"]["canonical"]
        assert ref(data) == row["output"]["ref"]


@parametrize("world", kind="finish_law")
def test_finish_laws(row: dict[str, Any]) -> None:
    if "law" in row["output"]:
        with pytest.raises(PlanLawError) as caught:
            admit_finish(row["input"])
        assert caught.value.law == row["output"]["law"]
    else:
        assert admit_finish(row["input"]).decode() == row["output"]["canonical"]


@pytest.mark.parametrize(
    ("change", "law"),
    [
        ({"effects": [{}, {}]}, "L1"),
        ({"effects": [{}]}, "shape"),
        ({"finish": 1}, "shape"),
        ({"effects": []}, "L7"),
        ({"result": {"ok": True}}, "L7"),
        ({"result": [1], "effects": []}, "L7"),
        ({"world": {}}, "L6"),
    ],
)
def test_each_law_names_itself(change: dict[str, Any], law: str) -> None:
    plan = Plan.one("E", {"path": "a"}).as_json() | change
    with pytest.raises(PlanLawError) as caught:
        admit_plan(plan, [Effect(name="E", scope="worktree")])
    assert caught.value.law == law


def test_a_payload_over_the_limit_is_refused() -> None:
    with pytest.raises(PlanLawError) as caught:
        admit_plan(Plan.one("E", {"content": "x" * (1 << 20)}).as_json(), [Effect(name="E", scope="worktree")])
    assert caught.value.law == "L4"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(["effects", "plan", "finish", "result", "id", "cost", "x"]), inner)
    ),
)


@given(json_values)
def test_nothing_but_a_law_error_comes_of_any_value(value: Any) -> None:
    laws: list[Callable[[Any], bytes]] = [lambda plan: admit_plan(plan, ()), admit_finish]
    for admit in laws:
        with suppress(PlanLawError):
            admit(value)
