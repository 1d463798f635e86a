"""What a ledger says of an episode, and whether it adds up: read on one connection, in one transaction.

While calls run, each figure is another a moment later. Only figures of one moment can be held against each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.engine import Connection

from . import schema
from .records import World

Amounts = dict[tuple[str, str], int]
"""By effect and scope."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A stored entry beside what the ledger says of its call; the latter is None where the call's row is missing."""

    episode: str
    index: int
    hash: str
    encoded: bytes
    task_id: str
    message_id: str | None
    session: str | None
    skill: str | None
    fingerprint: str | None
    effect: str | None
    scope: str | None
    state: str | None
    outcome: str | None
    output_ref: str | None
    closed_at: float | None
    call_episode: str | None
    call_index: int | None
    cost: int | None
    budget_before: int | None
    request_ref: str | None


@dataclass(frozen=True, slots=True)
class Books:
    """An episode at one moment.

    `settled` is how many of its calls have an outcome, `spent` what it has used up, `debits` the same added up from the
    intents of its calls.
    """

    world: World
    entries: Sequence[LogEntry]
    settled: int
    spent: Amounts
    debits: Amounts


def read(connection: Connection, episode: str, *, after: int | None = None, before: int | None = None) -> Books | None:
    """See `Ledger.books`."""
    stands = world(connection, episode)
    if stands is None:
        return None
    call = schema.calls.c
    settled = select(func.count()).where((call.episode == episode) & call.state.is_not(None))
    debits = select(call.effect, call.scope, func.sum(call.cost)).where(
        (call.episode == episode) & call.effect.is_not(None)
    )
    taken = connection.execute(debits.group_by(call.effect, call.scope)).all()
    return Books(
        stands,
        entries(connection, episode=episode, after=after, before=before),
        int(connection.execute(settled).scalar_one()),
        spent(connection, episode),
        {(effect, scope): int(total) for effect, scope, total in taken},
    )


def world(connection: Connection, episode: str) -> World | None:
    """Where an episode's chain stands."""
    row = connection.execute(select(schema.episodes).where(schema.episodes.c.id == episode)).first()
    return None if row is None else World(row.revision, row.state_root, row.log_head)


def spent(connection: Connection, episode: str) -> Amounts:
    """What an episode has used up."""
    rows = connection.execute(select(schema.spend).where(schema.spend.c.episode == episode)).all()
    return {(row.effect, row.scope): row.spent for row in rows}


def entries(
    connection: Connection,
    *,
    episode: str | None = None,
    after: int | None = None,
    before: int | None = None,
    last: int | None = None,
    task_id: str | None = None,
) -> list[LogEntry]:
    """See `Ledger.entries`."""
    log, call = schema.entries.c, schema.calls.c
    query = select(
        log.episode, log.entry_index, log.hash, log.encoded, log.task_id,
        call.message_id, call.session, call.skill, call.fingerprint, call.effect, call.scope, call.state,
        call.outcome, call.output_ref, call.closed_at, call.episode, call.entry_index, call.cost,
        call.budget_before, call.request_ref,
    ).join(schema.calls, call.task_id == log.task_id, isouter=True)  # fmt: skip
    if after is not None:
        query = query.where(log.entry_index > after)
    if before is not None:
        query = query.where(log.entry_index < before)
    if episode is not None:
        query = query.where(log.episode == episode)
    if task_id is not None:
        query = query.where(log.task_id == task_id)
    order = [log.entry_index] if episode is not None else [call.closed_at, log.episode, log.entry_index]
    query = query.order_by(*(column.desc() for column in order)).limit(last) if last else query.order_by(*order)
    stored = [LogEntry(*row) for row in map(tuple, connection.execute(query).all())]
    found = [replace(entry, encoded=bytes_of(entry.encoded)) for entry in stored]
    return found[::-1] if last else found


def bytes_of(stored: Any) -> bytes:
    """The bytes of a column. SQLite keeps whatever type somebody changed them to, and their hash must tell."""
    return stored if isinstance(stored, bytes) else str(stored).encode(errors="surrogateescape")
