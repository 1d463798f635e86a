"""The tool list_files: the names in one directory of the workspace."""

import heapq
from collections.abc import Iterator, Mapping
from typing import Any

from ..arguments import legible
from ..contract import Contract, Effect, Risk
from ..errors import Escape, Refused
from ..location import Entry, Kind
from ..plan import Plan, PlannedEffect
from ..skill import Context, Outcome, Skill
from .envelope import output_schema
from .files import FileTool, Workplace, no_such
from .paths import hidden
from .settings import FileSettings

MAX_ENTRIES = 200

CONTRACT = Contract(
    id="list_files",
    title="List files",
    description=(
        "List the files and folders in one folder of the workspace, by name. Give `path` relative to the workspace, "
        "with forward slashes, or leave it out for the top folder; it does not look into subfolders, so list those in "
        "turn. Absolute paths, `..` and names that start with a dot are refused, and dotfiles are not shown. "
        f"At most {MAX_ENTRIES} entries come back; `count` says how many there are and `truncated` whether some are "
        "missing. Check `error`: it is null when the listing is good. Costs one Workspace.Read call."
    ),
    tags=("files", "workspace"),
    examples=('{"path": "docs"}', "{}"),
    input_schema={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Folder, relative to the workspace; left out: the top folder"}
        },
        "additionalProperties": True,
    },
    output_schema=output_schema(
        {
            "path": {"type": "string", "description": "The folder, normalised; empty for the top folder"},
            "entries": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string"},
                        "kind": {"type": "string", "enum": ["dir", "file"]},
                        "bytes": {"type": "integer", "description": "Size of a file"},
                    },
                    "required": ["name", "kind"],
                },
            },
            "count": {"type": "integer", "description": "How many entries the folder has"},
            "truncated": {"type": "boolean", "description": "Whether entries are missing from the list"},
        }
    ),
    access=Effect(name="Workspace.Read", scope="worktree", cost=0),
    effects=(Effect(name="Workspace.Read", scope="worktree"),),
    repeatable=True,
    worktree=True,
    risk=Risk(read_only=True, external_egress=False, irreversible=False, sensitivity="normal", idempotent=True),
    measures={"operation": "/op", "path": "/path", "results": str(MAX_ENTRIES)},
)


def list_files(settings: FileSettings) -> Skill:
    """The skill, in the tier that the settings choose."""
    tool = FileTool("list_files", "list", "Workspace.Read", {"entries": [], "count": 0, "truncated": False}, settings)

    def check(arguments: Mapping[str, Any], given: str) -> Mapping[str, Any]:
        tool.check_tier()
        tool.check_path(given)
        return {"op": "list"}

    def plan(arguments: Any) -> Plan:
        return tool.plan(arguments, check)

    def act(at: Workplace) -> dict[str, Any]:
        if at.location.kind != "directory":
            raise Refused(no_such("list", at.given))
        entries, count = _entries(at)
        return tool.success(at.path, entries=entries, count=count, truncated=count > MAX_ENTRIES)

    async def handle(effect: PlannedEffect, context: Context) -> Outcome:
        return await tool.run(effect, context, act)

    return tool.skill(CONTRACT, plan, handle)


def _entries(at: Workplace) -> tuple[list[dict[str, Any]], int]:
    """The first entries by name, and how many there are."""
    count = 0

    def visible() -> Iterator[tuple[str, Kind]]:
        nonlocal count
        for entry in at.location.scan():
            kind = None if entry.name.startswith(".") else _kind(at, entry)
            if kind in ("directory", "file"):
                count += 1
                yield entry.name, kind

    first = heapq.nsmallest(MAX_ENTRIES, visible())
    return [_shown(at, name, kind) for name, kind in first], count


def _kind(at: Workplace, entry: Entry) -> Kind | None:
    """What stands at an entry, behind a link too; None for a link that leads to nothing that may be seen."""
    if entry.kind != "link":
        return entry.kind
    try:
        with at.worktree.resolve(_below(at, entry.name)) as location:
            return None if hidden(location.path) else location.kind
    except (Escape, OSError):
        return None


def _shown(at: Workplace, name: str, kind: Kind) -> dict[str, Any]:
    if kind == "directory":
        return {"name": legible(name), "kind": "dir"}
    try:
        with at.worktree.resolve(_below(at, name)) as location:
            size = location.size
    except (Escape, OSError):
        size = 0  # gone since it was listed
    return {"name": legible(name), "kind": "file", "bytes": size}


def _below(at: Workplace, name: str) -> str:
    return f"{at.location.path}/{name}" if at.location.path else name
