"""The golden messages: what is sent is what they say, and what they say is A2A."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import ParseDict

import bus
from bus import wire
from bus.amqp import frames
from bus.driver import Outgoing, Properties
from bus.limits import Limits
from bus.sdk.agent import REQUESTS
from tests.conformance import golden

ANSWERS = {
    "SendMessage": pb.SendMessageResponse,
    "SendStreamingMessage": pb.StreamResponse,
    "SubscribeToTask": pb.StreamResponse,
    "GetTask": pb.Task,
    "CancelTask": pb.Task,
    "ListTasks": pb.ListTasksResponse,
    "CreateTaskPushNotificationConfig": pb.TaskPushNotificationConfig,
    "GetTaskPushNotificationConfig": pb.TaskPushNotificationConfig,
    "ListTaskPushNotificationConfigs": pb.ListTaskPushNotificationConfigsResponse,
    "GetExtendedAgentCard": pb.AgentCard,
}


def stored(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((golden.FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


def messages() -> Iterator[Any]:
    for name in golden.SCENES:
        whole = stored(name)
        for place, message in enumerate([whole["request"], *whole["replies"]]):
            yield pytest.param(message, id=f"{name}-{place}")


class Arrived:
    """A message as a driver would hand it over."""

    redelivered = False
    stale = False

    def __init__(self, message: dict[str, Any]) -> None:
        payloads = contents(base64.b64decode(message["frames"]))
        self.properties = frames.read_properties(payloads[frames.HEADER])
        self.body = payloads.get(frames.BODY, b"")

    def ack(self) -> bool:
        return True

    def reject(self, *, requeue: bool) -> bool:
        return requeue


def contents(data: bytes) -> dict[int, bytes]:
    """The payloads of the frames, by kind; each message here is small enough for one of each."""
    found = {}
    while data:
        kind, size = data[0], int.from_bytes(data[3:7])
        assert data[7 + size] == frames.END
        found[kind] = data[7 : 7 + size]
        data = data[8 + size :]
    return found


@pytest.mark.parametrize("name", golden.SCENES)
def test_what_is_sent_is_what_is_written(name: str) -> None:
    assert golden.text(golden.SCENES[name]) == (golden.FOLDER / f"{name}.json").read_text(encoding="utf-8")


def test_every_operation_is_there_and_nothing_else() -> None:
    assert {scene.operation for scene in golden.SCENES.values()} == bus.OPERATIONS
    assert {path.stem for path in golden.FOLDER.iterdir()} == set(golden.SCENES)


@pytest.mark.parametrize("message", [*messages()])
def test_the_frames_are_what_the_page_says(message: dict[str, Any]) -> None:
    p = message["properties"]
    properties = Properties(
        persistent=p.pop("delivery_mode") == 2,
        expiration=int(p.pop("expiration")) if "expiration" in p else None,
        headers=message["headers"],
        **p,
    )
    outgoing = Outgoing(message["exchange"], message["routing_key"], message["body"].encode(), properties)
    assert golden.on_the_wire(outgoing) == base64.b64decode(message["frames"])


@pytest.mark.parametrize("name", golden.SCENES)
def test_both_sides_read_them(name: str) -> None:
    whole, scene = stored(name), golden.SCENES[name]
    request = wire.read_request(golden.AGENT, Arrived(whole["request"]), Limits(), golden.NOW)
    assert (request.operation, request.message_id, request.payload) == (scene.operation, scene.message_id, scene.body)
    assert request.deadline == golden.NOW + 60
    assert request.authorization == scene.authorization
    ParseDict(request.payload, REQUESTS[scene.operation]())
    *events, last = whole["replies"]
    for place, reply in enumerate(whole["replies"]):
        assert reply["headers"]["a2a-seq"] == place
        assert reply["routing_key"] == whole["request"]["properties"]["reply_to"]
        assert reply["properties"]["correlation_id"] == whole["request"]["properties"]["correlation_id"]
        assert reply["properties"]["delivery_mode"] == (2 if reply is last else 1)
    for reply in events if scene.error else whole["replies"]:
        answer = wire.read_reply(Arrived(reply), Limits())
        if scene.operation in ANSWERS:
            ParseDict(answer, ANSWERS[scene.operation]())
    if scene.error is not None:
        with pytest.raises(type(scene.error)):
            wire.read_reply(Arrived(last), Limits())
