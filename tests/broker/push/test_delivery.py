import asyncio
import base64
import hashlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import jwt
import pytest
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import ParseDict

from broker.agent.signing import SigningKey
from broker.ledger.database import Database
from broker.ledger.ledger import Ledger
from broker.ledger.push_configs import PushConfig
from broker.pipeline.pipeline import Pipeline, task_id
from broker.push import delivery as push_delivery
from broker.push.notice import TYPE
from broker.sessions import Credential
from bus import Backoff
from bus.destination import Policy
from tests.bus.test_destination import Names
from tests.webhooks import CLOSE, HANG, Receiver

from ..conftest import Effects
from ..house import House
from .receivers import Deliveries, asking, deliveries_of, house_with_push

TASK = task_id("ep1", "m1")


@pytest.fixture
def house(pipeline: Pipeline, ledger: Ledger, credential: Credential) -> House:
    return house_with_push(pipeline, ledger, credential)


@pytest.fixture
async def deliveries(pipeline: Pipeline, ledger: Ledger) -> AsyncIterator[Deliveries]:
    async for deliveries in deliveries_of(pipeline, ledger):
        yield deliveries


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as receiver:
        yield receiver


async def ask(house: House, skill: str, arguments: Any, url: str, *, message_id: str = "m1", **config: Any) -> Any:
    said = asking(skill, arguments, url, message_id=message_id, **config)
    return await house.ask("SendMessage", said, message_id=message_id)


async def row(ledger: Ledger, task: str = TASK) -> Any:
    """The row of a task's only config."""
    from broker.ledger import schema

    database: Database = ledger._database
    query = schema.push_configs.select().where(schema.push_configs.c.task_id == task)
    return await database.read(lambda connection: connection.execute(query).one())


async def ended(ledger: Ledger, outcome: str, task: str = TASK) -> Any:
    """The row of a task's only config, once nothing more is sent for it."""
    async with asyncio.timeout(20):
        while (found := await row(ledger, task)).ended_at is None:  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0.01)
    assert outcome in found.outcome
    return found


async def test_a_receiver_is_told_what_a_subscriber_sees(
    house: House, ledger: Ledger, deliveries: Deliveries, receiver: Receiver, effects: Effects
) -> None:
    deliveries.start()
    await ask(house, "once", {"do": "report"}, receiver.url)
    await receiver.count(4)
    effects.gate.set()
    posted = await receiver.count(6)
    stream = await house.stream("once", {"do": "report"}).end()
    assert [each.json for each in posted] == stream.answer.bodies
    assert receiver.places == stream.places == [0, 1, 2, 3, 4, 5]
    for each in posted:
        ParseDict(each.json, pb.StreamResponse())
        assert each.headers["content-type"] == "application/a2a+json"
        assert each.headers["a2a-version"] == "1.0"
        assert each.headers["a2a-task-id"] == TASK
        assert {"authorization", "x-a2a-notification-token", "x-skillbus-signature"} & each.headers.keys() == set()
    await ended(ledger, "taken")


@pytest.mark.parametrize(
    ("skill", "arguments", "state"),
    [("pure", {}, "COMPLETED"), ("once", {"refuse": 1}, "REJECTED"), ("once", {"do": "fail"}, "FAILED")],
)
async def test_every_end_is_told(
    house: House, deliveries: Deliveries, receiver: Receiver, skill: str, arguments: Any, state: str
) -> None:
    await ask(house, skill, arguments, receiver.url)
    deliveries.start()
    posted = await receiver.count(3)
    assert [each.kind for each in posted] == ["task", "artifactUpdate", "statusUpdate"]
    assert posted[-1].json["statusUpdate"]["status"]["state"] == f"TASK_STATE_{state}"


async def test_a_cancel_is_told(house: House, deliveries: Deliveries, receiver: Receiver, effects: Effects) -> None:
    deliveries.start()
    await ask(house, "once", {"do": "wait"}, receiver.url)
    await effects.started.wait()
    await house.ask("CancelTask", {"id": TASK})
    posted = await receiver.count(3)
    assert posted[-1].json["statusUpdate"]["status"]["state"] == "TASK_STATE_CANCELED"


async def test_a_config_for_a_running_task_begins_where_it_is(
    house: House, deliveries: Deliveries, receiver: Receiver, effects: Effects
) -> None:
    deliveries.start()
    stream = await house.stream("once", {"do": "report"}).count(4)
    await house.ask("CreateTaskPushNotificationConfig", {"taskId": TASK, "url": receiver.url})
    effects.gate.set()
    await stream.end()
    await receiver.count(2)
    assert receiver.places == [4, 5]


async def test_a_config_for_an_ended_task_is_told_its_end(
    house: House, ledger: Ledger, deliveries: Deliveries, receiver: Receiver
) -> None:
    deliveries.start()
    await house.send("once", {})
    await house.ask("CreateTaskPushNotificationConfig", {"taskId": TASK, "url": receiver.url})
    await receiver.count(2)
    assert receiver.places == [1, 2]
    await ended(ledger, "taken")


async def test_credentials_and_signature(
    house: House, deliveries: Deliveries, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    key = SigningKey.generate()
    deliveries.start(key=key)
    secrets: dict[str, Any] = {
        "token": "hush-token",
        "authentication": {"scheme": "Bearer", "credentials": "hush hush"},
    }
    receiver.answers.append(500)
    await ask(house, "once", {}, receiver.url, **secrets)
    posted = await receiver.count(4)
    seen = set()
    for each in posted:
        assert each.headers["authorization"] == "Bearer hush hush"
        assert each.headers["x-a2a-notification-token"] == "hush-token"
        token = each.headers["x-skillbus-signature"]
        public = jwt.PyJWK(key.jwk)
        claims = jwt.decode(token, public, algorithms=["EdDSA"], audience=receiver.url, issuer="house")
        assert jwt.get_unverified_header(token) == {"alg": "EdDSA", "kid": key.kid, "typ": TYPE}
        assert claims["dig"] == f"sha256:{hashlib.sha256(each.body).hexdigest()}"
        assert (claims["sub"], claims["seq"]) == (TASK, each.place)
        assert abs(claims["iat"] - time.time()) < 60
        assert claims["exp"] - claims["iat"] == 300
        seen.add(claims["jti"])
    assert len(seen) == 4, "the same id twice"
    head, _, sign = posted[0].headers["x-skillbus-signature"].rpartition(".")
    broken = base64.urlsafe_b64encode(bytes(64)).decode().rstrip("=")
    with pytest.raises(jwt.InvalidSignatureError):
        jwt.decode(f"{head}.{broken}", public, algorithms=["EdDSA"], audience=receiver.url)
    assert sign != broken
    assert "hush" not in caplog.text
    assert "/hook" not in caplog.text


@pytest.mark.parametrize("answer", [500, 503, 408, 425, 429, CLOSE, HANG], ids=str)
async def test_what_was_not_taken_is_sent_again_in_order(
    house: House, ledger: Ledger, deliveries: Deliveries, receiver: Receiver, answer: Any
) -> None:
    receiver.answers.extend([200, answer, answer])
    deliveries.start(timeout=0.3 if answer == HANG else 10.0)
    await ask(house, "once", {}, receiver.url)
    await ended(ledger, "taken")
    assert receiver.places == [0, 1, 1, 1, 2]
    bodies = {each.body for each in receiver.posted[1:4]}
    assert len(bodies) == 1


async def test_a_receiver_says_when_to_come_back(
    house: House, ledger: Ledger, deliveries: Deliveries, receiver: Receiver
) -> None:
    receiver.answers.append((429, {"Retry-After": "100"}))
    deliveries.start(backoff=Backoff(first=0.01, most=50.0))
    await ask(house, "once", {}, receiver.url)
    await receiver.count(1)
    async with asyncio.timeout(20):
        while (found := await row(ledger)).owner is not None or not found.failures:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert found.failures == 1
    assert 40 < found.due_at - time.time() <= 50, "longer than the longest pause, or not as long as it was asked for"
    assert receiver.places == [0]


async def test_a_fault_in_the_delivery_itself_is_not_tried_again_at_once(
    house: House, ledger: Ledger, deliveries: Deliveries, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> dict[str, str]:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("broker.push.delivery.headers_of", broken)
    deliveries.start(backoff=Backoff(first=0.01, most=50.0))
    await ask(house, "once", {}, receiver.url)
    async with asyncio.timeout(20):
        while (await row(ledger)).failures < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    monkeypatch.undo()
    await ended(ledger, "taken")


@pytest.mark.parametrize("status", [301, 307, 400, 401, 404, 410, 413])
async def test_a_refusal_is_final(
    house: House,
    ledger: Ledger,
    deliveries: Deliveries,
    receiver: Receiver,
    status: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    receiver.always = (status, {"Location": "http://127.0.0.2:1/"})
    deliveries.start()
    await ask(house, "once", {}, receiver.url)
    found = await ended(ledger, f"it answers {status}")
    assert (receiver.places, found.place) == ([0], -1)
    assert f"push notifications of task {TASK} to http://127.0.0.1:{receiver.port} end" in caplog.text


async def test_a_receiver_is_given_up_and_may_be_given_another_chance(
    house: House, ledger: Ledger, deliveries: Deliveries, receiver: Receiver
) -> None:
    receiver.always = 500
    deliveries.start(attempts=3)
    await ask(house, "once", {}, receiver.url)
    await ended(ledger, "it answers 500, after 3 attempts")
    assert receiver.places == [0, 0, 0]
    receiver.always = 200
    await house.ask("CreateTaskPushNotificationConfig", {"taskId": TASK, "url": receiver.url})
    await ended(ledger, "taken")
    assert receiver.places == [0, 0, 0, 0, 1, 2]


async def test_a_message_that_is_sent_again_tells_nobody_twice(
    house: House, ledger: Ledger, deliveries: Deliveries, receiver: Receiver
) -> None:
    task = deliveries.start()
    for _ in range(2):
        await ask(house, "once", {}, receiver.url)
        await ended(ledger, "taken")
    await deliveries.stop(task)
    assert receiver.places == [0, 1, 2]


async def test_a_url_is_checked_again_before_each_dispatch(
    pipeline: Pipeline,
    ledger: Ledger,
    credential: Credential,
    deliveries: Deliveries,
    receiver: Receiver,
    effects: Effects,
) -> None:
    names = Names(["127.0.0.1"], ["127.0.0.1"], ["10.0.0.1"])
    policy = Policy(["127.0.0.0/8"], http=True, resolve=names)
    house = house_with_push(pipeline, ledger, credential, policy)
    deliveries.start(policy=policy)
    await ask(house, "once", {"do": "wait"}, f"http://hooks.test:{receiver.port}/hook")
    await receiver.count(1)
    effects.gate.set()
    await ended(ledger, "not public")
    assert receiver.places == [0]
    assert len(names.asked) == 3


async def test_a_hanging_receiver_holds_nobody_else(
    house: House, ledger: Ledger, deliveries: Deliveries, receiver: Receiver
) -> None:
    async with Receiver(always=HANG) as hanging:
        for n in range(push_delivery.LANES):
            await ask(house, "pure", {"n": n}, hanging.url, message_id=f"h{n}")
        deliveries.start(timeout=20.0)
        await hanging.count(push_delivery.LANES_TO_ORIGIN)
        await ask(house, "pure", {}, receiver.url)
        await ended(ledger, "taken")
        assert receiver.places == [0, 1, 2]
        assert len(hanging.posted) == push_delivery.LANES_TO_ORIGIN


async def test_another_worker_goes_on_when_the_lease_is_over(
    house: House, ledger: Ledger, deliveries: Deliveries, receiver: Receiver
) -> None:
    await ask(house, "once", {}, receiver.url)
    await house.send("once", {})
    now = time.time()
    dead = ledger.outbox("dead")
    (due,) = await dead.due(now, 9)
    (claimed,) = await dead.claim([due], now, now + 0.5)
    assert await ledger.outbox("w2").claim([due], now, now + 9) == []
    deliveries.start("w2")
    await ended(ledger, "taken")
    assert receiver.places == [0, 1, 2]
    await dead.taken(claimed.config.key, 7)
    await dead.renew([claimed.config.key], now + 99)
    assert await dead.mine(claimed.config.key) is None
    found = await row(ledger)
    assert (found.place, found.lease_until) == (2, None), "who had lost the lease wrote all the same"


async def test_a_lease_lasts_as_long_as_its_worker(
    house: House, ledger: Ledger, deliveries: Deliveries, receiver: Receiver
) -> None:
    receiver.answers.append(HANG)
    deliveries.start("w1", lease=3.0, timeout=1.5)
    await ask(house, "once", {}, receiver.url)
    await receiver.count(1)
    first = await row(ledger)
    deliveries.start("w2")
    async with asyncio.timeout(20):
        while (found := await row(ledger)).lease_until == first.lease_until:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert found.owner == first.owner == "w1"
    await ended(ledger, "taken")
    assert receiver.places == [0, 0, 1, 2]


async def test_two_workers_send_everything_once(
    house: House, ledger: Ledger, deliveries: Deliveries, receiver: Receiver
) -> None:
    deliveries.start("w1")
    deliveries.start("w2")
    for n in range(8):
        await ask(house, "once", {"n": n}, receiver.url, message_id=f"m{n}")
    for n in range(8):
        await ended(ledger, "taken", task_id("ep1", f"m{n}"))
    seen = [(each.headers["a2a-task-id"], each.place) for each in receiver.posted]
    assert len(seen) == len(set(seen)) == 24


async def test_a_worker_that_stops_leaves_the_rest_to_the_others(
    house: House, ledger: Ledger, deliveries: Deliveries, receiver: Receiver
) -> None:
    receiver.answers.extend([200, HANG])
    first = deliveries.start("w1", timeout=30.0)
    await ask(house, "once", {}, receiver.url)
    await receiver.count(2)
    await deliveries.stop(first)
    found = await row(ledger)
    assert (found.place, found.owner, found.lease_until) == (0, None, None)
    deliveries.start("w2")
    await ended(ledger, "taken")
    assert receiver.places == [0, 1, 1, 2]


async def test_nothing_is_sent_for_a_config_that_is_deleted(
    house: House, deliveries: Deliveries, receiver: Receiver, effects: Effects
) -> None:
    async with Receiver() as kept:
        task = deliveries.start()
        await ask(house, "once", {"do": "wait"}, receiver.url, id="gone")
        await house.ask("CreateTaskPushNotificationConfig", {"taskId": TASK, "url": kept.url, "id": "kept"})
        await receiver.count(1)
        await house.ask("DeleteTaskPushNotificationConfig", {"taskId": TASK, "id": "gone"})
        effects.gate.set()
        await kept.count(2)
        await deliveries.stop(task)
    assert receiver.places == [0]


async def test_a_revoked_session_is_told_nothing_more(
    house: House, ledger: Ledger, deliveries: Deliveries, receiver: Receiver, effects: Effects
) -> None:
    deliveries.start()
    await ask(house, "once", {"do": "wait"}, receiver.url)
    await receiver.count(1)
    await ledger.revoke(now=int(time.time()), session_id=house.credential.id)
    effects.gate.set()
    await ended(ledger, "may not see")
    assert receiver.places == [0]


async def test_events_that_are_not_kept_any_more_leave_a_gap(
    house: House, ledger: Ledger, deliveries: Deliveries, receiver: Receiver, effects: Effects
) -> None:
    await ask(house, "once", {"do": "report"}, receiver.url)
    await house.stream("once", {"do": "report"}).count(4)
    await ledger.tasks.forget(before=time.time() + 1)
    deliveries.start()
    await receiver.count(2)
    assert receiver.places == [0, 3]
    assert (receiver.posted[1].kind, receiver.posted[1].headers["a2a-gap"]) == ("task", "true")
    effects.gate.set()
    await receiver.count(4)
    assert receiver.places == [0, 3, 4, 5]


async def test_a_gap_at_the_end_of_a_task(
    house: House, ledger: Ledger, deliveries: Deliveries, receiver: Receiver, effects: Effects
) -> None:
    effects.gate.set()
    await ask(house, "once", {"do": "report"}, receiver.url)
    await house.stream("once", {"do": "report"}).end()
    await ledger.tasks.forget(before=time.time() + 1)
    deliveries.start()
    await ended(ledger, "taken")
    assert receiver.places == [0, 5]
    assert receiver.posted[1].json["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_what_is_over_is_forgotten(
    house: House, ledger: Ledger, deliveries: Deliveries, receiver: Receiver, effects: Effects
) -> None:
    deliveries.start()
    await ask(house, "once", {"do": "wait"}, receiver.url, message_id="open")
    await ask(house, "pure", {}, receiver.url)
    await ended(ledger, "taken")
    await receiver.count(4)
    orphan = PushConfig("no-task", house.credential.id, "c", "ep1", receiver.url, "http://127.0.0.1")
    await ledger.push.put(orphan, place=-1, now=1.0, limit=9)
    outbox = ledger.outbox("w1")
    await outbox.forget(before=2.0)
    assert await ledger.push.page("no-task", house.credential.id, "", 9) == []
    assert len(await ledger.push.page(TASK, house.credential.id, "", 9)) == 1
    await outbox.forget(before=time.time() + 1)
    assert await ledger.push.page(TASK, house.credential.id, "", 9) == []
    assert len(await ledger.push.page(task_id("ep1", "open"), house.credential.id, "", 9)) == 1
    effects.gate.set()


@pytest.mark.parametrize("which", ["read", "write"])
async def test_a_ledger_that_is_away_for_a_moment_ends_no_delivery(
    house: House,
    ledger: Ledger,
    deliveries: Deliveries,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    which: str,
) -> None:
    # The third reading is that of a lane, which has begun by then; the third writing is that which lets go of it.
    failing: deque[Exception | None] = deque([OSError("away"), RuntimeError("broken"), None, OSError("away again")])
    work: Callable[..., Any] = getattr(ledger._database, which)

    async def shaky(what: Any) -> Any:
        error = failing.popleft() if failing else None
        if error is not None:
            raise error
        return await work(what)

    await ask(house, "pure", {}, receiver.url)
    monkeypatch.setattr(ledger._database, which, shaky)
    deliveries.start(lease=0.5)
    await receiver.place(2)
    await ended(ledger, "taken")
    assert not failing
    assert receiver.places in ([0, 1, 2], [0, 1, 2, 0, 1, 2], [0, 1, 2, 2], [0, 1, 2, 1, 2])


async def test_more_than_is_kept_in_memory_comes_in_order(
    house: House,
    ledger: Ledger,
    deliveries: Deliveries,
    receiver: Receiver,
    effects: Effects,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(push_delivery, "AHEAD", 1)
    effects.gate.set()
    await ask(house, "once", {"do": "report"}, receiver.url)
    deliveries.start()
    await ended(ledger, "taken")
    assert receiver.places == [0, 1, 2, 3, 4, 5]
