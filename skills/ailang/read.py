"""The tool ailang-read: the text of one file of the worktree."""

from ..arguments import Arguments, check_path, strict
from ..contract import Contract, Effect, Risk
from ..plan import Plan
from ..skill import Handler, Skill
from .files import handle

CONTRACT = Contract(
    id="ailang-read",
    title="Read (sandboxed)",
    description=(
        "Read a file inside this episode's worktree (policy-tool `read`). The path is relative to the worktree "
        "root, non-empty, with no `..` segment and no leading `-`; anything that resolves outside the worktree "
        "(absolute, `..`, or a symlink leading out) is refused by AILANG's policy layer, and `.git/` plus the "
        "operator's deny list stay read-only. Unknown argument keys are refused, never ignored. Returns {ok, "
        "content} or {ok:false, refused}. Costs one Workspace.Read call from the session's budget. Every call "
        "commits one World log entry; the result carries `world` (the effect plan and the brokered effect's "
        "record ref)."
    ),
    tags=("files", "worktree"),
    examples=('{"path": "hello.ail"}',),
    input_schema={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "File path, relative to the worktree root"},
        },
        "required": ["path"],
        "additionalProperties": False,
    },
    output_schema={
        "type": "object",
        "properties": {
            "content": {"type": "string"},
            "ok": {"type": "boolean"},
            "refused": {"type": "string"},
            "world": {"type": "object"},
        },
        "required": ["world"],
    },
    access=Effect(name="Workspace.Read", scope="worktree", cost=0),
    effects=(Effect(name="Workspace.Read", scope="worktree"),),
    repeatable=True,
    worktree=True,
    risk=Risk(read_only=True, external_egress=False, irreversible=False, sensitivity="workspace", idempotent=True),
    measures={"operation": "/op", "path": "/path"},
)


def ailang_read(handler: Handler = handle) -> Skill:
    """The skill, served by the native handler if no other is given."""
    return Skill(CONTRACT, strict(CONTRACT, _plan), handler)


def _plan(given: Arguments) -> Plan:
    path = given.text("path")
    check_path(path)
    return Plan.one("Workspace.Read", {"op": "read", "path": path})
