"""A store of memories: what a call reads from it, and the one transaction that keeps what a call has changed."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from . import schema
from .database import Database, open_database
from .entry import Change, Changes, Entry, Versions
from .errors import Conflict, TooMuch
from .limits import LIMITS, Limits
from .place import Place
from .words import query_words

KEPT_SECONDS = 7 * 24 * 3600.0
"""How long the outcome of a call is known here: longer than any call may take until the ledger has it."""

_HERE = (schema.scopes.c.memory == bindparam("memory")) & (schema.scopes.c.scope == bindparam("scope_name"))
_HERE &= schema.scopes.c.owner == bindparam("owner")
_COLUMNS = (schema.entries.c.key, schema.entries.c.version, schema.entries.c.value)
_ENTRIES = select(*_COLUMNS).select_from(
    schema.entries.join(schema.scopes, schema.entries.c.scope_id == schema.scopes.c.id)
)
_ENTRIES = _ENTRIES.where(_HERE)
_FLOOR = select(schema.scopes.c.floor).where(_HERE)
_SCOPE = select(schema.scopes).where(_HERE).with_for_update()
_STANDING = select(schema.entries.c.id, schema.entries.c.key, schema.entries.c.version, schema.entries.c.size).where(
    (schema.entries.c.scope_id == bindparam("scope_id")) & schema.entries.c.key.in_(bindparam("names", expanding=True))
)
_CHANGED = ("version", "value", "size", "words", "invocation", "written_at")
_CHANGE = (
    schema.entries.update()
    .where(schema.entries.c.id == bindparam("entry"))
    .values({name: bindparam(f"new_{name}", type_=schema.entries.c[name].type) for name in _CHANGED})
)
_END = schema.entries.delete().where(schema.entries.c.id == bindparam("entry"))


class MemoryStore:
    """Memories in one database. No entry of one place is seen or changed by what is asked for another."""

    def __init__(self, database: Database, limits: Limits = LIMITS, clock: Callable[[], float] = time.time) -> None:
        self.limits = limits
        self._database = database
        self._clock = clock
        insert: Any = postgresql.insert if database.kind == "postgresql" else sqlite.insert
        self._open_scope = insert(schema.scopes).on_conflict_do_nothing()
        self._claim = insert(schema.commits).on_conflict_do_nothing().returning(schema.commits.c.invocation)

    @classmethod
    async def open(cls, url: str, limits: Limits = LIMITS, clock: Callable[[], float] = time.time) -> "MemoryStore":
        """Open the store at a database's URL. Raises StoreError."""
        return cls(await open_database(url), limits, clock)

    async def close(self) -> None:
        """Close every connection."""
        await self._database.close()

    async def get(self, place: Place, key: str) -> tuple[Entry | None, int]:
        """The entry of a key, and the version that its next one has at least, less one."""

        def work(connection: Connection) -> tuple[Entry | None, int]:
            found = connection.execute(_ENTRIES.where(schema.entries.c.key == key), _at(place)).first()
            if found is not None:
                return Entry(found.key, found.version, found.value), found.version
            return None, connection.execute(_FLOOR, _at(place)).scalar() or 0

        return await self._database.read(work)

    async def keys(self, place: Place, prefix: str, limit: int, after: str) -> list[Entry]:
        """Keys that begin with `prefix` and stand behind `after`, in the order of their bytes; without their values."""
        named = schema.entries.c.key
        query = _ENTRIES.with_only_columns(named, schema.entries.c.version).where(named >= prefix)
        query = query.where(named > after) if after else query
        beyond = _beyond(prefix)
        query = query.where(named < beyond) if beyond else query
        query = query.order_by(named).limit(limit)

        def work(connection: Connection) -> list[Entry]:
            return [Entry(row.key, row.version) for row in connection.execute(query, _at(place))]

        return await self._database.read(work)

    async def search(self, place: Place, text: str, limit: int) -> list[Entry]:
        """Entries that have every word of the text, the best first."""
        words = query_words(text)
        if not words:
            return []
        query = schema.matching(_ENTRIES, words, self._database.kind).limit(limit)

        def work(connection: Connection) -> list[Entry]:
            return [Entry(row.key, row.version, row.value) for row in connection.execute(query, _at(place))]

        return await self._database.read(work)

    async def result(self, call: str) -> str | None:
        """What a call that has changed something came to, if it has ended here before."""
        query = select(schema.commits.c.result).where(schema.commits.c.invocation == call)
        return await self._database.read(lambda connection: connection.execute(query).scalar())

    async def commit(self, call: str, changes: Changes, result: Callable[[Versions], str]) -> str:
        """Keep all changes of a call and its result, or nothing; the result.

        `result` is asked once it is known which versions the keys got. A call that has ended here before changes
        nothing and has the result that it had. Raises Conflict and TooMuch.
        """

        def work(connection: Connection) -> str:
            now = self._clock()
            row = {"invocation": call, "result": "", "committed_at": now}
            if connection.execute(self._claim, row).first() is None:
                query = select(schema.commits.c.result).where(schema.commits.c.invocation == call)
                return str(connection.execute(query).scalar_one())
            # always in the same order, so that no two calls wait for each other
            versions = {place: self._change(connection, place, changes[place], call, now) for place in sorted(changes)}
            text = result(versions)
            known = schema.commits.c
            connection.execute(schema.commits.update().where(known.invocation == call).values(result=text))
            connection.execute(schema.commits.delete().where(known.committed_at < now - KEPT_SECONDS))
            return text

        return await self._database.write(work)

    def _change(
        self, connection: Connection, place: Place, changes: Mapping[str, Change], call: str, at: float
    ) -> dict[str, int]:
        names = {"memory": place.memory, "scope": place.scope, "owner": place.owner}
        connection.execute(self._open_scope, names | {"floor": 0, "keys": 0, "bytes": 0})
        scope = connection.execute(_SCOPE, _at(place)).one()
        standing = {
            row.key: row for row in connection.execute(_STANDING, {"scope_id": scope.id, "names": list(changes)})
        }
        floor, keys, size = scope.floor, scope.keys, scope.bytes
        new: list[dict[str, Any]] = []
        changed: list[dict[str, Any]] = []
        ended: list[dict[str, Any]] = []
        versions: dict[str, int] = {}
        for key, change in changes.items():
            old = standing.get(key)
            now = old.version if old else 0
            if change.over is not None and change.over != now:
                raise Conflict(f"{key!r} was changed by another call: its version is {now} and not {change.over}")
            keys -= old is not None
            size -= old.size if old else 0
            if change.value is None:
                if old is not None:
                    ended.append({"entry": old.id})
                    floor = max(floor, now)
                versions[key] = now
                continue
            versions[key] = max(change.version, (now or floor) + 1)
            row = {
                "version": versions[key],
                "value": change.value,
                "size": len(key.encode()) + len(change.value.encode()),
                "words": change.words,
                "invocation": call,
                "written_at": at,
            }
            keys += 1
            size += row["size"]
            if old is None:
                new.append({"scope_id": scope.id, "key": key, **row})
            else:
                changed.append({"entry": old.id, **{f"new_{name}": value for name, value in row.items()}})
        self._check_room(place, (scope.keys, scope.bytes), (keys, size))
        for statement, rows in ((_END, ended), (schema.entries.insert(), new), (_CHANGE, changed)):
            if rows:
                connection.execute(statement, rows)
        state = {"floor": floor, "keys": keys, "bytes": size}
        connection.execute(schema.scopes.update().where(schema.scopes.c.id == scope.id).values(state))
        return versions

    def _check_room(self, place: Place, before: tuple[int, int], after: tuple[int, int]) -> None:
        """What makes a memory smaller is always possible, even where its limits were lowered."""
        if after[0] > max(self.limits.keys, before[0]):
            raise TooMuch(f"the memory {place.memory} has room for {self.limits.keys} keys; delete some")
        if after[1] > max(self.limits.total_bytes, before[1]):
            raise TooMuch(f"the memory {place.memory} has room for {self.limits.total_bytes} bytes; delete something")


def _at(place: Place) -> dict[str, str]:
    return {"memory": place.memory, "scope_name": place.scope, "owner": place.owner}


def _beyond(prefix: str) -> str:
    """The first text behind all that begin with the prefix; empty if there is none."""
    while prefix:
        following = ord(prefix[-1]) + 1
        if following <= 0x10FFFF:
            return prefix[:-1] + chr(0xE000 if 0xD800 <= following < 0xE000 else following)
        prefix = prefix[:-1]
    return ""
