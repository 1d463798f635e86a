"""The tables of a store, and how each database searches them."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    cast,
    column,
    func,
    literal_column,
    table,
)
from sqlalchemy.dialects.postgresql import TSQUERY, TSVECTOR
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.sql import ColumnElement, Select
from sqlalchemy.types import TypeEngine

VERSION = "1"
ADVISORY_LOCK = 0x736B_6D65_6D31  # of those who make the tables at the same time
MOST_PLACES = 255  # of one word that PostgreSQL keeps
LAST_PLACE = 16_383

# Keys are compared and put in order by their bytes, wherever they are kept.
_Key = String().with_variant(String(collation="C"), "postgresql")
_Number = BigInteger().with_variant(Integer, "sqlite")


class Words(TypeDecorator[Any]):
    """The words of a value: a text that FTS5 indexes, or a tsvector."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """The type that the column has."""
        return dialect.type_descriptor(TSVECTOR() if dialect.name == "postgresql" else Text())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """The words as the database takes them. They are letters and digits alone, so nothing needs quoting."""
        return _vector(value) if dialect.name == "postgresql" else " ".join(value)


metadata = MetaData()
facts = Table("memory_facts", metadata, Column("name", String, primary_key=True), Column("value", String))
scopes = Table(
    "memory_scopes",
    metadata,
    Column("id", _Number, primary_key=True),
    Column("memory", String, nullable=False),
    Column("scope", String, nullable=False),
    Column("owner", String, nullable=False),
    Column("floor", _Number, nullable=False),  # the highest version that a key which is gone has had
    Column("keys", _Number, nullable=False),
    Column("bytes", _Number, nullable=False),
    UniqueConstraint("memory", "scope", "owner"),
)
entries = Table(
    "memory_entries",
    metadata,
    Column("id", _Number, primary_key=True),
    Column("scope_id", _Number, nullable=False),
    Column("key", _Key, nullable=False),
    Column("version", _Number, nullable=False),
    Column("value", Text, nullable=False),
    Column("size", Integer, nullable=False),
    Column("words", Words, nullable=False),
    Column("invocation", String, nullable=False),
    Column("written_at", Float, nullable=False),
    UniqueConstraint("scope_id", "key"),
)
commits = Table(
    "memory_commits",
    metadata,
    Column("invocation", String, primary_key=True),
    Column("result", Text, nullable=False),
    Column("committed_at", Float, nullable=False),
    Index("ix_memory_commits_at", "committed_at"),
)
_FTS = table("memory_words", column("rowid"), column("words"))
_SQLITE = (
    (
        "CREATE VIRTUAL TABLE IF NOT EXISTS memory_words USING fts5("
        "words, content='memory_entries', content_rowid='id', tokenize='unicode61 remove_diacritics 0')"
    ),
    (
        "CREATE TRIGGER IF NOT EXISTS memory_words_in AFTER INSERT ON memory_entries BEGIN "
        "INSERT INTO memory_words(rowid, words) VALUES (new.id, new.words); END"
    ),
    (
        "CREATE TRIGGER IF NOT EXISTS memory_words_out AFTER DELETE ON memory_entries BEGIN "
        "INSERT INTO memory_words(memory_words, rowid, words) VALUES ('delete', old.id, old.words); END"
    ),
    (
        "CREATE TRIGGER IF NOT EXISTS memory_words_change AFTER UPDATE ON memory_entries BEGIN "
        "INSERT INTO memory_words(memory_words, rowid, words) VALUES ('delete', old.id, old.words); "
        "INSERT INTO memory_words(rowid, words) VALUES (new.id, new.words); END"
    ),
)
_POSTGRESQL = ("CREATE INDEX IF NOT EXISTS ix_memory_words ON memory_entries USING gin (words)",)


def create(connection: Connection) -> str:
    """Make the tables that are missing; the version of those that are there."""
    postgresql = connection.dialect.name == "postgresql"
    if postgresql:
        connection.execute(func.pg_advisory_xact_lock(ADVISORY_LOCK).select())
    metadata.create_all(connection)
    for statement in _POSTGRESQL if postgresql else _SQLITE:
        connection.exec_driver_sql(statement)
    version = connection.execute(facts.select().where(facts.c.name == "schema")).first()
    if version is None:
        connection.execute(facts.insert().values(name="schema", value=VERSION))
        return VERSION
    return str(version.value)


def matching(entries_of: Select[Any], words: Sequence[str], dialect: str) -> Select[Any]:
    """The entries that have all these words, those that have them more often in less text first.

    How often a word stands in other scopes has no part in the order, as it would tell something of them.
    """
    if dialect == "postgresql":
        query = cast(" & ".join(f"'{word}'" for word in words), TSQUERY)
        rank: ColumnElement[Any] = func.ts_rank(entries.c.words, query, 1)
        found = entries_of.where(entries.c.words.op("@@")(query))
    else:
        phrase = " AND ".join(f'"{word}"' for word in words)
        marked = func.highlight(literal_column("memory_words"), 0, "\x01", "")
        hits = func.length(marked) - func.length(_FTS.c.words)
        rank = hits * 1.0 / (100 + func.length(_FTS.c.words))
        found = entries_of.join(_FTS, _FTS.c.rowid == entries.c.id)
        found = found.where(literal_column("memory_words").op("MATCH")(phrase))
    return found.order_by(rank.desc(), entries.c.written_at.desc(), entries.c.key)


def _vector(words: Sequence[str]) -> str:
    places: dict[str, list[int]] = {}
    for place, word in enumerate(words, 1):
        at = places.setdefault(word, [])
        if len(at) < MOST_PLACES:
            at.append(min(place, LAST_PLACE))
    return " ".join(f"'{word}':{','.join(map(str, at))}" for word, at in places.items())
