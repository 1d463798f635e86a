"""Connections, consumers, queues and a broker that go away under calls and streams, with workers as users run them.

Whatever breaks: every call has run once and is answered, every stream is whole, nothing is left in a table, and all of
it comes back by itself.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import bus
from bus import Backoff, Patience, Retry, State
from bus.discovery.control import ask
from bus.discovery.vitals import Stats
from deploy.rabbitmq import PrivateNode
from tests.conformance.proxy import Proxy
from tests.conformance.stage import until

from .conftest import Site, message, outcome

pytestmark = pytest.mark.timeout(180)

CHUNKS = 6
EVENTS = 1 + CHUNKS + 2
"""The events of a stream: the task, what it tells, the result and the final state."""

SLOTS = 64
PATIENCE = Patience(connect=30.0, confirm=20.0, backoff=Backoff(first=0.05, most=0.5))
RETRY = Retry(attempts=20, first_reply=3.0, pause=0.1)
LIMIT = 60.0


class Load:
    """Calls and streams that wait in the middle until they may go on."""

    def __init__(self, site: Site, client: bus.Client, folder: Path, *, calls: int, streams: int, workers: int) -> None:
        self.site, self.client = site, client
        self.marks, self.gate = folder / "marks", folder / "gate"
        self.total = calls + streams
        self._calls, self._streams, self._slots = calls, streams, workers * SLOTS
        self._seen: list[list[int | None]] = [[] for _ in range(streams)]
        self._tasks: list[asyncio.Task[Any]] = []

    async def begin(self) -> None:
        """Comes back when as many run as can, every stream is half told, and all are under way."""
        self._tasks = [asyncio.create_task(self._listen(number)) for number in range(self._streams)]
        await until(lambda: all(len(seen) == 1 + CHUNKS // 2 for seen in self._seen), LIMIT)
        self._tasks += [asyncio.create_task(self._call(number)) for number in range(self._calls)]
        await until(lambda: len(self.ran) == min(self.total, self._slots), LIMIT)
        assert self.client.stats().pending == self.total

    def go_on(self) -> None:
        """Let them go on."""
        self.gate.touch()

    async def end(self) -> None:
        """Wait for the end of all of them, and look at everything."""
        async with asyncio.timeout(LIMIT):
            ended = await asyncio.gather(*self._tasks)
        assert set(ended[self._streams :]) <= {("completed", "succeeded")}
        assert self._seen == [list(range(EVENTS))] * self._streams
        assert len(self.ran) == len(set(self.ran)) == self.total
        assert self.client.stats().pending == 0
        assert not self.client._pending._by_id
        assert await self.site.ledger.spent("ep1") == {("Test.Mark", "test"): self.total}
        assert await self.site.sound() == self.total
        async with asyncio.timeout(LIMIT):
            while any(worker.running for worker in await self.workers()):
                pass
        assert outcome(await self._send("afterwards")) == ("completed", "succeeded")

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def workers(self) -> list[Stats]:
        """What the workers say of themselves."""
        found = await ask(self.site.url, Stats, agent=self.site.agent)
        assert found
        return [answer.body for answer in found]

    @property
    def ran(self) -> list[str]:
        """The calls that have run, as often as they did."""
        return self.marks.read_text().splitlines() if self.marks.exists() else []

    async def _call(self, number: int) -> tuple[str, str]:
        return outcome(await self._send(f"call-{number}"))

    async def _send(self, message_id: str) -> dict[str, Any]:
        answer: dict[str, Any] = await self.client.send(self.site.agent, self._message(message_id, 0), timeout=LIMIT)
        return answer

    async def _listen(self, number: int) -> None:
        body = {"message": self._message(f"stream-{number}", CHUNKS)}
        async for event in self.client.stream(self.site.agent, "SendStreamingMessage", body, timeout=LIMIT):
            if event.task_seq is not None:  # no keep-alive
                self._seen[number].append(event.task_seq)

    def _message(self, message_id: str, chunks: int) -> dict[str, Any]:
        return message("hold", {"marks": str(self.marks), "gate": str(self.gate), "chunks": chunks}, message_id)


class House:
    """Workers and a client on a node that may be broken, and the load that they carry."""

    def __init__(self, site: Site, node: PrivateNode, folder: Path) -> None:
        self.site, self.node, self.folder = site, node, folder
        self.open = AsyncExitStack()

    async def load(
        self, *, calls: int = 150, streams: int = 10, client_url: str = "", worker_urls: tuple[str, ...] = ("", "")
    ) -> Load:
        credential = await self.site.session(Test_Mark=1000)
        await asyncio.gather(*(self.site.worker(url=url) for url in worker_urls))
        connecting = self.site.client(credential, url=client_url, patience=PATIENCE, retry=RETRY)
        client = await self.open.enter_async_context(connecting)
        load = Load(self.site, client, self.folder, calls=calls, streams=streams, workers=len(worker_urls))
        self.open.push_async_callback(load.close)
        await load.begin()
        return load

    async def ctl(self, *arguments: str) -> None:
        await asyncio.to_thread(self.node.ctl, *arguments)

    @property
    def queue(self) -> str:
        return bus.Names().queue(self.site.agent)


@pytest.fixture
async def house(fragile_site: Site, rabbitmq_node: PrivateNode, tmp_path: Path) -> AsyncIterator[House]:
    house = House(fragile_site, rabbitmq_node, tmp_path)
    async with house.open:
        yield house


async def test_the_broker_is_killed_and_started_again(house: House) -> None:
    load = await house.load(calls=500, streams=20)
    await asyncio.to_thread(house.node.settle)  # the queue is new
    await asyncio.to_thread(house.node.kill)
    await until(lambda: load.client.state is not State.CONNECTED)
    load.go_on()  # what ends now finds nobody to take its answer
    async with asyncio.timeout(LIMIT):
        while await house.site.sound() < 2 * SLOTS:
            pass
    await asyncio.to_thread(house.node.start)
    await load.end()


async def test_the_administrator_closes_all_connections(house: House) -> None:
    load = await house.load()
    await house.ctl("close_all_connections", "for a test")
    await until(lambda: load.client.stats().losses == 2)
    load.go_on()
    await load.end()
    assert all(worker.losses >= 2 for worker in await load.workers())


async def test_the_broker_cancels_the_consumers(house: House) -> None:
    """Those of the workers, and that of the client, which listens for its replies."""
    load = await house.load()
    before = sum(worker.losses for worker in await load.workers())
    queues = ", ".join(f'<<"{name}">>' for name in (house.queue, load.client._inbox.queue))
    await house.ctl(
        "eval",
        "[rabbit_channel:send_command(proplists:get_value(channel_pid, Each), "
        "{'basic.cancel', proplists:get_value(consumer_tag, Each), true}) || "
        'Each <- rabbit_amqqueue:consumers_all(<<"/">>), '
        f"lists:member(element(4, proplists:get_value(queue_name, Each)), [{queues}])].",
    )
    await until(lambda: load.client.stats().losses == 1)
    async with asyncio.timeout(LIMIT):
        while sum(worker.losses for worker in await load.workers()) < before + 2:
            pass
    load.go_on()
    await load.end()
    assert load.client.stats().losses == 1


async def test_the_queue_is_deleted_with_all_that_is_in_it(house: House) -> None:
    load = await house.load()
    await house.ctl("delete_queue", house.queue)
    load.go_on()
    await load.end()
    assert load.client.stats().losses == 0
    assert load.client.stats().resent > 0


async def test_the_broker_runs_out_of_memory_and_recovers(house: House) -> None:
    load = await house.load()
    await house.ctl("set_vm_memory_high_watermark", "0.000001")
    try:
        # A broker tells of its alarm only to who publishes.
        held = asyncio.create_task(load._call(1000))
        load.total += 1
        await until(lambda: load.client.state is State.BLOCKED)
        with pytest.raises(bus.Unavailable):
            await load._call(1001)
        load.go_on()
        await until(lambda: len(load.ran) >= 2 * SLOTS)
    finally:
        await house.ctl("set_vm_memory_high_watermark", "0.6")
    assert await held == ("completed", "succeeded")
    await load.end()
    assert load.client.stats().losses == 0


async def test_connections_that_nobody_ends(house: House) -> None:
    """Half-open: neither side hears of the other any more. Both notice by their heartbeats."""
    url = f"{house.site.url}?heartbeat=1"
    client_side = await house.open.enter_async_context(Proxy(url))
    worker_side = await house.open.enter_async_context(Proxy(url))
    load = await house.load(client_url=client_side.url, worker_urls=(worker_side.url, ""))
    accepted = worker_side.accepted
    for proxy in (client_side, worker_side):
        proxy.freeze()
    await until(lambda: load.client.stats().losses >= 2 and worker_side.accepted > accepted)
    load.go_on()
    for proxy in (client_side, worker_side):
        proxy.thaw()
    await load.end()
