import asyncio
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from broker.chain.provenance import Provenance
from broker.grants.grant import Grant, parse_grant
from broker.ledger.ledger import Ledger, LedgerError
from broker.pipeline.pipeline import Asked, Pipeline
from broker.sessions import Credential, Session, mint
from broker.worktrees.worktrees import Worktrees
from bus import Unavailable
from skills import Catalog

from ..conftest import Effects

Ask = Callable[..., Asked]


async def test_sessions_come_back_as_they_were(ledger: Ledger) -> None:
    grants = [Grant("A", "s", 1, 5), Grant("B", "t:u", 0, 2**40), Grant("A", "s", 3, 2**40)]
    _, session = mint("ep9", grants, ttl=60)
    await ledger.add_session(session)
    assert await ledger.session(session.id) == session
    assert await ledger.list_sessions() == [session]
    assert await ledger.list_sessions(episode="other") == []
    assert await ledger.session("unknown") is None


async def test_a_session_is_revoked_once(ledger: Ledger, session: Session) -> None:
    assert await ledger.revoke(now=7, session_id=session.id) == [session.id]
    assert await ledger.revoke(now=8, session_id=session.id) == []
    found = await ledger.session(session.id)
    assert found is not None
    assert found.revoked_at == 7


async def test_all_sessions_of_an_episode_are_revoked(ledger: Ledger, session: Session) -> None:
    _, second = mint("ep1", session.grants, ttl=60)
    _, other = mint("ep2", session.grants, ttl=60)
    for one in (second, other):
        await ledger.add_session(one)
    assert sorted(await ledger.revoke(now=7, episode="ep1")) == sorted([session.id, second.id])
    assert (await ledger.session(other.id)) == other


async def test_the_credential_is_nowhere_in_the_ledger(
    ledger: Ledger, ledger_path: Path, credential: Credential
) -> None:
    await ledger.close()
    stored = b"".join(path.read_bytes() for path in ledger_path.parent.iterdir() if path.is_file())
    for secret in (credential.reveal().encode(), bytes.fromhex(credential.reveal())):
        assert secret not in stored


async def test_spend_is_the_episodes_and_survives(
    pipeline: Pipeline, ledger: Ledger, ledger_path: Path, ask: Ask
) -> None:
    await pipeline.call(ask("once"))
    _, second = mint("ep1", [Grant("Test.Run", "test", 1, 2**40)], ttl=60)
    await ledger.add_session(second)
    receipt = await pipeline.call(ask("once", {}, "m2", session=second))
    assert receipt.outcome == "denied:budget"
    async with await Ledger.open(str(ledger_path)) as reopened:
        assert await reopened.spent("ep1") == {("Test.Run", "test"): 1}
        assert len(await reopened.entries(episode="ep1")) == 2


async def test_the_newest_entries(pipeline: Pipeline, ledger: Ledger, ask: Ask) -> None:
    for n in range(5):
        await pipeline.call(ask("pure", n, f"m{n}"))
    assert [e.index for e in await ledger.entries(episode="ep1", last=2)] == [4, 5]
    assert [e.index for e in await ledger.entries(episode="ep1", after=3)] == [4, 5]
    assert [e.index for e in await ledger.entries(last=3)] == [3, 4, 5]
    assert await ledger.entries(episode="ep2") == []


@pytest.mark.parametrize("url", ["mysql://h/d", "nonsense://", "://"])
async def test_what_is_no_ledger(url: str) -> None:
    with pytest.raises(LedgerError):
        await Ledger.open(url)


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_text("this is not a database, not at all, whatever its name may say" * 20)
    with pytest.raises(LedgerError, match="can't be opened"):
        await Ledger.open(str(path))
    with pytest.raises(LedgerError, match="can't be opened"):
        await Ledger.open(str(tmp_path / "no" / "such" / "folder.db"))


async def test_a_newer_ledger_is_refused(ledger: Ledger, ledger_path: Path) -> None:
    with closing(sqlite3.connect(ledger_path, isolation_level=None)) as connection:
        connection.execute("UPDATE facts SET value = '99'")
    with pytest.raises(LedgerError, match="schema 99"):
        await Ledger.open(str(ledger_path))


async def test_a_locked_ledger_is_waited_for(pipeline: Pipeline, ledger: Ledger, ledger_path: Path, ask: Ask) -> None:
    with closing(sqlite3.connect(ledger_path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        call = asyncio.create_task(pipeline.call(ask("once")))
        done, _ = await asyncio.wait({call}, timeout=0.1)
        assert not done
        other.execute("ROLLBACK")
    assert (await call).state == "completed"


async def test_a_ledger_that_refuses_says_so_and_goes_on(
    pipeline: Pipeline, ledger: Ledger, ledger_path: Path, ask: Ask
) -> None:
    with closing(sqlite3.connect(ledger_path, isolation_level=None)) as connection:
        connection.execute(
            "CREATE TRIGGER no BEFORE INSERT ON calls WHEN NEW.message_id = 'bad' BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
    good = [pipeline.call(ask("pure", n, f"m{n}")) for n in range(5)]
    results = await asyncio.gather(*good, pipeline.call(ask("pure", 9, "bad")), return_exceptions=True)
    assert isinstance(results[-1], Unavailable)
    assert [type(r).__name__ for r in results[:-1]] == ["Receipt"] * 5


async def test_a_closed_ledger_takes_nothing(pipeline: Pipeline, ledger: Ledger, ask: Ask) -> None:
    await ledger.close()
    with pytest.raises(Unavailable):
        await pipeline.call(ask("pure"))


async def test_leases_are_renewed_while_a_call_runs(
    catalog: Catalog,
    ledger: Ledger,
    worktrees: Worktrees,
    ask: Ask,
    effects: Effects,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = time.time()
    renewed = asyncio.Event()
    renew = ledger.renew

    async def seen(owner: str, task_ids: list[str], lease_until: float) -> None:
        await renew(owner, task_ids, lease_until)
        renewed.set()

    monkeypatch.setattr(ledger, "renew", seen)
    first, second = (
        Pipeline(catalog, ledger, worktrees, owner=owner, version="0", lease=0.03, clock=lambda: now)
        for owner in ("w1", "w2")
    )
    running = asyncio.create_task(first.call(ask("once", {"do": "wait"})))
    await effects.started.wait()
    now += 0.02
    for _ in range(2):  # the first may have begun before the time moved on
        renewed.clear()
        await renewed.wait()
    now += 0.02  # past the lease that the call began with, within the renewed one
    joined = asyncio.create_task(second.call(ask("once", {"do": "wait"})))
    done, _ = await asyncio.wait({joined}, timeout=0.05)
    assert not done, "the call of a living worker was taken over"
    effects.gate.set()
    assert (await joined).outcome == (await running).outcome == "succeeded"
    await asyncio.gather(first.close(), second.close())


async def test_an_operation_that_breaks_leaves_nothing_half_written(
    pipeline: Pipeline, ledger: Ledger, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(_metadata: object) -> str:
        raise TypeError("not JSON")

    await pipeline.call(ask("pure", 1, "m1"))
    with monkeypatch.context() as broken:
        broken.setattr("broker.ledger.settlement.json.dumps", breaks)
        with pytest.raises(Unavailable):
            await pipeline.call(ask("pure", 2, "m2"))
    await pipeline.call(ask("pure", 3, "m3"))
    verdict = await Provenance(ledger).verify("ep1")
    assert (verdict.entries, verdict.faults) == (2, ())


async def test_a_worker_that_knows_of_no_constraints_finds_no_narrowed_grant(ledger: Ledger, ledger_path: Path) -> None:
    texts = ["A=s:1", "B=s:2?path=docs/**&max-bytes=1", "C=s:3", "D=s:4?reversible"]
    held = [parse_grant(text, expires_at=2**40) for text in texts]
    _, session = mint("ep1", held, ttl=600)
    await ledger.add_session(session)
    found = await ledger.session(session.id)
    assert found is not None
    assert [str(grant) for grant in found.grants] == texts
    assert [each.grants for each in await ledger.list_sessions(episode="ep1")] == [session.grants]
    with closing(sqlite3.connect(ledger_path)) as connection:
        assert connection.execute("SELECT effect, budget FROM grants").fetchall() == [("A", 1), ("C", 3)]
