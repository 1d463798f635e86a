"""What is known of a call before it runs: what the constraints of a grant are put on."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from skills import Contract, Directory, PlannedEffect, Quantity, Risk, SkillError

MAX_PATH = 4096
"""Characters of a path; the file system takes no more."""

_SEPARATORS = re.compile(r"[,;]")
_AWAY = re.compile(r"/|[A-Za-z]:")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a planned effect is, as far as its contract tells; None is what nobody knows, and denies where it is asked.

    `subject` is the broker's user that the request came from, where the broker vouched for it. `paths` are relative and
    normalised: those that were asked for, and where the links on their ways lead.
    """

    skill: str
    risk: Risk
    subject: str | None = None
    operation: str | None = None
    paths: tuple[str, ...] | None = None
    bytes: int | None = None
    recipients: int | None = None
    results: int | None = None

    @classmethod
    def of(
        cls,
        contract: Contract,
        effect: PlannedEffect | None = None,
        *,
        subject: str | None = None,
        worktree: Directory | None = None,
    ) -> "Facts":
        """The facts of a planned effect, or of any call of the skill; links are followed in `worktree`."""
        if effect is None:
            return cls(contract.id, contract.risk, subject)
        payload = effect.payload
        paths = _paths(_measured(contract, "path", payload))
        if paths is not None and worktree is not None:
            paths = _followed(paths, worktree)
        operation = _measured(contract, "operation", payload)
        return cls(
            contract.id,
            contract.risk,
            subject,
            operation if isinstance(operation, str) else None,
            paths,
            _bytes(_measured(contract, "bytes", payload)),
            _recipients(_measured(contract, "recipients", payload)),
            _count(_measured(contract, "results", payload)),
        )


def normalised(path: str) -> str | None:
    """The path without `.` and empty segments; None for what may mean another place to somebody else.

    That is an absolute path, one with a `..` segment, one with a character that can't be printed, and one with a
    backslash, which separates for some tools and is part of a name for others.
    """
    if len(path) > MAX_PATH or _AWAY.match(path) or "\\" in path or not path.isprintable():
        return None
    segments = [segment for segment in path.split("/") if segment not in ("", ".")]
    return None if ".." in segments else "/".join(segments)


def _measured(contract: Contract, quantity: Quantity, payload: Mapping[str, Any]) -> Any:
    where = contract.measures.get(quantity)
    if where is None or not where.startswith("/"):
        return where if where is None or quantity == "operation" else int(where)
    found: Any = payload
    for token in where[1:].split("/"):
        if not isinstance(found, Mapping):
            return None
        found = found.get(token.replace("~1", "/").replace("~0", "~"))
    return found


def _paths(value: Any) -> tuple[str, ...] | None:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not texts:
        return None
    found = [normalised(text) if isinstance(text, str) else None for text in texts]
    return None if None in found else tuple(path for path in found if path is not None)


def _followed(paths: tuple[str, ...], worktree: Directory) -> tuple[str, ...] | None:
    found = list(paths)
    for path in paths:
        try:
            with worktree.resolve(path) as location:
                found.append(location.path)
        except (SkillError, OSError, ValueError):
            return None
    return tuple(dict.fromkeys(found))


def _count(value: Any) -> int | None:
    if isinstance(value, list | tuple):
        return len(value)
    return value if type(value) is int and value >= 0 else None


def _bytes(value: Any) -> int | None:
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    return None if isinstance(value, list | tuple) else _count(value)


def _recipients(value: Any) -> int | None:
    if isinstance(value, str):
        # A mail system may part them by less than a comma.
        return max(sum(1 for part in _SEPARATORS.split(value) if part.strip()), value.count("@"), 1)
    return _count(value)
