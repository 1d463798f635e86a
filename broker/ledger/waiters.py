"""Who waits for the answer to a call whose request is acknowledged already: kept in the ledger until answered."""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.engine import Connection

from . import schema
from .database import Database
from .settlement import insert_missing

_waiter, _call = schema.waiters.c, schema.calls.c


@dataclass(frozen=True, slots=True)
class Waiter:
    """One caller. `address` is where it waits, `operation` what it asked for, `history` how much of that it wants."""

    task_id: str
    address: str
    operation: str
    history: int


class Waiters:
    """Keeps waiters. Each is dropped once it was answered, so that it is answered at least once."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def keep(self, waiter: Waiter) -> bool:
        """Keep one, durably. False, and nothing is kept, when its call is not open (any more)."""
        is_open = select(_call.task_id).where((_call.task_id == waiter.task_id) & _call.state.is_(None))
        row = {
            "task_id": waiter.task_id,
            "address": waiter.address,
            "operation": waiter.operation,
            "history": waiter.history,
        }

        def work(connection: Connection) -> bool:
            if connection.execute(is_open).first() is None:
                return False
            connection.execute(insert_missing(schema.waiters), [row])
            return True

        return await self._database.write(work)

    async def of(self, task_id: str) -> list[Waiter]:
        """Those of one call."""
        query = select(schema.waiters).where(_waiter.task_id == task_id)
        return await self._database.read(lambda connection: [Waiter(*row) for row in connection.execute(query)])

    async def drop(self, waiters: Iterable[Waiter]) -> None:
        """Forget these: they were answered, or nobody is there to be."""
        table = schema.waiters
        statements = [
            table.delete().where((_waiter.task_id == one.task_id) & (_waiter.address == one.address)) for one in waiters
        ]
        if statements:
            await self._database.write(lambda connection: [connection.execute(each) for each in statements])

    async def unanswered(self, before: float, limit: int) -> list[tuple[str, str]]:
        """Tasks (and their episodes) that had ended before this time, and whose waiters are there still."""
        query = (
            select(_call.task_id, _call.episode)
            .where((_call.closed_at < before) & _call.task_id.in_(select(_waiter.task_id)))
            .limit(limit)
        )
        return await self._database.read(lambda connection: [(row[0], row[1]) for row in connection.execute(query)])
