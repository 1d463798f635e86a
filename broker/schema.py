"""The tables of the ledger, and the engine that opens them."""

from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
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
    event,
)
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

VERSION = 1

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

episodes = Table(
    "episodes",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Column("state_root", String(71), nullable=False),
    Column("log_head", String(71), nullable=False),
)
"""Where each episode's chain stands. A transaction locks this row before it touches anything of the episode."""

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
    Index("ix_calls_episode", "episode", "entry_index"),
    Index("ix_calls_lease", "owner", "lease_until"),
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


class LedgerError(Exception):
    """The ledger can't be opened or used as it is; the message says what to do."""


def open_engine(url: str) -> AsyncEngine:
    """An engine for `url`: `sqlite+aiosqlite:///PATH`, `postgresql+asyncpg://…`, or the path of a SQLite file.

    Raises LedgerError for a URL of another kind.
    """
    if "://" not in url:
        url = f"sqlite+aiosqlite:///{Path(url).expanduser().absolute()}"
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise LedgerError("the ledger must be the path of a SQLite file or a database URL") from None
    drivers = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
    dialect = parsed.get_backend_name()
    if dialect not in drivers:
        raise LedgerError(f"a ledger can't be kept in {dialect!r}: use a SQLite file or PostgreSQL")
    engine = create_async_engine(parsed.set(drivername=drivers[dialect]), pool_pre_ping=dialect != "sqlite")
    if dialect == "sqlite":
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        event.listen(engine.sync_engine, "begin", _begin_immediate)
    return engine


async def create_tables(engine: AsyncEngine) -> None:
    """Make what is missing. Raises LedgerError when a newer Skillbus wrote the ledger."""
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        found = (await connection.execute(facts.select().where(facts.c.name == "schema"))).first()
        if found is None:
            await connection.execute(facts.insert().values(name="schema", value=str(VERSION)))
        elif int(found.value) != VERSION:
            raise LedgerError(f"the ledger has schema {found.value}; this Skillbus knows {VERSION}")


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # SQLAlchemy's own events begin transactions; the driver must not.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=30000", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_immediate(connection: Connection) -> None:
    # A transaction that reads and then writes must hold the write lock from its start, or two of them
    # could decide on the same budget; read-only ones say so and stay concurrent.
    read_only = connection.get_execution_options().get("skillbus_read_only", False)
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")
