"""What a handler checks of a request before any process is started, whoever planned it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..arguments import legible
from ..errors import Refused
from ..plan import PlannedEffect
from .run import CAPS, MAX_ARGV, MAX_STDIN, check_argument, effect_of, is_json, size_of

OPS: Mapping[str, Collection[str]] = {
    "Workspace.Read": ("read",),
    "Workspace.Write": ("write", "edit"),
    "Ailang.Check": ("ai_check",),
    "Ailang.Discover": ("builtins_list", "examples_search"),
}
"""The operations of each effect; those of Ailang.CLI are the binary's own list."""

_FIELDS = ("path", "args_json", "stdin", "argv", "caps")


@dataclass(frozen=True, slots=True)
class Run:
    """A run as it was asked for; `caps` is its exact set of capabilities."""

    path: str
    args_json: str | None
    stdin: str
    argv: tuple[str, ...]
    caps: frozenset[str]


def check_scope(effect: PlannedEffect) -> None:
    """Raise Refused unless the effect is one of the worktree."""
    if effect.scope != "worktree":
        raise Refused(f'broker: {effect.effect} refused: scope "{effect.scope}" is not "worktree"')


def check_request(effect: PlannedEffect, ops: Collection[str]) -> str:
    """The operation that a request to policy-tool names, one of `ops`. Raises Refused."""
    check_scope(effect)
    name, payload = effect.effect, effect.payload
    _check_aliases(f"{name} refused", payload, ("op", "flags"))
    op, flags = payload.get("op"), payload.get("flags")
    if not isinstance(op, str):
        raise Refused(f"broker: {name} refused: op is not a string")
    if op not in ops:
        raise Refused(f'broker: {name} refuses op "{legible(op)}": not in this effect\'s op allowlist')
    if flags is not None and not isinstance(flags, Mapping):
        raise Refused(f'broker: {name} refuses op "{op}": flags is not a JSON object')
    if op == "fmt" and "write" in (flags or ()):
        why = f'flag "write" writes the worktree; {name} never writes (use Workspace.Write)'
        raise Refused(f'broker: {name} refuses op "fmt": {why}')
    return op


def check_run(effect: PlannedEffect) -> Run:
    """The run that an effect asks for. Raises Refused."""
    check_scope(effect)
    name, payload = effect.effect, effect.payload
    try:
        return _run(name, payload)
    except Refused as refused:
        raise Refused(f"broker: {name} refused: {refused}") from None


def _run(name: str, payload: Mapping[str, Any]) -> Run:
    for key in payload:
        alias = next((field for field in _FIELDS if key.casefold() == field), None)
        if key != alias:
            raise Refused(
                f'key "{legible(key)}" aliases "{alias}"' if alias else f'unknown payload key "{legible(key)}"'
            )
    path, args_json, stdin = payload.get("path"), payload.get("args_json"), payload.get("stdin", "")
    if "path" not in payload:
        raise Refused("path is required")
    if not isinstance(path, str) or not path:
        raise Refused("path must be a non-empty string")
    if "args_json" in payload and not (isinstance(args_json, str) and is_json(args_json)):
        raise Refused("args_json must be a string holding JSON")
    if not isinstance(stdin, str):
        raise Refused("stdin must be a string")
    if size_of(stdin) > MAX_STDIN:
        raise Refused(f"stdin is {size_of(stdin)} bytes; the limit is {MAX_STDIN}")
    argv = payload.get("argv", [])
    if not isinstance(argv, list) or not all(isinstance(item, str) for item in argv):
        raise Refused("argv must be an array of strings")
    if len(argv) > MAX_ARGV:
        raise Refused(f"argv has {len(argv)} items; the limit is {MAX_ARGV}")
    for item in argv:
        check_argument(item)
    caps = _caps(payload.get("caps", ["FS", "IO"]))
    if effect_of(caps) != name:
        raise Refused(f"caps [{' '.join(caps)}] run as {effect_of(caps)}, not {name}")
    if "\0" in path or "\0" in (args_json or ""):
        raise Refused("path and args_json must hold no NUL byte")
    return Run(path, args_json, stdin, tuple(argv), frozenset(caps))


def _caps(caps: Any) -> Sequence[str]:
    if not isinstance(caps, list) or not all(isinstance(cap, str) for cap in caps):
        raise Refused("caps must be an array of capability names")
    if not caps:
        raise Refused("caps names no capability")
    for cap in caps:
        if cap not in CAPS:
            raise Refused(f'unknown capability "{legible(cap)}"')
    if caps != sorted(set(caps)):
        raise Refused(f"caps [{' '.join(caps)}] is not sorted and distinct")
    if {"Env", "Net"} <= set(caps):
        raise Refused("caps names both Env and Net; one run takes at most one of them")
    return caps


def _check_aliases(who: str, payload: Mapping[str, Any], names: Sequence[str]) -> None:
    for key in payload:
        for name in names:
            if key != name and key.casefold() == name:
                raise Refused(f'broker: {who}: key "{legible(key)}" aliases "{name}"')
