"""The ledger: what was granted, what was spent, what was begun, what came of it, and the log that proves it."""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import func, literal, select, union_all, update
from sqlalchemy.engine import Connection

from ..grants.constraints import UNCONSTRAINED, Constraints
from ..grants.grant import Grant
from ..sessions import Session
from . import books, schema
from .books import Books, LogEntry, bytes_of
from .database import BUSY, Database, LedgerError, open_database
from .intents import Intents
from .operations import Claim, Closing, Progress, Receipt, Reservation
from .push_configs import PushConfigs
from .push_outbox import Outbox
from .records import Object, World, genesis
from .settlement import insert_missing, receipt_of
from .tasks import Tasks
from .waiters import Waiters
from .writer import Writer

__all__ = ["Ledger", "LedgerError", "LogEntry"]

_CHUNK = 500


class Ledger:
    """One database of sessions, spend, calls, objects and entries.

    Any number of processes may open the same one. `reserve` and `commit` are gathered with those of other calls
    into one transaction, so that many calls share one write to the disk; each returns when it is durable.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._writer = Writer(database)
        self.watch = database.watch
        self.tasks = Tasks(database)
        self.waiters = Waiters(database)
        self.intents = Intents(database)
        self.push = PushConfigs(database)

    @classmethod
    async def open(cls, url: str, *, busy: float = BUSY) -> "Ledger":
        """Open the ledger at `url`: the path of a SQLite file. Raises LedgerError.

        Whatever is asked of a ledger that can't be reached for `busy` seconds raises LedgerUnavailable.
        """
        return cls(await open_database(url, busy=busy))

    async def close(self) -> None:
        """Finish what was handed in, unless the ledger is away, then close every connection."""
        await self.watch.close()
        await self._writer.close()
        await self._database.close()

    async def __aenter__(self) -> "Ledger":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # calls

    async def reserve(self, claim: Claim) -> Reservation:
        """Write a call's intent and take its cost, or say why not.

        Raises IdempotencyConflict, Unauthenticated, Unavailable.
        """
        result: Reservation = await self._writer.submit(claim)
        return result

    async def commit(self, closing: Closing) -> Receipt:
        """Write a call's outcome, objects and log entry; the receipt of an earlier commit if there is one.

        What came of an effect is kept while the ledger is away, and written when it is back.
        Raises IdempotencyConflict, Unauthenticated, Unavailable, and Fenced when another worker took the call over.
        """
        result: Receipt = await self._writer.submit(closing)
        return result

    async def report(self, progress: Progress) -> int:
        """Write what a running call reports; the place of the last event in its task's log.

        Raises Unavailable, and Fenced when the call is not this owner's any more.
        """
        result: int = await self._writer.submit(progress)
        return result

    async def renew(self, owner: str, task_ids: Iterable[str], lease_until: float) -> set[str]:
        """Extend the lease on those of these calls that `owner` has open; which they are."""
        call, ids = schema.calls.c, list(task_ids)
        mine = (call.owner == owner) & call.state.is_(None)

        def work(connection: Connection) -> set[str]:
            held: set[str] = set()
            for start in range(0, len(ids), _CHUNK):
                which = mine & call.task_id.in_(ids[start : start + _CHUNK])
                connection.execute(update(schema.calls).where(which).values(lease_until=lease_until))
                held.update(connection.execute(select(call.task_id).where(which)).scalars())
            return held

        return await self._database.write(work)

    async def receipt(self, task_id: str) -> Receipt | None:
        """What came of a call, or None while nothing has."""
        query = select(schema.calls, schema.objects.c.payload).join(
            schema.objects, schema.objects.c.ref == schema.calls.c.output_ref
        )
        query = query.where(schema.calls.c.task_id == task_id)
        row = await self._database.read(lambda connection: connection.execute(query).mappings().first())
        return None if row is None else receipt_of(dict(row), row["payload"])

    async def open_calls(self, episode: str) -> int:
        """How many calls of an episode have an intent and no outcome."""
        call = schema.calls.c
        query = select(func.count()).where((call.episode == episode) & call.state.is_(None))
        return int(await self._database.read(lambda connection: connection.execute(query).scalar_one()))

    def outbox(self, owner: str) -> Outbox:
        """The outbox of push notifications, for the worker `owner`."""
        return Outbox(self._database, owner)

    # sessions

    async def add_session(self, session: Session) -> None:
        """Keep a session; its episode begins here if it is new."""
        await self._database.write(lambda connection: _add_session(connection, session))

    async def session(self, session_id: str) -> Session | None:
        found = await self._sessions(schema.sessions.c.id == session_id)
        return found[0] if found else None

    async def list_sessions(self, *, episode: str | None = None) -> list[Session]:
        """Every session, newest first, or those of one episode."""
        return await self._sessions(schema.sessions.c.episode == episode if episode is not None else None)

    async def revoke(self, *, now: int, session_id: str | None = None, episode: str | None = None) -> list[str]:
        """End a session, or all of an episode; the ids of those that this call ended."""
        table = schema.sessions
        which = table.c.id == session_id if session_id is not None else table.c.episode == episode
        alive = which & table.c.revoked_at.is_(None)

        def work(connection: Connection) -> list[str]:
            ids = list(connection.execute(select(table.c.id).where(alive)).scalars())
            connection.execute(update(table).where(alive).values(revoked_at=now))
            return ids

        return await self._database.write(work)

    async def _sessions(self, where: Any) -> list[Session]:
        query = select(schema.sessions).order_by(schema.sessions.c.created_at.desc(), schema.sessions.c.id)
        plain, narrowed = (select(t).join(schema.sessions) for t in (schema.grants, schema.narrowed_grants))
        plain = plain.add_columns(literal("").label("constraints"))
        if where is not None:
            query, plain, narrowed = query.where(where), plain.where(where), narrowed.where(where)
        held = union_all(plain, narrowed).order_by("session", "position")

        def work(connection: Connection) -> list[Session]:
            grants: dict[str, list[Grant]] = {}
            for g in connection.execute(held):
                grants.setdefault(g.session, []).append(_grant(g))
            return [
                Session(
                    r.id, r.public_key, r.episode, tuple(grants.get(r.id, ())), r.created_at, r.expires_at, r.revoked_at
                )
                for r in connection.execute(query)
            ]

        return await self._database.read(work)

    # what an episode has used, and its log

    async def spent(self, episode: str) -> dict[tuple[str, str], int]:
        """What an episode has used up, by (effect, scope)."""
        return await self._database.read(lambda connection: books.spent(connection, episode))

    async def episodes(self) -> list[str]:
        """The names of all episodes."""
        query = select(schema.episodes.c.id).order_by(schema.episodes.c.id)
        return await self._database.read(lambda connection: list(connection.execute(query).scalars()))

    async def world(self, episode: str) -> World | None:
        """Where an episode's chain stands, or None for an episode that never was."""
        return await self._database.read(lambda connection: books.world(connection, episode))

    async def entries(
        self,
        *,
        episode: str | None = None,
        after: int | None = None,
        before: int | None = None,
        last: int | None = None,
        task_id: str | None = None,
    ) -> list[LogEntry]:
        """Log entries in the order they were written: those between two indexes, or only the `last` of them."""
        return await self._database.read(
            lambda connection: books.entries(
                connection, episode=episode, after=after, before=before, last=last, task_id=task_id
            )
        )

    async def books(self, episode: str, *, after: int | None = None, before: int | None = None) -> Books | None:
        """All of an episode that is checked against each other, as of one moment; of its log what lies between the
        two indexes. None for an episode that never was."""
        return await self._database.read(lambda connection: books.read(connection, episode, after=after, before=before))

    async def objects(self, refs: Iterable[str]) -> dict[str, Object]:
        """The stored objects among `refs`, as they are stored: nothing is verified here."""
        return await self._database.read(lambda connection: _load_objects(connection, sorted(refs)))


def _add_session(connection: Connection, session: Session) -> None:
    world = genesis(session.episode)
    start = {"id": session.episode, "revision": 0, "state_root": world.state_root, "log_head": world.log_head}
    connection.execute(insert_missing(schema.episodes), [start])
    connection.execute(
        schema.sessions.insert().values(
            id=session.id,
            public_key=session.public_key,
            episode=session.episode,
            created_at=session.created_at,
            expires_at=session.expires_at,
        )
    )
    rows = [
        {"session": session.id, "position": position, "effect": grant.effect, "scope": grant.scope,
         "budget": grant.budget, "expires_at": grant.expires_at, "constraints": str(grant.constraints)}
        for position, grant in enumerate(session.grants)
    ]  # fmt: skip
    for table, narrowed in ((schema.grants, False), (schema.narrowed_grants, True)):
        columns = table.columns.keys()
        kept = [{name: row[name] for name in columns} for row in rows if bool(row["constraints"]) is narrowed]
        if kept:
            connection.execute(table.insert(), kept)


def _grant(row: Any) -> Grant:
    constraints = Constraints.parse(row.constraints) if row.constraints else UNCONSTRAINED
    return Grant(row.effect, row.scope, row.budget, row.expires_at, constraints)


def _load_objects(connection: Connection, refs: Sequence[str]) -> dict[str, Object]:
    found: dict[str, Object] = {}
    for start in range(0, len(refs), _CHUNK):
        query = select(schema.objects).where(schema.objects.c.ref.in_(refs[start : start + _CHUNK]))
        for row in connection.execute(query):
            found[row.ref] = Object(row.semantic_id, bytes_of(row.payload))
    return found
