from typing import Any

import pytest

from skills import Arguments, Contract, Effect, Plan, Refused, check_path, legible, strict
from skills.plan import MAX_PAYLOAD

TOOL = Contract(
    id="tool",
    title="Tool",
    description="A tool.",
    input_schema={"type": "object", "properties": {"one": {}, "two": {}}},
    output_schema={"type": "object"},
    access=Effect(name="E", scope="s", cost=0),
    effects=(Effect(name="E", scope="s"),),
)


def refusal(given: Any, *reads: str) -> str:
    with pytest.raises(Refused) as raised:  # noqa: PT012 - what refuses is one of these
        arguments = Arguments("tool", ("one", "two"), given)
        for name in reads:
            arguments.text(name)
    return str(raised.value)


@pytest.mark.parametrize("given", [None, [], "x", 1, True])
def test_arguments_are_an_object(given: Any) -> None:
    assert refusal(given) == "arguments must be a JSON object"


@pytest.mark.parametrize(
    ("given", "key"), [({"three": 1}, "three"), ({"one": 1, "b": 1, "a": 1}, "b"), ({"One": 1}, "One"), ({"": 1}, "")]
)
def test_an_unknown_key_is_named_the_first_in_document_order(given: Any, key: str) -> None:
    assert refusal(given) == f'unknown argument "{key}"; tool admits only: one, two'


def test_a_required_string_must_be_there_and_be_one() -> None:
    assert refusal({"two": "x"}, "one") == 'missing required argument "one"'
    values: list[Any] = [None, 1, [], {}, True]
    for value in values:
        assert refusal({"one": value}, "one") == 'argument "one" must be a string'
    assert Arguments("tool", ("one",), {"one": ""}).text("one") == ""


def test_an_optional_string_may_be_left_out_but_not_null() -> None:
    arguments = Arguments("tool", ("one", "two"), {"one": "x", "two": None})
    assert arguments.optional_text("one") == "x"
    assert Arguments("tool", ("one",), {}).optional_text("one") is None
    with pytest.raises(Refused, match='argument "two" must be a string'):
        arguments.optional_text("two")


@pytest.mark.parametrize("path", ["", "/", "/a", "-", "-a", "..", "../a", "a/..", "a/../b", "../", "a/b/.."])
def test_a_path_that_leads_out_or_looks_like_a_flag_is_refused(path: str) -> None:
    with pytest.raises(Refused) as raised:
        check_path(path)
    assert str(raised.value) == (
        f'path "{path}" refused: it must be relative and non-empty, with no ".." segment and no leading "-"'
    )


@pytest.mark.parametrize(
    "path", [".", "./x", "a//b", "..a", "a/..b", "a..", "a/-b", "a\\..\\b", "~/x", "C:\\x", "a\0", "\n"]
)
def test_any_other_path_passes(path: str) -> None:
    check_path(path)


def test_a_planner_turns_what_is_refused_into_a_refusal_plan() -> None:
    planner = strict(TOOL, lambda given: Plan.one("E", {"one": given.text("one")}, scope="s"))
    assert planner({"one": "x"}) == Plan.one("E", {"one": "x"}, scope="s")
    assert planner({}) == Plan.refuse('missing required argument "one"')
    assert planner({"x": 1}) == Plan.refuse('unknown argument "x"; tool admits only: one, two')


def test_a_payload_that_cannot_be_carried_is_refused_and_not_an_error() -> None:
    planner = strict(TOOL, lambda given: Plan.one("E", {"one": given.text("one")}, scope="s"))
    frame = len('{"one":""}')
    assert planner({"one": "x" * (MAX_PAYLOAD - frame)}).effects
    refused = planner({"one": "x" * (MAX_PAYLOAD - frame + 1)}).result
    assert refused == {
        "ok": False,
        "refused": f"the arguments take {MAX_PAYLOAD + 1} bytes; the limit is {MAX_PAYLOAD}",
    }
    assert planner({"one": "\ud800"}).result == {
        "ok": False, "refused": "the arguments cannot be carried: a string holds a lone surrogate",
    }  # fmt: skip


def test_text_without_an_encoding_is_spelled_out() -> None:
    assert legible("é☕\U0001f600") == "é☕\U0001f600"
    assert legible("a\ud800b\udcff") == "a\\ud800b\\udcff"
    assert refusal({"\ud800": 1}) == 'unknown argument "\\ud800"; tool admits only: one, two'
