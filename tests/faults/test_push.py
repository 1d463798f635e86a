"""Webhooks are told by whichever worker lives."""

import asyncio
import signal
from pathlib import Path

import jwt
import pytest

from broker.agent.signing import SigningKey
from tests.webhooks import Receiver

from .conftest import Site, message, outcome

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(autouse=True)
def webhooks_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILLBUS_PUSH_ALLOW", '["127.0.0.0/8"]')
    monkeypatch.setenv("SKILLBUS_PUSH_HTTP", "true")


async def test_a_worker_is_killed_between_the_commit_and_the_delivery(site: Site, tmp_path: Path) -> None:
    credential = await site.session(Test_Mark=5)
    dying = await site.dying_worker()
    async with Receiver() as receiver, site.client(credential) as client:
        body = {
            "message": message("mark", {"marks": str(tmp_path / "marks")}, "m1"),
            "configuration": {"taskPushNotificationConfig": {"url": receiver.url, "token": "t-1"}},
        }
        asking = asyncio.create_task(client.request(site.agent, "SendMessage", body, timeout=90))
        await asyncio.wait_for(dying.wait(), 60)
        assert dying.returncode == -signal.SIGKILL
        assert receiver.posted == []
        await site.worker()
        posted = await receiver.count(3)
        answer = await asking
        assert outcome(answer) == ("completed", "succeeded")
        assert receiver.places == [0, 1, 2]
        assert posted[2].json["statusUpdate"]["status"] == answer["task"]["status"]
        key = jwt.PyJWK(SigningKey.load(site.folder / "signing.pem").jwk)
        for each in posted:
            assert each.headers["x-a2a-notification-token"] == "t-1"
            jwt.decode(each.headers["x-skillbus-signature"], key, algorithms=["EdDSA"], audience=receiver.url)
    assert len((tmp_path / "marks").read_text().splitlines()) == 1


async def test_a_worker_is_killed_while_its_call_runs(site: Site, tmp_path: Path) -> None:
    steps = ("--pack", "tests.faults.steps:pack")
    credential = await site.session(Test_Mark=5)
    first = await site.worker(*steps)
    async with Receiver() as receiver, site.client(credential) as client:
        body = {
            "message": message("steps", {"marks": str(tmp_path / "marks")}, "m1"),
            "configuration": {"returnImmediately": True, "taskPushNotificationConfig": {"url": receiver.url}},
        }
        await client.request(site.agent, "SendMessage", body)
        await receiver.count(4)
        first.send_signal(signal.SIGKILL)
        await first.wait()
        await site.worker(*steps)
        posted = await receiver.place(5)
        # What the dead worker has sent last, and not kept yet, is sent again: in order, and with the same bodies.
        again = receiver.places[4]
        assert receiver.places == [0, 1, 2, 3, *range(again, 6)]
        assert len({(each.place, each.body) for each in posted}) == 6
        assert posted[-1].json["statusUpdate"]["status"]["state"] == "TASK_STATE_FAILED"
