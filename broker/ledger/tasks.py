"""Tasks as the ledger has them: a call from the moment its intent is durable, and what it reported."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import func, or_, select
from sqlalchemy.engine import Connection

from . import schema
from .database import Database
from .operations import Receipt
from .settlement import insert_missing, receipt_of

OPEN = "working"
"""The state of a task whose call has an intent and no outcome."""

_CHUNK = 500
_call, _cancel = schema.calls.c, schema.cancels.c
_touched = func.coalesce(_call.updated_at, _call.closed_at, _call.opened_at)
_FIELDS = (
    _call.task_id, _call.episode, _call.context_id, _call.message_id, _call.session, _call.skill, _call.epoch,
    _call.fingerprint, _call.opened_at, _call.lease_until, _call.events, _call.input_ref, _call.deadline,
    _call.root_task,
    _call.state, _call.outcome, _call.entry_index, _call.output_ref, _call.metadata, _call.closed_at,
    _call.effect.is_not(None).label("begun"), _touched.label("updated_at"),
)  # fmt: skip
_BARE = select(*_FIELDS)
_TASKS = select(*_FIELDS, schema.objects.c.payload).join(
    schema.objects, schema.objects.c.ref == _call.output_ref, isouter=True
)


@dataclass(frozen=True, slots=True)
class Task:
    """A task. `receipt` is None while its call is open; `events` counts what the call has reported.

    Times are Unix seconds; `deadline` is the caller's. `root_task` names the task that this one was begun for.
    """

    id: str
    episode: str
    context_id: str
    message_id: str
    session: str
    skill: str
    fingerprint: str
    opened_at: float
    updated_at: float
    begun: bool
    events: int
    lease_until: float | None
    input_ref: str | None
    deadline: float | None
    root_task: str | None
    receipt: Receipt | None

    @property
    def state(self) -> str:
        return OPEN if self.receipt is None else self.receipt.state


class Named(NamedTuple):
    """Which task it is, and what it is part of."""

    id: str
    episode: str
    root_task: str | None


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a running call reported: its place in its task's log, and the JSON of its `StreamResponse`."""

    seq: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Filter:
    """Which tasks of an episode are asked for. `after` is the (`updated_at`, id) of the last one already seen.

    With `session`, only its own tasks and those of `skills`.
    """

    context_id: str | None = None
    state: str | None = None
    since: float | None = None
    after: tuple[float, str] | None = None
    session: str | None = None
    skills: tuple[str, ...] = ()


class Tasks:
    """Reads tasks, keeps the tombstones of those to be canceled, and forgets old events."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.watch = database.watch

    async def get(self, task_id: str, episode: str) -> Task | None:
        """A task of this episode; what belongs to another one is not there."""
        query = _TASKS.where((_call.task_id == task_id) & (_call.episode == episode))
        return await self._database.read(lambda connection: _first(connection, query))

    async def follow(self, task_id: str, after: int) -> tuple[Task, list[Event]] | None:
        """A task and the events past place `after` that are still kept, in their order, as of one moment."""
        event = schema.task_events.c
        query = _TASKS.where(_call.task_id == task_id)
        events = select(event.seq, event.body).where((event.task_id == task_id) & (event.seq > after))

        def work(connection: Connection) -> tuple[Task, list[Event]] | None:
            task = _first(connection, query)
            if task is None:
                return None
            more = connection.execute(events.order_by(event.seq)) if task.events > after else ()
            return task, [Event(row.seq, bytes(row.body)) for row in more]

        return await self._database.read(work)

    async def abandoned(self, before: float, limit: int, skip: int = 0) -> list[Task]:
        """Open tasks whose lease had run out before this time, the oldest first, without the first `skip`."""
        query = _BARE.where(_call.state.is_(None) & (_call.lease_until < before)).order_by(_call.lease_until)
        query = query.offset(skip)

        def work(connection: Connection) -> list[Task]:
            return [_task(dict(row)) for row in connection.execute(query.limit(limit)).mappings()]

        return await self._database.read(work)

    async def page(self, episode: str, wanted: Filter, limit: int, *, outputs: bool = True) -> tuple[list[Task], int]:
        """At most `limit` tasks, those that changed last first, and how many there are on all pages together.

        Without `outputs` the receipts come without them.
        """
        where = _call.episode == episode
        if wanted.context_id is not None:
            where &= _call.context_id == wanted.context_id
        if wanted.state is not None:
            where &= _call.state.is_(None) if wanted.state == OPEN else _call.state == wanted.state
        if wanted.session is not None:
            where &= or_(_call.session == wanted.session, _call.skill.in_(wanted.skills))
        if wanted.since is not None:
            where &= _touched >= wanted.since
        total = select(func.count()).select_from(schema.calls).where(where)
        query = (_TASKS if outputs else _BARE).where(where).order_by(_touched.desc(), _call.task_id).limit(limit)
        if wanted.after is not None:
            at, last = wanted.after
            query = query.where(or_(_touched < at, (_touched == at) & (_call.task_id > last)))

        def work(connection: Connection) -> tuple[list[Task], int]:
            rows = connection.execute(query).mappings()
            return [_task(dict(row)) for row in rows], int(connection.execute(total).scalar_one())

        return await self._database.read(work)

    async def bury(self, task_id: str, episode: str, now: float, *, unseen: bool = False) -> list[str]:
        """Set the tombstone of an open task and of the open tasks that were begun for it; the ids of all of them.

        Nothing happens to a task that has ended. `unseen` sets that of a task alone which is not in the ledger yet.
        """
        open_here = (_call.episode == episode) & _call.state.is_(None)
        itself = select(_call.task_id).where(open_here & (_call.task_id == task_id))
        children = select(_call.task_id).where(open_here & (_call.root_task == task_id))

        def work(connection: Connection) -> list[str]:
            found = [task_id] if unseen else list(connection.execute(itself).scalars())
            if found and not unseen:
                found += connection.execute(children).scalars()
            if found:
                rows = [{"task_id": each, "episode": episode, "at": now, "seen": not unseen} for each in found]
                connection.execute(insert_missing(schema.cancels), rows)
            if found and not unseen:
                mine = (_cancel.task_id == task_id) & (_cancel.episode == episode)
                connection.execute(schema.cancels.update().where(mine).values(seen=True))
            return found

        return await self._database.write(work)

    async def unbury(self, task_id: str, episode: str) -> None:
        """Take a tombstone away again."""
        statement = schema.cancels.delete().where((_cancel.task_id == task_id) & (_cancel.episode == episode))
        await self._database.write(lambda connection: connection.execute(statement))

    async def buried(self, tasks: Iterable[Named]) -> set[str]:
        """The ids of those that have a tombstone in their episode, or whose root task has one there."""
        tasks = list(tasks)
        names = sorted({name for task in tasks for name in (task.id, task.root_task) if name})

        def work(connection: Connection) -> dict[tuple[str, str], bool]:
            found: dict[tuple[str, str], bool] = {}
            for start in range(0, len(names), _CHUNK):
                query = select(schema.cancels).where(_cancel.task_id.in_(names[start : start + _CHUNK]))
                found.update({(row.task_id, row.episode): row.seen for row in connection.execute(query)})
            return found

        found = await self._database.read(work) if names else {}
        return {
            task.id
            for task in tasks
            if (task.id, task.episode) in found or found.get((task.root_task or "", task.episode))
        }

    async def forget(self, before: float) -> None:
        """Drop events and tombstones from before this time."""
        statements = [table.delete().where(table.c.at < before) for table in (schema.task_events, schema.cancels)]
        await self._database.write(lambda connection: [connection.execute(statement) for statement in statements])


def _first(connection: Connection, query: Any) -> Task | None:
    row = connection.execute(query).mappings().first()
    return None if row is None else _task(dict(row))


def _task(row: Mapping[str, Any]) -> Task:
    names: Sequence[str] = (
        "episode", "context_id", "message_id", "session", "skill", "fingerprint", "opened_at", "updated_at", "events",
        "lease_until", "input_ref", "deadline", "root_task",
    )  # fmt: skip
    kept = {name: row[name] for name in names}
    receipt = None if row["state"] is None else receipt_of(row, bytes(row.get("payload") or b"{}"))
    return Task(row["task_id"], begun=bool(row["begun"]), receipt=receipt, **kept)


def chunks_of(events: Iterable[Event]) -> list[dict[str, Any]]:
    """The artifacts that these events have brought together, as far as they go."""
    artifacts: dict[str, dict[str, Any]] = {}
    for event in events:
        update = json.loads(event.body).get("artifactUpdate")
        if update is None:
            continue
        artifact = update["artifact"]
        known = artifacts.get(artifact["artifactId"])
        if known is not None and update.get("append"):
            known["parts"] += artifact["parts"]
        else:
            artifacts[artifact["artifactId"]] = artifact
    return list(artifacts.values())
