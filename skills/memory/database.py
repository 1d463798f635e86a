"""The database of a store: functions of a connection, each run in a transaction of its own, off the event loop."""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import create_engine, event
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from . import schema
from .errors import MemoryFault, StoreAway

CONNECTIONS = 4
WAIT = 10
"""Seconds that a transaction waits for others to end theirs, and a statement may take."""

T = TypeVar("T")
log = logging.getLogger(__name__)


class StoreError(Exception):
    """A store can't be opened; the message says what to do, and holds nothing of its URL."""


class Database:
    """A SQLite file or a PostgreSQL database.

    A synchronous driver in threads of our own: one hop for a whole transaction, and the same code for both.
    """

    def __init__(self, url: URL) -> None:
        self.kind = url.get_backend_name()
        sqlite = self.kind == "sqlite"
        arguments: dict[str, Any] = {"check_same_thread": False, "timeout": WAIT}
        if not sqlite:
            limits = f"-c statement_timeout={WAIT * 1000} -c lock_timeout={WAIT * 1000}"
            arguments = {"connect_timeout": WAIT, "options": limits, "application_name": "skillbus-memory"}
        self._engine = create_engine(
            url,
            pool_size=CONNECTIONS,
            max_overflow=0,
            pool_pre_ping=not sqlite,
            connect_args=arguments,
            hide_parameters=True,  # an error's text goes into logs, and what a statement holds may be secret
        )
        if sqlite:
            event.listen(self._engine, "connect", _prepare)
            event.listen(self._engine, "begin", _begin)
        self._threads = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="memory")
        # SQLite has one writer at a time; those of this process queue here rather than poll for its lock.
        self._turn = threading.Lock()

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work`, which only reads. Raises StoreAway, and what `work` raises."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, "BEGIN", work)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` and commit what it wrote; nothing of it if it raises. Raises StoreAway, and what `work` raises."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._write, work)

    async def close(self) -> None:
        """Close every connection."""
        await asyncio.to_thread(self._threads.shutdown)
        self._engine.dispose()

    def _write(self, work: Callable[[Connection], T]) -> T:
        if self.kind != "sqlite":
            return self._run("BEGIN", work)
        with self._turn:
            return self._run("BEGIN IMMEDIATE", work)

    def _run(self, begin: str, work: Callable[[Connection], T]) -> T:
        try:
            with self._engine.connect().execution_options(skillbus_begin=begin) as connection, connection.begin():
                return work(connection)
        except MemoryFault:
            raise
        except SQLAlchemyError as error:
            log.warning("a memory's store can't be used: %s", cause_of(error))
            raise StoreAway("the store of the memory can't be used now") from None


async def open_database(url: str) -> Database:
    """Open the database at `url`, `sqlite:///FILE` or `postgresql://…`, and make the tables that are missing.

    Raises StoreError.
    """
    try:
        parsed = make_url(url)
        kind = parsed.get_backend_name()
    except (ArgumentError, ValueError):
        raise StoreError("the URL of a store is sqlite:///FILE or postgresql://user:password@host/database") from None
    if kind == "sqlite" and parsed.database:
        Path(parsed.database).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        parsed = parsed.set(drivername="sqlite")
    elif kind in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    else:
        raise StoreError("memories are kept in SQLite or PostgreSQL, in no other database")
    try:
        database = Database(parsed)
    except ImportError:
        raise StoreError("PostgreSQL needs a driver: install skillbus[postgresql]") from None
    try:
        version = await asyncio.get_running_loop().run_in_executor(database._threads, _made, database)
    except SQLAlchemyError as error:
        await database.close()
        raise StoreError(f"the store can't be opened: {cause_of(error)}") from None
    if version != schema.VERSION:
        await database.close()
        raise StoreError(f"the store has schema {version}; this Skillbus knows {schema.VERSION}")
    return database


def cause_of(error: BaseException) -> str:
    """What a driver says of an error, in one line and without what a statement held."""
    cause = getattr(error, "orig", None) if isinstance(error, DBAPIError) else None
    return f"{type(cause or error).__name__}: {str(cause or error).strip().partition(chr(10))[0]}"


def _made(database: Database) -> str:
    options = {"skillbus_begin": "BEGIN IMMEDIATE"}
    with database._turn, database._engine.connect().execution_options(**options) as connection, connection.begin():
        return schema.create(connection)


def _prepare(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # our own event begins transactions; the driver must not
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options()["skillbus_begin"])
