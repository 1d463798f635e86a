"""How a run ended, by what the binary wrote: one of four shapes, and nothing else is guessed at."""

from collections.abc import Mapping
from typing import Any

from .. import canonical
from ..process import Finished

LIMITED = 3
"""The exit code of a run that the policy's own limits ended."""

_POLICY = "policy: "
_RESULT = "policy-result: "


class NotRecognised(Exception):
    """The output has none of the four shapes."""


def read_envelope(finished: Finished) -> dict[str, Any]:
    """`admitted`, `exit_code`, `decision`, `limit`, `stdout` and `stderr` of a run. Raises NotRecognised.

    (a) it ran, whatever its exit code; (b) it ran and was refused something, which looks the same; (c) it was refused
    before it ran; (d) it ran into a limit of the policy.
    """
    stdout, stderr = (data.decode(errors="replace") for data in (finished.stdout, finished.stderr))
    lines = stderr.split("\n")
    policies = [line.removeprefix(_POLICY) for line in lines if line.startswith(_POLICY)]
    results = [line.removeprefix(_RESULT) for line in lines if line.startswith(_RESULT)]
    limit = None
    if len(policies) == 1:
        policy = _object(policies[0])
        decision, admitted = policy.get("decision"), True
        if policy.get("ok") is not True or not isinstance(decision, Mapping) or decision.get("ok") is not True:
            raise NotRecognised
        if results:
            limit = _limit(finished.status, results)
    elif policies or results or not finished.status or stderr:
        raise NotRecognised
    else:
        decision, admitted = _object(stdout).get("decision"), False
        if not isinstance(decision, Mapping) or decision.get("ok") is not False:
            raise NotRecognised
    return {
        "admitted": admitted, "exit_code": finished.status, "decision": decision, "limit": limit,
        "stdout": stdout, "stderr": stderr,
    }  # fmt: skip


def _limit(status: int, results: list[str]) -> Mapping[str, Any]:
    limit = _object(results[0])
    named = all(isinstance(limit.get(name), str) and limit[name] for name in ("reason", "stage"))
    if len(results) != 1 or status != LIMITED or not named:
        raise NotRecognised
    return limit


def _object(text: str) -> Mapping[str, Any]:
    try:
        value = canonical.parse(text)
    except canonical.NotCanonical:
        raise NotRecognised from None
    if not isinstance(value, dict):
        raise NotRecognised
    return value
