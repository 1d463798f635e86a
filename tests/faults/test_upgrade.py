"""Workers of another release, whose skills can't run what those before them have left open."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from broker.pipeline.planned import task_id

from .conftest import Site, message, outcome, output

pytestmark = pytest.mark.timeout(180)


async def begun(fifo: Path) -> None:
    """Wait until an effect says that it has begun."""
    assert await asyncio.wait_for(asyncio.to_thread(fifo.read_text), 60) == "begun\n"


async def test_a_worker_of_another_release_ends_what_the_one_before_has_left_open(site: Site, tmp_path: Path) -> None:
    credential = await site.session(Test_Mark=5)
    first = await site.worker()
    asked = {}
    for name, skill in (("m1", "mark-again"), ("m2", "mark")):
        os.mkfifo(tmp_path / f"begun {name}")
        arguments = {"marks": str(tmp_path / name), "begun": str(tmp_path / f"begun {name}")}
        asked[name] = message(skill, arguments, name)
    async with site.client(credential) as client:
        call = asyncio.create_task(client.send(site.agent, asked["m1"]))
        at_once = {"message": asked["m2"], "configuration": {"returnImmediately": True}}
        await client.request(site.agent, "SendMessage", at_once, message_id="m2")
        await asyncio.gather(*(begun(tmp_path / f"begun {name}") for name in asked))
        first.send_signal(signal.SIGKILL)
        await first.wait()
        await site.worker(pack="tests.faults.upgraded:pack")
        answer = await call  # by its redelivery
        assert outcome(answer) == ("failed", "indeterminate")
        async with asyncio.timeout(60):
            while await site.ledger.receipt(task_id("ep1", "m2")) is None:  # noqa: ASYNC110 - by whoever looks for it
                await asyncio.sleep(0.05)
        for name, skill in (("m1", "mark-again"), ("m2", "mark")):
            again = await client.send(site.agent, asked[name])
            assert outcome(again) == ("failed", "indeterminate"), skill
            (effect,) = output(again)["world"]["effects"]
            assert effect["status"] == "indeterminate"
            assert len((tmp_path / name).read_text().splitlines()) == 1
    assert await site.ledger.spent("ep1") == {("Test.Mark", "test"): 2}
    assert await site.sound() == 2
