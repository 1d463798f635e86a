"""An a2a-sdk client calls an a2a-sdk request handler over this bus. What each operation gives: test_operations."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from a2a.client.base_client import BaseClient
from a2a.client.client import Client, ClientCallContext, ClientConfig
from a2a.client.client_factory import ClientFactory
from a2a.client.errors import A2AClientError, A2AClientTimeoutError
from a2a.helpers.proto_helpers import new_text_message
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import (
    VersionNotSupportedError,
)

import bus
from bus.interface import Interface
from bus.sdk import AmqpTransport, register, sdk_agent, within
from tests.conformance import executor
from tests.conformance.stage import RabbitStage, Stage, soon, until

HOST = "broker.test"


class House:
    """The sample agent, served on a stage."""

    def __init__(self, stage: Stage, url: str, target: bus.Target) -> None:
        self.stage = stage
        self.target = target
        self.executor = executor.Sample()
        self.card = executor.card(
            pb.AgentInterface(url=url, protocol_binding=bus.BINDING, protocol_version="1.0"),
            pb.AgentInterface(url="http://agent.test/", protocol_binding="JSONRPC", protocol_version="1.0"),
        )
        self.handler = executor.handler(self.executor, self.card)
        self.server: bus.Server | None = None
        self._open = AsyncExitStack()

    async def __aenter__(self) -> "House":
        self._open.push_async_callback(self.handler.aclose)
        self.server = await self.stage.serve("sample", sdk_agent(self.handler))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.server is not None
        await self.server.stop(0)
        await self._open.aclose()

    async def client(self, **options: Any) -> Client:
        """A client of the SDK, over this bus."""
        factory = ClientFactory(ClientConfig(**options.pop("config", {})))
        register(factory, broker=self.target, **options)
        client = factory.create(self.card)
        self._open.push_async_callback(client.close)
        return client


@pytest.fixture
async def house(stage: Stage) -> AsyncIterator[House]:
    target = stage.client_target
    if isinstance(stage, RabbitStage):
        assert isinstance(target, str)
        host, _, port = target.rpartition("@")[2].partition("/")[0].partition(":")
        url = Interface("sample", host, int(port), prefix=stage.prefix, tls=False).url
    else:
        url = Interface("sample", HOST, 5671, prefix=stage.prefix).url
    async with House(stage, url, target) as house:
        yield house


def say(text: str, **more: Any) -> pb.SendMessageRequest:
    return pb.SendMessageRequest(message=new_text_message(text, role=pb.ROLE_USER, **more))


async def events_of(client: Client, text: str, **more: Any) -> list[pb.StreamResponse]:
    return [event async for event in client.send_message(say(text, **more))]


async def test_a_client_of_the_sdk_streams(house: House) -> None:
    client = await house.client()
    events = await soon(events_of(client, "work"))
    kinds = [event.WhichOneof("payload") for event in events]
    assert kinds == ["task", "status_update", *["artifact_update"] * 3, "status_update"]
    assert events[0].task.history[0].parts[0].text == "work"
    assert [event.artifact_update.artifact.parts[0].text for event in events[2:5]] == ["part 0", "part 1", "part 2"]
    assert events[5].status_update.status.state == pb.TASK_STATE_COMPLETED
    assert house.server is not None
    await until(lambda: house.server is not None and house.server.stats().running == 0)
    assert house.server.stats().answered == 1


async def test_a_message_is_answered_with_a_message(house: House) -> None:
    client = await house.client(config={"streaming": False})
    (event,) = await soon(events_of(client, "echo hello"))
    assert event.message.parts[0].text == "hello"
    streaming = await house.client()
    (event,) = await soon(events_of(streaming, "echo again"))
    assert event.message.parts[0].text == "again"


async def test_the_first_event_is_there_before_the_last(house: House) -> None:
    client = await house.client()
    stream = client.send_message(say("wait"))
    first = await soon(anext(stream))
    await soon(house.executor.waiting.wait())
    second = await soon(anext(stream))
    assert second.status_update.status.state == pb.TASK_STATE_WORKING
    cancelled = await soon(client.cancel_task(pb.CancelTaskRequest(id=first.task.id)))
    assert cancelled.status.state == pb.TASK_STATE_CANCELED
    (last,) = [event async for event in stream]
    assert last.status_update.status.state == pb.TASK_STATE_CANCELED


async def test_input_is_asked_for_and_given(house: House) -> None:
    client = await house.client()
    events = await soon(events_of(client, "ask"))
    task = events[0].task
    assert events[-1].status_update.status.state == pb.TASK_STATE_INPUT_REQUIRED
    more = await soon(events_of(client, "the red one", task_id=task.id, context_id=task.context_id))
    assert more[-1].status_update.status.state == pb.TASK_STATE_COMPLETED
    assert more[-1].status_update.status.message.parts[0].text == "answered: the red one"


async def test_a_subscriber_follows(house: House) -> None:
    client = await house.client()
    stream = client.send_message(say("wait"))
    task = (await soon(anext(stream))).task
    await soon(house.executor.waiting.wait())
    follower = client.subscribe(pb.SubscribeToTaskRequest(id=task.id))
    assert (await soon(anext(follower))).task.id == task.id
    await soon(client.cancel_task(pb.CancelTaskRequest(id=task.id)))
    (last,) = [event async for event in follower]
    assert last.status_update.status.state == pb.TASK_STATE_CANCELED
    assert [event async for event in stream]


async def test_a_stream_survives_a_lost_connection(house: House) -> None:
    client = await house.client()
    stream = client.send_message(say("wait"))
    task = (await soon(anext(stream))).task
    await soon(house.executor.waiting.wait())
    await soon(anext(stream))
    assert house.stage.cut("client") == 2
    rest = asyncio.create_task(everything(stream))
    assert house.server is not None
    await until(lambda: house.server is not None and house.server.stats().delivered == 2)
    other = await house.client()
    await soon(other.cancel_task(pb.CancelTaskRequest(id=task.id)))
    events = await soon(rest)
    # The SDK's handler keeps no numbered log: the whole task stands for what may have been missed.
    assert events[0].WhichOneof("payload") == "task"
    last = events[-1]
    assert pb.TASK_STATE_CANCELED in (last.status_update.status.state, last.task.status.state)
    assert len(house.executor.contexts) == 1


async def everything(stream: AsyncIterator[pb.StreamResponse]) -> list[pb.StreamResponse]:
    return [event async for event in stream]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("side", ["server", "client"])
async def test_what_comes_again_is_not_run_again(house: House, streaming: bool, side: str) -> None:
    client = await house.client(config={"streaming": streaming})
    call = asyncio.create_task(events_of(client, "hold"))
    await soon(house.executor.waiting.wait())
    server = house.server
    assert server is not None
    assert house.stage.cut(side) == 2
    await until(lambda: server.stats().delivered == 2)
    house.executor.released.set()
    last = (await soon(call))[-1]
    assert pb.TASK_STATE_COMPLETED in (last.task.status.state, last.status_update.status.state)
    assert len(house.executor.contexts) == 1
    await until(lambda: server.stats().running == 0)


async def test_an_executor_that_leaves_its_task_working_ends_the_stream(house: House) -> None:
    client = await house.client()
    events = await soon(events_of(client, "leave"))
    assert events[-1].status_update.status.state == pb.TASK_STATE_WORKING


async def test_what_the_handler_is_told(house: House) -> None:
    client = await house.client(authorize=lambda _: "Bearer from-the-hook")
    parameters = {"A2A-Extensions": "urn:one, urn:two", "traceparent": "00-1-2-01", "User-Agent": "x"}
    [_ async for _ in client.send_message(say("echo 1"), context=ClientCallContext(service_parameters=parameters))]
    parameters = {"Authorization": "Bearer from-the-call"}
    request = say("echo 2")
    request.tenant = "acme"
    [_ async for _ in client.send_message(request, context=ClientCallContext(service_parameters=parameters))]
    first, second = (context.call_context for context in house.executor.contexts)
    assert first is not None
    assert second is not None
    assert first.user.is_authenticated
    assert first.user.user_name == house.stage.driver.user
    assert first.requested_extensions == {"urn:one", "urn:two"}
    headers = first.state["headers"]
    assert headers["a2a-version"] == "1.0"
    assert headers["traceparent"] == "00-1-2-01"
    assert headers["authorization"] == "Bearer from-the-hook"
    assert "user-agent" not in headers
    assert (second.tenant, second.state["headers"]["authorization"]) == ("acme", "Bearer from-the-call")


async def test_what_only_this_binding_can_say(house: House) -> None:
    transport = AmqpTransport(house.target, "nobody", prefix=house.stage.prefix)
    with pytest.raises(A2AClientError) as caught:
        await soon(transport.get_task(pb.GetTaskRequest(id="t")))
    assert isinstance(caught.value.__cause__, bus.AgentNotFound)
    with pytest.raises(VersionNotSupportedError):
        await transport.get_task(
            pb.GetTaskRequest(id="t"), context=ClientCallContext(service_parameters={"A2A-Version": "0.3"})
        )
    await transport.close()
    with pytest.raises(A2AClientError, match="closed"):
        await transport.get_task(pb.GetTaskRequest(id="t"))


async def test_a_call_has_the_time_that_its_context_says(house: House) -> None:
    client = await house.client(config={"streaming": False})
    with pytest.raises(A2AClientTimeoutError):
        [_ async for _ in client.send_message(say("wait"), context=ClientCallContext(timeout=0.2))]


async def test_an_executor_s_own_calls_are_made_within_its_own(house: House) -> None:
    second = executor.Sample()
    handler = executor.handler(second, house.card)
    await house.stage.serve("second", sdk_agent(handler))
    transport = AmqpTransport(house.target, "second", prefix=house.stage.prefix)
    house.executor.next = BaseClient(house.card, ClientConfig(streaming=False), transport, [])
    client = await house.client()
    trace = {"traceparent": "00-1-2-01", "A2A-Depth": "4"}
    context = ClientCallContext(timeout=20, service_parameters=trace)
    [_ async for _ in client.send_message(say("echo hello"), context=context)]
    (above,), (below,) = house.executor.contexts, second.contexts
    assert above.call_context is not None
    assert below.call_context is not None
    headers = below.call_context.state["headers"]
    assert (headers["a2a-depth"], headers["traceparent"]) == ("5", "00-1-2-01")
    assert headers["a2a-root-task"] == above.task_id
    assert below.call_context.state["deadline"] <= above.call_context.state["deadline"] - 0.5
    assert (within(below).service_parameters or {})["a2a-root-task"] == above.task_id
    below.call_context.state["deadline"] = 1.0
    with pytest.raises(A2AClientTimeoutError, match="nothing is left"):
        within(below)
    await transport.close()
    await handler.aclose()


async def test_the_card_is_given_where_the_handler_has_none(stage: Stage) -> None:
    card = executor.card()
    card.capabilities.extended_agent_card = False
    handler = executor.handler(executor.Sample(), card)
    await stage.serve("bare", sdk_agent(handler))
    await stage.serve("carded", sdk_agent(handler, card=card))
    client = await stage.connect()
    with pytest.raises(bus.BusError):
        await client.request("bare", "GetExtendedAgentCard", {})
    assert (await client.request("carded", "GetExtendedAgentCard", {}))["name"] == "sample"
    await handler.aclose()


# Where the broker is.


def test_credentials_go_to_their_own_broker() -> None:
    def create(card_url: str, broker: str | None) -> Any:
        factory = ClientFactory(ClientConfig())
        register(factory, broker=broker)
        interface = pb.AgentInterface(url=card_url, protocol_binding=bus.BINDING, protocol_version="1.0")
        return factory.create(executor.card(interface))

    secret = "amqps://alice:secret@broker.test/v"
    assert create("amqps://broker.test/v?agent=a", secret)
    assert create("amqps://BROKER.test:5671/v?agent=a&prefix=p", secret)
    assert create("amqps://elsewhere.test/v?agent=a", None)
    for other in (
        "amqps://elsewhere.test/v?agent=a",
        "amqps://broker.test:5673/v?agent=a",
        "amqps://broker.test/w?agent=a",
        "amqp://broker.test/v?agent=a",
        "amqps://mallory:pw@broker.test/v?agent=a",
        "amqps://broker.test/v",
        "https://broker.test/v?agent=a",
    ):
        with pytest.raises(ValueError) as caught:
            create(other, secret)
        assert "secret" not in str(caught.value)


def test_the_environment_may_name_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A2A_AMQP_URL", "amqps://alice:secret@broker.test/v")
    factory = ClientFactory(ClientConfig())
    register(factory)
    interface = pb.AgentInterface(url="amqps://else.test/v?agent=a", protocol_binding=bus.BINDING)
    with pytest.raises(ValueError, match="another broker"):
        factory.create(executor.card(interface))


def test_registering_leaves_the_configuration_of_the_caller_alone() -> None:
    config = ClientConfig()
    factory = ClientFactory(config)
    register(factory)
    register(factory)
    assert config.supported_protocol_bindings == []
    assert factory._config.supported_protocol_bindings == ["JSONRPC", bus.BINDING]
