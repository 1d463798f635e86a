"""The tool builtins-search: the builtins that are compiled into the AILANG binary."""

import re
from collections.abc import Mapping
from typing import Any

from ..arguments import Arguments, strict
from ..contract import Contract, Effect, Risk
from ..plan import Plan
from ..skill import Handler, Skill, Tier
from .finish import NoReport, finish_raw, finisher, words

EFFECT = "Ailang.Discover"
MATCHES = 10
CONTRACT = Contract(
    id="builtins-search",
    title="Search AILANG builtins",
    description=(
        "Search the REAL builtin inventory compiled into the tool binary (policy-tool `builtins_list`, text form). "
        "Pass query (case-insensitive substring over name/module/effect; at most 10 matches) and/or module (e.g. "
        "'std/fs'); omit both for the full list. Use this instead of guessing builtin names. Returns {count, "
        "matches}, each match {name, module, effect}. No signature or description is returned or searched; use "
        "ailang-cli `builtins_show` or examples-search for usage. A truncated or unparseable inventory is refused, "
        "never an empty result. Unknown argument keys are refused, never ignored. Costs one Ailang.Discover call "
        "from the session's budget. Every call commits one World log entry; the result carries `world` (the effect "
        "plan and the brokered effect's record ref)."
    ),
    tags=("ailang", "search"),
    examples=('{"query": "println"}', '{"module": "std/fs"}'),
    input_schema={
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "Substring to look for"},
            "module": {"type": "string", "description": "Module filter, e.g. std/fs"},
        },
        "required": [],
        "additionalProperties": False,
    },
    output_schema={
        "type": "object",
        "properties": {
            "count": {"type": "integer"},
            "matches": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string"},
                        "module": {"type": "string"},
                        "effect": {"type": "string"},
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
    risk=Risk(read_only=True, external_egress=False, irreversible=False, sensitivity="normal", idempotent=True),
)

_HEADER = re.compile(r"Total: (-?[0-9]{1,18}) builtins")
_EFFECT = re.compile(r"\[(.+)\]", re.DOTALL)


def builtins_search(handler: Handler, tier: Tier) -> Skill:
    """The skill, served by `handler`."""
    return Skill(CONTRACT, strict(CONTRACT, _plan), handler, finisher(EFFECT, _report), tier)


def _plan(given: Arguments) -> Plan:
    given.optional_text("query")
    given.optional_text("module")
    return Plan.one(EFFECT, {"op": "builtins_list"}, finish=True)


def _report(arguments: Any, output: Mapping[str, Any]) -> Mapping[str, Any]:
    if output.get("ok") is not True:
        stderr = words(output, "stderr")
        raise NoReport(words(output, "refused") or f"builtins_list did not succeed; stderr: {stderr}")
    given = arguments if isinstance(arguments, Mapping) else {}
    query, module = (words(given, name).lower() for name in ("query", "module"))
    matches = [
        match
        for match in _inventory(words(output, "stdout"))
        if module in match["module"].lower() and any(query in value.lower() for value in match.values())
    ]
    if query:
        matches = matches[:MATCHES]
    return {"count": len(matches), "matches": matches}


def _inventory(stdout: str) -> list[dict[str, str]]:
    if stdout.endswith("…[truncated]"):
        raise NoReport("builtins_list output was truncated at policy-tool's 64 KiB stdout cap")
    first, *lines = stdout.split("\n")
    header = _HEADER.fullmatch(first)
    if header is None:
        raise NoReport('builtins_list returned no "Total: N builtins" header')
    found = [_builtin(line) for line in lines if line.strip()]
    if len(found) != int(header[1]):
        raise NoReport(f"builtins_list header states {int(header[1])} builtins but {len(found)} lines parsed")
    return found


def _builtin(line: str) -> dict[str, str]:
    match line.split():
        case [name, tag, module] if effect := _EFFECT.fullmatch(tag):
            return {"name": name, "module": module, "effect": effect[1]}
    raise NoReport(f'builtins_list line "{line}" is not "name [effect] module"')


finish = finish_raw(EFFECT, _report)
