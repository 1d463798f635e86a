"""The serving side of a2a-sdk: its request handlers as agents of this bus, and what its types and errors are here."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from typing import Any, TypeVar

import orjson
from a2a.auth.user import User
from a2a.client.errors import A2AClientError, A2AClientTimeoutError
from a2a.extensions.common import get_requested_extensions
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.server.request_handlers.response_helpers import prepare_response_object
from a2a.server.routes.common import serialize_list_tasks_response
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import (
    JSON_RPC_ERROR_CODE_MAP,
    A2AError,
    ExtendedAgentCardNotConfiguredError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a.utils.proto_utils import parse_lenient, to_stream_response

from bus.errors import ERRORS, BusError, DeadlineExceeded, InternalError, InvalidParams
from bus.message import Agent, Reply, Request
from bus.names import A2A_VERSION, TASK_ID, TRACEPARENT, TRACESTATE, VERSION
from bus.server.runs import Run, Runs

HOLD = 0.1
"""Seconds that an event which may be the last waits to be known as the last."""

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

_LAST_STATES = frozenset(
    {
        pb.TASK_STATE_COMPLETED,
        pb.TASK_STATE_FAILED,
        pb.TASK_STATE_CANCELED,
        pb.TASK_STATE_REJECTED,
        pb.TASK_STATE_INPUT_REQUIRED,
        pb.TASK_STATE_AUTH_REQUIRED,
    }
)


class Caller(User):
    """Who sent a request: the broker's user, when the broker vouched for it."""

    def __init__(self, request: Request) -> None:
        self._name = request.caller

    @property
    def is_authenticated(self) -> bool:
        return self._name is not None

    @property
    def user_name(self) -> str:
        return self._name or ""


def sdk_agent(
    handler: RequestHandler, *, card: pb.AgentCard | None = None, user: Callable[[Request], User] = Caller
) -> Agent:
    """An agent for `bus.serve` that answers all eleven operations through an SDK request handler.

    `user` tells who a request comes from, for the handler's `ServerCallContext`; whose state holds under `headers`
    what an HTTP server would put there, the authorization included. `card` is what GetExtendedAgentCard gives when
    the handler has no extended one: over a broker there is no well-known place for it. A message that is sent or
    delivered again to the same agent object is not run again while its first run goes on, and for a while after.
    """
    return _HandlerAgent(handler, card, user)


class _HandlerAgent:
    def __init__(self, handler: RequestHandler, card: pb.AgentCard | None, user: Callable[[Request], User]) -> None:
        self._handler = handler
        self._card = card
        self._user = user
        self._runs: Runs[dict[str, Any]] = Runs()

    async def __call__(self, request: Request, reply: Reply) -> None:
        params = read(request.payload, REQUESTS[request.operation]())
        context = _context(request, params, self._user(request))
        try:
            match request.operation:
                case "SendMessage":
                    await reply.send(await self._message(request, params, context))
                case "SendStreamingMessage":
                    await self._stream(request, params, context, reply)
                case "SubscribeToTask":
                    await _events(self._handler.on_subscribe_to_task(params, context), reply, None)
                case _:
                    await reply.send(await self._answer(request.operation, params, context))
        except A2AError as error:
            raise to_bus(error) from error

    async def _message(self, request: Request, params: Any, context: ServerCallContext) -> dict[str, Any]:
        async def work(_run: Run[dict[str, Any]]) -> dict[str, Any]:
            # Of the same form as a SendMessageResponse.
            return as_json(to_stream_response(await self._handler.on_message_send(params, context)))

        key = _key(request, context)
        run = self._runs.find(key)
        return await (self._runs.start(key, work) if run is None else asyncio.shield(run.answer))

    async def _stream(self, request: Request, params: Any, context: ServerCallContext, reply: Reply) -> None:
        async def work(run: Run[dict[str, Any]]) -> dict[str, Any]:
            return await _events(self._handler.on_message_send_stream(params, context), reply, run)

        key = _key(request, context)
        run = self._runs.find(key)
        if run is None:
            await self._runs.start(key, work)
            return
        await run.told.wait()
        if run.task_id is None:
            await reply.send(await asyncio.shield(run.answer))
            return
        again = pb.SubscribeToTaskRequest(tenant=params.tenant, id=run.task_id)
        try:
            await _events(self._handler.on_subscribe_to_task(again, context), reply, None)
        except UnsupportedOperationError:  # it has ended
            task = await self._handler.on_get_task(pb.GetTaskRequest(tenant=params.tenant, id=run.task_id), context)
            if task is None:
                raise TaskNotFoundError from None
            await reply.send({"task": as_json(task)})

    async def _answer(self, operation: str, params: Any, context: ServerCallContext) -> dict[str, Any]:
        handler = self._handler
        answer: Any
        match operation:
            case "GetTask":
                answer = await handler.on_get_task(params, context)
            case "CancelTask":
                answer = await handler.on_cancel_task(params, context)
            case "ListTasks":
                tasks = await handler.on_list_tasks(params, context)
                return serialize_list_tasks_response(tasks, params.include_artifacts)
            case "CreateTaskPushNotificationConfig":
                answer = await handler.on_create_task_push_notification_config(params, context)
            case "GetTaskPushNotificationConfig":
                answer = await handler.on_get_task_push_notification_config(params, context)
            case "ListTaskPushNotificationConfigs":
                answer = await handler.on_list_task_push_notification_configs(params, context)
            case "DeleteTaskPushNotificationConfig":
                await handler.on_delete_task_push_notification_config(params, context)
                return {}
            case _:
                answer = await self._extended_card(params, context)
        if answer is None:
            raise TaskNotFoundError
        return as_json(answer)

    async def _extended_card(self, params: Any, context: ServerCallContext) -> pb.AgentCard:
        try:
            return await self._handler.on_get_extended_agent_card(params, context)
        except (ExtendedAgentCardNotConfiguredError, UnsupportedOperationError):
            if self._card is None:
                raise
            return self._card


def _key(request: Request, context: ServerCallContext) -> tuple[str, ...]:
    """What only the same request again has in common with a request."""
    digest = hashlib.sha256(request.body).hexdigest()
    return request.operation, context.tenant, context.user.user_name, request.message_id, digest


async def _events(stream: AsyncGenerator[Any, None], reply: Reply, run: Run[dict[str, Any]] | None) -> dict[str, Any]:
    """Send what a handler yields; a mere listener (without a run) leaves when it is not heard. Returns the last."""
    body: dict[str, Any] = {}
    async with aclosing(stream) as events:
        event = await _next(events)
        while event is not None and (run is not None or reply.heard):
            body, task_id = as_json(to_stream_response(event)), _task_id(event)
            headers = {TASK_ID: task_id} if task_id else {}
            if run is not None:
                run.tell(task_id)
            if not _may_be_last(event):
                await reply.send(body, final=False, headers=headers)
                event = await _next(events)
                continue
            coming = asyncio.ensure_future(_next(events))
            try:
                await asyncio.wait({coming}, timeout=HOLD)
                if coming.done() and coming.exception() is None and coming.result() is None:
                    await reply.send(body, headers=headers)
                    return body
                await reply.send(body, final=False, headers=headers)
                event = await coming
            finally:
                coming.cancel()
                await asyncio.wait({coming})
        # The last event was not known as such when it was sent.
        await reply.send({})
    return body


def _context(request: Request, params: Any, user: User) -> ServerCallContext:
    others = {
        "authorization": request.authorization,
        TRACEPARENT: request.traceparent,
        TRACESTATE: request.tracestate,
    }
    headers = {
        A2A_VERSION: VERSION,
        **request.headers,
        **{name: value for name, value in others.items() if value is not None},
    }
    return ServerCallContext(
        user=user,
        tenant=params.tenant or request.tenant or "",
        requested_extensions=get_requested_extensions([headers.get("a2a-extensions", "")]),
        state={
            "headers": headers,
            "method": request.operation,
            "request_id": request.message_id,
            "deadline": request.deadline,
            "redelivered": request.redelivered,
        },
    )


async def _next(events: AsyncGenerator[Any, None]) -> Any:
    return await anext(events, None)


def _task_id(event: Any) -> str | None:
    return (event.id if isinstance(event, pb.Task) else event.task_id) or None


def _may_be_last(event: Any) -> bool:
    if isinstance(event, pb.Task | pb.TaskStatusUpdateEvent):
        return event.status.state in _LAST_STATES
    return isinstance(event, pb.Message)


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
