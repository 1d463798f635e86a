"""docs/binding.md suffices: a client that was written from it alone talks to a server of the bus over RabbitMQ."""

import ast
import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import bus
from broker import Grant, Ledger, Pipeline, SkillAgent, Worktrees, mint
from skills import Catalog, Context, Contract, Done, Effect, Outcome, Plan, PlannedEffect, Skill
from tests.conformance import blind
from tests.conformance.blind import Blind, Event, Failure, Key
from tests.conformance.stage import soon

OBJECT: dict[str, Any] = {"type": "object"}
RUN = Effect(name="Test.Run", scope="test")


class Work:
    """The handler of the one skill: it reports, and waits where it is told to."""

    def __init__(self) -> None:
        self.runs = 0
        self.started = asyncio.Semaphore(0)
        self.gate = asyncio.Event()

    async def run(self, effect: PlannedEffect, context: Context) -> Outcome:
        self.runs += 1
        if effect.payload.get("wait"):
            await context.chunk("half")
            self.started.release()
            await self.gate.wait()
        return Done({"ok": True})


@dataclass
class House:
    url: str
    prefix: str
    key: Key
    work: Work
    clients: list[Blind]

    async def client(self, agent: str = "builder", key: Key | None = None) -> Blind:
        client = await Blind(self.url, self.prefix, agent, key or self.key).open()
        self.clients.append(client)
        return client


@pytest.fixture
async def house(rabbitmq_url: str, unique_prefix: str, tmp_path: Path) -> AsyncIterator[House]:
    work, catalog = Work(), Catalog()
    contract = Contract(
        id="work", title="Work", description="Works", input_schema=OBJECT, output_schema=OBJECT,
        access=Effect(name=RUN.name, scope=RUN.scope, cost=0), effects=(RUN,),
    )  # fmt: skip
    catalog.add("test", [Skill(contract, lambda given: Plan.one(RUN.name, given, scope=RUN.scope), work.run)])
    async with await Ledger.open(str(tmp_path / "ledger.db")) as ledger:
        credential, session = mint("ep1", [Grant(RUN.name, RUN.scope, 20, 2**40)], ttl=3600)
        await ledger.add_session(session)
        pipeline = Pipeline(catalog, ledger, Worktrees(tmp_path / "worktrees"), owner="w1", version="1")
        agent = SkillAgent("builder", pipeline, ledger, version="1")
        server = await bus.serve(rabbitmq_url, "builder", agent, prefix=unique_prefix)
        await agent.join(rabbitmq_url, instance="w1", prefix=unique_prefix)
        key = Key(credential.id, Ed25519PrivateKey.from_private_bytes(bytes.fromhex(credential.reveal())))
        house = House(rabbitmq_url, unique_prefix, key, work, [])
        yield house
        work.gate.set()
        for client in house.clients:
            await client.close()
        await agent.leave()
        await server.stop(5)
        await pipeline.close()
    await bus.remove(rabbitmq_url, "builder", prefix=unique_prefix, shared=True)


def message(message_id: str, **arguments: Any) -> dict[str, Any]:
    parts = [{"data": arguments}]
    metadata = {"skill_id": "work"}
    return {"message": {"messageId": message_id, "role": "ROLE_USER", "parts": parts, "metadata": metadata}}


def state(task: dict[str, Any]) -> str:
    return str(task["status"]["state"])


def test_nothing_of_the_bus_is_in_it() -> None:
    imported = set()
    for node in ast.walk(ast.parse(Path(blind.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    assert not imported & {"bus", "broker", "skills", "deploy", "tests"}


async def test_a_message_is_sent_and_sent_again(house: House) -> None:
    """[T1] [T3] [M1] [R1] [R2] [I1] [I2] [I3] [J1] [J2]"""
    client = await house.client()
    first = await soon(client.call("SendMessage", message("m1", a=1)))
    again = await soon(client.call("SendMessage", message("m1", a=1), properties={"timestamp": 1}))
    assert state(first["task"]) == "TASK_STATE_COMPLETED"
    assert again == first
    assert house.work.runs == 1
    with pytest.raises(Failure, match="IDEMPOTENCY_CONFLICT"):
        await soon(client.call("SendMessage", message("m1", a=2)))


async def test_a_stream_is_taken_up_where_it_was_cut(house: House) -> None:
    """[S1] [S2] [S8] [S9] [D9]"""
    client = await house.client()
    events = client.stream("SendStreamingMessage", message("m1", wait=True))
    had: list[Event] = [await soon(anext(events)) for _ in range(2)]
    await soon(house.work.started.acquire())
    await client.close()  # the connection is lost, the task goes on
    house.work.gate.set()
    last = had[-1].task_seq
    assert last is not None
    other = await house.client()
    task_id = had[0].task_id
    had += [event async for event in other.resume(task_id, last)]
    places = [event.task_seq for event in had if event.task_seq is not None]
    assert places == list(range(len(had)))
    assert state(had[-1].body["statusUpdate"]) == "TASK_STATE_COMPLETED"
    assert had[-1].final
    whole = [event async for event in other.stream("SendStreamingMessage", message("m1", wait=True))]
    assert [event.task_seq for event in whole] == list(range(len(whole)))
    assert [event.body for event in whole][:2] == [event.body for event in had][:2]
    assert house.work.runs == 1


async def test_what_goes_wrong_is_said(house: House) -> None:
    """[E1] [E2] [T2] [M4] [M6] [H1] [D2] [D5] [S4] [A5] [A7] [J3] [J4] [V1]"""
    client = await house.client()
    for operation, body, headers, properties, reason in (
        ("GetTask", {"id": "none"}, {}, {}, "TASK_NOT_FOUND"),
        ("GetTask", {"id": "none"}, {"a2a-version": "0.3"}, {}, "VERSION_NOT_SUPPORTED"),
        ("GetTask", {"id": "none"}, {"a2a-depth": "17"}, {}, "INVALID_REQUEST"),
        ("GetTask", {"id": "none"}, {"a2a-odd": 1.5}, {}, "INVALID_REQUEST"),
        ("GetTask", {"id": "none"}, {"a2a-deadline": "2020-01-01T00:00:00.000Z"}, {}, "DEADLINE_EXCEEDED"),
        ("GetTask", {"id": "none"}, {"a2a-authorization": "Bearer x"}, {}, "UNAUTHENTICATED"),
        ("GetTask", {"id": "none"}, {}, {"content_type": "text/plain"}, "CONTENT_TYPE_NOT_SUPPORTED"),
        ("GetEverything", {}, {}, {}, "METHOD_NOT_FOUND"),
        ("SendMessage", message("m1"), {}, {"message_id": "m2"}, "INVALID_REQUEST"),
    ):
        with pytest.raises(Failure) as caught:
            await soon(client.call(operation, body, headers=headers, properties=properties))
        assert caught.value.reason == reason, (operation, headers)
    stranger = await house.client(key=Key(house.key.kid, Ed25519PrivateKey.generate()))
    with pytest.raises(Failure, match="UNAUTHENTICATED") as caught:
        await soon(stranger.call("GetTask", {"id": "none"}))
    assert caught.value.metadata == {"schemes": "bearer"}
    for body, headers, reason in (
        ({"message": {"messageId": "m1", "role": "ROLE_USER", "parts": []}}, {}, "INVALID_PARAMS"),  # from the agent
        (message("m1"), {"a2a-depth": "-1"}, "INVALID_REQUEST"),  # from the server
    ):
        with pytest.raises(Failure, match=reason):
            await soon(anext(client.stream("SendStreamingMessage", body, headers=headers)))
    nobody = await house.client("nobody")
    with pytest.raises(Failure, match="SKILL_NOT_FOUND"):
        await soon(nobody.call("GetTask", {"id": "none"}))
    assert house.work.runs == 0


async def test_nobody_is_answered_in_another_s_queue(house: House) -> None:
    """[M5] [A3] [L1]"""
    client = await house.client()
    asked = client.call("SendMessage", message("m1"), reply_to=f"{house.prefix}.reply.mallory.1")
    waiting = asyncio.create_task(asked)
    letter = await soon(client.dead())
    assert letter.message_id == "m1"
    assert not waiting.done()
    assert house.work.runs == 0
    waiting.cancel()


async def test_a_cancel_reaches_the_task_and_what_was_called_for_it(house: House) -> None:
    """[D3] [D4] [D7] [D8]"""
    client = await house.client()
    root = client.stream("SendStreamingMessage", message("m1", wait=True))
    task_id = (await soon(anext(root))).task_id
    seconds, headers = blind.within(time.time() + 30, task_id, 0)
    assert seconds < 29.6
    child = client.stream("SendStreamingMessage", message("m2", wait=True), headers=headers)
    await soon(anext(child))
    for _ in range(2):
        await soon(house.work.started.acquire())
    assert state(await soon(client.call("CancelTask", {"id": task_id}))) == "TASK_STATE_CANCELED"
    for stream in (root, child):
        *_, last = [event async for event in stream]
        assert state(last.body["statusUpdate"]) == "TASK_STATE_CANCELED"
    assert state(await soon(client.call("CancelTask", {"id": task_id}))) == "TASK_STATE_CANCELED"
    with pytest.raises(Failure, match="TASK_NOT_FOUND"):
        await soon(client.call("CancelTask", {"id": "none"}))
    with pytest.raises(Failure, match="DEADLINE_EXCEEDED"):
        blind.within(time.time() + 0.4, task_id, 0)
