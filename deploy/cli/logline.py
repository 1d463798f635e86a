"""An entry of the log as one line, and as JSON: what was asked, which effect ran, what came of it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .screen import legible, style

if TYPE_CHECKING:
    from broker.ledger.ledger import Ledger, LogEntry


@dataclass(frozen=True, slots=True)
class Ran:
    """One effect of a call; `status` is ok, failed, indeterminate, or the label of a denial."""

    effect: str
    scope: str
    status: str


@dataclass(frozen=True, slots=True)
class LogLine:
    """A log entry and what its objects say of its effects."""

    entry: "LogEntry"
    written_by: str
    skill: str
    effects: tuple[Ran, ...]

    def __str__(self) -> str:
        """`#1 ef2b3322 coordinator:a2a ep1 ailang-read [Workspace.Read ok]`."""
        entry = self.entry
        ran = ", ".join(f"{ran.effect} {ran.status}" for ran in self.effects) or "no effects"
        head = f"#{entry.index} {entry.hash.removeprefix('sha256:')[:8]} {self.written_by} {entry.episode} {self.skill}"
        return f"{legible(head)} {style(f'[{legible(ran)}]', self._color)}"

    @property
    def _color(self) -> str:
        states = {"completed": "green", "rejected": "yellow"}
        return states.get(self.entry.state or "", "red")

    def as_json(self) -> dict[str, Any]:
        entry = self.entry
        return {
            "episode": entry.episode,
            "index": entry.index,
            "hash": entry.hash,
            "writtenBy": self.written_by,
            "skill": self.skill,
            "state": entry.state,
            "outcome": entry.outcome,
            "effects": [{"effect": ran.effect, "scope": ran.scope, "status": ran.status} for ran in self.effects],
            "taskId": entry.task_id,
            "messageId": entry.message_id,
            "session": entry.session,
            "output": entry.output_ref,
            "closedAt": entry.closed_at,
        }


async def read_lines(ledger: "Ledger", entries: Sequence["LogEntry"]) -> list[LogLine]:
    """The lines of `entries`. What an object does not tell is left out: finding faults is for `log verify`."""
    headers = [_object(entry.encoded) for entry in entries]
    records = await _objects(ledger, [header.get("transitionRef") for header in headers])
    refs = [ref for record in records.values() for ref in _list(record.get("effects"))]
    effects = await _objects(ledger, refs)
    lines = []
    for entry, header in zip(entries, headers, strict=True):
        record = records.get(str(header.get("transitionRef")), {})
        ran = tuple(_ran(effects.get(str(ref), {}), entry.outcome) for ref in _list(record.get("effects")))
        skill = entry.skill or str(record.get("skillId", "?"))
        lines.append(LogLine(entry, str(header.get("writtenBy", "?")), skill, ran))
    return lines


def _ran(record: Mapping[str, Any], outcome: str | None) -> Ran:
    if not record:
        status = "unknown"
    elif record.get("denial"):
        status = str(record["denial"])
    elif record.get("failed"):
        status = "indeterminate" if outcome == "indeterminate" else "failed"
    else:
        status = "ok"
    return Ran(str(record.get("effect", "?")), str(record.get("scope", "?")), status)


async def _objects(ledger: "Ledger", refs: Sequence[Any]) -> dict[str, Mapping[str, Any]]:
    named = sorted({ref for ref in refs if isinstance(ref, str)})
    return {ref: _object(found.payload) for ref, found in (await ledger.objects(named)).items()}


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
