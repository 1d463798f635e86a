"""A fleet with all of its slots in use: what it is asked reaches it all the same."""

import asyncio
from pathlib import Path

import pytest

from broker.pipeline.planned import task_id
from bus import Names
from bus.target import driver_for

from .conftest import Site, message, outcome
from .test_long import Marks, accepted

pytestmark = [pytest.mark.rabbitmq, pytest.mark.timeout(120)]


async def waiting(site: Site, least: int) -> None:
    """Wait until so many requests for work are in nobody's hands."""
    connection = await driver_for(site.url).connect("looking")
    try:
        async with asyncio.timeout(30):
            while (await connection.tally(Names().queue(site.agent)) or (0,))[0] < least:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    finally:
        await connection.close()


async def test_a_cancel_reaches_workers_whose_slots_are_all_in_use(site: Site, tmp_path: Path) -> None:
    stage, credential = Marks(tmp_path), await site.session(Test_Mark=20)
    for _ in range(2):
        await site.worker("--pack", "tests.faults.long:pack", "--pack", "tests.faults.steps:pack", "--slots", "1")
    async with site.client(credential) as client:
        long = [
            asyncio.create_task(client.send(site.agent, message("long", stage.arguments, f"l{number}")))
            for number in range(2)
        ]
        for number in range(2):
            await accepted(site, 1, f"l{number}")
        # Each worker has as many accepted calls as slots, or one of them two; what else it takes before it stops
        # taking fills its slots, and the rest waits in the queue.
        short = [
            asyncio.create_task(client.send(site.agent, message("steps", {"marks": str(tmp_path / f"s{n}")}, f"s{n}")))
            for n in range(6)
        ]
        await waiting(site, 4)
        listed = await client.request(site.agent, "ListTasks", {}, timeout=20)
        assert {task["id"] for task in listed["tasks"]} >= {task_id("ep1", f"l{number}") for number in range(2)}
        for number in range(2):
            body = {"id": task_id("ep1", f"l{number}")}
            assert (await client.request(site.agent, "GetTask", body, timeout=20))["status"]["state"].endswith(
                "WORKING"
            )
            stream = client.stream(site.agent, "SubscribeToTask", body, timeout=20)
            assert "task" in (await anext(stream)).body
            await stream.aclose()
        canceled = await client.request(site.agent, "CancelTask", {"id": task_id("ep1", "l0")}, timeout=20)
        assert canceled["status"]["state"] == "TASK_STATE_CANCELED"
        assert outcome(await long[0])[0] == "canceled"
        await waiting(site, 4)  # none of it was taken meanwhile
        stage.go()
        assert outcome(await long[1]) == ("completed", "succeeded")
        for call in short:
            call.cancel()
        await asyncio.gather(*short, return_exceptions=True)
