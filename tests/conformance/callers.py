"""The eleven operations through whichever client: a request's JSON in, the response's JSON or a failure's name out."""

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from a2a.client.client import Client as SdkClient
from a2a.client.client import ClientCallContext
from a2a.client.errors import A2AClientError
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import A2AError
from google.protobuf import empty_pb2
from google.protobuf.json_format import MessageToDict, ParseDict

import bus
from bus import BusError
from bus.names import STREAMING
from bus.sdk.agent import REQUESTS, to_bus
from tests.conformance.stage import WAIT, soon

RESPONSES: dict[str, Any] = {
    "SendMessage": pb.SendMessageResponse,
    "SendStreamingMessage": pb.StreamResponse,
    "GetTask": pb.Task,
    "ListTasks": pb.ListTasksResponse,
    "CancelTask": pb.Task,
    "SubscribeToTask": pb.StreamResponse,
    "CreateTaskPushNotificationConfig": pb.TaskPushNotificationConfig,
    "GetTaskPushNotificationConfig": pb.TaskPushNotificationConfig,
    "ListTaskPushNotificationConfigs": pb.ListTaskPushNotificationConfigsResponse,
    "DeleteTaskPushNotificationConfig": empty_pb2.Empty,
    "GetExtendedAgentCard": pb.AgentCard,
}


@dataclass(frozen=True)
class Failure:
    """How a call failed: the reason as it stands on the wire, the words, and what the SDK's error says beside them."""

    reason: str
    words: str
    data: Any

    @classmethod
    def of(cls, error: BusError | A2AError) -> "Failure":
        if isinstance(error, A2AClientError) and isinstance(error.__cause__, BusError):
            error = error.__cause__  # what only this binding knows
        found = error if isinstance(error, BusError) else to_bus(error)
        return cls(found.reason, found.message, getattr(error, "data", None))


class Caller(ABC):
    """Somebody who calls one agent, and waits `limit` seconds for an answer."""

    limit = WAIT

    async def call(self, operation: str, body: dict[str, Any], heard: asyncio.Event | None = None) -> Any:
        """The response, the list of a stream's events, or a failure. `heard` is set at the first event."""
        try:
            return await soon(self._call(operation, body, heard or asyncio.Event()), self.limit)
        except (BusError, A2AError) as error:
            return Failure.of(error)

    @abstractmethod
    async def _call(self, operation: str, body: dict[str, Any], heard: asyncio.Event) -> Any: ...


class Native(Caller):
    """The client without protobuf. What it gets is read as the type that it has to be of."""

    def __init__(self, client: bus.Client, agent: str) -> None:
        self._client, self._agent = client, agent

    async def _call(self, operation: str, body: dict[str, Any], heard: asyncio.Event) -> Any:
        if operation not in STREAMING:
            return _typed(operation, await self._client.request(self._agent, operation, body))
        events = []
        async for event in self._client.stream(self._agent, operation, body):
            events.append(_typed(operation, event.body))
            heard.set()
        return events


class Sdk(Caller):
    """A client of the SDK for each way to send a message: `streaming`, and `plain`."""

    def __init__(self, streaming: SdkClient, plain: SdkClient, authorization: str | None = None) -> None:
        self._streaming, self._plain = streaming, plain
        parameters = {} if authorization is None else {"Authorization": authorization}
        self._context = ClientCallContext(service_parameters=parameters)

    async def _call(self, operation: str, body: dict[str, Any], heard: asyncio.Event) -> Any:
        request = ParseDict(body, REQUESTS[operation]())
        client, context = self._streaming, self._context
        match operation:
            case "SendMessage":
                (event,) = [event async for event in self._plain.send_message(request, context=context)]
                return MessageToDict(event)
            case "SendStreamingMessage" | "SubscribeToTask":
                stream = client.send_message if operation == "SendStreamingMessage" else client.subscribe
                events = []
                async for event in stream(request, context=context):
                    events.append(MessageToDict(event))
                    heard.set()
                return events
            case _:
                result = await getattr(client, METHODS[operation])(request, context=context)
                return {} if result is None else MessageToDict(result)


METHODS = {
    "GetTask": "get_task",
    "ListTasks": "list_tasks",
    "CancelTask": "cancel_task",
    "CreateTaskPushNotificationConfig": "create_task_push_notification_config",
    "GetTaskPushNotificationConfig": "get_task_push_notification_config",
    "ListTaskPushNotificationConfigs": "list_task_push_notification_configs",
    "DeleteTaskPushNotificationConfig": "delete_task_push_notification_config",
    "GetExtendedAgentCard": "get_extended_agent_card",
}


def _typed(operation: str, body: dict[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = MessageToDict(ParseDict(body, RESPONSES[operation](), ignore_unknown_fields=True))
    return read


def short(outcome: Any) -> str:
    """An outcome in few words: states, and how many artifacts (a) and messages of history (h)."""
    match outcome:
        case Failure(reason=reason):
            return reason
        case list():
            return " > ".join(map(short, outcome))
        case {"task": dict(task)}:
            return short(task)
        case {"message": _}:
            return "message"
        case {"statusUpdate": {"status": {"state": str(state)}}}:
            return state.removeprefix("TASK_STATE_").lower()
        case {"artifactUpdate": dict(update)}:
            return "chunk" + ("+" if update.get("append") else "") + ("." if update.get("lastChunk") else "")
        case {"status": {"state": str(state)}}:
            counts = [f" {len(outcome[key])}{key[0]}" for key in ("artifacts", "history") if outcome.get(key)]
            return state.removeprefix("TASK_STATE_") + "".join(counts)
        case {"supportedInterfaces": _}:
            return f"card of {outcome['name']}"
        case {"url": _}:
            return f"config {outcome['id']}"
        case {"configs": list(configs)}:
            return f"{len(configs)} configs"
        case {"tasks": _} | {"pageSize": _}:
            tasks, more = outcome.get("tasks", []), outcome.get("nextPageToken")
            return f"{len(tasks)} of {outcome.get('totalSize', 0)}" + (", more" if more else "")
        case {}:
            return "nothing"
    return repr(outcome)
