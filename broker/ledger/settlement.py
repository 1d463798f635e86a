"""What happens inside one transaction: intents are reserved, outcomes committed, chains extended.

A transaction locks the episodes it touches, reads what its operations need, decides each of them in the order
they came, and writes everything at the end.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import inf
from typing import Any

from sqlalchemy import Table, bindparam, select
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.engine import Connection

from bus import IdempotencyConflict, Unauthenticated

from ..grants.grant import Decision, decide
from ..grants.policy import DENIED
from ..sessions import Session
from . import schema
from .operations import (
    Begun,
    Busy,
    Call,
    Claim,
    Closing,
    Denied,
    Fenced,
    Operation,
    Progress,
    Receipt,
    Reservation,
    Reserved,
)
from .records import Entry, Object, World, after

__all__ = ["Receipt", "Transaction", "insert_missing", "receipt_of"]


_CHANGED = (
    "owner", "lease_until", "epoch", "cost", "events", "updated_at",
    "state", "outcome", "entry_index", "output_ref", "metadata", "closed_at",
)  # fmt: skip
KEPT_EVENTS = 1000
"""How many of a task's newest events are kept."""

# Built once: building a statement costs more than running it.
_SESSIONS = (
    select(schema.sessions.c.id, schema.sessions.c.revoked_at, schema.episodes)
    .join(schema.episodes, schema.episodes.c.id == schema.sessions.c.episode)
    .where(schema.sessions.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(schema.episodes.c.id)
)
_CALLS = select(schema.calls).where(schema.calls.c.task_id.in_(bindparam("ids", expanding=True)))
_PAYLOADS = select(schema.objects.c.ref, schema.objects.c.payload).where(
    schema.objects.c.ref.in_(bindparam("refs", expanding=True))
)
_SPENDING = select(schema.spend).where(schema.spend.c.episode.in_(bindparam("ids", expanding=True)))
_CHANGE_CALL = (
    schema.calls.update()
    .where(schema.calls.c.task_id == bindparam("key"))
    .values({name: bindparam(f"new_{name}") for name in _CHANGED})
)
_MOVE_WORLD = (
    schema.episodes.update()
    .where(schema.episodes.c.id == bindparam("key"))
    .values({name: bindparam(f"new_{name}") for name in ("revision", "state_root", "log_head")})
)
_INSERT_CALL = schema.calls.insert()
_INSERT_ENTRY = schema.entries.insert()
_SPEND = insert(schema.spend)
_SET_SPEND = _SPEND.on_conflict_do_update(
    index_elements=["episode", "effect", "scope"], set_={"spent": _SPEND.excluded.spent}
)
_INSERT_EVENT = schema.task_events.insert()
_FORGET_EVENTS = schema.task_events.delete().where(
    (schema.task_events.c.task_id == bindparam("key")) & (schema.task_events.c.seq <= bindparam("last"))
)


@cache
def insert_missing(table: Table) -> Any:
    """An INSERT that leaves rows alone whose key is there already."""
    return insert(table).on_conflict_do_nothing()


def receipt_of(row: Mapping[str, Any], output: bytes) -> Receipt:
    """The receipt in a row of `calls` that has an outcome, and the payload of its output object."""
    names = ("episode", "task_id", "context_id", "message_id", "skill", "state", "outcome", "entry_index", "output_ref")
    kept = {name: row[name] for name in names}
    return Receipt(
        **kept, output=output, closed_at=row["closed_at"], metadata=json.loads(row["metadata"]), replayed=True
    )


def _refunds(operation: Operation) -> bool:
    return isinstance(operation, Closing) and operation.refund


class Transaction:
    """The working set of one transaction over some operations."""

    def __init__(self, connection: Connection, operations: Sequence[Operation], *, steady: float = inf) -> None:
        """`steady` is for how many seconds the ledger has been there for everyone."""
        self._connection = connection
        self._steady = steady
        calls = [operation.call for operation in operations]
        self._worlds: dict[str, World] = {}
        self._revoked: dict[str, int | None] = {}
        self._lock_episodes({call.session.id for call in calls})
        self._rows, self._outputs = self._known_calls({call.task_id for call in calls})
        spending = {o.call.session.episode for o in operations if isinstance(o, Claim) or _refunds(o)}
        self._spent = self._spending(spending)
        self._receipts: dict[str, Receipt] = {}
        self._objects: dict[str, Object] = {}
        self._opened: dict[str, dict[str, Any]] = {}
        self._changed: list[dict[str, Any]] = []
        self._events: list[dict[str, Any]] = []
        self._entries: list[dict[str, Any]] = []
        self._moved: set[str] = set()
        self._debited: set[tuple[str, str, str]] = set()

    # operations

    def run(self, operation: Operation) -> Reservation | int:
        """Decide one operation on what the earlier ones left. Raises BusError or Fenced, having changed nothing."""
        if isinstance(operation, Claim):
            return self._reserve(operation)
        return self._commit(operation) if isinstance(operation, Closing) else self._report(operation)

    def _reserve(self, claim: Claim) -> Reservation:
        call, effect = claim.call, claim.effect
        settled = self._settled(call)
        if settled is not None:
            return settled
        row = self._open_row(call)
        if row is None or not claim.recovering:
            self._check_alive(call.session, claim.now)
        if row is not None:
            # one of its own that it does not know of any more is as abandoned as that of a worker that is gone
            alive = row["lease_until"] > claim.now or self._steady < claim.steady
            if not claim.abandoned and row["owner"] != claim.owner and alive:
                return Busy(row["lease_until"])
            row |= {"owner": claim.owner, "lease_until": claim.lease_until, "epoch": row["epoch"] + 1}
            self._changed.append(row)
            held = row["epoch"], row["budget_before"], row["request_ref"]
            return Reserved(*held, recovered=True, narrowing=row["narrowing"] or "")
        if claim.refusal is not None:
            return Denied(Decision(False, DENIED, None, 0, reason=claim.refusal))
        episode = call.session.episode
        spent = {(name, scope): used for (where, name, scope), used in self._spent.items() if where == episode}
        decision = decide(call.session.grants, effect, int(claim.now), spent, claim.facts)
        if not decision.allowed:
            return Denied(decision)
        budget = (episode, effect.name, effect.scope)
        self._spent[budget] = self._spent.get(budget, 0) + effect.cost
        self._debited.add(budget)
        row = self._new_row(call, claim.now)
        row |= {
            "effect": effect.name,
            "scope": effect.scope,
            "cost": effect.cost,
            "budget_before": decision.budget_before,
            "request_ref": claim.request.ref,
            "plan_ref": claim.plan.ref,
            "transition_ref": claim.transition.ref,
            "narrowing": decision.narrowing or None,
            "owner": claim.owner,
            "epoch": 1,
            "lease_until": claim.lease_until,
        }
        self._opened[call.task_id] = self._rows[call.task_id] = row
        self._keep(claim.request, claim.plan, claim.transition, *claim.objects)
        return Reserved(1, decision.budget_before, claim.request.ref, narrowing=decision.narrowing)

    def _commit(self, closing: Closing) -> Receipt:
        call, metadata = closing.call, json.dumps(dict(closing.metadata))
        settled = self._settled(call)
        row = self._open_row(call)
        if settled is not None:
            return settled
        if closing.epoch is None:
            if row is not None:
                raise Begun
            self._check_alive(call.session, closing.now)
            row = self._opened[call.task_id] = self._rows[call.task_id] = self._new_row(call, closing.now)
        elif row is None or row["epoch"] != closing.epoch:
            raise Fenced(call.task_id)
        episode = call.session.episode
        if closing.refund and row["cost"]:
            budget = (episode, row["effect"], row["scope"])
            self._spent[budget] -= row["cost"]
            self._debited.add(budget)
            row["cost"] = 0
        world = self._worlds[episode]
        entry = Entry(
            world.revision + 1, closing.transition_fn, closing.interpreter, world.log_head, closing.record.ref
        )
        self._worlds[episode] = after(world, entry, closing.output.ref)
        self._moved.add(episode)
        self._entries.append(
            {
                "episode": episode,
                "entry_index": entry.index,
                "hash": entry.hash,
                "encoded": entry.encode(),
                "task_id": call.task_id,
            }
        )
        row |= {
            "state": closing.state,
            "outcome": closing.outcome,
            "entry_index": entry.index,
            "output_ref": closing.output.ref,
            "metadata": metadata,
            "closed_at": closing.now,
            "updated_at": closing.now,
        }
        self._changed.append(row)
        self._keep(closing.output, closing.record, *closing.objects)
        receipt = Receipt(
            episode, call.task_id, row["context_id"], call.message_id, call.skill, closing.state, closing.outcome,
            entry.index, closing.output.ref, closing.output.payload, closing.now, closing.metadata,
        )  # fmt: skip
        self._receipts[call.task_id] = receipt
        return receipt

    def _report(self, progress: Progress) -> int:
        row = self._open_row(progress.call)
        if row is None or row["epoch"] != progress.epoch:
            raise Fenced(progress.call.task_id)
        for number, body in enumerate(progress.events, row["events"] + 1):
            self._events.append({"task_id": row["task_id"], "seq": number, "at": progress.now, "body": body})
        row |= {"events": row["events"] + len(progress.events), "updated_at": progress.now}
        self._changed.append(row)
        return int(row["events"])

    # what is known

    def _settled(self, call: Call) -> Receipt | None:
        row = self._rows.get(call.task_id)
        if row is None:
            return None
        if row["fingerprint"] != call.fingerprint or row["message_id"] != call.message_id:
            raise IdempotencyConflict
        if call.alone and row["session"] != call.session.id:
            raise IdempotencyConflict
        if row["state"] is None:
            return None
        fresh = self._receipts.get(call.task_id)
        return replace(fresh, replayed=True) if fresh else receipt_of(row, self._outputs[row["output_ref"]])

    def _open_row(self, call: Call) -> dict[str, Any] | None:
        row = self._rows.get(call.task_id)
        return row if row is not None and row["state"] is None else None

    def _check_alive(self, session: Session, now: float) -> None:
        revoked = self._revoked.get(session.id, 0)
        if revoked is not None or int(now) > session.expires_at:
            raise Unauthenticated("the session has expired or was revoked")

    @staticmethod
    def _new_row(call: Call, now: float) -> dict[str, Any]:
        row: dict[str, Any] = dict.fromkeys(column.name for column in schema.calls.columns)
        return row | {
            "task_id": call.task_id,
            "episode": call.session.episode,
            "message_id": call.message_id,
            "context_id": call.context_id,
            "session": call.session.id,
            "skill": call.skill,
            "fingerprint": call.fingerprint,
            "input_ref": call.input_ref,
            "deadline": call.deadline,
            "root_task": call.root_task,
            "cost": 0,
            "epoch": 0,
            "events": 0,
            "opened_at": now,
            "updated_at": now,
        }

    def _keep(self, *objects: Object) -> None:
        for kept in objects:
            self._objects.setdefault(kept.ref, kept)

    # reading

    def _lock_episodes(self, sessions: set[str]) -> None:
        """Learn where the episodes of these sessions stand; the transaction keeps them so."""
        for row in self._connection.execute(_SESSIONS, {"ids": list(sessions)}):
            session, revoked_at, episode, *world = row
            self._revoked[session] = revoked_at
            self._worlds[episode] = World(*world)

    def _known_calls(self, ids: set[str]) -> tuple[dict[str, dict[str, Any]], dict[str, bytes]]:
        found = self._connection.execute(_CALLS, {"ids": list(ids)}).mappings()
        rows = {row["task_id"]: dict(row) for row in found}
        refs = [row["output_ref"] for row in rows.values() if row["output_ref"]]
        payloads = self._connection.execute(_PAYLOADS, {"refs": refs}) if refs else ()
        return rows, {row.ref: row.payload for row in payloads}

    def _spending(self, episodes: set[str]) -> dict[tuple[str, str, str], int]:
        rows = self._connection.execute(_SPENDING, {"ids": list(episodes)}) if episodes else ()
        return {(row.episode, row.effect, row.scope): row.spent for row in rows}

    # writing

    def flush(self) -> None:
        """Write everything that the operations decided."""
        self._write(
            insert_missing(schema.objects),
            [{"ref": name, "semantic_id": o.semantic_id, "payload": o.payload} for name, o in self._objects.items()],
        )
        self._write(_INSERT_CALL, list(self._opened.values()))
        changed = {row["task_id"]: row for row in self._changed if row["task_id"] not in self._opened}
        self._write(
            _CHANGE_CALL,
            [{"key": key, **{f"new_{name}": row[name] for name in _CHANGED}} for key, row in changed.items()],
        )
        self._write(_INSERT_ENTRY, self._entries)
        self._write(_INSERT_EVENT, self._events)
        newest = {event["task_id"]: event["seq"] for event in self._events if event["seq"] > KEPT_EVENTS}
        self._write(_FORGET_EVENTS, [{"key": key, "last": seq - KEPT_EVENTS} for key, seq in newest.items()])
        self._write(
            _SET_SPEND,
            [
                {"episode": episode, "effect": effect, "scope": scope, "spent": self._spent[episode, effect, scope]}
                for episode, effect, scope in sorted(self._debited)
            ],
        )
        moved = [(episode, self._worlds[episode]) for episode in sorted(self._moved)]
        self._write(
            _MOVE_WORLD,
            [
                {"key": e, "new_revision": w.revision, "new_state_root": w.state_root, "new_log_head": w.log_head}
                for e, w in moved
            ],
        )

    def _write(self, statement: Any, rows: list[dict[str, Any]]) -> None:
        if rows:
            self._connection.execute(statement, rows)
