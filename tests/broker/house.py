"""An agent called directly, without a bus between."""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from broker.agent.agent import SkillAgent
from broker.sessions import Credential
from bus import Request, Unsigned


def message(skill: str, arguments: Any, message_id: str) -> dict[str, Any]:
    return {
        "messageId": message_id,
        "role": "ROLE_USER",
        "parts": [{"data": arguments}],
        "metadata": {"skill_id": skill},
    }


@dataclass
class Answer:
    """The channel of one request: what was sent on it, with its headers; `leave_after` so many the caller is gone."""

    bodies: list[Any] = field(default_factory=list)
    headers: list[Mapping[str, str | int | bool]] = field(default_factory=list)
    ended: bool = False
    leave_after: int | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)
    address: str = "here"
    accepted: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def heard(self) -> bool:
        return self.leave_after is None or len(self.bodies) < self.leave_after

    async def send(
        self,
        body: Mapping[str, Any] | bytes,
        *,
        final: bool = True,
        headers: Mapping[str, str | int | bool] = MappingProxyType({}),
    ) -> None:
        assert not self.ended
        if self.heard:
            self.bodies.append(json.loads(body) if isinstance(body, bytes) else body)
            self.headers.append(headers)
        self.ended = final
        self.news.set()

    async def accept(self) -> bool:
        self.accepted.set()
        return True

    async def count(self, wanted: int) -> None:
        """Wait until so many were sent."""
        while len(self.bodies) < wanted:
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), 20)


@dataclass
class House:
    agent: SkillAgent
    credential: Credential

    async def call(
        self,
        operation: str,
        payload: Any,
        answer: Answer,
        *,
        credential: Credential | None = None,
        message_id: str = "m1",
        headers: Mapping[str, str] = MappingProxyType({}),
        deadline: float | None = None,
    ) -> None:
        body = json.dumps(payload).encode()
        signed = (credential or self.credential).authorize(
            Unsigned("house", operation, message_id, body, time.time() + 30)
        )
        request = Request(
            "house", operation, message_id, body, payload, authorization=signed, headers=headers, deadline=deadline
        )
        await self.agent(request, answer)

    async def ask(self, operation: str, payload: Any, **options: Any) -> Any:
        """The one answer to a request."""
        answer = Answer()
        await self.call(operation, payload, answer, **options)
        (only,) = answer.bodies
        assert answer.ended
        return only

    def listen(self, operation: str, payload: Any, **options: Any) -> "Listener":
        """Ask for a stream."""
        answer = Answer(leave_after=options.pop("leave_after", None))
        return Listener(answer, asyncio.create_task(self.call(operation, payload, answer, **options)))

    def stream(self, skill: str, arguments: Any, *, message_id: str = "m1", **options: Any) -> "Listener":
        """Send a message and follow its task."""
        asked = {"message": message(skill, arguments, message_id)}
        return self.listen("SendStreamingMessage", asked, message_id=message_id, **options)

    async def send(self, skill: str, arguments: Any, *, message_id: str = "m1", **changes: Any) -> Any:
        asked = {"message": message(skill, arguments, message_id) | changes}
        return await self.ask("SendMessage", asked, message_id=message_id)


@dataclass
class Listener:
    """A stream that is being answered."""

    answer: Answer
    task: asyncio.Task[None]

    @property
    def places(self) -> list[Any]:
        """The places in the task's log, as they came."""
        return [headers["a2a-task-seq"] for headers in self.answer.headers]

    @property
    def kinds(self) -> list[str]:
        return [next(iter(body)) for body in self.answer.bodies]

    @property
    def state(self) -> str:
        """The state that the last event tells."""
        (event,) = self.answer.bodies[-1].values()
        return str(event["status"]["state"]).removeprefix("TASK_STATE_")

    async def count(self, wanted: int) -> "Listener":
        await self.answer.count(wanted)
        return self

    async def end(self) -> "Listener":
        """Wait until the stream has ended in order."""
        await asyncio.wait_for(self.task, 20)
        assert self.answer.ended
        return self
