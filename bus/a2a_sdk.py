"""What the types and errors of a2a-sdk are on this bus, and back."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import orjson
from a2a.client.errors import A2AClientError, A2AClientTimeoutError
from a2a.server.request_handlers.response_helpers import prepare_response_object
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import JSON_RPC_ERROR_CODE_MAP, A2AError
from a2a.utils.proto_utils import parse_lenient

from bus.errors import ERRORS, BusError, DeadlineExceeded, InternalError, InvalidParams

_M = TypeVar("_M")

REQUESTS: dict[str, Callable[[], Any]] = {
    "SendMessage": pb.SendMessageRequest,
    "SendStreamingMessage": pb.SendMessageRequest,
    "GetTask": pb.GetTaskRequest,
    "ListTasks": pb.ListTasksRequest,
    "CancelTask": pb.CancelTaskRequest,
    "SubscribeToTask": pb.SubscribeToTaskRequest,
    "CreateTaskPushNotificationConfig": pb.TaskPushNotificationConfig,
    "GetTaskPushNotificationConfig": pb.GetTaskPushNotificationConfigRequest,
    "ListTaskPushNotificationConfigs": pb.ListTaskPushNotificationConfigsRequest,
    "DeleteTaskPushNotificationConfig": pb.DeleteTaskPushNotificationConfigRequest,
    "GetExtendedAgentCard": pb.GetExtendedAgentCardRequest,
}
"""The request message of each operation."""

_SDK_ERRORS = {code: kind for kind, code in JSON_RPC_ERROR_CODE_MAP.items()}


def read(payload: Mapping[str, Any], message: _M) -> _M:
    """The message in a JSON object; unknown fields are left out. Raises `InvalidParams`."""
    try:
        parsed: _M = parse_lenient(dict(payload), message)
    except Exception as error:  # protobuf's own, whose module need not be known here
        raise InvalidParams(f"the parameters cannot be read: {error}") from error
    return parsed


def as_json(message: Any) -> dict[str, Any]:
    """ProtoJSON (A2A 1.0, section 5.5), by the SDK's own hand."""
    found: dict[str, Any] = prepare_response_object(None, message, (object,))["result"]
    return found


def to_bus(error: A2AError) -> BusError:
    """The error as it travels."""
    code = next((JSON_RPC_ERROR_CODE_MAP[kind] for kind in type(error).__mro__ if kind in JSON_RPC_ERROR_CODE_MAP), 0)
    data = error.data if isinstance(error.data, dict) else {}
    metadata = {
        str(key): value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
        for key, value in data.items()
    }
    return ERRORS.get(code, InternalError)(str(error), metadata=metadata)


def to_sdk(error: BusError) -> A2AError:
    """The error as a caller of the SDK knows it; one of the bus alone is an `A2AClientError`."""
    kind = _SDK_ERRORS.get(error.code)
    if kind is not None:
        return kind(error.message, data=_data(error) or None)
    if isinstance(error, DeadlineExceeded) and error.metadata.get("local") == "true":
        return A2AClientTimeoutError(error.message)
    return A2AClientError(f"{error.reason}: {error.message}", data=error.metadata or None)


def _data(error: BusError) -> dict[str, Any]:
    data: dict[str, Any] = dict(error.metadata)
    if isinstance(error, InvalidParams) and "errors" in data:
        # The one thing of the SDK's that is no string: which field is wrong, and how.
        with suppress(ValueError):
            data["errors"] = orjson.loads(data["errors"])
    return data


@contextmanager
def sdk_errors() -> Iterator[None]:
    """Lets no other errors out than the SDK's."""
    try:
        yield
    except BusError as error:
        raise to_sdk(error) from error
