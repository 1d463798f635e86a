"""What the three tools with a backend have in common, whatever they are given and whatever stands behind them."""

import asyncio
import json
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skills import EffectResult, PackContext, Skill
from skills.host import BackendError, Binding, bind, search, search_kb, send_reply
from skills.host.backends import Kind
from skills.host.bound import MARGIN
from skills.host.search import CONTRACT as SEARCH
from skills.host.search import SECONDS as WEB_SECONDS
from skills.host.search_kb import CONTRACT as SEARCH_KB
from skills.host.search_kb import SECONDS as KB_SECONDS
from skills.host.send_reply import CONTRACT as SEND_REPLY
from skills.host.send_reply import SECONDS as MAIL_SECONDS
from tests.skills.host.asking import ask, envelope

MAKE: dict[str, Callable[[Binding], Skill]] = {"search": search, "search_kb": search_kb, "send_reply": send_reply}
ASKED: dict[str, dict[str, Any]] = {"search": {"query": "q"}, "search_kb": {"query": "q"}, "send_reply": {"body": "b"}}
TEXTS = st.text(alphabet=st.characters(codec=None), max_size=20)  # lone surrogates and control characters too


class Odd:
    """What no backend should return: even its text can't be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Many(int):
    """A number of more digits than Python writes, which Hypothesis would have to do to show it."""

    def __repr__(self) -> str:
        return "many digits"

    __str__ = int.__repr__


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | TEXTS
    | st.binary(max_size=4)
    | st.builds(lambda: Many(10**5_000))
    | st.builds(Odd)
    | st.just(Decimal("1e400")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(TEXTS | st.sampled_from(["title", "url", "snippet", "published_date"]), inner, max_size=4)
        | st.dictionaries(st.sampled_from(["sent", "recorded", "delivery", "error", "note", "retryable"]), inner)
    ),
    max_leaves=12,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


class Backend:
    """Returns what a test says, or raises it."""

    def __init__(self, value: Any) -> None:
        self._value = value

    async def answer(self, *_: object, **__: object) -> Any:
        if isinstance(self._value, BaseException):
            raise self._value
        return self._value

    search = lookup = send = answer


def bound(name: str, value: Any) -> Skill:
    return MAKE[name](Binding("odd", "config", "live", Backend(value)))


@cache
def in_tier(name: str, tier: str) -> Skill:
    kinds: dict[str, Kind] = {"search": "search", "search_kb": "kb", "send_reply": "mail"}
    return MAKE[name](bind(kinds[name], PackContext({kinds[name]: {"backend": tier}})))


@pytest.mark.parametrize("name", MAKE)
@given(value=VALUES)
def test_whatever_a_backend_returns_the_envelope_is_whole(name: str, value: Any) -> None:
    output = asyncio.run(ask(bound(name, value), ASKED[name]))
    assert len(json.dumps(output)) < 200_000


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("tier", ["stub", "fake"])
@given(arguments=JSON | st.fixed_dictionaries({}, optional=dict.fromkeys(
    ["query", "q", "max_results", "days", "topic", "body", "draft", "to"], JSON
)))  # fmt: skip
def test_whatever_it_is_given_the_envelope_is_whole(name: str, tier: str, arguments: Any) -> None:
    output = asyncio.run(ask(in_tier(name, tier), arguments))
    assert output["tool"] == name
    assert output["stub"] is True


@pytest.mark.parametrize("name", MAKE)
async def test_what_a_backend_may_raise(name: str) -> None:
    failed = {"search": "search failed", "search_kb": "kb lookup failed", "send_reply": "send failed"}[name]
    for error, text, retryable in (
        (BackendError("come back", retryable=True, retry_after=2.0), "come back", True),
        (BackendError("no \ud800"), "no \\ud800", False),
        (ValueError("token=hush"), "the backend raised ValueError", False),
        (SystemExit("hush"), None, None),
    ):
        if text is None:
            with pytest.raises(SystemExit):
                await ask(bound(name, error), ASKED[name])
            continue
        output = await ask(bound(name, error), ASKED[name])
        assert (output["error"], output["retryable"]) == (f"{failed}: {text}", retryable)
        assert output.get("retry_after") == (2.0 if retryable else None)
    long = await ask(bound(name, BackendError("x" * 5_000)), ASKED[name])
    assert len(long["error"]) == 2_000


@pytest.mark.parametrize("name", MAKE)
async def test_a_backend_that_is_not_asynchronous_is_an_error_too(name: str) -> None:
    class Plain:
        def answer(self, *_: object, **__: object) -> Any:
            return []

        search = lookup = send = answer

    class Raising(Plain):
        def search(self, *_: object, **__: object) -> Any:
            raise RuntimeError("token=hush")

        lookup = send = search

    for backend, kind in ((Plain(), "TypeError"), (Raising(), "RuntimeError")):
        output = await ask(MAKE[name](Binding("odd", "config", "live", backend)), ASKED[name])
        assert output["error"].endswith(f"failed: the backend raised {kind}")


async def test_a_search_that_knows_nothing_of_days_is_asked_without() -> None:
    class Old:
        async def search(self, query: str, max_results: int = 5) -> Any:
            return [{"title": f"{query} {max_results}"}]

    skill = search(Binding("old", "config", "live", Old()))
    output = await ask(skill, {"query": "q", "max_results": 2, "days": 3, "topic": "news"})
    assert output["results"] == [{"title": "q 2", "url": "", "snippet": ""}]


@pytest.mark.parametrize("name", MAKE)
async def test_a_time_out_of_a_backend_is_told(name: str) -> None:
    output = await ask(bound(name, TimeoutError()), ASKED[name])
    if name == "send_reply":
        assert (output["retryable"], output["sent"]) == (False, False)
        assert "may have been sent" in output["error"]
    else:
        assert (output["retryable"], output["error"].endswith("failed: timed out")) == (True, True)


@pytest.mark.parametrize("name", MAKE)
def test_an_effect_without_an_output_is_told(name: str) -> None:
    skill = bound(name, None)
    assert skill.finish is not None
    [effect] = skill.contract.effects
    for status in ("denied", "failed", "indeterminate", "canceled"):
        output = envelope(skill.finish(ASKED[name], EffectResult("e1", effect.name, status, "sha256:0")))
        assert output["error"] == f"the {effect.name} effect ended {status}"
        assert output["stub"] is False
    assert output.get("sent", False) is False


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("arguments", [None, [], "q", 7, {"query": "q" * 16_385, "body": "b" * 262_145}])
def test_what_is_no_object_or_too_long_is_refused(name: str, arguments: Any) -> None:
    plan = bound(name, []).plan(arguments)
    assert plan.refused
    assert plan.result is not None
    assert len(json.dumps(plan.result)) < 1_000
    envelope(plan.result)


def test_a_body_that_json_makes_too_large_is_refused() -> None:
    plan = bound("send_reply", {}).plan({"body": "\x01" + "\0" * 262_000 + "\x01"})
    assert plan.refused
    assert "as JSON" in str(plan.result)


@pytest.mark.parametrize("given_number", [Decimal("1e400"), float("inf"), float("nan"), "1" * 5_000, {}, "ten", []])
@pytest.mark.parametrize("name", ["max_results", "days"])
def test_a_number_that_is_none_is_refused(name: str, given_number: Any) -> None:
    result = bound("search", []).plan({"query": "q", name: given_number}).result
    if name == "max_results" and not given_number:
        assert result is None, "what is falsy is not given"
    else:
        assert result is not None
        assert result["error"] == f"{name} must be an integer"


@pytest.mark.parametrize("given_number", [10**4_000, -(10**4_000), True, 2.9, "7", " 8 "])
def test_any_number_is_carried_within_bounds(given_number: Any) -> None:
    (effect,) = bound("search", []).plan({"query": "q", "max_results": given_number, "days": given_number}).effects
    assert 1 <= effect.payload["max_results"] <= 10
    assert 1 <= effect.payload["days"] <= 365


@pytest.mark.parametrize("contract", [SEARCH, SEARCH_KB, SEND_REPLY], ids=lambda contract: contract.id)
def test_their_contracts(contract: Any) -> None:
    [effect] = contract.effects
    assert (contract.access.name, contract.access.scope, contract.access.cost) == (effect.name, effect.scope, 0)
    assert (effect.name, effect.scope) == {
        "search": ("Web.Search", "web"), "search_kb": ("Knowledge.Search", "kb"), "send_reply": ("Mail.Send", "mail"),
    }[contract.id]  # fmt: skip
    assert contract.repeatable is (contract.id != "send_reply"), "nobody knows whether a message was sent"
    assert not contract.worktree
    for example in contract.examples:
        assert not bound(contract.id, []).plan(json.loads(example)).refused


def test_the_tools_end_before_their_deadline() -> None:
    for contract, seconds in ((SEARCH, WEB_SECONDS), (SEARCH_KB, KB_SECONDS), (SEND_REPLY, MAIL_SECONDS)):
        assert seconds + MARGIN < contract.deadline
