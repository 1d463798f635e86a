"""Work that takes longer than a broker waits: acknowledged early, kept by its lease, ended by whoever is left."""

import asyncio
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import aio_pika
import pytest

import bus
from broker.pipeline.planned import task_id
from bus import Names, Retry
from deploy.rabbitmq import NodeError, PrivateNode

from .conftest import Site, message, outcome, output

pytestmark = pytest.mark.timeout(180)

PACK = ("--pack", "tests.faults.long:pack")
ONE = (*PACK, "--slots", "1")
ONCE = Retry(attempts=1)


class Marks:
    """Where a long skill leaves its marks, and waits for leave to end."""

    def __init__(self, folder: Path) -> None:
        self.marks = folder / "marks"
        self.gate = folder / "go"

    @property
    def arguments(self) -> dict[str, Any]:
        return {"marks": str(self.marks), "go": str(self.gate)}

    def words(self, process: asyncio.subprocess.Process | None = None) -> list[str]:
        """The marks, or those of one worker."""
        lines = [line.split() for line in self.marks.read_text().splitlines()] if self.marks.exists() else []
        return [word for word, pid in lines if process is None or int(pid) == process.pid]

    async def has(self, *words: str) -> None:
        async with asyncio.timeout(60):
            while self.words() != list(words):  # noqa: ASYNC110 - other processes write them
                await asyncio.sleep(0.02)

    def go(self) -> None:
        self.gate.touch()


@pytest.fixture
def stage(tmp_path: Path) -> Marks:
    return Marks(tmp_path)


async def accepted(site: Site, number: int = 1, message_id: str = "m1") -> None:
    """Wait until the ledger keeps so many who wait for a call's end."""
    name = task_id("ep1", message_id)
    async with asyncio.timeout(30):
        while len(await site.ledger.waiters.of(name)) < number:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def held(node: PrivateNode, site: Site) -> int:
    """How many messages the agent's queue holds: those that wait, and those that nobody has acknowledged."""
    name = Names().queue(site.agent)
    query = f'ra:leader_query({{list_to_atom("%2F_{name}"), node()}}, fun rabbit_fifo:query_messages_total/1)'
    async with asyncio.timeout(30):
        while True:
            # A queue that has no leader yet, after a restart, answers with something else.
            with suppress(NodeError, ValueError):
                said = await asyncio.to_thread(node.ctl, "eval", f"{{ok, {{_, Found}}, _}} = {query}, Found.")
                return int(said.split()[-1])
            await asyncio.sleep(0.1)


async def holds(node: PrivateNode, site: Site, number: int) -> None:
    async with asyncio.timeout(30):
        while await held(node, site) != number:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def consumed(site: Site) -> None:
    """Wait until a worker reads the agent's queue."""
    async with asyncio.timeout(60), await aio_pika.connect(site.url) as connection:
        while True:
            channel = await connection.channel()
            queue = await channel.declare_queue(Names().queue(site.agent), passive=True)
            if queue.declaration_result.consumer_count:
                return
            await asyncio.sleep(0.05)


async def test_a_long_call_is_acknowledged_while_it_runs_and_outlives_its_broker(
    fragile_site: Site, rabbitmq_node: PrivateNode, stage: Marks, tmp_path: Path
) -> None:
    site = fragile_site
    credential = await site.session(Test_Mark=5)
    await site.worker(*PACK, "--pack", "tests.faults.steps:pack")
    await asyncio.to_thread(rabbitmq_node.settle)
    async with site.client(credential) as client:
        short = asyncio.create_task(client.send(site.agent, message("steps", {"marks": str(tmp_path / "s")}, "m0")))
        await holds(rabbitmq_node, site, 1)
        canceling = client.request(site.agent, "CancelTask", {"id": task_id("ep1", "m0")})
        assert (await canceling)["status"]["state"] == "TASK_STATE_CANCELED"
        await short
        call = asyncio.create_task(client.send(site.agent, message("long", stage.arguments, "m1")))
        await accepted(site)
        await stage.has("begun")
        await holds(rabbitmq_node, site, 0)
    with pytest.raises(bus.ConnectionLost):
        await call
    await asyncio.to_thread(rabbitmq_node.kill)
    await asyncio.to_thread(rabbitmq_node.start)
    await consumed(site)
    assert await held(rabbitmq_node, site) == 0
    async with site.client(credential) as client:
        task = await client.request(site.agent, "GetTask", {"id": task_id("ep1", "m1")})
        assert task["status"]["state"] == "TASK_STATE_WORKING"
        again = asyncio.create_task(client.send(site.agent, message("long", stage.arguments, "m1")))
        await accepted(site, 2)
        stage.go()
        assert outcome(await again) == ("completed", "succeeded")
    assert stage.words() == ["begun", "ended"]
    assert await site.sound() == 2


@pytest.mark.parametrize(
    ("skill", "expected", "begun"),
    [("long-placed", ("failed", "indeterminate"), 1), ("long-again", ("completed", "succeeded"), 2)],
)
async def test_the_worker_of_a_long_call_is_killed(
    site: Site, stage: Marks, skill: str, expected: tuple[str, str], begun: int
) -> None:
    credential = await site.session(Test_Mark=5)
    first = await site.worker(*PACK)
    async with site.client(credential, retry=ONCE) as client:
        call = asyncio.create_task(client.send(site.agent, message(skill, stage.arguments, "m1")))
        await accepted(site)
        await stage.has("begun")
        second = await site.worker(*PACK)
        first.send_signal(signal.SIGKILL)
        await stage.has(*["begun"] * begun)
        stage.go()
        assert outcome(await call) == expected
        assert client.stats().resent == 0
        assert outcome(await client.send(site.agent, message(skill, stage.arguments, "m1"))) == expected
    assert stage.words(second) == (["begun", "ended"] if begun == 2 else [])
    assert await site.ledger.waiters.of(task_id("ep1", "m1")) == []
    assert await site.ledger.spent("ep1") == {("Test.Mark", "test"): 1}
    assert await site.sound() == 1


async def test_a_worker_that_comes_back_late_commits_nothing(site: Site, stage: Marks) -> None:
    credential = await site.session(Test_Mark=5)
    first = await site.worker(*PACK)
    async with site.client(credential, retry=ONCE) as client:
        call = asyncio.create_task(client.send(site.agent, message("long-again", stage.arguments, "m1")))
        await accepted(site)
        await stage.has("begun")
        first.send_signal(signal.SIGSTOP)
        second = await site.worker(*PACK)
        await stage.has("begun", "begun")
        first.send_signal(signal.SIGCONT)
        await stage.has("begun", "begun", "interrupted")
        assert stage.words(first) == ["begun", "interrupted"]
        stage.go()
        answer = await call
        assert outcome(answer) == ("completed", "succeeded")
        assert output(answer)["worker"] == second.pid
    assert stage.words(second) == ["begun", "ended"]
    assert await site.ledger.spent("ep1") == {("Test.Mark", "test"): 1}
    assert await site.sound() == 1


async def test_a_second_attempt_reaches_another_worker_and_both_are_answered(site: Site, stage: Marks) -> None:
    credential = await site.session(Test_Mark=5)
    first = await site.worker(*ONE)
    asked = message("long", stage.arguments, "m1")
    async with site.client(credential, retry=ONCE) as one, site.client(credential, retry=ONCE) as two:
        calls = [asyncio.create_task(one.send(site.agent, asked))]
        await accepted(site)
        await site.worker(*ONE)
        # A worker whose slots are all in use by accepted calls takes none, so this goes to the other one.
        calls.append(asyncio.create_task(two.send(site.agent, asked)))
        await accepted(site, 2)
        stage.go()
        answers = await asyncio.gather(*calls)
    assert answers[0] == answers[1]
    assert output(answers[0])["worker"] == first.pid
    assert stage.words() == ["begun", "ended"]
    assert await site.ledger.waiters.of(task_id("ep1", "m1")) == []
    assert await site.sound() == 1


async def test_a_stream_of_a_long_call_is_taken_up_again_when_its_worker_was_killed(site: Site, stage: Marks) -> None:
    credential = await site.session(Test_Mark=5)
    first = await site.worker(*ONE)
    body = {"message": message("long", stage.arguments, "m1")}
    async with site.client(credential, retry=ONCE) as client:
        events = client.stream(site.agent, "SendStreamingMessage", body, idle=4)
        seen = [await asyncio.wait_for(anext(events), 60) for _ in range(2)]
        await site.worker(*PACK)
        first.send_signal(signal.SIGKILL)
        seen += [event async for event in events]
    places = [event.task_seq for event in seen if event.task_seq is not None]
    assert places == [0, 1, 2, 3]
    assert seen[-1].body["statusUpdate"]["status"]["state"] == "TASK_STATE_FAILED"
    assert stage.words() == ["begun"]
    assert await site.sound() == 1
