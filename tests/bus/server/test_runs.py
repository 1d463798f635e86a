"""What is asked for again while it runs, and after."""

import asyncio

import pytest

from bus.server.runs import Run, Runs
from tests.conformance.stage import soon


async def test_whoever_asks_again_gets_the_first_answer() -> None:
    runs: Runs[int] = Runs()
    gate = asyncio.Event()

    async def work(run: Run[int]) -> int:
        run.tell("t-1")
        run.tell("t-2")
        await gate.wait()
        return 7

    first = asyncio.create_task(runs.start("key", work))
    await asyncio.sleep(0)
    run = runs.find("key")
    assert run is not None
    await soon(run.told.wait())
    assert run.task_id == "t-1"
    gate.set()
    assert await soon(first) == await soon(run.answer) == 7
    assert runs.find("key") is run
    assert runs.find("other") is None


async def test_a_failed_run_may_be_tried_again() -> None:
    runs: Runs[int] = Runs()

    async def work(_run: Run[int]) -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await runs.start("key", work)
    assert runs.find("key") is None


async def test_a_run_that_was_given_up_tells_who_waits() -> None:
    runs: Runs[int] = Runs()

    async def work(_run: Run[int]) -> int:
        await asyncio.Event().wait()
        return 0

    first = asyncio.create_task(runs.start("key", work))
    await asyncio.sleep(0)
    run = runs.find("key")
    assert run is not None
    first.cancel()
    await asyncio.wait({first})
    assert run.answer.cancelled()
    assert run.told.is_set()
    assert runs.find("key") is None


async def test_the_oldest_ends_are_forgotten() -> None:
    runs: Runs[int] = Runs(kept=2)
    gate = asyncio.Event()

    async def wait(_run: Run[int]) -> int:
        await gate.wait()
        return 0

    async def work(_run: Run[int]) -> int:
        return 1

    running = asyncio.create_task(runs.start("running", wait))
    await asyncio.sleep(0)
    for number in range(5):
        await runs.start(number, work)
    assert [number for number in range(5) if runs.find(number)] == [3, 4]
    assert runs.find("running") is not None
    gate.set()
    await running
