import json
from typing import Any

import pytest

from skills import Plan
from skills.convention import enter


def plan(args: Any) -> Plan:
    return Plan.answer({"args": args}) if isinstance(args, dict) else Plan.refuse("arguments must be a JSON object")


def answer(text: str) -> Any:
    output = enter("tool", plan, text)
    json.dumps(output, ensure_ascii=False).encode()
    return output


def refused(text: str) -> str:
    output = answer(text)
    assert output == Plan.refuse(output["result"]["refused"]).as_json()
    message: str = output["result"]["refused"]
    return message


@pytest.mark.parametrize("text", ["", "{", "{]", "NaN", '{"phase":Infinity}', "[" * 100_000, "1 2", "\ud800"])
def test_what_is_not_json_is_told_with_the_decoders_text(text: str) -> None:
    assert refused(text).startswith("the input is not JSON: ")


@pytest.mark.parametrize("text", ["null", "[]", '"x"', "1", "true"])
def test_the_input_is_an_object(text: str) -> None:
    assert refused(text) == "the input is not a JSON object"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"x":1,"phase":"plan","args":{}}', 'input key "x" is not part of calling convention v2'),
        ('{"phase":"plan","args":{},"y":1,"x":1}', 'input key "y" is not part of calling convention v2'),
        ('{"phase":"plan","args":{},"results":[]}', 'input key "results" is not part of calling convention v2'),
        ('{"\\ud800":1}', 'input key "\\ud800" is not part of calling convention v2'),
        ('{"args":{}}', 'phase must be "plan" or "finish"'),
        ('{"phase":1,"args":{}}', 'phase must be "plan" or "finish"'),
        ('{"phase":["plan"]}', 'phase must be "plan" or "finish"'),
        ('{"phase":"Plan","args":{}}', 'phase must be "plan" or "finish"'),
        ('{"phase":"plan"}', "the input carries no args"),
        ('{"phase":"finish"}', "the input carries no args"),
        ('{"phase":"plan","args":null}', "arguments must be a JSON object"),
    ],
)
def test_the_first_failing_check_answers(text: str, message: str) -> None:
    assert refused(text) == message


def test_the_plan_phase_answers_the_plan() -> None:
    assert answer('{"phase":"plan","args":{"a":1}}') == Plan.answer({"args": {"a": 1}}).as_json()


def test_of_duplicate_members_the_first_counts() -> None:
    assert answer('{"phase":"plan","args":{"a":1,"a":2},"args":{}}')["result"] == {"args": {"a": 1}}


def test_there_is_no_finish_phase() -> None:
    assert answer('{"phase":"finish","args":{},"results":[]}') == {"ok": False, "refused": "tool has no finish phase"}
