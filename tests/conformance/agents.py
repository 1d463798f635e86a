"""The two agents that the operations are tried on: the one of the skills, with its ledger, and one of the SDK."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from a2a.auth.user import User
from a2a.client.client import Client, ClientConfig
from a2a.client.client_factory import ClientFactory
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.default_request_handler_v2 import DefaultRequestHandlerV2
from a2a.server.routes.common import DefaultServerCallContextBuilder
from a2a.server.routes.jsonrpc_routes import create_jsonrpc_routes
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore
from a2a.types import a2a_pb2 as pb
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest

import bus
from broker.agent.agent import SkillAgent
from broker.grants.grant import Grant
from broker.ledger.ledger import Ledger
from broker.pipeline.pipeline import Pipeline
from broker.sessions import Credential, mint
from broker.worktrees.worktrees import Worktrees
from bus.destination import Policy
from bus.interface import Interface
from bus.sdk import register, sdk_agent
from skills import Catalog, Context, Contract, Done, Effect, Outcome, Plan, PlannedEffect, Skill
from tests.bus.test_destination import PUBLIC, Names
from tests.conformance import callers, executor
from tests.conformance.stage import PATIENCE, RabbitStage, Stage

AGENT = "sample"
OWN, STRANGER = "alice", "bob"


class Stand(ABC):
    """An agent that is served on a stage, and its callers. `waiting` is set while a call waits to be cancelled."""

    kind: str
    waiting: asyncio.Event
    subscribed: asyncio.Event
    """Set at the first event of a subscription."""
    runs: int
    """How often anything was run."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.subscribed = asyncio.Event()
        self._open = AsyncExitStack()
        self._messages = 0

    async def __aenter__(self) -> "Stand":
        await self._serve()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    @abstractmethod
    async def _serve(self) -> None:
        """Begin to serve."""

    @abstractmethod
    def _authorize(self, who: str) -> bus.Authorize:
        """What vouches for the requests of one caller."""

    def message(self, what: str, **more: Any) -> dict[str, Any]:
        """A message that has the agent do `what`: work, wait, refuse; and more, which only the SDK's agent knows."""
        self._messages += 1
        return {"messageId": f"m-{self._messages}", "role": "ROLE_USER", **self._asking(what), **more}

    @abstractmethod
    def _asking(self, what: str) -> dict[str, Any]:
        """The part of a message that says what to do."""

    async def caller(self, client: str, who: str = OWN) -> callers.Caller:
        """Who calls it with the `native` client, or with the SDK's."""
        if client == "native":
            return callers.Native(await self.stage.connect(authorize=self._authorize(who)), AGENT)
        return callers.Sdk(self._client(who, streaming=True), self._client(who, streaming=False))

    def _client(self, who: str, *, streaming: bool) -> Client:
        factory = ClientFactory(ClientConfig(streaming=streaming))
        register(factory, broker=self.stage.client_target, authorize=self._authorize(who), patience=PATIENCE)
        client = factory.create(executor.card(pb.AgentInterface(url=self._url, protocol_binding=bus.BINDING)))
        self._open.push_async_callback(client.close)
        return client

    @property
    def _url(self) -> str:
        target = self.stage.client_target
        if not isinstance(self.stage, RabbitStage) or not isinstance(target, str):
            return Interface(AGENT, "broker.test", 5671, prefix=self.stage.prefix).url
        host, _, port = target.rpartition("@")[2].partition("/")[0].partition(":")
        return Interface(AGENT, host, int(port), prefix=self.stage.prefix, tls=False).url


class Skills(Stand):
    """The agent of the skills: every request is signed, every task is in the ledger."""

    kind = "native"

    def __init__(self, stage: Stage, folder: Path) -> None:
        super().__init__(stage)
        self._folder = folder
        self._credentials: dict[str, Credential] = {}
        self.waiting = asyncio.Event()
        self.runs = 0

    async def _serve(self) -> None:
        ledger = await self._open.enter_async_context(await Ledger.open(str(self._folder / "ledger.db")))
        for who in (OWN, STRANGER):
            credential, session = mint(f"of-{who}", [Grant("Test.Run", "test", 100, 2**40)], ttl=3600)
            await ledger.add_session(session)
            self._credentials[who] = credential
        catalog = Catalog()
        catalog.add("test", [Skill(_contract(), _plan, self._run)])
        assert not catalog.problems
        pipeline = Pipeline(catalog, ledger, Worktrees(self._folder / "workspaces"), owner="w1", version="0")
        self._open.push_async_callback(pipeline.close)
        push = Policy(resolve=Names([PUBLIC]))
        agent = SkillAgent(AGENT, pipeline, ledger, version="0", url=self._url, push=push)
        server = await self.stage.serve(AGENT, agent)
        self._open.push_async_callback(server.stop, 0)

    async def _run(self, effect: PlannedEffect, context: Context) -> Outcome:
        self.runs += 1
        if effect.payload["do"] == "wait":
            self.waiting.set()
            await asyncio.Event().wait()
        for number in range(3):
            await context.chunk(f"part {number}", last=number == 2)
        return Done({"text": "done"})

    def _authorize(self, who: str) -> bus.Authorize:
        return self._credentials[who].authorize

    def _asking(self, what: str) -> dict[str, Any]:
        return {"parts": [{"data": {"do": what}}], "metadata": {"skill_id": "do"}}


def _contract() -> Contract:
    anything: dict[str, Any] = {"type": "object"}
    return Contract(
        id="do", title="do", description="does what it is told", input_schema=anything, output_schema=anything,
        access=Effect(name="Test.Run", scope="test", cost=0), effects=(Effect(name="Test.Run", scope="test"),),
        deadline=120,
    )  # fmt: skip


def _plan(arguments: Any) -> Plan:
    return Plan.refuse("not this") if arguments["do"] == "refuse" else Plan.one("Test.Run", arguments, scope="test")


class Handler(DefaultRequestHandlerV2):
    """The SDK's own, which tells when somebody listens: over HTTP, a test's client gets a stream when it is whole."""

    def __init__(self, sample: executor.Sample, card: pb.AgentCard, subscribed: asyncio.Event) -> None:
        self._subscribed = subscribed
        extended = pb.AgentCard()
        extended.CopyFrom(card)
        store = InMemoryPushNotificationConfigStore()
        super().__init__(sample, InMemoryTaskStore(), card, push_config_store=store, extended_agent_card=extended)

    async def on_subscribe_to_task(
        self, params: pb.SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Any, None]:
        async for event in super().on_subscribe_to_task(params, context):
            self._subscribed.set()
            yield event


class Named(User):
    """Whoever the authorization says."""

    def __init__(self, authorization: str | None) -> None:
        self._name = (authorization or "").removeprefix("Bearer ")

    @property
    def is_authenticated(self) -> bool:
        return bool(self._name)

    @property
    def user_name(self) -> str:
        return self._name


class _HttpContext(DefaultServerCallContextBuilder):
    def build_user(self, request: HttpRequest) -> User:
        return Named(request.headers.get("authorization"))


class SdkHandler(Stand):
    """The SDK's request handler with the sample executor, over this bus and over HTTP."""

    kind = "sdk"

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.sample = executor.Sample()
        self.waiting = self.sample.waiting

    @property
    def runs(self) -> int:  # type: ignore[override]
        return len(self.sample.contexts)

    async def _serve(self) -> None:
        interface = pb.AgentInterface(url="http://agent.test/", protocol_binding="JSONRPC", protocol_version="1.0")
        self.card = executor.card(interface)
        self.handler = Handler(self.sample, self.card, self.subscribed)
        self._open.push_async_callback(self.handler.aclose)
        server = await self.stage.serve(
            AGENT, sdk_agent(self.handler, user=lambda request: Named(request.authorization))
        )
        self._open.push_async_callback(server.stop, 0)

    def _authorize(self, who: str) -> bus.Authorize:
        return lambda _: f"Bearer {who}"

    def _asking(self, what: str) -> dict[str, Any]:
        return {"parts": [{"text": what}]}

    async def caller(self, client: str, who: str = OWN) -> callers.Caller:
        if client != "http":
            return await super().caller(client, who)
        app = Starlette(routes=create_jsonrpc_routes(self.handler, "/", _HttpContext()))
        http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://agent.test")
        self._open.push_async_callback(http.aclose)
        config = ClientConfig(httpx_client=http)
        streaming = ClientFactory(config).create(self.card)
        plain = ClientFactory(replace(config, streaming=False)).create(self.card)
        return callers.Sdk(streaming, plain, authorization=f"Bearer {who}")
