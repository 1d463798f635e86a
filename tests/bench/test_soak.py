"""The soak in little: after a warm-up, calls and streams leave nothing behind in either side's memory.

Blocks that Python has allocated are counted, which sees each string and each entry of a table, and no clock.
"""

import asyncio
import gc
import itertools
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import bus
from broker.agent.agent import SkillAgent
from broker.ledger.ledger import Ledger
from broker.pipeline.pipeline import Pipeline
from broker.sessions import Credential
from broker.worktrees.worktrees import Worktrees
from skills import Catalog, PackContext
from tests.bench import echo, soak

IN_FLIGHT = 32
BOUND = 0.5
"""Blocks a call. One entry of a table that is never taken out costs at least one; caches and pools, which end, less."""


async def growth(call: Callable[[int], Awaitable[None]], settled: Callable[[], bool], calls: int) -> float:
    """Blocks a call that are not given back over so many calls, after a warm-up of as many, which fills the caches."""
    numbers = itertools.count()

    async def some(count: int) -> int:
        async def one_after_another() -> None:
            for _ in range(count // IN_FLIGHT):
                await call(next(numbers))

        await asyncio.gather(*(one_after_another() for _ in range(IN_FLIGHT)))
        async with asyncio.timeout(20):
            while not settled():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        gc.collect()
        return sys.getallocatedblocks()

    before = await some(calls)
    return (await some(calls) - before) / calls


@pytest.mark.parametrize("load", ["echo", "streams"])
async def test_the_bus_keeps_nothing_of_a_call(rabbitmq_url: str, unique_prefix: str, load: str) -> None:
    serving = bus.serve(rabbitmq_url, "echo", echo.echo, prefix=unique_prefix)
    async with await serving as server, await bus.connect(rabbitmq_url, prefix=unique_prefix) as client:
        grown = await growth(soak.calling(client, "echo", load), lambda: server.stats().running == 0, 1280)
        assert client.stats().pending == 0
        assert not client._pending._by_id
    await bus.remove(rabbitmq_url, "echo", prefix=unique_prefix, shared=True)
    assert grown < BOUND


async def test_a_worker_keeps_nothing_of_a_call(tmp_path: Path) -> None:
    secret = await soak.prepare(tmp_path)
    catalog, broker = Catalog.load(PackContext(), installed=False, named=["skills.host:pack"]), bus.MemoryBroker()
    async with await Ledger.open(str(tmp_path / "ledger.db")) as ledger:
        pipeline = Pipeline(catalog, ledger, Worktrees(tmp_path / "workspaces"), owner="w1", version="0")
        serving = bus.serve(broker, "calc", SkillAgent("calc", pipeline, ledger, version="0"))
        connecting = bus.connect(broker, authorize=Credential(secret).authorize)
        async with await serving as server, await connecting as client:
            call = soak.calling(client, "calc", "governed")
            grown = await growth(call, lambda: server.stats().running == 0, 3200)
        await pipeline.close()
    assert grown < BOUND
