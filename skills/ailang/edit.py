"""The tool ailang-edit: one passage of a file of the worktree, replaced."""

from ..arguments import Arguments, check_path, strict
from ..contract import Contract, Effect, Risk
from ..plan import Plan
from ..skill import Handler, Skill
from .files import handle

CONTRACT = Contract(
    id="ailang-edit",
    title="Edit (sandboxed)",
    description=(
        "Replace old_text with new_text in a file inside this episode's worktree (policy-tool `edit`); old_text "
        "must occur exactly once (include enough context). The path is relative to the worktree root, non-empty, "
        "with no `..` segment and no leading `-`; anything that resolves outside the worktree (absolute, `..`, "
        "or a symlink leading out) is refused by AILANG's policy layer, and `.git/` plus the operator's deny "
        "list stay read-only. Unknown argument keys are refused, never ignored. Returns {ok} or {ok:false, "
        "refused}. Costs one Workspace.Write call from the session's budget. Every call commits one World log "
        "entry; the result carries `world` (the effect plan and the brokered effect's record ref)."
    ),
    tags=("files", "worktree"),
    examples=('{"path": "hello.ail", "old_text": "hello", "new_text": "howdy"}',),
    input_schema={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "File path, relative to the worktree root"},
            "old_text": {"type": "string", "description": "Exact text to replace (must occur exactly once)"},
            "new_text": {"type": "string", "description": "Replacement text"},
        },
        "required": ["path", "old_text", "new_text"],
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
    risk=Risk(read_only=False, external_egress=False, irreversible=False, sensitivity="workspace", idempotent=False),
    measures={"operation": "/op", "path": "/path", "bytes": "/new_text"},
)


def ailang_edit(handler: Handler = handle) -> Skill:
    """The skill, served by the native handler if no other is given."""
    return Skill(CONTRACT, strict(CONTRACT, _plan), handler)


def _plan(given: Arguments) -> Plan:
    path, old, new = given.text("path"), given.text("old_text"), given.text("new_text")
    check_path(path)
    return Plan.one("Workspace.Write", {"op": "edit", "path": path, "old_text": old, "new_text": new})
