"""The database under the ledger: functions of a connection, each run in a transaction of its own."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Table, create_engine, event, inspect
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, OperationalError
from sqlalchemy.schema import CreateColumn

from . import schema
from .watch import LedgerUnavailable, Watch, unavailable

READERS = 4
BUSY = 10.0
"""Seconds that a transaction waits for others to end theirs, before the ledger counts as away."""

LATE = 2.0
"""Seconds of such waiting after which leases may have run out because of it."""

T = TypeVar("T")


class LedgerError(Exception):
    """The ledger can't be opened or used as it is; the message says what to do."""


class Database:
    """A SQLite file, and functions of a connection run on it, each in a transaction of its own.

    Raises LedgerUnavailable when the file can't be reached, and while it is known that it can't be written.

    Its driver is called in threads of our own, one hop for a whole transaction: an asynchronous
    driver makes one for every statement, which costs more than the statements do.
    """

    def __init__(self, url: URL, *, busy: float = BUSY) -> None:
        self._path = Path(url.database) if url.database else None
        self._file: tuple[int, int] | None = None
        self._engine = create_engine(
            url,
            pool_size=READERS + 1,
            max_overflow=0,
            connect_args={"check_same_thread": False, "timeout": busy},
            hide_parameters=True,  # an error's text goes into logs, and what a statement holds may be secret
        )
        event.listen(self._engine, "connect", _prepare)
        event.listen(self._engine, "begin", _begin)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="ledger-writer")
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="ledger-reader")
        self._writing: Connection | None = None
        self.watch = Watch(self._probe)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work`, which only reads, on one consistent view."""
        return await self._noting(self._readers, self._read, work)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` and commit what it wrote, durably; nothing of it if it raises."""
        if self.watch.away is not None:
            raise LedgerUnavailable(self.watch.away)
        return await self._noting(self._writer, self._write, work)

    async def _probe(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._writer, self._write, _leave_mark)

    async def _noting(
        self, where: ThreadPoolExecutor, run: Callable[[Callable[[Connection], T]], T], work: Callable[[Connection], T]
    ) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(where, run, work)
        except LedgerUnavailable as error:
            self.watch.failed(error)
            raise

    def _read(self, work: Callable[[Connection], T]) -> T:
        try:
            self._look()
            with self._connect("BEGIN") as connection, connection.begin():
                return work(connection)
        except Exception as error:
            away = unavailable(error)
            if away is None:
                raise
            raise away from None

    def _write(self, work: Callable[[Connection], T]) -> T:
        # A transaction that reads and then writes must hold the write lock from its start, or two of them
        # could decide on the same budget.
        asked = time.monotonic()
        try:
            self._look()
            if self._writing is None:
                self._writing = self._connect("BEGIN IMMEDIATE")
            with self._writing.begin():
                if time.monotonic() - asked > LATE:
                    self.watch.late()
                return work(self._writing)
        except BaseException as error:
            away = unavailable(error)
            self._stop_writing(broken=away is not None)
            if away is None:
                raise
            raise away from None

    def _look(self) -> None:
        """A file that was deleted or replaced would take everything, and keep nothing."""
        if self._file is None or self._path is None:
            return
        try:
            found = self._path.stat()
        except FileNotFoundError:
            raise LedgerUnavailable("its file is gone") from None
        if (found.st_dev, found.st_ino) != self._file:
            raise LedgerUnavailable("another file stands in the place of its file; restart to use that one")

    async def open(self) -> None:
        """Make the tables that are missing. From here on this file is the ledger."""
        await asyncio.get_running_loop().run_in_executor(self._writer, self._write, _create_tables)
        if self._path is not None:
            found = self._path.stat()
            self._file = found.st_dev, found.st_ino

    def _connect(self, begin: str) -> Connection:
        return self._engine.connect().execution_options(skillbus_begin=begin)

    def _stop_writing(self, *, broken: bool = False) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            if broken:
                writing.invalidate()
            writing.close()

    async def close(self) -> None:
        """Close every connection."""
        await self.watch.close()
        await asyncio.to_thread(self._writer.shutdown)
        await asyncio.to_thread(self._readers.shutdown)
        self._stop_writing()
        self._engine.dispose()


async def open_database(url: str, *, busy: float = BUSY) -> Database:
    """Open the SQLite file at `url`, a path or `sqlite:///PATH`, and make the tables that are missing.

    `busy` is how many seconds a lock is waited for. A ledger of an older schema is brought to this one. Raises
    LedgerError when it can't be opened, or when a newer Skillbus wrote it.
    """
    parsed = _parsed(url)
    database = Database(parsed, busy=busy)
    try:
        await database.open()
    except LedgerUnavailable as error:
        await database.close()
        raise LedgerError(f"the ledger {parsed.render_as_string()} can't be opened: {error.cause}") from None
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
    for index in schema.calls.indexes:
        index.create(connection, checkfirst=True)
    fact = schema.facts.c.name == "schema"
    found = connection.execute(schema.facts.select().where(fact).with_for_update()).first()
    if found is None:
        connection.execute(schema.facts.insert().values(name="schema", value=str(schema.VERSION)))
    elif found.value in ("1", "2", "3", "4"):
        _add_columns(connection, schema.calls)
        connection.execute(schema.facts.update().where(fact).values(value=str(schema.VERSION)))
    elif found.value != str(schema.VERSION):
        raise LedgerError(f"the ledger has schema {found.value}; this Skillbus knows {schema.VERSION}")


def _leave_mark(connection: Connection) -> None:
    """Write something small: a full disk, or one that can't be written, lets everything else pass."""
    mark = {"name": "probe", "value": str(time.time())}
    connection.execute(schema.facts.delete().where(schema.facts.c.name == "probe"))
    connection.execute(schema.facts.insert().values(mark))


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
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options()["skillbus_begin"])


def _cause(error: BaseException) -> str:
    return str(getattr(error, "orig", None) or error).splitlines()[0]
