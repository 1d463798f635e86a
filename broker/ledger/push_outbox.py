"""The outbox of push notifications: what is due, and which worker has taken it on.

Nothing is put into it. What a receiver has not taken yet is what the log of the task holds past the config's place,
so that whatever is committed is due, whichever worker dies.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import false, or_, select
from sqlalchemy.engine import Connection

from . import schema
from .database import Database
from .push_configs import PushConfig, config_of

_config, _call = schema.push_configs.c, schema.calls.c
_OPEN = _config.ended_at.is_(None)
_NEWS = or_(_call.state.is_not(None), _call.events > _config.place, _config.place < 0)

Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Due:
    """A config for which there is something to send: the place that was taken last, and the failures since."""

    config: PushConfig
    place: int
    failures: int


class Outbox:
    """What one worker, `owner`, takes on. A lease that is over lets another worker go on."""

    def __init__(self, database: Database, owner: str) -> None:
        self._database = database
        self._owner = owner

    async def due(
        self, now: float, limit: int, *, sessions: Collection[str] = (), origins: Collection[str] = ()
    ) -> list[Due]:
        """What nobody has taken on, the longest due first; without these sessions and origins."""
        free = or_(_config.lease_until.is_(None), _config.lease_until <= now)
        query = (
            select(schema.push_configs)
            .join(schema.calls, _call.task_id == _config.task_id)
            .where(_OPEN & (_config.due_at <= now) & free & _NEWS)
            .where(_config.session.not_in(sessions), _config.origin.not_in(origins))
            .order_by(_config.due_at)
            .limit(limit)
        )
        rows = await self._database.read(lambda connection: connection.execute(query).mappings().all())
        return [Due(config_of(row), row["place"], row["failures"]) for row in rows]

    async def claim(self, wanted: Sequence[Due], now: float, lease_until: float) -> list[Due]:
        """Take these on; those that are this worker's now."""
        free = or_(_config.lease_until.is_(None), _config.lease_until <= now)

        def work(connection: Connection) -> list[Due]:
            taken = []
            for due in wanted:
                unchanged = _OPEN & free & (_config.due_at <= now) & (_config.place == due.place)
                claim = schema.push_configs.update().where(_at(due.config.key) & unchanged)
                values = {"owner": self._owner, "lease_until": lease_until}
                if connection.execute(claim.values(**values)).rowcount:
                    taken.append(due)
            return taken

        return await self._database.write(work)

    async def mine(self, key: Key) -> PushConfig | None:
        """The config as it is now, if it is still there and this worker's."""
        query = select(schema.push_configs).where(_at(key) & _OPEN & (_config.owner == self._owner))
        row = await self._database.read(lambda connection: connection.execute(query).mappings().first())
        return None if row is None else config_of(row)

    async def renew(self, keys: Collection[Key], lease_until: float) -> None:
        """Keep these, if this worker still has them."""
        mine = _OPEN & (_config.owner == self._owner) & or_(false(), *map(_at, keys))
        statement = schema.push_configs.update().where(mine).values(lease_until=lease_until)
        await self._database.write(lambda connection: connection.execute(statement))

    async def taken(self, key: Key, place: int) -> None:
        """All up to `place` was taken, and this worker goes on."""
        await self._set(key, place=place, failures=0)

    async def leave(self, key: Key, place: int, failures: int, due_at: float) -> None:
        """All up to `place` was taken, and any worker may go on from `due_at`."""
        await self._set(key, place=place, failures=failures, due_at=due_at, owner=None, lease_until=None)

    async def end(self, key: Key, place: int, outcome: str, now: float) -> None:
        """Nothing more is to be sent."""
        await self._set(key, place=place, ended_at=now, outcome=outcome, owner=None, lease_until=None)

    async def forget(self, before: float) -> None:
        """Drop the configs that ended before this time, and those from before it whose message became no task."""
        ended = schema.push_configs.delete().where(_config.ended_at < before)
        no_task = _config.task_id.not_in(select(_call.task_id).where(_call.task_id == _config.task_id))
        orphans = schema.push_configs.delete().where(_OPEN & (_config.created_at < before) & no_task)
        await self._database.write(lambda connection: [connection.execute(each) for each in (ended, orphans)])

    async def _set(self, key: Key, **values: Any) -> None:
        mine = _at(key) & _OPEN & (_config.owner == self._owner)
        statement = schema.push_configs.update().where(mine).values(**values)
        await self._database.write(lambda connection: connection.execute(statement))


def _at(key: Key) -> Any:
    task_id, session, config_id = key
    return (_config.task_id == task_id) & (_config.session == session) & (_config.id == config_id)
