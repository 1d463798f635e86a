from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.grants.grant import Grant, GrantError, decide, parse_grant, seeded_budget, sees
from skills import Effect
from tests.vectors import parametrize


def law(row: dict[str, Any]) -> Any:
    asked = row["input"]["request"]
    grants = [Grant(g["effect"], g["scope"], g["budget"], g["expiresAt"]) for g in row["input"]["grants"]]
    effect = Effect.model_construct(name=asked["effect"], scope=asked["scope"], cost=asked["cost"])
    return decide(grants, effect, asked["now"])


@parametrize("world", kind="decide")
def test_decision_law(row: dict[str, Any]) -> None:
    decision, expected = law(row), row["output"]
    assert decision.allowed == expected["allowed"]
    assert decision.label == expected["label"]
    assert decision.grant == expected.get("grant")
    assert decision.budget_before == expected["budgetBefore"]
    if decision.allowed:
        assert decision.remaining == expected["remaining"]
    else:
        assert decision.remaining == decision.budget_before


@parametrize("world", kind="parse_grant")
def test_grant_texts(row: dict[str, Any]) -> None:
    expected = row["output"]
    if "error" in expected:
        with pytest.raises(GrantError) as caught:
            parse_grant(row["input"], expires_at=1)
        if expected.get("exact", True):
            assert str(caught.value) == expected["error"]
        else:
            assert expected["error"] in str(caught.value)
    else:
        grant = parse_grant(row["input"], expires_at=1)
        assert (grant.effect, grant.scope, grant.budget) == (expected["effect"], expected["scope"], expected["budget"])


@parametrize("world", kind="seeded_budget")
def test_seeded_budgets(row: dict[str, Any]) -> None:
    assert seeded_budget(row["input"]["budget"], row["input"]["spent"]) == row["output"]


@pytest.mark.parametrize("text", ["E=s:١", "E=s:1_0", "E=s:+1", "E=s: 1", "E=s:9" + "9" * 40])
def test_only_plain_integers_are_budgets(text: str) -> None:
    with pytest.raises(GrantError, match="is not an integer"):
        parse_grant(text, expires_at=1)


def test_without_grants_the_name_is_denied() -> None:
    decision = decide([], Effect(name="E", scope="s"), 0)
    assert (decision.label, decision.grant, decision.budget_before) == ("denied:effect-name", None, 0)


def test_spend_is_by_effect_and_scope() -> None:
    grants = [Grant("E", "s", 2, 100), Grant("E", "t", 2, 100)]
    used = {("E", "s"): 2}
    assert decide(grants, Effect(name="E", scope="s"), 1, used).label == "denied:budget"
    assert decide(grants, Effect(name="E", scope="t"), 1, used).label == "allowed:1"


def test_a_used_up_budget_does_not_hide_a_skill_but_an_expired_grant_does() -> None:
    access = Effect(name="E", scope="s", cost=0)
    assert sees([Grant("E", "s", 0, 100)], access, 99)
    assert not sees([Grant("E", "s", 9, 100)], access, 100)
    assert not sees([], access, 1)
    assert sees([], None, 1)


@given(st.text())
def test_any_text_is_a_grant_or_an_error(text: str) -> None:
    try:
        grant = parse_grant(text, expires_at=1)
    except GrantError:
        return
    assert f"{grant.effect}={grant.scope}:" in text
    assert grant.budget >= 0


@given(
    st.lists(
        st.builds(Grant, st.sampled_from("EF"), st.sampled_from("st"), st.integers(0, 3), st.sampled_from([0, 50, 200]))
    ),
    st.integers(0, 4),
)
def test_an_allowance_never_goes_below_zero(grants: list[Grant], cost: int) -> None:
    decision = decide(grants, Effect(name="E", scope="s", cost=cost), 100)
    if decision.allowed:
        assert decision.remaining == decision.budget_before - cost >= 0
        assert grants[decision.grant or 0].is_live(100)
