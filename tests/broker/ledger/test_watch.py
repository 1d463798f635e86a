"""A ledger that can't be reached: calls are held and nothing that has happened is lost."""

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from broker.chain.provenance import Provenance
from broker.ledger.ledger import Ledger
from broker.ledger.operations import Busy
from broker.ledger.watch import LedgerUnavailable, unavailable
from broker.pipeline.pipeline import Asked, Pipeline
from broker.worktrees.worktrees import Worktrees
from bus import Unavailable
from skills import Catalog

from ..conftest import Effects
from ..house import House

Ask = Callable[..., Asked]


@pytest.fixture
async def ledger(ledger_path: Path) -> AsyncIterator[Ledger]:
    """One that does not wait for locks."""
    async with await Ledger.open(str(ledger_path), busy=0.05) as ledger:
        yield ledger


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process's transaction that does not end."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")


async def soon(awaitable: Any) -> Any:
    return await asyncio.wait_for(awaitable, 20)


def failure(work: Callable[[], object]) -> BaseException:
    with pytest.raises(sqlite3.Error) as caught:
        work()
    return caught.value


def test_which_errors_mean_that_it_is_away(tmp_path: Path) -> None:
    path = tmp_path / "file.db"
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as connection:
        connection.execute("CREATE TABLE t (x UNIQUE)")
        connection.execute("INSERT INTO t VALUES (1)")
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as reading, locked(tmp_path / "other.db"):
            away = {
                "readonly": failure(lambda: reading.execute("INSERT INTO t VALUES (2)")),
                "unable to open": failure(lambda: sqlite3.connect(tmp_path / "none" / "x.db")),
            }
        with locked(path):
            away["locked"] = failure(lambda: connection.execute("INSERT INTO t VALUES (2)"))
        connection.execute("PRAGMA max_page_count = 3")
        away["full"] = failure(lambda: connection.execute("INSERT INTO t VALUES (zeroblob(100000))"))
        others = [
            failure(lambda: connection.execute("INSERT INTO t VALUES (1)")),
            failure(lambda: connection.execute("SELECT nothing FROM nowhere")),
        ]
    for words, error in away.items():
        found = unavailable(error)
        assert found is not None
        assert words in found.cause
        assert found.metadata["retryAfterMs"]
        assert found.cause not in str(found.as_json())
    assert [unavailable(error) for error in [*others, ValueError()]] == [None] * 3


async def test_calls_wait_for_a_locked_ledger(
    pipeline: Pipeline, ledger: Ledger, ledger_path: Path, ask: Ask, effects: Effects, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with locked(ledger_path):
        calls = [asyncio.create_task(pipeline.call(ask("once", {}, f"m{n}"))) for n in range(5)]
        calls.append(asyncio.create_task(pipeline.call(ask("pure", 1, "m5"))))
        assert "locked" in await soon(ledger.watch.gone())
        with pytest.raises(LedgerUnavailable):
            await ledger.revoke(now=1, session_id="none")
        assert not any(call.done() for call in calls)
        assert effects.runs == []
    receipts = await soon(asyncio.gather(*calls))
    assert [receipt.outcome for receipt in receipts] == ["succeeded"] * 6
    assert ledger.watch.away is None
    assert len(effects.runs) == 5
    said = [record.message for record in caplog.records if "ledger" in record.message]
    assert [line.split(",")[0].split(" after")[0] for line in said] == [
        "the ledger can't be reached",
        "the ledger is back",
    ]
    assert (await Provenance(ledger).verify("ep1")).faults == ()


async def test_a_deadline_that_passes_meanwhile(
    pipeline: Pipeline, ledger: Ledger, ledger_path: Path, ask: Ask, effects: Effects
) -> None:
    with locked(ledger_path):
        for skill in ("once", "pure"):
            with pytest.raises(Unavailable, match="deadline passed while the ledger") as caught:
                await soon(pipeline.call(ask(skill, deadline=time.time() + 0.2)))
            assert caught.value.metadata["retryAfterMs"]
    await soon(ledger.watch.back())
    assert await ledger.open_calls("ep1") == 0
    assert (await soon(pipeline.call(ask("once")))).outcome == "succeeded"
    assert len(effects.runs) == 1


async def test_what_has_happened_is_written_when_the_ledger_is_back(
    pipeline: Pipeline, ledger: Ledger, ledger_path: Path, ask: Ask, effects: Effects
) -> None:
    running = asyncio.create_task(pipeline.call(ask("once", {"do": "wait"})))
    reporting = asyncio.create_task(pipeline.call(ask("once", {"do": "report"}, "m2")))
    await effects.started.wait()
    with locked(ledger_path):
        effects.gate.set()
        await soon(ledger.watch.gone())
        done, _ = await asyncio.wait({running, reporting}, timeout=0.3)
        assert not done
    assert {(await soon(each)).outcome for each in (running, reporting)} == {"succeeded"}
    assert len(effects.runs) == 2
    assert (await Provenance(ledger).verify("ep1")).entries == 2


async def test_a_caller_is_told_while_its_outcome_waits_for_the_ledger(
    house: House, ledger: Ledger, ledger_path: Path, effects: Effects
) -> None:
    asked = {"message": {"messageId": "m1", "parts": [{"data": {"do": "wait"}}], "metadata": {"skill_id": "once"}}}
    call = asyncio.create_task(house.ask("SendMessage", asked, deadline=time.time() + 1.0))
    await effects.started.wait()
    with locked(ledger_path):
        effects.gate.set()
        await soon(ledger.watch.gone())
        with pytest.raises(Unavailable, match="deadline passed"):
            await soon(call)
    await soon(ledger.watch.back())
    answer = await soon(house.ask("SendMessage", asked))
    assert answer["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert len(effects.runs) == 1


async def test_an_outcome_that_can_not_be_written_before_the_end_is_found_indeterminate(
    pipeline: Pipeline, ledger: Ledger, ledger_path: Path, ask: Ask, effects: Effects
) -> None:
    running = asyncio.create_task(pipeline.call(ask("once", {"do": "wait"})))
    await effects.started.wait()
    with locked(ledger_path):
        effects.gate.set()
        await soon(ledger.watch.gone())
        await soon(pipeline.close(0.0))
        await soon(ledger.close())
    with pytest.raises(asyncio.CancelledError):
        await running
    async with await Ledger.open(str(ledger_path)) as found:
        assert await found.open_calls("ep1") == 1


async def test_a_file_that_is_gone_comes_back(
    house: House, pipeline: Pipeline, ledger: Ledger, ledger_path: Path, ask: Ask
) -> None:
    receipt = await pipeline.call(ask("once"))
    hidden = ledger_path.with_name("hidden.db")
    ledger_path.rename(hidden)
    asking = asyncio.create_task(house.ask("GetTask", {"id": receipt.task_id}))
    assert await soon(ledger.watch.gone()) == "its file is gone"
    with pytest.raises(Unavailable, match="deadline passed"):
        await soon(house.ask("GetTask", {"id": receipt.task_id}, deadline=time.time() + 0.1))
    ledger_path.touch()
    with pytest.raises(LedgerUnavailable) as caught:
        await ledger.spent("ep1")
    assert "another file" in caught.value.cause
    assert not asking.done()
    hidden.rename(ledger_path)
    assert (await soon(asking))["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_disk_that_is_full(pipeline: Pipeline, ledger: Ledger, ask: Ask, effects: Effects) -> None:
    database = ledger._database
    pages = 1

    def limit(connection: sqlite3.Connection, _record: object = None) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages}")

    event.listen(database._engine, "connect", limit)
    await database.write(lambda connection: limit(connection.connection.dbapi_connection))  # type: ignore[arg-type]
    big = "x" * 500_000
    call = asyncio.create_task(pipeline.call(ask("once", {"text": big})))
    assert "full" in await soon(ledger.watch.gone())
    assert effects.runs == []
    pages = 1_000_000
    assert (await soon(call)).outcome == "succeeded"


async def test_a_lease_that_ran_out_meanwhile_is_not_taken_over(
    catalog: Catalog, ledger: Ledger, ledger_path: Path, worktrees: Worktrees, ask: Ask, effects: Effects,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    here = Pipeline(catalog, ledger, worktrees, owner="here", version="0", lease=0.3)
    async with await Ledger.open(str(ledger_path), busy=0.05) as other:
        there = Pipeline(catalog, other, worktrees, owner="there", version="0", lease=0.3)
        claims = asyncio.Queue[Any]()
        reserve = other.reserve

        async def reserving(claim: Any) -> Any:
            answer = await reserve(claim)
            claims.put_nowait(answer)
            return answer

        monkeypatch.setattr(other, "reserve", reserving)
        first = asyncio.create_task(here.call(ask("again", {"do": "wait"})))
        await effects.started.wait()
        (task,) = await ledger.tasks.abandoned(2**40, 10)
        # The worker that has the call is the last to notice that the ledger is back.
        may_notice, probe = asyncio.Event(), ledger.watch._probe

        async def late() -> None:
            await may_notice.wait()
            await probe()

        monkeypatch.setattr(ledger.watch, "_probe", late)
        with locked(ledger_path):
            second = asyncio.create_task(there.call(ask("again", {"do": "wait"})))
            await soon(asyncio.gather(ledger.watch.gone(), other.watch.gone()))
            while (task.lease_until or 0) > time.time():  # noqa: ASYNC110 - nothing else tells of the time
                await asyncio.sleep(0.02)
        for _ in range(2):
            assert isinstance(await soon(claims.get()), Busy)
        may_notice.set()
        async with asyncio.timeout(20):
            while await ledger.tasks.abandoned(time.time(), 1):  # noqa: ASYNC110 - until it is renewed
                await asyncio.sleep(0.01)
        effects.gate.set()
        assert (await soon(first)).outcome == (await soon(second)).outcome == "succeeded"
        assert len(effects.runs) == 1
        await asyncio.gather(here.close(), there.close())


async def test_a_ledger_that_flickers_is_not_asked_all_the_time(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.ledger.watch.FIRST_PAUSE", 0.01)
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr("broker.ledger.watch.asyncio.sleep", noted)
    for _ in range(9):
        ledger.watch.failed(LedgerUnavailable("one bad page"))
        await soon(ledger.watch.back())
    assert pauses[:3] == [0.01, 0.02, 0.04]
    assert pauses[-1] == 1.0
