"""The tool ailang-cli: an operation of the AILANG command line, as a typed request that never writes."""

from typing import Any

from ..arguments import Arguments, check_path, legible, strict
from ..contract import Contract, Effect, Risk
from ..errors import Refused
from ..plan import Plan
from ..skill import Handler, Skill, Tier

EFFECT = "Ailang.CLI"
OPS = (
    "agent_prompt", "ai_check", "axioms", "builtins_list", "builtins_show", "check", "devtools_prompt", "docs_search",
    "examples_list", "examples_search", "examples_show", "examples_tags", "fmt", "iface", "pkg_docs", "policy_check",
    "prompt", "test", "tree", "version",
)  # fmt: skip
CONTRACT = Contract(
    id="ailang-cli",
    title="AILANG CLI (policy-allowlisted)",
    description=(
        f"Run an allowlisted ailang operation as a typed policy-tool request. ops: {', '.join(OPS)}. Field by op: "
        "check/ai_check/fmt/tree/policy_check: {path}; iface/pkg_docs: {module}; docs_search/examples_search: "
        "{query}; examples_show/builtins_show: {module: <name>}; test: {path?, package?}; flags: "
        '{"json": "", "limit": "5"} only where the op admits them (boolean flags take ""). fmt\'s write flag is '
        "refused: ailang-cli never writes (fmt returns the formatted text; save it with ailang-write). NOT "
        "read/write/edit (their own tools) and NOT run (ailang-run). Paths and package directories follow the "
        "worktree path rule. Unknown argument keys are refused, never ignored. Returns {ok, argv, exit_code, stdout, "
        "stderr} or {ok:false, refused}. Costs one Ailang.CLI call from the session's budget. Every call commits one "
        "World log entry; the result carries `world` (the effect plan and the brokered effect's record ref)."
    ),
    tags=("ailang", "cli"),
    examples=('{"op": "iface", "module": "std/io", "flags": {"compact": ""}}',),
    input_schema={
        "type": "object",
        "properties": {
            "op": {"type": "string", "description": 'The operation, e.g. "check", "iface", "docs_search", "test"'},
            "path": {
                "type": "string",
                "description": "In-worktree file path (check, ai_check, fmt, tree, policy_check, test)",
            },
            "module": {
                "type": "string",
                "description": 'Module path or name (iface: "std/fs"; examples_show/builtins_show: a name)',
            },
            "query": {"type": "string", "description": "Search text (docs_search, examples_search)"},
            "package": {"type": "string", "description": "Package directory for test (in-worktree)"},
            "flags": {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "description": 'Admitted flags by name; boolean flags take "" (e.g. {"json": ""})',
            },
        },
        "required": ["op"],
        "additionalProperties": False,
    },
    output_schema={
        "type": "object",
        "properties": {
            "argv": {"type": "array", "items": {"type": "string"}},
            "exit_code": {"type": "integer"},
            "stdout": {"type": "string"},
            "stderr": {"type": "string"},
            "ok": {"type": "boolean"},
            "refused": {"type": "string"},
            "world": {"type": "object"},
        },
        "required": ["world"],
    },
    access=Effect(name=EFFECT, scope="worktree", cost=0),
    effects=(Effect(name=EFFECT, scope="worktree"),),
    deadline=20,
    worktree=True,
    risk=Risk(read_only=True, external_egress=False, irreversible=False, sensitivity="workspace", idempotent=True),
    measures={"operation": "/op"},
)


def ailang_cli(handler: Handler, tier: Tier) -> Skill:
    """The skill, served by `handler`."""
    return Skill(CONTRACT, strict(CONTRACT, _plan), handler, tier=tier)


def _plan(given: Arguments) -> Plan:
    op = given.text("op")
    if op not in OPS:
        others = "reads, writes and edits have their own tools, and run is ailang-run"
        raise Refused(f'op "{legible(op)}" is not an ailang-cli op; {others}')
    _optional_path(given, "path")
    given.optional_text("module")
    given.optional_text("query")
    _optional_path(given, "package")
    every = given.every("flags")
    if every and not _is_flags(every[0]):
        raise Refused('argument "flags" must be an object of string values')
    if op == "fmt" and any("write" in flags for flags in every if isinstance(flags, dict)):
        instead = "ailang-cli never writes (fmt without it returns the formatted text; write it with ailang-write)"
        raise Refused(f'op "fmt" flag "write" writes the worktree; {instead}')
    return Plan.one(EFFECT, given.verbatim())


def _optional_path(given: Arguments, name: str) -> None:
    path = given.optional_text(name)
    if path is not None:
        check_path(path)


def _is_flags(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(flag, str) for flag in value.values())
