"""Who may, and what it costs: sessions, grants and budgets; the way of a call; the ledger and its proof.

This module is the map: all that is public stands here. It imports `skills` for contracts and `bus` for the protocol of
an agent, and nothing of AMQP. It loads nothing before it is asked for: a caller that only signs its requests needs no
database.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agent import SCHEMAS, SkillAgent
    from .constraints import ConstraintError, Constraints
    from .facts import Facts
    from .grants import PRESETS, Decision, Grant, GrantError, decide, parse_grant, sees
    from .ledger import Ledger, LedgerError, LogEntry
    from .links import Link, Walk
    from .operations import Receipt
    from .pipeline import Asked, Pipeline
    from .policy import HostPolicy
    from .provenance import NotFound, Provenance, Verdict
    from .replay import Difference, Replay, Replayed
    from .sessions import Credential, Session, SessionError, mint
    from .signing import SigningKey, SigningKeyError
    from .tasks import Event, Filter, Task, Tasks
    from .trailer import Trailer, TrailerError
    from .worktrees import WorktreeError, Worktrees

_MODULES = {
    "SCHEMAS": "agent",
    "SkillAgent": "agent",
    "ConstraintError": "constraints",
    "Constraints": "constraints",
    "Facts": "facts",
    "PRESETS": "grants",
    "Decision": "grants",
    "Grant": "grants",
    "GrantError": "grants",
    "decide": "grants",
    "parse_grant": "grants",
    "sees": "grants",
    "Ledger": "ledger",
    "LedgerError": "ledger",
    "LogEntry": "ledger",
    "Link": "links",
    "Walk": "links",
    "Receipt": "operations",
    "Asked": "pipeline",
    "Pipeline": "pipeline",
    "HostPolicy": "policy",
    "NotFound": "provenance",
    "Provenance": "provenance",
    "Verdict": "provenance",
    "Difference": "replay",
    "Replay": "replay",
    "Replayed": "replay",
    "Credential": "sessions",
    "Session": "sessions",
    "SessionError": "sessions",
    "mint": "sessions",
    "SigningKey": "signing",
    "SigningKeyError": "signing",
    "Event": "tasks",
    "Filter": "tasks",
    "Task": "tasks",
    "Tasks": "tasks",
    "Trailer": "trailer",
    "TrailerError": "trailer",
    "WorktreeError": "worktrees",
    "Worktrees": "worktrees",
}

__all__ = [  # noqa: RUF022 - in the order a reader needs them
    # Who is calling, and what was granted
    "mint",
    "Credential",
    "Session",
    "SessionError",
    "Grant",
    "GrantError",
    "PRESETS",
    "parse_grant",
    "Constraints",
    "ConstraintError",
    "Facts",
    "HostPolicy",
    "decide",
    "Decision",
    "sees",
    # The way of one call
    "Pipeline",
    "Asked",
    "Receipt",
    "Worktrees",
    "WorktreeError",
    # What is kept, and how it is proven
    "Ledger",
    "LedgerError",
    "LogEntry",
    "Tasks",
    "Task",
    "Event",
    "Filter",
    "Provenance",
    "Walk",
    "Link",
    "Verdict",
    "NotFound",
    "Replay",
    "Replayed",
    "Difference",
    "Trailer",
    "TrailerError",
    # The agent that the bus serves
    "SkillAgent",
    "SCHEMAS",
    "SigningKey",
    "SigningKeyError",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
