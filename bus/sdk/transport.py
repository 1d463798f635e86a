"""A transport for the client of a2a-sdk."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from a2a.client.client import ClientCallContext, ClientConfig
from a2a.client.client_factory import ClientFactory
from a2a.client.errors import A2AClientError
from a2a.client.transports.base import ClientTransport
from a2a.server.agent_execution import RequestContext
from a2a.types import a2a_pb2 as pb
from a2a.utils.constants import TransportProtocol
from a2a.utils.errors import VersionNotSupportedError

from bus import deadline as deadlines
from bus.client.client import Client, connect
from bus.client.retry import Retry
from bus.client.stream import IDLE
from bus.errors import InvalidParams
from bus.hop import MARGIN, Hop, seconds_within
from bus.interface import Interface
from bus.limits import Limits
from bus.link import Patience
from bus.message import Authorize
from bus.names import A2A_VERSION, BINDING, DEADLINE, DEPTH, ROOT_TASK, TRACEPARENT, TRACESTATE, VERSION
from bus.sdk.agent import as_json, read, sdk_errors
from bus.target import Target

BROKER = "A2A_AMQP_URL"
"""The environment variable that names the broker and the credentials for it, when `register` is not told."""

ONCE = Retry(attempts=1)
"""Most handlers do not know a message id again in another process, so a slow one is not asked twice."""

_M = TypeVar("_M")


def register(
    factory: ClientFactory,
    *,
    broker: Target | None = None,
    authorize: Authorize | None = None,
    retry: Retry = ONCE,
    limits: Limits | None = None,
    patience: Patience | None = None,
    timeout: float = 60.0,
) -> None:
    """Let an SDK client factory call agents whose card names this binding.

    `broker` is a URL with credentials, or a `MemoryBroker`; without it, the environment's `A2A_AMQP_URL`, and without
    that, the URL of the card as it is. Credentials go to the broker that they are for and to no other: `create`
    raises `ValueError` for a card that names another one. `timeout` is seconds for a call whose context has none.
    """
    known = broker if broker is not None else os.environ.get(BROKER) or None

    def produce(card: pb.AgentCard, url: str, _config: ClientConfig) -> ClientTransport:
        try:
            interface = Interface.read(url)
            if isinstance(known, str) and not interface.is_at(known):
                raise InvalidParams(
                    f"the card's agent is at {interface.broker}, the credentials are for another broker"
                )
        except InvalidParams as error:
            raise ValueError(error.message) from error
        return AmqpTransport(
            interface.broker if known is None else known,
            interface.agent,
            card=card,
            prefix=interface.prefix,
            authorize=authorize,
            retry=retry,
            limits=limits,
            patience=patience,
            timeout=timeout,
        )

    factory.register(BINDING, produce)
    config = factory._config
    bindings = config.supported_protocol_bindings or [TransportProtocol.JSONRPC.value]
    if BINDING not in bindings:
        factory._config = replace(config, supported_protocol_bindings=[*bindings, BINDING])


def within(context: RequestContext, *, timeout: float = 60.0) -> ClientCallContext:
    """The context for a call of another agent that an executor makes for the request that it runs.

    The call ends half a second before the request's own deadline, if there is one, and after `timeout` seconds at the
    latest. Its service parameters name the deadline, the root task and the depth, and carry the trace on, over any
    transport. Raises `A2AClientTimeoutError` when no time is left.
    """
    state = context.call_context.state if context.call_context is not None else {}
    headers = state.get("headers", {})
    depth = headers.get(DEPTH, "")
    known = {name: headers[name] for name in (TRACEPARENT, TRACESTATE) if headers.get(name)}
    root = headers.get(ROOT_TASK) or context.task_id
    if root:
        known[ROOT_TASK] = root
    known[DEPTH] = str(int(depth) + 1 if depth.isascii() and depth.isdecimal() else 1)
    now = time.time()
    with sdk_errors():
        seconds = seconds_within(state.get("deadline"), now, timeout)
    known[DEADLINE] = deadlines.write(deadlines.after(now, seconds))
    return ClientCallContext(timeout=seconds, service_parameters=known)


class AmqpTransport(ClientTransport):
    """Calls one agent over a broker. It connects with the first call; `close` closes it for good.

    Errors are the SDK's own; those that only this binding has are an `A2AClientError`, with the bus's error as its
    cause. The context's service parameters travel as headers: `a2a-*`, `traceparent`, `tracestate`, and
    `authorization`; others are HTTP's and stay behind. `a2a-deadline` ends the call, if its timeout does not before.
    """

    def __init__(
        self,
        target: Target,
        agent: str,
        *,
        card: pb.AgentCard | None = None,
        prefix: str = "a2a",
        authorize: Authorize | None = None,
        retry: Retry = ONCE,
        limits: Limits | None = None,
        patience: Patience | None = None,
        timeout: float = 60.0,
        stream_timeout: float = 3600.0,
        idle: float = IDLE,
    ) -> None:
        self._agent = agent
        self._card = card
        self._connect = partial(
            connect, target, authorize=authorize, prefix=prefix, retry=retry, limits=limits, patience=patience
        )
        self._timeout = timeout
        self._stream_timeout = stream_timeout
        self._idle = idle
        self._bus: Client | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    async def send_message(
        self, request: pb.SendMessageRequest, *, context: ClientCallContext | None = None
    ) -> pb.SendMessageResponse:
        return await self._call("SendMessage", request, pb.SendMessageResponse(), context)

    async def send_message_streaming(
        self, request: pb.SendMessageRequest, *, context: ClientCallContext | None = None
    ) -> AsyncGenerator[pb.StreamResponse, None]:
        async with aclosing(self._events("SendStreamingMessage", request, context)) as events:
            async for event in events:
                yield event

    async def get_task(self, request: pb.GetTaskRequest, *, context: ClientCallContext | None = None) -> pb.Task:
        return await self._call("GetTask", request, pb.Task(), context)

    async def list_tasks(
        self, request: pb.ListTasksRequest, *, context: ClientCallContext | None = None
    ) -> pb.ListTasksResponse:
        return await self._call("ListTasks", request, pb.ListTasksResponse(), context)

    async def cancel_task(self, request: pb.CancelTaskRequest, *, context: ClientCallContext | None = None) -> pb.Task:
        return await self._call("CancelTask", request, pb.Task(), context)

    async def create_task_push_notification_config(
        self, request: pb.TaskPushNotificationConfig, *, context: ClientCallContext | None = None
    ) -> pb.TaskPushNotificationConfig:
        return await self._call("CreateTaskPushNotificationConfig", request, pb.TaskPushNotificationConfig(), context)

    async def get_task_push_notification_config(
        self, request: pb.GetTaskPushNotificationConfigRequest, *, context: ClientCallContext | None = None
    ) -> pb.TaskPushNotificationConfig:
        return await self._call("GetTaskPushNotificationConfig", request, pb.TaskPushNotificationConfig(), context)

    async def list_task_push_notification_configs(
        self, request: pb.ListTaskPushNotificationConfigsRequest, *, context: ClientCallContext | None = None
    ) -> pb.ListTaskPushNotificationConfigsResponse:
        answer = pb.ListTaskPushNotificationConfigsResponse()
        return await self._call("ListTaskPushNotificationConfigs", request, answer, context)

    async def delete_task_push_notification_config(
        self, request: pb.DeleteTaskPushNotificationConfigRequest, *, context: ClientCallContext | None = None
    ) -> None:
        await self._call("DeleteTaskPushNotificationConfig", request, pb.TaskPushNotificationConfig(), context)

    async def subscribe(
        self, request: pb.SubscribeToTaskRequest, *, context: ClientCallContext | None = None
    ) -> AsyncGenerator[pb.StreamResponse, None]:
        async with aclosing(self._events("SubscribeToTask", request, context)) as events:
            async for event in events:
                yield event

    async def get_extended_agent_card(
        self, request: pb.GetExtendedAgentCardRequest, *, context: ClientCallContext | None = None
    ) -> pb.AgentCard:
        if self._card is not None and not self._card.capabilities.extended_agent_card:
            return self._card
        return await self._call("GetExtendedAgentCard", request, pb.AgentCard(), context)

    async def close(self) -> None:
        self._closed = True
        async with self._connecting:
            client, self._bus = self._bus, None
        if client is not None:
            await client.close()

    async def _call(self, operation: str, request: Any, answer: _M, context: ClientCallContext | None) -> _M:
        with sdk_errors():
            headers, authorization, parent = _parameters(context)
            client = await self._client()
            body = await client.request(
                self._agent,
                operation,
                as_json(request),
                headers=headers,
                timeout=self._timeout if context is None or context.timeout is None else context.timeout,
                authorization=authorization,
                within=parent,
            )
            return _understood(body, answer)

    async def _events(
        self, operation: str, request: Any, context: ClientCallContext | None
    ) -> AsyncGenerator[pb.StreamResponse, None]:
        with sdk_errors():
            headers, authorization, parent = _parameters(context)
            client = await self._client()
            events = client.stream(
                self._agent,
                operation,
                as_json(request),
                headers=headers,
                timeout=self._stream_timeout if context is None or context.timeout is None else context.timeout,
                idle=self._idle,
                authorization=authorization,
                within=parent,
            )
            async with aclosing(events):
                async for event in events:
                    yield _understood(event.body, pb.StreamResponse())

    async def _client(self) -> Client:
        async with self._connecting:
            if self._closed:
                raise A2AClientError("the transport is closed")
            if self._bus is None:
                self._bus = await self._connect()
            return self._bus


def _understood(body: dict[str, Any], message: _M) -> _M:
    try:
        return read(body, message)
    except InvalidParams as error:
        raise A2AClientError("the agent's response cannot be read") from error


def _parameters(context: ClientCallContext | None) -> tuple[dict[str, str], str | None, Hop | None]:
    """The headers for the bus, the authorization apart, and what a deadline among them makes of the call."""
    headers: dict[str, str] = {}
    authorization = parent = None
    given = context.service_parameters if context is not None else None
    for name, value in (given or {}).items():
        match name.lower():
            case "authorization":
                authorization = value
            case lower if lower == A2A_VERSION:
                if value != VERSION:
                    raise VersionNotSupportedError(f"this binding speaks A2A {VERSION}")
            case lower if lower == DEADLINE:
                parent = Hop(_deadline(value) + MARGIN, {})
            case lower if lower.startswith("a2a-") or lower in (TRACEPARENT, TRACESTATE):
                headers[lower] = value
    return headers, authorization, parent


def _deadline(value: str) -> float:
    try:
        return deadlines.read(value)
    except ValueError:
        raise InvalidParams(f"the service parameter {DEADLINE} is not an RFC 3339 time in UTC") from None
