"""A full-text index of documents in one SQLite file, ranked by bm25."""

import os
import re
import sqlite3
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from ..errors import SkillError
from .passages import Passage

APPLICATION = 0x534B4231  # so that no other program's file is taken for an index, nor written to
VERSION = 1
BUSY_SECONDS = 5.0
MAX_WORDS = 32  # of a query
MAX_WORD = 64  # characters

_STEPS = 10_000  # of SQLite's machine between two looks whether to stop
_WORD = re.compile(r"\w+")
_SCHEMA = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS documents (
    id INTEGER PRIMARY KEY, folder BLOB NOT NULL, path BLOB NOT NULL, name TEXT NOT NULL, hash TEXT NOT NULL,
    bytes INTEGER NOT NULL, UNIQUE (folder, path)
);
CREATE TABLE IF NOT EXISTS passages (
    id INTEGER PRIMARY KEY, document INTEGER NOT NULL REFERENCES documents ON DELETE CASCADE,
    heading TEXT NOT NULL, body TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS passages_of ON passages (document);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (
    heading, body, content='passages', content_rowid='id', tokenize='porter unicode61 remove_diacritics 2'
);
CREATE TRIGGER IF NOT EXISTS passage_in AFTER INSERT ON passages BEGIN
    INSERT INTO words (rowid, heading, body) VALUES (new.id, new.heading, new.body);
END;
CREATE TRIGGER IF NOT EXISTS passage_out AFTER DELETE ON passages BEGIN
    INSERT INTO words (words, rowid, heading, body) VALUES ('delete', old.id, old.heading, old.body);
END;
"""
_MARKS = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION}; COMMIT;"


class IndexUnusable(SkillError):
    """The file can't be used as an index; `busy` says that it may be, later."""

    def __init__(self, message: str, *, busy: bool = False) -> None:
        self.busy = busy
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Document:
    """A document of the index; `name` is its folder's own name and its path there, as they may be shown."""

    id: int
    folder: bytes
    path: bytes
    name: str
    hash: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that was found; `snippet` is the part of it around the words, which stand in `[` and `]`."""

    name: str
    heading: str
    body: str
    snippet: str
    score: float


class Index:
    """The index in a file. Use it from one thread; close it, or use it as a context."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @classmethod
    def open(cls, file: Path, *, make: bool = False) -> "Index":
        """Open the index for reading, or to `make` and change it. Raises IndexUnusable."""
        try:
            if make:
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                # SQLite gives the files beside it the access that this one has.
                flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                os.close(os.open(file, flags, 0o600))
            if not stat.S_ISREG(file.stat().st_mode):
                raise IndexUnusable("it is not a regular file")
            with _explained():
                return cls(_connected(file, make=make))
        except (OSError, ValueError) as error:
            raise IndexUnusable(getattr(error, "strerror", None) or "it is no path of a file") from None

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> "Index":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stop_when(self, stop: threading.Event) -> None:
        """End a search that runs when `stop` is set; it raises IndexUnusable then."""
        self._connection.set_progress_handler(stop.is_set, _STEPS)

    def search(self, query: str, limit: int) -> list[Hit]:
        """The best passages that hold a word of the query; what it holds beside words says nothing."""
        words = list(dict.fromkeys(word[:MAX_WORD] for word in _WORD.findall(query)))[:MAX_WORDS]
        if not words:
            return []
        match = " OR ".join(f'"{word}"' for word in words)
        with _explained():
            rows = self._connection.execute(
                "SELECT documents.name, passages.heading, passages.body, snippet(words, 1, '[', ']', '…', 24), "
                "bm25(words, 3.0, 1.0) AS score FROM words JOIN passages ON passages.id = words.rowid "
                "JOIN documents ON documents.id = passages.document WHERE words MATCH ? "
                "ORDER BY score, passages.id LIMIT ?",
                (match, limit),
            ).fetchall()
        return [Hit(*row) for row in rows]

    def documents(self, folder: bytes | None = None) -> list[Document]:
        """The documents, or those of one folder, by folder and path."""
        where, values = ("WHERE folder = ?", (folder,)) if folder is not None else ("", ())
        with _explained():
            rows = self._connection.execute(
                f"SELECT id, folder, path, name, hash, bytes FROM documents {where} ORDER BY folder, path",  # noqa: S608
                values,
            ).fetchall()
        return [Document(*row) for row in rows]

    @contextmanager
    def change(self) -> Iterator[None]:
        """What is put and dropped within is there as a whole, or not at all."""
        with _explained():
            self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            with _explained():
                self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def put(self, document: Document, content: Iterable[Passage]) -> None:
        """Take a document, in the place of the one of the same folder and path. Its `id` counts for nothing."""
        with _explained():
            self._connection.execute(
                "DELETE FROM documents WHERE folder = ? AND path = ?", (document.folder, document.path)
            )
            row = self._connection.execute(
                "INSERT INTO documents (folder, path, name, hash, bytes) VALUES (?, ?, ?, ?, ?)",
                (document.folder, document.path, document.name, document.hash, document.bytes),
            ).lastrowid
            self._connection.executemany(
                "INSERT INTO passages (document, heading, body) VALUES (?, ?, ?)",
                ((row, passage.heading, passage.body) for passage in content),
            )

    def drop(self, documents: Iterable[Document]) -> None:
        """Forget documents."""
        with _explained():
            self._connection.executemany(
                "DELETE FROM documents WHERE id = ?", ((document.id,) for document in documents)
            )


def _connected(file: Path, *, make: bool) -> sqlite3.Connection:
    # A reader that may write can clear up after a writer that was killed.
    connection = sqlite3.connect(
        f"file:{quote(os.fsencode(file.absolute()))}?mode=rw",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=True,
    )
    try:
        (found,) = connection.execute("PRAGMA application_id").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if make and not found and not tables:
            connection.executescript(_SCHEMA + _MARKS)  # "if not exists": another may make it meanwhile
            found = APPLICATION
        if found != APPLICATION:
            raise IndexUnusable("it is not an index")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version != VERSION:
            raise IndexUnusable(f"it is an index of version {version}, and this is for version {VERSION}")
        connection.execute("PRAGMA foreign_keys = ON")
        # What does not fit into the cache would be written before the commit, and keep readers out from then on.
        connection.execute("PRAGMA cache_spill = OFF" if make else "PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        busy = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        raise IndexUnusable("another process is writing to it" if busy else str(error), busy=busy) from None
