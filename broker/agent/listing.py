"""ListTasks: which tasks are wanted, and where the next page begins (A2A 1.0, section 3.1.4)."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from bus import InvalidParams

from ..ledger.tasks import OPEN, Filter, Task
from .parameters import flag, history_length, number, text

PAGE = 50
MOST = 100
MAX_BYTES = 512 << 10
"""Bytes of results on one page, so that it fits into a message."""

_PREFIX = "TASK_STATE_"
_STATES = {OPEN, "completed", "failed", "canceled", "rejected"}
_NEVER = {"submitted", "input_required", "auth_required"}
"""States of A2A in which no task of ours is ever found."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A request for a page of tasks."""

    filter: Filter
    size: int
    history: int
    artifacts: bool

    @classmethod
    def read(cls, payload: Mapping[str, Any]) -> "Listing":
        """What a request asks for. Raises InvalidParams."""
        token = text(payload, "pageToken")
        wanted = Filter(
            context_id=text(payload, "contextId"),
            state=_state(text(payload, "status")),
            since=_time(text(payload, "statusTimestampAfter")),
            after=_place(token) if token else None,
        )
        size = number(payload, "pageSize", 1, MOST) or PAGE
        return cls(wanted, size, history_length(payload), flag(payload, "includeArtifacts"))

    def cut(self, tasks: list[Task]) -> tuple[list[Task], str]:
        """The tasks of this page out of one more than fit on it, and the token of the next page, empty on the last."""
        page: list[Task] = []
        room = MAX_BYTES
        for task in tasks[: self.size]:
            room -= len(task.receipt.output) if self.artifacts and task.receipt else 0
            if page and room < 0:
                break
            page.append(task)
        return page, _token(page[-1]) if len(page) < len(tasks) else ""


def _state(name: str | None) -> str | None:
    if name is None or name == f"{_PREFIX}UNSPECIFIED":
        return None
    state = name.removeprefix(_PREFIX).lower()
    if name != f"{_PREFIX}{state.upper()}" or state not in _STATES | _NEVER:
        raise InvalidParams("status must be the name of a task state")
    return state


def _time(value: str | None) -> float | None:
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidParams("statusTimestampAfter must be an RFC 3339 time")
    return moment.timestamp()


def _token(task: Task) -> str:
    return base64.urlsafe_b64encode(orjson.dumps([task.updated_at, task.id])).decode().rstrip("=")


def _place(token: str) -> tuple[float, str]:
    try:
        at, last = orjson.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    except (ValueError, TypeError):
        at, last = None, None
    if not isinstance(at, float | int) or not isinstance(last, str):
        raise InvalidParams("pageToken is not one that this agent gave")
    return float(at), last
