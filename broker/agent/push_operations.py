"""The four operations on push notification configs, and the config in a message (A2A 1.0, sections 3.1.7 to 3.1.10)."""

import base64
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson

from bus import InvalidParams, Reply, Request, TaskNotFound
from bus.destination import DestinationRefused, Policy, Unresolved

from ..ledger.push_configs import BEFORE, PushConfig, PushConfigs, TooMany
from ..ledger.tasks import Task
from ..sessions import Session
from .parameters import member, number, text

PAGE = 50
MOST = 100
MAX_CONFIGS = 10
"""Configs that one session may have for one task."""

MAX_TOKEN = 1024
MAX_CREDENTIALS = 4096

_ID = re.compile(r"[!-~]{1,128}")
_SCHEME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?")

Operation = Callable[[Request, Session, Reply], Awaitable[None]]
Find = Callable[[str, Session], Awaitable[Task | None]]
"""The task that a session may see, None while the ledger has none of it. Raises TaskNotFound."""


class PushOperations:
    """Answers for the configs of a session's tasks. Each URL is checked before it is kept."""

    def __init__(
        self, configs: PushConfigs, policy: Policy, find: Find, clock: Callable[[], float], limit: int = MAX_CONFIGS
    ) -> None:
        self._configs = configs
        self._policy = policy
        self._find = find
        self._clock = clock
        self._limit = limit

    @property
    def operations(self) -> Mapping[str, Operation]:
        """The four operations, by their names."""
        return {
            "CreateTaskPushNotificationConfig": self.create,
            "GetTaskPushNotificationConfig": self.get,
            "ListTaskPushNotificationConfigs": self.list,
            "DeleteTaskPushNotificationConfig": self.delete,
        }

    async def create(self, request: Request, session: Session, reply: Reply) -> None:
        """CreateTaskPushNotificationConfig: told of what comes, and of the end of a task that has ended."""
        task_id = member(request.payload, "taskId", str)
        task = await self._find(task_id, session)
        config = await self._read(request.payload, task_id, session)
        await self._keep(config, task.events if task is not None else BEFORE)
        await reply.send(orjson.dumps(config.as_json()))

    async def get(self, request: Request, session: Session, reply: Reply) -> None:
        """GetTaskPushNotificationConfig."""
        task_id, config_id = member(request.payload, "taskId", str), member(request.payload, "id", str)
        await self._find(task_id, session)
        config = await self._configs.get(task_id, session.id, config_id)
        if config is None:
            raise TaskNotFound("the task has no such push notification config")
        await reply.send(orjson.dumps(config.as_json()))

    async def list(self, request: Request, session: Session, reply: Reply) -> None:
        """ListTaskPushNotificationConfigs: by their ids, in pages."""
        task_id = member(request.payload, "taskId", str)
        size = number(request.payload, "pageSize", 0, MOST) or PAGE
        after = _place(text(request.payload, "pageToken"))
        await self._find(task_id, session)
        found = await self._configs.page(task_id, session.id, after, size + 1)
        token = _token(found[size - 1]) if len(found) > size else ""
        configs = [config.as_json() for config in found[:size]]
        await reply.send(orjson.dumps({"configs": configs, "nextPageToken": token}))

    async def delete(self, request: Request, session: Session, reply: Reply) -> None:
        """DeleteTaskPushNotificationConfig; one that is not there is deleted already."""
        task_id, config_id = member(request.payload, "taskId", str), member(request.payload, "id", str)
        await self._find(task_id, session)
        await self._configs.delete(task_id, session.id, config_id)
        await reply.send(b"{}")

    async def attach(self, said: Mapping[str, Any], task_id: str, session: Session) -> None:
        """Keep the config that came with a message, so that all of its task is told. Raises InvalidParams."""
        if text(said, "taskId") not in (None, task_id):
            raise InvalidParams(
                "taskPushNotificationConfig.taskId must be left out: the message makes a task of its own"
            )
        await self._keep(await self._read(said, task_id, session), BEFORE)

    async def _keep(self, config: PushConfig, place: int) -> None:
        try:
            await self._configs.put(config, place=place, now=self._clock(), limit=self._limit)
        except TooMany:
            raise InvalidParams(
                f"a task has at most {self._limit} push notification configs: delete one, or replace it by its id"
            ) from None

    async def _read(self, said: Mapping[str, Any], task_id: str, session: Session) -> PushConfig:
        """The config in a `TaskPushNotificationConfig`. Raises InvalidParams, which repeats nothing of it."""
        url = member(said, "url", str)
        token = _secret(said, "token", MAX_TOKEN)
        scheme, credentials = _authentication(said)
        config_id = text(said, "id") or task_id
        if not _ID.fullmatch(config_id):
            raise InvalidParams("id must be at most 128 printable ASCII characters without spaces")
        try:
            destination = await self._policy.check(url)
        except (DestinationRefused, Unresolved) as error:
            raise InvalidParams(f"url: {error}") from None
        return PushConfig(
            task_id, session.id, config_id, session.episode, url, destination.origin, token, scheme, credentials
        )


def _authentication(said: Mapping[str, Any]) -> tuple[str | None, str | None]:
    if said.get("authentication") is None:
        return None, None
    given = member(said, "authentication", dict)
    scheme, credentials = text(given, "scheme"), _secret(given, "credentials", MAX_CREDENTIALS)
    if scheme is None and credentials is None:
        return None, None
    if scheme is None or not _SCHEME.fullmatch(scheme):
        raise InvalidParams("authentication.scheme must be the name of an HTTP authentication scheme, such as Bearer")
    if credentials is None:
        raise InvalidParams("authentication.credentials must be what follows the scheme in the header Authorization")
    return scheme, credentials


def _secret(holder: Mapping[str, Any], name: str, most: int) -> str | None:
    value = holder.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > most or not _VALUE.fullmatch(value):
        raise InvalidParams(f"{name} must be at most {most} printable ASCII characters, no space at either end")
    return value


def _token(config: PushConfig) -> str:
    return base64.urlsafe_b64encode(config.id.encode()).decode().rstrip("=")


def _place(token: str | None) -> str:
    if token is None:
        return ""
    try:
        return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    except ValueError:
        raise InvalidParams("pageToken is not one that this agent gave") from None
