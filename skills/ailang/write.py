"""The tool ailang-write: one file of the worktree, written whole."""

from ..arguments import Arguments, check_path, strict
from ..contract import Contract, Effect, Risk
from ..plan import Plan
from ..skill import Handler, Skill
from .files import handle

CONTRACT = Contract(
    id="ailang-write",
    title="Write (sandboxed)",
    description=(
        "Create or overwrite a file inside this episode's worktree (policy-tool `write`). The path is relative "
        "to the worktree root, non-empty, with no `..` segment and no leading `-`; anything that resolves "
        "outside the worktree (absolute, `..`, or a symlink leading out) is refused by AILANG's policy layer, "
        "and `.git/` plus the operator's deny list stay read-only. Unknown argument keys are refused, never "
        "ignored. Returns {ok} or {ok:false, refused}. Costs one Workspace.Write call from the session's budget. "
        "Every call commits one World log entry; the result carries `world` (the effect plan and the brokered "
        "effect's record ref)."
    ),
    tags=("files", "worktree"),
    examples=('{"path": "todo.txt", "content": "first line\\n"}',),
    input_schema={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "File path, relative to the worktree root"},
            "content": {"type": "string", "description": "The complete new file content"},
        },
        "required": ["path", "content"],
        "additionalProperties": False,
    },
    output_schema={
        "type": "object",
        "properties": {
            "ok": {"type": "boolean"},
            "refused": {"type": "string"},
            "world": {"type": "object"},
        },
        "required": ["world"],
    },
    access=Effect(name="Workspace.Write", scope="worktree", cost=0),
    effects=(Effect(name="Workspace.Write", scope="worktree"),),
    worktree=True,
    risk=Risk(read_only=False, external_egress=False, irreversible=False, sensitivity="workspace", idempotent=True),
    measures={"operation": "/op", "path": "/path", "bytes": "/content"},
)


def ailang_write(handler: Handler = handle) -> Skill:
    """The skill, served by the native handler if no other is given."""
    return Skill(CONTRACT, strict(CONTRACT, _plan), handler)


def _plan(given: Arguments) -> Plan:
    path, content = given.text("path"), given.text("content")
    check_path(path)
    return Plan.one("Workspace.Write", {"op": "write", "path": path, "content": content})
