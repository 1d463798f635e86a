"""The tables of the ledger."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    text,
)

VERSION = 5
"""2: events of tasks, cancels, and what a call needs to be told of and recovered. 3: push notifications, waiters.
4: grants with constraints. 5: the plan and the contract that a call was begun with.

See `broker.ledger.database`.
"""

metadata = MetaData()

facts = Table(
    "facts",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)
"""What the ledger knows of itself: its schema's version."""

sessions = Table(
    "sessions",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("public_key", LargeBinary, nullable=False),
    Column("episode", String(64), nullable=False, index=True),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("revoked_at", BigInteger),
)

grants = Table(
    "grants",
    metadata,
    Column("session", String(64), ForeignKey("sessions.id"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("effect", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("budget", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)

narrowed_grants = Table(
    "narrowed_grants",
    metadata,
    Column("session", String(64), ForeignKey("sessions.id"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("effect", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("budget", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("constraints", Text, nullable=False),
)
"""The grants with constraints. A worker that knows of none does not look here, and so grants less, not more."""

episodes = Table(
    "episodes",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Column("state_root", String(71), nullable=False),
    Column("log_head", String(71), nullable=False),
)
"""Where each episode's chain stands."""

spend = Table(
    "spend",
    metadata,
    Column("episode", String(64), primary_key=True),
    Column("effect", Text, primary_key=True),
    Column("scope", Text, primary_key=True),
    Column("spent", BigInteger, nullable=False),
)

calls = Table(
    "calls",
    metadata,
    Column("task_id", String(64), primary_key=True),
    Column("episode", String(64), nullable=False),
    Column("message_id", Text, nullable=False),
    Column("context_id", Text, nullable=False),
    Column("session", String(64), nullable=False),
    Column("skill", Text, nullable=False),
    Column("fingerprint", String(71), nullable=False),
    # the intent: durable before the effect runs
    Column("effect", Text),
    Column("scope", Text),
    Column("cost", Integer, nullable=False, default=0),
    Column("budget_before", BigInteger),
    Column("request_ref", String(71)),
    Column("owner", Text),
    Column("epoch", Integer, nullable=False, default=0),
    Column("lease_until", Float),
    Column("opened_at", Float, nullable=False),
    # the outcome: durable before anyone is told
    Column("state", String(16)),
    Column("outcome", Text),
    Column("entry_index", BigInteger),
    Column("output_ref", String(71)),
    Column("metadata", Text),
    Column("closed_at", Float),
    # since schema 2
    Column("events", Integer, nullable=False, server_default="0"),
    Column("updated_at", Float),
    Column("input_ref", String(71)),
    Column("deadline", Float),
    Column("root_task", Text),
    # since schema 4
    Column("narrowing", Text),
    # since schema 5
    Column("plan_ref", String(71)),
    Column("transition_ref", String(71)),
    Index("ix_calls_episode", "episode", "entry_index"),
    Index("ix_calls_lease", "owner", "lease_until"),
    Index("ix_calls_open", "lease_until", sqlite_where=text("state IS NULL")),
)
"""One row a call: its intent, and its outcome once `state` is set."""

objects = Table(
    "objects",
    metadata,
    Column("ref", String(71), primary_key=True),
    Column("semantic_id", Text, nullable=False),
    Column("payload", LargeBinary, nullable=False),
)

entries = Table(
    "entries",
    metadata,
    Column("episode", String(64), primary_key=True),
    Column("entry_index", BigInteger, primary_key=True),
    Column("hash", String(71), nullable=False),
    Column("encoded", LargeBinary, nullable=False),
    Column("task_id", String(64), nullable=False, unique=True),
)
"""The log: `encoded` is exactly what `hash` was taken of."""

task_events = Table(
    "task_events",
    metadata,
    Column("task_id", String(64), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at", Float, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("ix_task_events_at", "at"),
)
"""What running calls reported, from 1; the beginning and the end of a task stand in its row of `calls`."""

cancels = Table(
    "cancels",
    metadata,
    Column("task_id", String(64), primary_key=True),
    Column("episode", String(64), primary_key=True),
    Column("at", Float, nullable=False),
    Column("seen", Boolean, nullable=False),
)
"""Tombstones: who runs such a task has to end it. Those of tasks not `seen` in the ledger so far reach no others."""

push_configs = Table(
    "push_configs",
    metadata,
    Column("task_id", String(64), primary_key=True),
    Column("session", String(64), primary_key=True),
    Column("id", Text, primary_key=True),
    Column("episode", String(64), nullable=False),
    Column("url", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("token", Text),
    Column("scheme", Text),
    Column("credentials", Text),
    Column("created_at", Float, nullable=False),
    # how far it is: the place in the task's log that was taken last, and when to go on
    Column("place", BigInteger, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("due_at", Float, nullable=False),
    Column("owner", Text),
    Column("lease_until", Float),
    Column("ended_at", Float),
    Column("outcome", Text),
    Index("ix_push_configs_due", "ended_at", "due_at"),
)
"""Who is to be told of a task. It is the outbox too: what is not taken yet is what the task's log has past `place`."""

waiters = Table(
    "waiters",
    metadata,
    Column("task_id", String(64), primary_key=True),
    Column("address", Text, primary_key=True),
    Column("operation", Text, nullable=False),
    Column("history", Integer, nullable=False),
)
"""Who waits for the answer to an open call whose request is acknowledged already."""
