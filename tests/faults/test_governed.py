"""The governed call over a real broker, with real worker processes that are killed."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import aio_pika
import pytest

import bus
from bus import topology

from .conftest import Site, message, outcome, output

pytestmark = pytest.mark.timeout(180)


def marks(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def begun(fifo: Path) -> None:
    """Wait until an effect says that it has begun."""
    assert await asyncio.wait_for(asyncio.to_thread(fifo.read_text), 60) == "begun\n"


async def test_200_concurrent_calls_on_a_budget_of_50_over_two_workers(site: Site, tmp_path: Path) -> None:
    credential = await site.session(Test_Mark=50)
    await asyncio.gather(site.worker(), site.worker())
    path = tmp_path / "marks"
    async with site.client(credential) as client:
        calls = [client.send(site.agent, message("mark", {"marks": str(path)}, f"m{n}")) for n in range(200)]
        outcomes = [outcome(answer) for answer in await asyncio.gather(*calls)]
    assert outcomes.count(("completed", "succeeded")) == 50
    assert outcomes.count(("rejected", "denied:budget")) == 150
    assert len(marks(path)) == 50
    assert await site.ledger.spent("ep1") == {("Test.Mark", "test"): 50}
    assert await site.sound() == 200


@pytest.mark.parametrize(
    ("skill", "expected", "runs"),
    [
        ("mark", ("failed", "indeterminate"), 1),
        ("mark-placed", ("failed", "indeterminate"), 1),
        ("mark-again", ("completed", "succeeded"), 2),
    ],
)
async def test_a_worker_killed_while_its_effect_runs(
    site: Site, tmp_path: Path, skill: str, expected: tuple[str, str], runs: int
) -> None:
    credential = await site.session(Test_Mark=5)
    path, fifo = tmp_path / "marks", tmp_path / "begun"
    os.mkfifo(fifo)
    first = await site.worker()
    asked = message(skill, {"marks": str(path), "begun": str(fifo)}, "m1")
    async with site.client(credential) as client:
        call = asyncio.create_task(client.send(site.agent, asked))
        await begun(fifo)
        await site.worker()
        first.send_signal(signal.SIGKILL)
        answer = await call
        assert outcome(answer) == expected
        assert await client.send(site.agent, asked) == answer
    if expected[0] == "failed":
        assert "indeterminate" in answer["task"]["status"]["message"]["parts"][0]["text"]
        (effect,) = output(answer)["world"]["effects"]
        assert effect["status"] == "indeterminate"
        assert effect["record"].startswith("sha256:")
    assert len(marks(path)) == runs
    assert await site.ledger.spent("ep1") == {("Test.Mark", "test"): 1}
    assert await site.sound() == 1


async def test_a_worker_killed_after_the_commit_and_before_the_reply(site: Site, tmp_path: Path) -> None:
    credential = await site.session(Test_Mark=5)
    path = tmp_path / "marks"
    dying = await site.dying_worker()
    async with site.client(credential) as client:
        call = asyncio.create_task(client.send(site.agent, message("mark", {"marks": str(path)}, "m1")))
        assert await asyncio.wait_for(dying.wait(), 60) == -signal.SIGKILL
        assert not call.done()
        await site.worker()
        answer = await call
    assert outcome(answer) == ("completed", "succeeded")
    assert output(answer)["runs"] == 1
    assert len(marks(path)) == 1
    assert await site.ledger.spent("ep1") == {("Test.Mark", "test"): 1}
    assert await site.sound() == 1


async def test_the_same_message_with_other_arguments_is_a_conflict(site: Site) -> None:
    credential = await site.session(Workspace_Read=5)
    await site.worker()
    async with site.client(credential) as client:
        await client.send(site.agent, message("calc", {"expr": "1+1"}, "m1"))
        with pytest.raises(bus.IdempotencyConflict):
            await client.send(site.agent, message("calc", {"expr": "1+2"}, "m1"))
    assert await site.sound() == 1


async def test_an_agent_that_is_not_there_is_a_clear_error_at_once(site: Site) -> None:
    credential = await site.session(Workspace_Read=5)
    async with site.client(credential) as client:
        with pytest.raises(bus.AgentNotFound, match="no such agent"):
            await asyncio.wait_for(client.send("nobody-" + site.agent, message("calc", {}, "m1"), timeout=3600), 30)


async def test_what_proves_no_session_changes_nothing(site: Site) -> None:
    credential = await site.session(Workspace_Read=5)
    await site.worker()
    asked = message("calc", {"expr": "1+1"}, "m1")

    def replayed(unsigned: bus.Unsigned) -> str:
        other = bus.Unsigned(unsigned.agent, unsigned.operation, unsigned.message_id, b"{}", unsigned.expires)
        return credential.authorize(other)

    def expired(unsigned: bus.Unsigned) -> str:
        past = bus.Unsigned(unsigned.agent, unsigned.operation, unsigned.message_id, unsigned.body, time.time() - 60)
        return credential.authorize(past)

    for authorize in (None, replayed, expired, lambda _: "Bearer x", lambda _: f"Bearer {credential.reveal()}"):
        async with await bus.connect(site.url, authorize=authorize) as client:
            with pytest.raises(bus.Unauthenticated) as caught:
                await client.send(site.agent, asked)
            assert credential.reveal() not in str(caught.value.as_json())
    assert await site.sound() == 0


MALFORMED: dict[str, dict[str, Any]] = {
    "not JSON": {"body": b"{"},
    "empty": {"body": b""},
    "not an object": {"body": b"[]"},
    "not UTF-8": {"body": b'{"a":"\xff"}'},
    "too large": {"body": b'{"a":"' + b"x" * (2 << 20) + b'"}'},
    "too deep": {"body": b"[" * 5000 + b"]" * 5000},
    "no message": {"body": b"{}"},
    "another content type": {"content_type": "text/html"},
    "no type": {"type": None},
    "no message id": {"message_id": None},
    "no correlation id": {"correlation_id": None},
    "no version": {"headers": {}},
    "a bad deadline": {"headers": {"a2a-version": "1.0", "a2a-deadline": "yesterday"}},
    "a table as a header": {"headers": {"a2a-version": "1.0", "a2a-tenant": {"a": {"b": 1}}}},
    "another's reply queue": {"reply_to": "a2a.reply.somebody.1"},
    "no reply queue": {"reply_to": None},
}


async def test_malformed_messages_never_stop_a_worker(site: Site) -> None:
    credential = await site.session(Workspace_Read=5)
    await site.worker()
    connection = await aio_pika.connect(site.url)
    async with connection, site.client(credential) as client:
        channel = await connection.channel()
        replies = await channel.declare_queue("a2a.reply.guest." + site.agent, exclusive=True)
        exchange = await channel.get_exchange("a2a.requests")
        part = topology.parked(bus.Names())
        parked = await channel.declare_queue(part.name, durable=True, arguments=dict(part.arguments))
        for name, changes in MALFORMED.items():
            fields: dict[str, Any] = {
                "content_type": "application/a2a+json", "type": "SendMessage", "message_id": "m",
                "correlation_id": name, "reply_to": replies.name, "user_id": "guest", "headers": {"a2a-version": "1.0"},
            }  # fmt: skip
            fields |= changes
            body = fields.pop("body", b'{"message":{}}')
            await exchange.publish(aio_pika.Message(body, **fields), routing_key=site.agent)
        answered: set[str | None] = set()
        buried = 0
        while len(answered) + buried < len(MALFORMED):
            reply = await replies.get(no_ack=True, fail=False)
            if reply is not None:
                assert reply.headers["a2a-error"] is True
                answered.add(reply.correlation_id)
            corpse = await parked.get(fail=False)
            if corpse is not None:
                await corpse.ack()
                buried += corpse.headers["parked-key"] == site.agent
            if reply is None and corpse is None:
                await asyncio.sleep(0.01)
        assert buried == 3
        answer = await client.send(site.agent, message("calc", {"expr": "6*7"}, "m1"))
        assert answer["task"]["artifacts"][0]["parts"][0]["text"] == "42"
    assert await site.sound() == 1


async def test_the_broker_is_killed_while_calls_run(fragile_site: Site, rabbitmq_node: Any, tmp_path: Path) -> None:
    site = fragile_site
    credential = await site.session(Test_Mark=1000)
    await asyncio.gather(site.worker(), site.worker())
    await asyncio.to_thread(rabbitmq_node.settle)  # the queue is new
    path = tmp_path / "marks"
    async with site.client(credential) as client:

        async def call(number: int) -> tuple[str, str]:
            asked = message("mark", {"marks": str(path)}, f"m{number}")
            return outcome(await client.send(site.agent, asked, timeout=120))

        calls = [asyncio.create_task(call(n)) for n in range(300)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.to_thread(rabbitmq_node.kill)
        await asyncio.to_thread(rabbitmq_node.start)
        outcomes = await asyncio.gather(*calls)
        assert client.stats().pending == 0
    assert outcomes == [("completed", "succeeded")] * 300
    ran = marks(path)
    assert len(ran) == len(set(ran)) == 300
    assert await site.ledger.spent("ep1") == {("Test.Mark", "test"): 300}
    assert await site.sound() == 300
