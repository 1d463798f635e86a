"""Who may, and what it costs: sessions, grants and budgets; the way of a call; the ledger and its proof.

This module is the map: all that is public stands here. It imports `skills` for contracts and `bus` for the protocol of
an agent, and nothing of AMQP. It loads nothing before it is asked for: a caller that only signs its requests needs no
database.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agent.agent import SCHEMAS, SkillAgent
    from .agent.signing import SigningKey, SigningKeyError
    from .chain.links import Link, Walk
    from .chain.provenance import NotFound, Provenance, Verdict
    from .chain.replay import Difference, Replay, Replayed
    from .chain.trailer import Trailer, TrailerError
    from .grants.constraints import ConstraintError, Constraints
    from .grants.facts import Facts
    from .grants.grant import PRESETS, Decision, Grant, GrantError, decide, parse_grant, sees
    from .grants.policy import HostPolicy
    from .ledger.ledger import Ledger, LedgerError, LogEntry
    from .ledger.operations import Receipt
    from .ledger.tasks import Event, Filter, Task, Tasks
    from .pipeline.pipeline import Asked, Pipeline
    from .sessions import Credential, Session, SessionError, mint
    from .worktrees.worktrees import WorktreeError, Worktrees

_MODULES = {
    "SCHEMAS": "agent.agent",
    "SkillAgent": "agent.agent",
    "ConstraintError": "grants.constraints",
    "Constraints": "grants.constraints",
    "Facts": "grants.facts",
    "PRESETS": "grants.grant",
    "Decision": "grants.grant",
    "Grant": "grants.grant",
    "GrantError": "grants.grant",
    "decide": "grants.grant",
    "parse_grant": "grants.grant",
    "sees": "grants.grant",
    "Ledger": "ledger.ledger",
    "LedgerError": "ledger.ledger",
    "LogEntry": "ledger.ledger",
    "Link": "chain.links",
    "Walk": "chain.links",
    "Receipt": "ledger.operations",
    "Asked": "pipeline.pipeline",
    "Pipeline": "pipeline.pipeline",
    "HostPolicy": "grants.policy",
    "NotFound": "chain.provenance",
    "Provenance": "chain.provenance",
    "Verdict": "chain.provenance",
    "Difference": "chain.replay",
    "Replay": "chain.replay",
    "Replayed": "chain.replay",
    "Credential": "sessions",
    "Session": "sessions",
    "SessionError": "sessions",
    "mint": "sessions",
    "SigningKey": "agent.signing",
    "SigningKeyError": "agent.signing",
    "Event": "ledger.tasks",
    "Filter": "ledger.tasks",
    "Task": "ledger.tasks",
    "Tasks": "ledger.tasks",
    "Trailer": "chain.trailer",
    "TrailerError": "chain.trailer",
    "WorktreeError": "worktrees.worktrees",
    "Worktrees": "worktrees.worktrees",
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
