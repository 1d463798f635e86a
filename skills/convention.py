"""The calling convention of a transition: one JSON text in, the plan or the finish phase's output out."""

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from .arguments import Repeated, legible
from .plan import Plan
from .skill import Planner

RawFinisher = Callable[[Any, Mapping[str, Any]], Mapping[str, Any]]
"""A finish phase by its arguments and the whole input, in which `results` may be anything, or missing."""


def enter(tool: str, plan: Planner, text: str, finish: RawFinisher | None = None) -> Mapping[str, Any]:
    """What `tool` answers to `{"phase": …, "args": …}`: a plan, the output of `finish`, or a refusal.

    Of duplicate members the first counts.
    """
    try:
        given = json.loads(text, object_pairs_hook=_first, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return _refusal(f"the input is not JSON: {error}")
    if not isinstance(given, dict):
        return _refusal("the input is not a JSON object")
    phase = given.get("phase")
    admitted = ("phase", "args", "results") if phase == "finish" else ("phase", "args")
    for key in given:
        if key not in admitted:
            return _refusal(f'input key "{legible(key)}" is not part of calling convention v2')
    if phase not in ("plan", "finish"):
        return _refusal('phase must be "plan" or "finish"')
    if "args" not in given:
        return _refusal("the input carries no args")
    if phase == "finish":
        if finish is not None:
            return finish(given["args"], given)
        return {"ok": False, "refused": f"{tool} has no finish phase"}
    return plan(given["args"]).as_json()


def _refusal(message: str) -> Mapping[str, Any]:
    return Plan.refuse(message).as_json()


def _first(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    others = []
    for key, value in members:
        if key in found:
            others.append((key, value))
        else:
            found[key] = value
    return Repeated(found, others) if others else found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
