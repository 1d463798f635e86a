"""Real workers whose ledger is taken away from them, and given back."""

import asyncio
import resource
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import aio_pika
import pytest

import bus
from broker.pipeline.planned import task_id
from bus import Names, State
from bus.discovery.control import ask
from bus.discovery.vitals import Stats

from .conftest import Site, message, outcome
from .test_long import Marks

pytestmark = pytest.mark.timeout(180)

LONG = ("--pack", "tests.faults.long:pack")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILLBUS_LEDGER_WAIT_SECONDS", "0.2")


@contextmanager
def locked(site: Site) -> Iterator[None]:
    with closing(sqlite3.connect(site.folder / "ledger.db", isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - another process makes it true
            await asyncio.sleep(0.05)


async def waiting(site: Site, number: int) -> None:
    """Wait until so many requests wait in the agent's queue, in nobody's hands."""
    async with asyncio.timeout(30), await aio_pika.connect(site.url) as connection:
        while True:
            channel = await connection.channel()
            queue = await channel.declare_queue(Names().queue(site.agent), passive=True)
            if queue.declaration_result.message_count == number:
                return
            await channel.close()
            await asyncio.sleep(0.05)


async def state(site: Site, wanted: State, number: int) -> list[Stats]:
    """What so many workers say once all of them are in this state."""
    async with asyncio.timeout(30):
        while True:
            said = [answer.body for answer in await ask(site.url, Stats, agent=site.agent)]
            if [each.state for each in said] == [wanted] * number:
                return said


async def test_another_process_holds_the_ledger(site: Site, tmp_path: Path) -> None:
    credential = await site.session(Test_Mark=20)
    ready = [tmp_path / "ready-1", tmp_path / "ready-2"]
    await asyncio.gather(*(site.worker(*LONG, "--ready-file", str(path)) for path in ready))
    await until(lambda: all(path.exists() for path in ready))
    long, marks = Marks(tmp_path), tmp_path / "short"
    async with site.client(credential) as client:
        running = asyncio.create_task(client.send(site.agent, message("long", long.arguments, "m0")))
        await long.has("begun")
        with locked(site):
            long.go()
            await long.has("begun", "ended")
            calls = [
                asyncio.create_task(client.send(site.agent, message("mark", {"marks": str(marks)}, f"m{n}")))
                for n in range(1, 11)
            ]
            hasty = asyncio.create_task(
                client.send(site.agent, message("mark", {"marks": str(marks)}, "m11"), timeout=2)
            )
            said = await state(site, State.PAUSED, 2)
            assert all("locked" in (each.paused or "") for each in said)
            await until(lambda: not any(path.exists() for path in ready))
            calls.append(asyncio.create_task(client.send(site.agent, message("mark", {"marks": str(marks)}, "m12"))))
            await waiting(site, 1)
            with pytest.raises(bus.Unavailable, match="deadline passed while the ledger") as caught:
                await hasty
            assert "retryAfterMs" in caught.value.metadata
            assert not running.done()
            assert not any(call.done() for call in calls)
            assert not marks.exists()
        answers = [outcome(answer) for answer in await asyncio.gather(running, *calls)]
        assert answers == [("completed", "succeeded")] * 12
        await state(site, State.CONNECTED, 2)
        await until(lambda: all(path.exists() for path in ready))
    assert len(marks.read_text().splitlines()) == 11
    assert await site.ledger.tasks.get(task_id("ep1", "m11"), "ep1") is None
    assert await site.ledger.spent("ep1") == {("Test.Mark", "test"): 12}
    assert await site.sound() == 12


async def test_nothing_can_be_written_to_the_disk(site: Site, tmp_path: Path) -> None:
    credential = await site.session(Test_Mark=5)
    worker, marks = await site.worker(), tmp_path / "marks"
    async with site.client(credential) as client:
        asked = [message("mark", {"marks": str(marks)}, f"m{n}") for n in range(3)]
        assert outcome(await client.send(site.agent, asked[0])) == ("completed", "succeeded")
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        calls = [asyncio.create_task(client.send(site.agent, each)) for each in asked[1:]]
        await state(site, State.PAUSED, 1)
        assert not any(call.done() for call in calls)
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert [outcome(each) for each in await asyncio.gather(*calls)] == [("completed", "succeeded")] * 2
    assert len(marks.read_text().splitlines()) == 3
    assert await site.sound() == 3
