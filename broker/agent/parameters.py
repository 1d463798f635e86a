"""What a request's JSON says, read strictly: whatever has another shape is refused with a word on what it must be."""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from bus import InvalidParams, Request

from ..pipeline.planned import ROOT_TASK

AFTER = "a2a-after-seq"

MAX_INT32 = 2**31 - 1
"""What the A2A data model's whole numbers hold."""

_KINDS: Mapping[type, str] = {dict: "an object", list: "an array", str: "a string"}
_REF = re.compile(r"sha256:[0-9a-f]{64}")
_T = TypeVar("_T")


def member(holder: Mapping[str, Any], name: str, kind: type[_T]) -> _T:
    """A member that must be there."""
    value = holder.get(name)
    if not isinstance(value, kind):
        raise InvalidParams(f"{name} must be {_KINDS[kind]}")
    return value


def flag(holder: Mapping[str, Any], name: str) -> bool:
    """A member that is true, false or missing."""
    value = holder.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidParams(f"{name} must be true or false")
    return value is True


def number(holder: Mapping[str, Any], name: str, least: int, most: int | None = None) -> int | None:
    """A whole number in these bounds, or None where there is none."""
    value = holder.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
        bounds = f"at least {least}" if most is None else f"{least} to {most}"
        raise InvalidParams(f"{name} must be a whole number, {bounds}")
    return value


def text(holder: Mapping[str, Any], name: str) -> str | None:
    """A string that says something, or None: ProtoJSON writes an empty one for one that is missing."""
    value = holder.get(name)
    if value is not None and (not isinstance(value, str) or len(value) > 255):
        raise InvalidParams(f"{name} must be a string of at most 255 characters")
    return value or None


def history_length(holder: Mapping[str, Any]) -> int:
    """How many messages of a task's history are wanted; none, when nothing is said."""
    return number(holder, "historyLength", 0, MAX_INT32) or 0


def configuration(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration of a request to send a message."""
    return {} if payload.get("configuration") is None else member(payload, "configuration", dict)


def skill_id(payload: Mapping[str, Any], message: Mapping[str, Any]) -> str:
    """Which skill is called: `skill_id` in the metadata of the message or of the request."""
    found = _metadata(payload, message, "skill_id")
    if found is None:
        raise InvalidParams("name the skill as skill_id in the metadata of the message or of the request")
    if isinstance(found[0], str) and found[0]:
        return found[0]
    raise InvalidParams("metadata.skill_id must be a non-empty string")


def transition(payload: Mapping[str, Any], message: Mapping[str, Any]) -> str | None:
    """The transition that the caller means the skill to be, by `transition_fn` in the same metadata."""
    found = _metadata(payload, message, "transition_fn")
    if found is None:
        return None
    if isinstance(found[0], str) and _REF.fullmatch(found[0]):
        return found[0]
    raise InvalidParams("metadata.transition_fn must be sha256: and 64 lower-case hexadecimal digits")


def _metadata(payload: Mapping[str, Any], message: Mapping[str, Any], name: str) -> tuple[Any] | None:
    for holder in (message, payload):
        metadata = holder.get("metadata")
        if isinstance(metadata, dict) and name in metadata:
            return (metadata[name],)
    return None


def arguments(message: Mapping[str, Any]) -> Any:
    """The arguments of a call: the one data part of its message."""
    parts = member(message, "parts", list)
    if len(parts) != 1 or not isinstance(parts[0], dict) or "data" not in parts[0]:
        raise InvalidParams("the message must have exactly one part, a data part that holds the arguments")
    return parts[0]["data"]


def root_task(request: Request) -> str | None:
    """The task that a call is part of."""
    return text(request.headers, ROOT_TASK)


def after(request: Request) -> int | None:
    """The place in a task's log after which a stream is wanted, or None."""
    value = request.headers.get(AFTER)
    if value is None:
        return None
    if not value.isascii() or not value.isdecimal() or len(value) > 18:
        raise InvalidParams(f"{AFTER} must be a whole number")
    return int(value)
