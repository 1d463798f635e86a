"""The tool ailang-check: one AILANG file, type-checked and verified, with the diagnostics as data."""

import json
from collections.abc import Mapping
from typing import Any

from ..arguments import Arguments, check_path, strict
from ..contract import Contract, Effect, Risk
from ..plan import Plan
from ..skill import Handler, Skill, Tier
from .finish import NoReport, finish_raw, finisher, words

EFFECT = "Ailang.Check"
CONTRACT = Contract(
    id="ailang-check",
    title="AILANG Check",
    description=(
        "Type-check and Z3-verify an AILANG file inside this episode's worktree (policy-tool `ai_check`) and return "
        "STRUCTURED diagnostics: {ok:true, passed, error_count, errors:[{code, message, file}]} (line and column stay "
        "inside message), or {ok:false, status, refused}. The path is relative to the worktree root, non-empty, with "
        "no `..` segment and no leading `-`; anything that resolves outside the worktree (absolute, `..`, or a "
        "symlink leading out) is refused by AILANG's policy layer, and `.git/` plus the operator's deny list stay "
        "read-only. Unknown argument keys are refused, never ignored. Costs one Ailang.Check call from the session's "
        "budget. Every call commits one World log entry; the result carries `world` (the effect plan and the "
        "brokered effect's record ref)."
    ),
    tags=("ailang", "check"),
    examples=('{"path": "hello.ail"}',),
    input_schema={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Path to the .ail file, relative to the worktree root"},
        },
        "required": ["path"],
        "additionalProperties": False,
    },
    output_schema={
        "type": "object",
        "properties": {
            "passed": {"type": "boolean"},
            "error_count": {"type": "integer"},
            "errors": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "code": {"type": "string"},
                        "message": {"type": "string"},
                        "file": {"type": "string"},
                    },
                },
            },
            "status": {"type": "string"},
            "ok": {"type": "boolean"},
            "refused": {"type": "string"},
            "world": {"type": "object"},
        },
        "required": ["world"],
    },
    access=Effect(name=EFFECT, scope="worktree", cost=0),
    effects=(Effect(name=EFFECT, scope="worktree"),),
    deadline=20,
    repeatable=True,
    worktree=True,
    risk=Risk(read_only=True, external_egress=False, irreversible=False, sensitivity="workspace", idempotent=True),
    measures={"operation": "/op", "path": "/path"},
)


def ailang_check(handler: Handler, tier: Tier) -> Skill:
    """The skill, served by `handler`."""
    return Skill(CONTRACT, strict(CONTRACT, _plan), handler, finisher(EFFECT, _report), tier)


def _plan(given: Arguments) -> Plan:
    path = given.text("path")
    check_path(path)
    return Plan.one(EFFECT, {"op": "ai_check", "path": path}, finish=True)


def _report(_: Any, output: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        stdout = json.loads(words(output, "stdout"))
    except (ValueError, RecursionError):
        stdout = None
    check = stdout.get("check") if isinstance(stdout, dict) else None
    found = check if isinstance(check, dict) else {}
    passed, count, errors = found.get("passed"), found.get("error_count"), found.get("errors")
    if not isinstance(passed, bool) or type(count) is not int or not isinstance(errors, list):
        stderr = words(output, "stderr")
        raise NoReport(words(output, "refused") or f"ai_check returned no check report; stderr: {stderr}")
    return {"ok": True, "passed": passed, "error_count": count, "errors": [_error(error) for error in errors]}


def _error(error: Any) -> Mapping[str, str]:
    members = error if isinstance(error, dict) else {}
    return {name: words(members, name) for name in ("code", "message", "file")}


finish = finish_raw(EFFECT, _report)
