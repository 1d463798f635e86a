"""Calls of a tool in a test, as the pipeline makes them."""

import json
from collections.abc import Mapping
from time import time
from typing import Any

from skills import Context, Done, EffectResult, Skill, admit_finish, admit_plan
from skills.host.envelope import FIELDS


async def ask(skill: Skill, arguments: Any, *, invocation: str = "a2a:e:t", seconds: float = 60) -> Mapping[str, Any]:
    """What the caller gets; every envelope on the way keeps the laws and can be encoded."""
    plan = skill.plan(arguments)
    admit_plan(plan.as_json(), skill.contract.effects)
    if plan.result is not None:
        return envelope(plan.result)
    assert skill.handler is not None
    assert skill.finish is not None
    outcome = await skill.handler(plan.effects[0], Context(invocation, "e", time() + seconds))
    assert isinstance(outcome, Done)
    result = EffectResult("e1", plan.effects[0].effect, "ok", "sha256:0", outcome.output)
    return envelope(skill.finish(arguments, result))


def envelope(output: Mapping[str, Any]) -> Mapping[str, Any]:
    """The output, which has every field of the envelope and is JSON in UTF-8."""
    assert list(output)[: len(FIELDS)] == list(FIELDS)
    assert output["untrusted"] is True
    assert (output["status"] == "error") == bool(output["error"])
    assert not output["retryable"] or output["error"]
    data = admit_finish(dict(output))
    assert json.loads(data) == output
    return output
