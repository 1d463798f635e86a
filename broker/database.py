"""The database under the ledger: functions of a connection, each run in a transaction of its own."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Table, create_engine, event, inspect
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, OperationalError
from sqlalchemy.schema import CreateColumn

from . import schema

READERS = 4

T = TypeVar("T")


class LedgerError(Exception):
    """The ledger can't be opened or used as it is; the message says what to do."""


class Database:
    """A SQLite file, and functions of a connection run on it, each in a transaction of its own.

    Its driver is called in threads of our own, one hop for a whole transaction: an asynchronous
    driver makes one for every statement, which costs more than the statements do.
    """

    def __init__(self, url: URL) -> None:
        self._engine = create_engine(
            url, pool_size=READERS + 1, max_overflow=0, connect_args={"check_same_thread": False}
        )
        event.listen(self._engine, "connect", _prepare)
        event.listen(self._engine, "begin", _begin)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="ledger-writer")
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="ledger-reader")
        self._writing: Connection | None = None

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work`, which only reads, on one consistent view."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, work)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` and commit what it wrote, durably; nothing of it if it raises."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._write, work)

    def _read(self, work: Callable[[Connection], T]) -> T:
        with self._connect("BEGIN") as connection, connection.begin():
            return work(connection)

    def _write(self, work: Callable[[Connection], T]) -> T:
        # A transaction that reads and then writes must hold the write lock from its start, or two of them
        # could decide on the same budget.
        if self._writing is None:
            self._writing = self._connect("BEGIN IMMEDIATE")
        try:
            with self._writing.begin():
                return work(self._writing)
        except BaseException:
            self._stop_writing()
            raise

    def _connect(self, begin: str) -> Connection:
        return self._engine.connect().execution_options(skillbus_begin=begin)

    def _stop_writing(self) -> None:
        if self._writing is not None:
            self._writing.close()
            self._writing = None

    async def close(self) -> None:
        """Close every connection."""
        await asyncio.to_thread(self._writer.shutdown)
        await asyncio.to_thread(self._readers.shutdown)
        self._stop_writing()
        self._engine.dispose()


async def open_database(url: str) -> Database:
    """Open the SQLite file at `url`, a path or `sqlite:///PATH`, and make the tables that are missing.

    A ledger of an older schema is brought to this one. Raises LedgerError when it can't be opened, or when a newer
    Skillbus wrote it.
    """
    parsed = _parsed(url)
    database = Database(parsed)
    try:
        await database.write(_create_tables)
    except (OperationalError, DatabaseError, OSError) as error:
        await database.close()
        raise LedgerError(f"the ledger {parsed.render_as_string()} can't be opened: {_cause(error)}") from None
    except BaseException:
        await database.close()
        raise
    return database


def _parsed(url: str) -> URL:
    if "://" not in url:
        return URL.create("sqlite", database=str(Path(url).expanduser().absolute()))
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise LedgerError("the ledger must be the path of a SQLite file or a database URL") from None
    kind = parsed.get_backend_name()
    if kind != "sqlite":
        raise LedgerError(f"a ledger can't be kept in {kind!r}: use a SQLite file")
    return parsed.set(drivername=kind)


def _create_tables(connection: Connection) -> None:
    schema.metadata.create_all(connection)
    fact = schema.facts.c.name == "schema"
    found = connection.execute(schema.facts.select().where(fact).with_for_update()).first()
    if found is None:
        connection.execute(schema.facts.insert().values(name="schema", value=str(schema.VERSION)))
    elif found.value in ("1", "2"):
        _add_columns(connection, schema.calls)
        connection.execute(schema.facts.update().where(fact).values(value=str(schema.VERSION)))
    elif found.value != str(schema.VERSION):
        raise LedgerError(f"the ledger has schema {found.value}; this Skillbus knows {schema.VERSION}")


def _add_columns(connection: Connection, table: Table) -> None:
    """Give a table of an older schema the columns that it lacks; its rows stay as they are."""
    present = {column["name"] for column in inspect(connection).get_columns(table.name)}
    for column in table.columns:
        if column.name not in present:
            declared = CreateColumn(column).compile(dialect=connection.dialect)
            connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {declared}")


def _prepare(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # our own event begins transactions; the driver must not
    cursor = connection.cursor()
    for pragma in ("busy_timeout=30000", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options()["skillbus_begin"])


def _cause(error: BaseException) -> str:
    return str(getattr(error, "orig", None) or error).splitlines()[0]
