"""The native handler of ailang-read, ailang-write and ailang-edit: the file operations of policy-tool."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from typing import Any

from ..arguments import legible
from ..directory import Directory
from ..errors import Escape, Protected, Refused, SkillError
from ..plan import PlannedEffect
from ..skill import Context, Done, Failed, Outcome
from .native import TOOL

MAX_BYTES = 8_388_608
BRIEF = 65_536
SANDBOX = "worktree"  # how an escape names the root, which is nobody's business by its path

Operation = Callable[[Directory, Mapping[str, Any]], str]


async def handle(effect: PlannedEffect, context: Context) -> Outcome:
    """Run one operation in the worktree; a refusal is an answer, with `ok` false.

    `tool` is the content address of this handler, `policy_digest` the SHA-256 of the worktree's deny list.
    """
    if effect.scope != "worktree":
        return Failed(f'broker: {effect.effect} refused: scope "{effect.scope}" is not "worktree"')
    op = effect.payload.get("op")
    operation = OPERATIONS.get(effect.effect, {}).get(op) if isinstance(op, str) else None
    if operation is None:
        return Failed(f'broker: {effect.effect} refuses op "{op}": not in this effect\'s op allowlist')
    if context.worktree is None:
        return Failed(f"broker: {effect.effect} refused: no worktree")
    if operation is _read and _brief(context.worktree, effect.payload):
        return Done(_answer(operation, context.worktree, effect.payload))
    return Done(await asyncio.to_thread(_answer, operation, context.worktree, effect.payload))


def _brief(worktree: Directory, payload: Mapping[str, Any]) -> bool:
    """Whether a file is read in less than the time that a thread for it costs."""
    try:
        with worktree.resolve(payload.get("path", "")) as location:
            return location.size <= BRIEF
    except (SkillError, OSError, ValueError):
        return True  # and the answer says why


def _answer(operation: Operation, worktree: Directory, payload: Mapping[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any]
    try:
        content = operation(worktree, payload)
    except Refused as refused:
        answer = {"ok": False, "refused": legible(str(refused))}
    else:
        answer = {"ok": True, "content": content} if content else {"ok": True}
    return {**answer, "tool": TOOL, "policy_digest": worktree.protection.digest}


def _read(worktree: Directory, payload: Mapping[str, Any]) -> str:
    path = _path("read", payload)
    data = _bytes(worktree, path)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Refused(f"read {path}: content is not UTF-8 text (byte {error.start})") from None


def _write(worktree: Directory, payload: Mapping[str, Any]) -> str:
    path = _path("write", payload)
    _check_writable("write", worktree, path)
    _put("write", worktree, path, payload.get("content", "").encode())
    return ""


def _edit(worktree: Directory, payload: Mapping[str, Any]) -> str:
    """On bytes, so that what is not touched stays as it is, whatever its encoding."""
    path = _path("edit", payload)
    old = payload.get("old_text", "").encode()
    if not old:
        raise Refused(f"edit {path}: old_text is required (use write to create a file)")
    _check_writable("edit", worktree, path)
    data = _bytes(worktree, path)
    count = data.count(old)
    if count == 0:
        raise Refused(f"edit {path}: old_text not found — the file may have changed; read it again")
    if count > 1:
        raise Refused(f"edit {path}: old_text occurs {count} times; include more context so it is unique")
    _put("edit", worktree, path, data.replace(old, payload.get("new_text", "").encode()))
    return ""


OPERATIONS: Mapping[str, Mapping[str, Operation]] = {
    "Workspace.Read": {"read": _read},
    "Workspace.Write": {"write": _write, "edit": _edit},
}


def _path(op: str, payload: Mapping[str, Any]) -> str:
    path: str = payload.get("path", "")
    if not path:
        raise Refused(f"{op}: path is required")
    return path


def _check_writable(op: str, worktree: Directory, path: str) -> None:
    with _refusing(op, path):
        worktree.protection.check(path)


def _bytes(worktree: Directory, path: str) -> bytes:
    with _refusing("read", path), worktree.resolve(path) as location:
        if location.kind == "directory":
            raise Refused(f"read {path}: read {path}: is a directory")
        with location.open() as file:
            data = _all(file)
    if len(data) > MAX_BYTES:
        raise Refused(f"read {path}: file exceeds the {MAX_BYTES}-byte transfer cap")
    return data


def _all(file: FileIO) -> bytes:
    """The whole file, or one byte more than may be carried."""
    found = bytearray()
    while len(found) <= MAX_BYTES and (more := file.read(MAX_BYTES + 1 - len(found))):
        found += more
    return bytes(found)


def _put(op: str, worktree: Directory, path: str, data: bytes) -> None:
    if len(data) > MAX_BYTES:
        raise Refused(f"{op} {path}: content exceeds the {MAX_BYTES}-byte transfer cap")
    with _refusing(op, path), worktree.resolve(path) as location:
        if location.lacks_folder:
            why = "its folder does not exist, and write makes none"
            raise Refused(f"{op} {path}: openat {path}: no such file or directory: {why}")
        location.write(data)


@contextmanager
def _refusing(op: str, path: str) -> Iterator[None]:
    """Turn what the directory raises into the texts of policy-tool, which name the path as given."""
    try:
        yield
    except Escape:
        how = "" if path.startswith("/") else f": openat {path}: path escapes from parent"
        raise Refused(f'{op} {path}: path "{path}" escapes sandbox "{SANDBOX}"{how}') from None
    except Protected as protected:
        raise Refused(refusal_of(op, path, protected)) from None
    except OSError as error:
        raise Refused(f"{op} {path}: openat {path}: {(error.strerror or 'input/output error').lower()}") from None
    except ValueError:
        raise Refused(f"{op} {path}: openat {path}: invalid argument") from None


def refusal_of(op: str, path: str, protected: Protected) -> str:
    """The text of policy-tool for a path that must not be written."""
    if protected.pattern is None:
        return f"{op} {path}: .git/ is read-only to the lane's tools"
    return f'{op} {path}: matches fs_deny_write "{protected.pattern}" — read-only under this policy'
