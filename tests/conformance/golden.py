"""Golden messages: for each operation a request and its replies, as they stand on the wire.

The files in `golden/` are what a client and a server send in a fixed conversation at a fixed time. To renew them after
a change that is meant: `python -m tests.conformance.golden`, and read the difference. It writes the samples of
docs/binding.md as well.
"""

import asyncio
import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import UUID

import bus
from bus import MemoryBroker, Reply, Request
from bus.amqp import frames
from bus.driver import Outgoing
from bus.memory.broker import MemoryConnection

FOLDER = Path(__file__).parent / "golden"
PAGE = Path(__file__).parents[2] / "docs" / "binding.md"
SAMPLES = "<!-- samples -->\n"
NOW = 1_796_050_800.0  # 2026-11-30T15:00:00Z
AGENT = "builder"
CHANNEL, FRAME_MAX = 1, 131_072

WORKING = {"state": "TASK_STATE_WORKING", "timestamp": "2026-11-30T15:00:00.000Z"}
COMPLETED = {"state": "TASK_STATE_COMPLETED", "timestamp": "2026-11-30T15:00:01.000Z"}
CANCELED = {"state": "TASK_STATE_CANCELED", "timestamp": "2026-11-30T15:00:01.000Z"}
ASKED = {"messageId": "msg-7f3e", "role": "ROLE_USER", "parts": [{"data": {"path": "tests/"}}]}
RESULT = {"artifactId": "a-1", "parts": [{"text": "3 passed"}]}
PUSH = {"taskId": "t-9", "id": "p-1", "url": "https://callback.example/a2a"}
CARD = {
    "name": "builder",
    "description": "Runs tests",
    "supportedInterfaces": [
        {"url": "amqps://broker.example/?agent=builder", "protocolBinding": bus.BINDING, "protocolVersion": "1.0"}
    ],
    "version": "1.0.0",
    "capabilities": {"streaming": True, "extendedAgentCard": True},
    "defaultInputModes": ["application/json"],
    "defaultOutputModes": ["text/plain"],
    "skills": [{"id": "run_tests", "name": "run_tests", "description": "Runs tests", "tags": ["test"]}],
}


def task(status: dict[str, str], **more: Any) -> dict[str, Any]:
    return {"id": "t-9", "contextId": "ctx-2", "status": status, **more}


def update(status: dict[str, str]) -> dict[str, Any]:
    return {"statusUpdate": {"taskId": "t-9", "contextId": "ctx-2", "status": status}}


@dataclass(frozen=True)
class Scene:
    """One request and what the agent answers: bodies with their headers, or an error."""

    operation: str
    body: dict[str, Any]
    answers: list[tuple[dict[str, Any], dict[str, str | int | bool]]] = field(default_factory=list)
    error: bus.BusError | None = None
    message_id: str = "msg-7f3e"
    headers: dict[str, str] = field(default_factory=dict)
    authorization: str | None = None


CHUNK = {"artifactUpdate": {"taskId": "t-9", "contextId": "ctx-2", "artifact": RESULT, "lastChunk": True}}


def place(number: int, **more: str | int | bool) -> dict[str, str | int | bool]:
    return {"a2a-task-id": "t-9", "a2a-task-seq": number, **more}


SCENES = {
    "SendMessage": Scene(
        "SendMessage",
        {"message": ASKED, "configuration": {"historyLength": 0}},
        [({"task": task(COMPLETED, artifacts=[RESULT])}, {})],
        headers={
            "a2a-extensions": "https://extension.example/v1",
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        },
        authorization="Bearer eyJhbGciOiJFZERTQSJ9.e30.c2lnbmF0dXJl",
    ),
    "SendStreamingMessage": Scene(
        "SendStreamingMessage",
        {"message": ASKED},
        [
            ({"task": task(WORKING)}, place(0)),
            (CHUNK, place(1)),
            (update(COMPLETED), place(2)),
        ],
        headers={"a2a-keepalive": "5"},
    ),
    "SendStreamingMessage-error": Scene(
        "SendStreamingMessage",
        {"message": ASKED},
        [({"task": task(WORKING)}, place(0))],
        bus.DeadlineExceeded(),
    ),
    "GetTask": Scene(
        "GetTask", {"id": "t-9", "historyLength": 1}, [(task(WORKING, history=[ASKED]), {})], message_id="m-2"
    ),
    "GetTask-error": Scene("GetTask", {"id": "t-0"}, error=bus.TaskNotFound(), message_id="m-3"),
    "ListTasks": Scene(
        "ListTasks",
        {"contextId": "ctx-2", "pageSize": 1},
        [({"tasks": [task(COMPLETED)], "nextPageToken": "dC05", "pageSize": 1, "totalSize": 2}, {})],
        message_id="m-4",
    ),
    "CancelTask": Scene("CancelTask", {"id": "t-9"}, [(task(CANCELED), {})], message_id="m-5"),
    "SubscribeToTask": Scene(
        "SubscribeToTask",
        {"id": "t-9"},
        [({"task": task(WORKING)}, place(1)), (update(COMPLETED), place(2))],
        message_id="m-6",
        headers={"a2a-after-seq": "1"},
    ),
    "SubscribeToTask-gap": Scene(
        "SubscribeToTask",
        {"id": "t-9"},
        [({"task": task(WORKING)}, place(7, **{"a2a-gap": True})), (update(COMPLETED), place(8))],
        message_id="m-7",
        headers={"a2a-after-seq": "1"},
    ),
    "CreateTaskPushNotificationConfig": Scene("CreateTaskPushNotificationConfig", PUSH, [(PUSH, {})], message_id="m-8"),
    "GetTaskPushNotificationConfig": Scene(
        "GetTaskPushNotificationConfig", {"taskId": "t-9", "id": "p-1"}, [(PUSH, {})], message_id="m-9"
    ),
    "ListTaskPushNotificationConfigs": Scene(
        "ListTaskPushNotificationConfigs", {"taskId": "t-9"}, [({"configs": [PUSH]}, {})], message_id="m-10"
    ),
    "DeleteTaskPushNotificationConfig": Scene(
        "DeleteTaskPushNotificationConfig", {"taskId": "t-9", "id": "p-1"}, [({}, {})], message_id="m-11"
    ),
    "GetExtendedAgentCard": Scene("GetExtendedAgentCard", {}, [(CARD, {})], message_id="m-12"),
}


async def perform(scene: Scene) -> list[Outgoing]:
    """Everything that is published while a client calls and a server answers."""

    async def agent(_request: Request, reply: Reply) -> None:
        for number, (body, headers) in enumerate(scene.answers, 1):
            final = number == len(scene.answers) and scene.error is None
            await reply.send(body, final=final, headers=headers)
        if scene.error is not None:
            raise scene.error

    broker = MemoryBroker("alice")
    with recorded() as messages:
        async with await bus.serve(broker, AGENT, agent, instance="w1"), await bus.connect(broker) as client:
            client._pending.origin = "c-01J"
            options: dict[str, Any] = {
                "message_id": scene.message_id,
                "headers": scene.headers,
                "authorization": scene.authorization,
                "timeout": 60.0,
            }
            with suppress(*[type(scene.error)] if scene.error else []):
                if scene.operation in ("SendStreamingMessage", "SubscribeToTask"):
                    async for _ in client.stream(AGENT, scene.operation, scene.body, **options):
                        pass
                else:
                    await client.request(AGENT, scene.operation, scene.body, **options)
    return messages


@contextmanager
def recorded() -> Iterator[list[Outgoing]]:
    """What is published, at a fixed time and under fixed names."""
    messages: list[Outgoing] = []
    publish = MemoryConnection.publish

    def record(self: MemoryConnection, message: Outgoing, *, mandatory: bool = True) -> Any:
        messages.append(message)
        return publish(self, message, mandatory=mandatory)

    clock, number = SimpleNamespace(time=lambda: NOW), UUID(int=0x5B1C)
    with (
        patch.object(MemoryConnection, "publish", record),
        patch("bus.client.client.time", clock),
        patch("bus.client.order.time", clock),
        patch("bus.server.server.time", clock),
        patch("bus.client.client.APP_ID", "example/1.0"),
        patch("bus.names.uuid4", lambda: number),
        patch("bus.server.reply.uuid4", lambda: number),
    ):
        yield messages


def written(message: Outgoing) -> dict[str, Any]:
    """A message for people to read, and for machines its frames."""
    p = message.properties
    properties = {
        "type": p.type,
        "content_type": p.content_type,
        "delivery_mode": 2 if p.persistent else 1,
        "message_id": p.message_id,
        "correlation_id": p.correlation_id,
        "reply_to": p.reply_to,
        "expiration": None if p.expiration is None else str(p.expiration),
        "timestamp": p.timestamp,
        "user_id": p.user_id,
        "app_id": p.app_id,
    }
    return {
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "mandatory": True,
        "properties": {name: value for name, value in properties.items() if value is not None},
        "headers": dict(p.headers),
        "body": message.body.decode(),
        "frames": base64.b64encode(on_the_wire(message)).decode(),
    }


def on_the_wire(message: Outgoing) -> bytes:
    """The frames of a message, as they go out on channel 1."""
    return frames.publish(CHANNEL, message, mandatory=True, frame_max=FRAME_MAX)


def text(scene: Scene) -> str:
    """A golden file."""
    request, *replies = asyncio.run(perform(scene))
    found = {"request": written(request), "replies": [written(reply) for reply in replies]}
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def sample(name: str, whole: dict[str, Any]) -> str:
    """A golden file for people, as docs/binding.md has it; only the frames are left out."""
    lines = [f"### {name}", "", "```text"]
    for arrow, message in [("→", whole["request"]), *(("←", reply) for reply in whole["replies"])]:
        target = f"{message['exchange'] or '(default)'} {message['routing_key']}"
        lines.append(f"{arrow} {target}{'  mandatory' if message['mandatory'] else ''}")
        lines += [f"  {key}: {json.dumps(value)}" for key, value in message["properties"].items()]
        lines += [f"  headers.{key}: {json.dumps(value)}" for key, value in message["headers"].items()]
        lines.append(f"  {message['body']}")
    return "\n".join([*lines, "```", ""])


def samples() -> str:
    """All of them, in the order of their names."""
    names = sorted(path.stem for path in FOLDER.iterdir())
    stored = {name: json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")) for name in names}
    return "".join("\n" + sample(name, whole) for name, whole in stored.items())


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, scene in SCENES.items():
        (FOLDER / f"{name}.json").write_text(text(scene), encoding="utf-8")
    before = PAGE.read_text(encoding="utf-8").partition(SAMPLES)[0]
    PAGE.write_text(before + SAMPLES + samples(), encoding="utf-8")
