"""What a finish phase is given, and the answer when that holds no report."""

from collections.abc import Callable, Mapping
from typing import Any

from ..arguments import legible
from ..skill import EffectResult, Finisher

Report = Callable[[Any, Mapping[str, Any]], Mapping[str, Any]]
"""Reads the output of an effect that ended well, with the call's arguments. Raises NoReport."""


class NoReport(Exception):
    """The output of the effect holds no report; the message says why."""


def finish_raw(effect: str, report: Report) -> Callable[[Any, Mapping[str, Any]], Mapping[str, Any]]:
    """The finish phase by its arguments and its whole input, whose `results` may be anything or missing."""

    def finish(arguments: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
        if "results" not in given:
            return _refusal("", "the finish input carries no results")
        results = given["results"]
        if not isinstance(results, list):
            return _refusal("", "results must be a JSON array")
        if len(results) != 1 or not isinstance(results[0], Mapping):
            return _refusal("", "expected exactly one effect result")
        return _of_one(effect, report, arguments, results[0])

    return finish


def finisher(effect: str, report: Report) -> Finisher:
    """The finish phase as the pipeline calls it."""

    def finish(arguments: Any, result: EffectResult) -> Mapping[str, Any]:
        return _of_one(effect, report, arguments, {"status": result.status, "output": result.output})

    return finish


def words(output: Mapping[str, Any], name: str) -> str:
    """A member of the output that is text; anything else is none."""
    value = output.get(name)
    return legible(value) if isinstance(value, str) else ""


def _of_one(effect: str, report: Report, arguments: Any, result: Mapping[str, Any]) -> Mapping[str, Any]:
    status = words(result, "status")
    if status != "ok":
        return _refusal(status, f"the {effect} effect ended {status}")
    if "output" not in result:
        return _refusal(status, "the effect result carries no output")
    output = result["output"]
    try:
        return report(arguments, output if isinstance(output, Mapping) else {})
    except NoReport as none:
        return _refusal(status, str(none))


def _refusal(status: str, message: str) -> Mapping[str, Any]:
    return {"ok": False, "status": status, "refused": message}
