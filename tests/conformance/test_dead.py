"""Dead letters: the caller is told, people can look, and nothing is lost on the way."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import aio_pika
import orjson
import pytest

import bus
from bus import Reply, Request, topology
from bus.dead import letter
from bus.dead.letter import Letter
from bus.dead.parked import Parked, parked_letters
from bus.dead.reader import DeadLetterReader, read_dead_letters
from bus.driver import Outgoing, Properties
from tests.conformance.stage import PATIENCE, Mailbox, RabbitStage, Stage, soon, until
from tests.conformance.test_calls import echo
from tests.conformance.test_limits import Gate
from tests.conformance.test_malformed import BODY


@pytest.fixture
async def desk(stage: Stage) -> AsyncIterator["Desk"]:
    made = Desk(stage)
    yield made
    await made.close()


class Desk:
    """Readers of the dead letters of a stage, and what they park."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.names = stage.names
        self.readers: list[DeadLetterReader] = []

    async def reader(self, target: bus.Target | None = None) -> DeadLetterReader:
        reader = await read_dead_letters(target or self.stage.driver, prefix=self.stage.prefix, patience=PATIENCE)
        self.readers.append(reader)
        return reader

    def parked(self) -> Any:
        return parked_letters(self.stage.driver, prefix=self.stage.prefix)

    async def count(self) -> int:
        tally = await (await self.stage.raw()).tally(self.names.parked)
        return 0 if tally is None else tally.messages

    async def holds(self, count: int) -> None:
        async with asyncio.timeout(20):
            while await self.count() != count:  # noqa: ASYNC110 - nothing signals what others put there
                await asyncio.sleep(0.01)

    async def read(self) -> list[Letter]:
        async with self.parked() as parked:
            return list(await parked.read())

    async def close(self) -> None:
        for reader in self.readers:
            await reader.stop(0)
        await (await self.stage.raw()).delete(topology.parked(self.names))


async def give_up(request: Request, reply: Reply) -> None:
    raise AssertionError("nobody should run this")


async def expire(desk: Desk, **properties: Any) -> None:
    """A request that nobody takes in time."""
    connection = await desk.stage.raw()
    await connection.declare(*topology.agent(desk.names, "slow"))
    await desk.stage.publish("slow", BODY, **{"expiration": 1, "message_id": "late", **properties})


async def test_what_expired_is_answered_and_parked(stage: Stage, desk: Desk) -> None:
    reader = await desk.reader()
    box = await stage.listen()
    headers = {
        "a2a-authorization": "Bearer hush",
        "a2a-deadline": "2026-11-30T15:01:00.000Z",
        "x-mine": "never copied",
        "traceparent": "00-1",
    }
    await expire(
        desk, reply_to=box.address, correlation_id="c-1", headers=headers, app_id="test/1", timestamp=1_700_000_000
    )
    reply = await box.next()
    assert reply.properties.correlation_id == "c-1"
    assert reply.properties.headers["a2a-error"] is True
    assert reply.properties.headers["a2a-final"] is True
    error = orjson.loads(reply.body)
    assert (error["code"], error["details"][0]["reason"]) == (-31008, "DEADLINE_EXCEEDED")
    await desk.holds(1)
    await until(lambda: reader.stats().parked == 1)
    assert (reader.stats().read, reader.stats().answered) == (1, 1)

    mailbox = await Mailbox.on(await stage.raw(), desk.names.parked, prefetch=1)
    kept = await mailbox.next()
    assert kept.body == BODY
    p = kept.properties
    assert (p.type, p.content_type, p.message_id, p.correlation_id) == (
        "SendMessage",
        "application/a2a+json",
        "late",
        "c-1",
    )
    assert (p.app_id, p.timestamp, p.user_id, p.reply_to, p.expiration) == ("test/1", 1_700_000_000, None, None, None)
    assert p.persistent
    assert "hush" not in str(p.headers)
    assert not [name for name in p.headers if name.startswith("x-")]
    assert p.headers["traceparent"] == "00-1"
    assert p.headers[letter.REASON] == "expired"
    assert p.headers[letter.QUEUE] == desk.names.queue("slow")
    assert p.headers[letter.EXCHANGE] == desk.names.requests
    assert p.headers[letter.KEY] == "slow"
    assert p.headers[letter.ANSWERED] == "DEADLINE_EXCEEDED"
    assert p.headers[letter.AUTHORIZED] is True
    assert p.headers[letter.REPLY_TO] == box.address
    assert p.headers[letter.USER] == stage.driver.user
    assert p.headers[letter.AT].endswith("Z")


async def test_a_letter_goes_nowhere_but_among_the_parked_ones(
    rabbitmq_url: str, unique_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with RabbitStage(unique_prefix, rabbitmq_url) as stage:
        desk = Desk(stage)
        await (await stage.raw()).declare(*topology.agent(desk.names, "slow"))
        async with await aio_pika.connect(rabbitmq_url) as connection, connection.channel() as channel:
            requests = await channel.get_exchange(desk.names.requests)
            copied = aio_pika.Message(BODY, headers={"CC": [desk.names.dead]}, message_id="late", expiration=0.001)
            await requests.publish(copied, "slow")
        reader = await desk.reader()
        await desk.holds(1)
        (found,) = await desk.read()
        assert (found.body, found.properties.message_id, found.properties.headers) == (BODY, "late", {})
        assert reader.stats().losses == 0
        await desk.close()


async def test_a_letter_that_comes_again_and_again_is_kept_without_what_may_be_the_cause(
    stage: Stage, desk: Desk
) -> None:
    connection = await stage.raw()
    await connection.declare(*topology.dead(desk.names))
    for count in (20, 21):
        properties = Properties(headers={"x-delivery-count": count, "odd": "header"})
        await connection.publish(Outgoing("", desk.names.dead, b"%d" % count, properties))
    await desk.reader()
    await desk.holds(2)
    assert {each.body: each.properties.headers for each in await desk.read()} == {b"20": {"odd": "header"}, b"21": {}}


async def test_a_message_that_kills_its_worker_is_answered_with_the_attempts(stage: Stage, desk: Desk) -> None:
    runs = 0

    async def agent(_request: Request, _reply: Reply) -> None:
        nonlocal runs
        runs += 1
        server._requests.drop("as if the process had died")
        await asyncio.Event().wait()

    await desk.reader()
    server = await stage.serve("poison", agent)
    client = await stage.connect()
    with pytest.raises(bus.RetriesExhausted) as caught:
        await soon(client.send("poison", {"messageId": "bad", "parts": []}))
    assert caught.value.metadata == {}
    assert runs == topology.DELIVERY_CEILING + 1
    await desk.holds(1)
    (kept,) = await desk.read()
    assert (kept.reason, kept.answered, kept.key) == ("delivery_limit", "RETRIES_EXHAUSTED", "poison")
    assert kept.properties.message_id == "bad"
    assert client.stats().pending == 0


async def test_what_cannot_be_answered_is_answered_by_nobody_and_parked(stage: Stage, desk: Desk) -> None:
    reader = await desk.reader()
    await stage.serve("fine", echo)
    someone = f"{stage.prefix}.reply.somebody.0123456789abcdef"
    await stage.publish("fine", BODY, reply_to=None, correlation_id="c-1")
    await stage.publish("fine", BODY, reply_to=someone, correlation_id="c-2")
    await desk.holds(2)
    letters = await desk.read()
    assert {(kept.reason, kept.answered, kept.properties.correlation_id) for kept in letters} == {
        ("rejected", "nobody", "c-1"),
        ("rejected", "nobody", "c-2"),
    }
    assert reader.stats().answered == 0


async def test_a_caller_that_is_gone_is_no_trouble(stage: Stage, desk: Desk) -> None:
    reader = await desk.reader()
    await expire(desk, reply_to=desk.names.new_reply_queue(stage.driver.user), correlation_id="c-1")
    await desk.holds(1)
    assert (await desk.read())[0].answered == "nobody"
    await until(lambda: reader.stats().parked == 1)
    assert reader.stats().answered == 0


async def test_headers_of_any_kind_do_not_keep_a_letter_from_being_parked(stage: Stage, desk: Desk) -> None:
    await desk.reader()
    odd = {"big": 1 << 62, "flag": True, "fraction": 0.5, "Proxy-Authorization": "hush", "parked-id": "mine"}
    await expire(desk, headers=odd)
    await expire(desk, message_id="flood", headers={"long": "x" * 60_000})
    await desk.holds(2)
    letters = {kept.properties.message_id: kept for kept in await desk.read()}
    headers = letters["late"].properties.headers
    assert {name: headers[name] for name in ("big", "flag", "fraction")} == {
        "big": 1 << 62,
        "flag": True,
        "fraction": 0.5,
    }
    assert not {"Proxy-Authorization", "parked-id"} & headers.keys()
    assert letters["late"].id != "mine"
    assert letters["flood"].properties.headers == {}


async def test_several_readers_share_the_letters(stage: Stage, desk: Desk) -> None:
    readers = [await desk.reader() for _ in range(3)]
    box = await stage.listen()
    for number in range(60):
        await expire(desk, reply_to=box.address, correlation_id=f"c-{number}", message_id=f"m-{number}")
    answers = {(await box.next()).properties.correlation_id for _ in range(60)}
    assert answers == {f"c-{number}" for number in range(60)}
    await desk.holds(60)
    await until(lambda: sum(reader.stats().parked for reader in readers) == 60)
    assert len(await desk.read()) == 60


async def test_a_reader_that_loses_its_connection_loses_no_letter(stage: Stage, desk: Desk) -> None:
    reader = await desk.reader(stage.server_target)
    await expire(desk, message_id="before")
    await desk.holds(1)
    stage.set_reachable("server", False)
    assert stage.cut("server" if isinstance(stage.server_target, str) else "dead letters")
    await until(lambda: reader.state is not bus.State.CONNECTED)
    stage.set_reachable("server", True)
    await expire(desk, message_id="after")
    await desk.holds(2)
    assert reader.stats().losses == 1


async def test_a_letter_that_was_parked_twice_is_known_as_one(
    stage: Stage, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = await desk.reader()
    box = await stage.listen()
    park, died = reader._park, asyncio.Event()

    async def park_and_die(*arguments: Any) -> bool:
        await park(*arguments)
        died.set()
        return False  # it is not acknowledged

    monkeypatch.setattr(reader, "_park", park_and_die)
    await expire(desk, reply_to=box.address, correlation_id="c-1")
    await soon(died.wait())
    await reader.stop(0)
    await desk.reader()
    assert [(await box.next()).properties.correlation_id for _ in range(2)] == ["c-1", "c-1"]
    await desk.holds(2)
    async with desk.parked() as parked:
        (kept,) = await parked.read()
        parked.drop(kept)
    await desk.holds(0)


async def test_a_queue_of_parked_letters_that_was_deleted_is_made_again(
    stage: Stage, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    await desk.reader()
    await (await stage.raw()).delete(topology.parked(desk.names))
    await expire(desk)
    await desk.holds(1)


async def test_looking_keeps_the_letters_and_their_order(stage: Stage, desk: Desk) -> None:
    await desk.reader()
    ids = [f"m-{number:02}" for number in range(30)]
    for message_id in ids:
        await expire(desk, message_id=message_id)
    await desk.holds(30)
    before = [kept.properties.message_id for kept in await desk.read()]
    assert sorted(before, key=str) == ids
    for _ in range(3):
        async with desk.parked() as parked, desk.parked() as other:
            assert [kept.properties.message_id for kept in await parked.read()] == before
            assert await other.read() == []  # what one has in hand, nobody else sees
        await desk.holds(30)
    async with desk.parked() as parked:
        letters = await parked.read()
        parked.drop(letters[3])
    await desk.holds(29)
    assert [kept.properties.message_id for kept in await desk.read()] == before[:3] + before[4:]


async def test_requeued_a_request_runs_and_its_outcome_goes_to_its_caller(stage: Stage, desk: Desk) -> None:
    gate = Gate()
    await desk.reader()
    box = await stage.listen()
    await expire(desk, reply_to=box.address, correlation_id="c-1", message_id="m-1", headers={"a2a-attempt": 3})
    await box.next()
    await desk.holds(1)
    await stage.serve("slow", gate)
    gate.opened.set()
    async with desk.parked() as parked:
        (kept,) = await parked.find("")
        assert not await parked.find("nothing")
        await soon(parked.requeue(kept, seconds=30))
    request: Request = await soon(gate.started.get())
    assert (request.message_id, request.body, request.headers) == ("m-1", BODY, {})
    assert request.deadline is not None
    reply = await box.next()
    assert (reply.properties.correlation_id, orjson.loads(reply.body)) == ("c-1", {"id": "m-1"})
    assert await desk.count() == 0


async def test_a_signed_request_is_requeued_only_with_a_fresh_signature(stage: Stage, desk: Desk) -> None:
    seen: asyncio.Queue[Request] = asyncio.Queue()

    async def agent(request: Request, reply: Reply) -> None:
        seen.put_nowait(request)
        await reply.send({})

    await desk.reader()
    address = desk.names.new_reply_queue(stage.driver.user)
    signed = {"a2a-authorization": "Bearer old"}
    await expire(desk, reply_to=address, correlation_id="c-1", message_id="m-1", headers=signed)
    await desk.holds(1)
    await stage.serve("slow", agent)
    async with desk.parked() as parked:
        (kept,) = await parked.read()
        with pytest.raises(bus.InvalidRequest, match="signed by a session"):
            await parked.requeue(kept, seconds=30)
        await parked.requeue(kept, seconds=30, authorize=lambda u: f"Bearer {u.agent} {u.operation} {u.message_id}")
    request = await soon(seen.get())
    assert request.authorization == "Bearer slow SendMessage m-1"
    assert request.caller == stage.driver.user


async def test_what_could_never_be_answered_is_not_sent_again(stage: Stage, desk: Desk) -> None:
    await desk.reader()
    await stage.serve("fine", give_up)
    await stage.publish("fine", BODY, reply_to=f"{stage.prefix}.q.fine", correlation_id="c-1")
    await desk.holds(1)
    async with desk.parked() as parked:
        (kept,) = await parked.read()
        with pytest.raises(bus.InvalidRequest, match="names no queue of its caller"):
            await parked.requeue(kept, seconds=30)
    await desk.holds(1)


async def test_a_request_to_an_agent_that_is_gone_stays_parked(stage: Stage, desk: Desk) -> None:
    await desk.reader()
    await expire(desk, reply_to=desk.names.new_reply_queue(stage.driver.user), correlation_id="c-1")
    await desk.holds(1)
    await stage.delete_queue(desk.names.queue("slow"))
    async with desk.parked() as parked:
        (kept,) = await parked.read()
        with pytest.raises(bus.Unroutable):
            await soon(parked.requeue(kept, seconds=30))
    await desk.holds(1)


async def test_where_nothing_was_ever_parked_there_is_nothing(stage: Stage, desk: Desk) -> None:
    async with desk.parked() as parked:
        assert isinstance(parked, Parked)
        assert await parked.count() == 0
        assert await parked.read() == []
