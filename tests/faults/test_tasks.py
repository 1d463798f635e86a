"""Tasks over a real broker and real worker processes: canceled from elsewhere, followed past the death of a worker."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import bus

from .conftest import Site, message

pytestmark = pytest.mark.timeout(180)

STEPS = ("--pack", "tests.faults.steps:pack")
FULL = (*STEPS, "--slots", "1")
"""A worker that takes one request at a time: while its call runs, everything else goes to another one."""


class Listening:
    """A stream that is read in the background."""

    def __init__(self, client: bus.Client, agent: str, operation: str, body: dict[str, Any], **options: Any) -> None:
        self.events: list[bus.StreamEvent] = []
        self._news = asyncio.Event()
        self.task = asyncio.create_task(self._read(client, agent, operation, body, options))

    async def _read(
        self, client: bus.Client, agent: str, operation: str, body: dict[str, Any], options: dict[str, Any]
    ) -> None:
        async for event in client.stream(agent, operation, body, **options):
            if event.task_seq is not None:  # no keep-alive
                self.events.append(event)
                self._news.set()

    async def count(self, wanted: int) -> "Listening":
        while len(self.events) < wanted:
            self._news.clear()
            assert not self.task.done()
            await asyncio.wait_for(self._news.wait(), 60)
        return self

    async def end(self) -> list[int | None]:
        """The places of all events, once the stream has ended."""
        await asyncio.wait_for(self.task, 90)
        return [event.task_seq for event in self.events]

    @property
    def ending(self) -> tuple[str, str]:
        """The state and the outcome in the last two events."""
        artifact, status = (event.body for event in self.events[-2:])
        return (
            status["statusUpdate"]["status"]["state"],
            artifact["artifactUpdate"]["artifact"]["metadata"]["outcome"],
        )


async def begun(site: Site, client: bus.Client, marks: Path) -> tuple[Listening, str]:
    """A stream of a call that has taken its steps and waits, and the id of its task."""
    body = {"message": message("steps", {"marks": str(marks)}, "m1")}
    stream = await Listening(client, site.agent, "SendStreamingMessage", body).count(4)
    return stream, stream.events[0].body["task"]["id"]


async def test_a_cancel_through_another_worker(site: Site, tmp_path: Path) -> None:
    credential = await site.session(Test_Mark=5)
    await site.worker(*FULL)
    marks = tmp_path / "marks"
    async with site.client(credential) as client:
        stream, task_id = await begun(site, client, marks)
        await site.worker(*STEPS)
        canceled = await client.request(site.agent, "CancelTask", {"id": task_id})
        assert canceled["status"]["state"] == "TASK_STATE_CANCELED"
        assert marks.read_text() == "begun\nended\n"
        assert await stream.end() == [0, 1, 2, 3, 4, 5]
        assert stream.ending == ("TASK_STATE_CANCELED", "canceled")
        assert await client.request(site.agent, "CancelTask", {"id": task_id}) == canceled
        assert await client.request(site.agent, "GetTask", {"id": task_id}) == canceled
        page = await client.request(site.agent, "ListTasks", {"status": "TASK_STATE_CANCELED"})
        assert [task["id"] for task in page["tasks"]] == [task_id]
    assert await site.ledger.spent("ep1") == {("Test.Mark", "test"): 1}
    assert await site.sound() == 1


async def test_three_who_listen_see_the_same_through_any_worker(site: Site, tmp_path: Path) -> None:
    credential = await site.session(Test_Mark=5)
    await site.worker(*FULL)
    marks = tmp_path / "marks"
    async with site.client(credential) as client, site.client(credential) as other:
        stream, task_id = await begun(site, client, marks)
        await asyncio.gather(site.worker(*STEPS), site.worker(*STEPS))
        asked = [{}, {"a2a-after-seq": "0"}, {"a2a-after-seq": "2"}]
        listening = [
            await Listening(each, site.agent, "SubscribeToTask", {"id": task_id}, headers=headers).count(1)
            for each, headers in zip((client, other, other), asked, strict=True)
        ]
        await client.request(site.agent, "CancelTask", {"id": task_id})
        assert await stream.end() == [0, 1, 2, 3, 4, 5]
        told = {event.task_seq: event.body for event in stream.events}
        for each, places in zip(listening, ([3, 4, 5], [0, 1, 2, 3, 4, 5], [2, 3, 4, 5]), strict=True):
            assert await each.end() == places
            # the first is the task as it stood when it was asked for
            assert [event.body for event in each.events[1:]] == [told[place] for place in places[1:]]
            assert each.events[0].body["task"]["id"] == task_id
    assert await site.sound() == 1


async def test_a_cancel_reaches_what_was_called_in_its_name_and_its_programs(site: Site, tmp_path: Path) -> None:
    credential = await site.session(Test_Mark=5)
    await site.worker(*FULL)
    marks, fifo = tmp_path / "marks", tmp_path / "fifo"
    os.mkfifo(fifo)
    async with site.client(credential) as client:
        root, root_id = await begun(site, client, marks)
        await site.worker(*FULL)
        body = {"message": message("steps", {"marks": str(tmp_path / "below"), "pids": str(fifo)}, "m2")}
        child = Listening(client, site.agent, "SendStreamingMessage", body, headers={"a2a-root-task": root_id})
        await child.count(4)
        pids = (await asyncio.wait_for(asyncio.to_thread(fifo.read_text), 60)).split()
        assert len(pids) == 2
        await site.worker(*STEPS)
        await client.request(site.agent, "CancelTask", {"id": root_id})
        for each in (root, child):
            assert await each.end() == [0, 1, 2, 3, 4, 5]
            assert each.ending == ("TASK_STATE_CANCELED", "canceled")
        assert [pid for pid in pids if lives(pid)] == []
    assert await site.ledger.spent("ep1") == {("Test.Mark", "test"): 2}
    assert await site.sound() == 2


def lives(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_worker_is_killed_while_it_streams(site: Site, tmp_path: Path) -> None:
    credential = await site.session(Test_Mark=5)
    first = await site.worker(*FULL)
    marks = tmp_path / "marks"
    async with site.client(credential) as client:
        stream, task_id = await begun(site, client, marks)
        await site.worker(*STEPS)
        again = Listening(client, site.agent, "SubscribeToTask", {"id": task_id}, headers={"a2a-after-seq": "1"})
        await again.count(3)
        first.send_signal(signal.SIGKILL)
        assert await again.end() == [1, 2, 3, 4, 5]
        assert again.ending == ("TASK_STATE_FAILED", "indeterminate")
        assert await stream.end() == [0, 1, 2, 3, 4, 5]
        assert stream.ending == again.ending
        assert [e.body for e in stream.events[2:]] == [e.body for e in again.events[1:]]
    assert marks.read_text() == "begun\n"
    assert await site.ledger.spent("ep1") == {("Test.Mark", "test"): 1}
    assert await site.sound() == 1


async def test_a_call_that_nobody_waits_for_is_ended_when_its_worker_was_killed(site: Site, tmp_path: Path) -> None:
    credential = await site.session(Test_Mark=5)
    first = await site.worker(*STEPS)
    marks = tmp_path / "marks"
    body = {
        "message": message("steps", {"marks": str(marks)}, "m1"),
        "configuration": {"returnImmediately": True},
    }
    async with site.client(credential) as client:
        task = (await client.request(site.agent, "SendMessage", body))["task"]
        assert task["status"]["state"] == "TASK_STATE_WORKING"
        first.send_signal(signal.SIGKILL)
        await first.wait()
        await site.worker(*STEPS)
        stream = Listening(client, site.agent, "SubscribeToTask", {"id": task["id"]})
        await stream.end()
        assert stream.ending == ("TASK_STATE_FAILED", "indeterminate")
    assert await site.sound() == 1
