"""Who is to be told of a task: push notification configs, each of one session and one task (A2A 1.0, section 4.3)."""

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.engine import Connection, RowMapping

from . import schema
from .database import Database

TAKEN = "taken"
"""The outcome of a config whose receiver has taken everything."""

BEFORE = -1
"""The place before the first event of a task's log."""

_config = schema.push_configs.c
_SAID = ("url", "token", "scheme", "credentials")


class TooMany(Exception):
    """The task has as many configs of this session as it may have."""


@dataclass(frozen=True, slots=True)
class PushConfig:
    """Where, and with which credentials, a session wants to be told of a task.

    `origin` is the URL without its path, for logs.
    """

    task_id: str
    session: str
    id: str
    episode: str
    url: str = field(repr=False)
    origin: str
    token: str | None = field(default=None, repr=False)
    scheme: str | None = None
    credentials: str | None = field(default=None, repr=False)

    @property
    def key(self) -> tuple[str, str, str]:
        """What names it in the ledger."""
        return self.task_id, self.session, self.id

    def as_json(self) -> dict[str, Any]:
        """A `TaskPushNotificationConfig`, without what is secret: neither token nor credentials are handed back."""
        said: dict[str, Any] = {"id": self.id, "taskId": self.task_id, "url": self.url}
        return {**said, "authentication": {"scheme": self.scheme}} if self.scheme else said


class PushConfigs:
    """Keeps configs. One of another session is not there."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, config: PushConfig, *, place: int, now: float, limit: int) -> None:
        """Keep a config, in the place of the one with its id if there is one.

        A new one is told of what comes after `place` of the task's log; one that is replaced goes on where it was,
        and one that says the same as before and was not given up is left alone. Raises TooMany.
        """
        said = {name: getattr(config, name) for name in (*_SAID, "origin")}
        afresh = {"failures": 0, "due_at": now, "owner": None, "lease_until": None, "ended_at": None, "outcome": None}

        def work(connection: Connection) -> None:
            here = _one(config.key)
            found = connection.execute(select(schema.push_configs).where(here)).first()
            if found is None:
                mine = (_config.task_id == config.task_id) & (_config.session == config.session)
                count = select(func.count()).select_from(schema.push_configs).where(mine)
                if int(connection.execute(count).scalar_one()) >= limit:
                    raise TooMany
                named = {"task_id": config.task_id, "session": config.session, "id": config.id}
                begun = {"episode": config.episode, "created_at": now, "place": place}
                connection.execute(schema.push_configs.insert().values(**named, **begun, **said, **afresh))
            elif found.outcome not in (None, TAKEN) or any(getattr(found, name) != said[name] for name in _SAID):
                connection.execute(schema.push_configs.update().where(here).values(**said, **afresh))

        await self._database.write(work)

    async def get(self, task_id: str, session: str, config_id: str) -> PushConfig | None:
        query = select(schema.push_configs).where(_one((task_id, session, config_id)))
        row = await self._database.read(lambda connection: connection.execute(query).mappings().first())
        return None if row is None else config_of(row)

    async def page(self, task_id: str, session: str, after: str, limit: int) -> list[PushConfig]:
        """At most `limit` configs of a task, by their ids, those after the id `after`."""
        mine = (_config.task_id == task_id) & (_config.session == session) & (_config.id > after)
        query = select(schema.push_configs).where(mine).order_by(_config.id).limit(limit)
        rows = await self._database.read(lambda connection: connection.execute(query).mappings().all())
        return [config_of(row) for row in rows]

    async def delete(self, task_id: str, session: str, config_id: str) -> None:
        """Forget a config, if it is there; nothing more is sent for it, but what is on its way."""
        statement = schema.push_configs.delete().where(_one((task_id, session, config_id)))
        await self._database.write(lambda connection: connection.execute(statement))


def config_of(row: RowMapping) -> PushConfig:
    """The config in a row of the table."""
    names = ("task_id", "session", "id", "episode", "url", "origin", "token", "scheme", "credentials")
    return PushConfig(**{name: row[name] for name in names})


def _one(key: tuple[str, str, str]) -> Any:
    task_id, session, config_id = key
    return (_config.task_id == task_id) & (_config.session == session) & (_config.id == config_id)
