"""The tool write_file: a text file of the workspace, written whole."""

from collections.abc import Mapping
from typing import Any

from .. import canonical
from ..contract import Contract, Effect, Risk
from ..errors import Refused
from ..plan import MAX_PAYLOAD, Plan, PlannedEffect
from ..skill import Context, Outcome, Skill
from .envelope import output_schema
from .files import FileTool, Workplace
from .paths import suffix
from .settings import FileSettings
from .text import text

MAX_BYTES = 262_144
MAX_VALUE = 65_536  # characters of content that is no string, which is made into text while others wait
MODE = 0o600
SUFFIXES = (".csv", ".html", ".json", ".jsonl", ".log", ".md", ".toml", ".tsv", ".txt", ".xml", ".yaml", ".yml")
DISABLED = "filesystem writes are disabled — pass --allow-write or set MKLANG_FS_WRITE=1"

_ON = frozenset({"1", "true", "yes", "on"})

CONTRACT = Contract(
    id="write_file",
    title="Write a file",
    description=(
        "Write a text file of the workspace, whole: `content` becomes the complete file, and missing folders are made. "
        "Give `path` relative to the workspace, with forward slashes; absolute paths, `..` and names that start with a "
        f"dot are refused. The name must end in one of {' '.join(SUFFIXES)}. The content may have up to {MAX_BYTES} "
        "bytes of UTF-8. A file that exists is replaced only with `overwrite: true`; read it first if you mean to "
        "change it. `written` is true when the file is there; otherwise `error` says why not and nothing has changed. "
        "Costs one Workspace.Write call."
    ),
    tags=("files", "workspace"),
    examples=('{"path": "notes/todo.md", "content": "- buy milk\\n"}',),
    input_schema={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "File, relative to the workspace"},
            "content": {"type": "string", "description": "The complete content of the file"},
            "overwrite": {"type": "boolean", "description": "Whether to replace a file that exists; default false"},
        },
        "required": ["path", "content"],
        "additionalProperties": True,
    },
    output_schema=output_schema(
        {
            "path": {"type": "string", "description": "The file, normalised; as you gave it on an error"},
            "bytes": {"type": "integer", "description": "How many bytes were written"},
            "written": {"type": "boolean"},
            "existed": {"type": "boolean", "description": "Whether the file was there before"},
        }
    ),
    access=Effect(name="Workspace.Write", scope="worktree", cost=0),
    effects=(Effect(name="Workspace.Write", scope="worktree"),),
    worktree=True,
    risk=Risk(read_only=False, external_egress=False, irreversible=False, sensitivity="workspace", idempotent=True),
    measures={"operation": "/op", "path": "/path", "bytes": "/content"},
)


def write_file(settings: FileSettings) -> Skill:
    """The skill, in the tier that the settings choose."""
    tool = FileTool(
        "write_file", "write", "Workspace.Write", {"bytes": 0, "written": False, "existed": False}, settings
    )

    def check(arguments: Mapping[str, Any], given: str) -> Mapping[str, Any]:
        if arguments.get("content") is None:
            raise Refused("missing content")
        tool.check_tier()
        if not settings.write.value:
            raise Refused(DISABLED)
        _check_suffix(tool.check_path(given))
        content = text(arguments["content"], at_most=MAX_VALUE)
        _check_size(content, given)
        overwrite = _agreed(arguments.get("overwrite"))
        return {"op": "overwrite" if overwrite else "create", "content": content, "overwrite": overwrite}

    def plan(arguments: Any) -> Plan:
        return tool.plan(arguments, check)

    def act(at: Workplace) -> dict[str, Any]:
        data: bytes = at.payload["content"].encode()
        overwrite: bool = at.payload["overwrite"]
        _check_suffix(at.location.path)  # a link's name says nothing about the file behind it
        at.worktree.protection.check(at.path)
        at.worktree.protection.check(at.location.path)
        existed = at.location.kind is not None
        if existed and not overwrite:
            raise Refused(_exists(at))
        try:
            at.location.write(data, mode=MODE, parents=True, replace=overwrite)
        except FileExistsError:
            raise Refused(_exists(at)) from None
        return tool.success(at.path, bytes=len(data), written=True, existed=existed)

    async def handle(effect: PlannedEffect, context: Context) -> Outcome:
        return await tool.run(effect, context, act)

    return tool.skill(CONTRACT, plan, handle)


def _check_suffix(path: str) -> None:
    found = suffix(path)
    if found not in SUFFIXES:
        raise Refused(f"suffix {found or '(none)'!r} is not writable (allowed: {' '.join(SUFFIXES)})")


def _check_size(content: str, given: str) -> None:
    size = len(content.encode())
    if size > MAX_BYTES:
        raise Refused(f"content is {size} bytes — write cap is {MAX_BYTES}")
    # JSON may take six bytes for one: only then can the payload be too large to carry.
    if size * 6 > MAX_PAYLOAD // 2 and len(canonical.encode([content, given])) > MAX_PAYLOAD - 100:
        raise Refused(f"write failed: the content takes more than {MAX_PAYLOAD} bytes as JSON")


def _agreed(given: Any) -> bool:
    return str(given).strip().lower() in _ON if isinstance(given, (str, int)) else False


def _exists(at: Workplace) -> str:
    return f"{at.given!r} exists — pass overwrite: true"
