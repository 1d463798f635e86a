import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.chain.provenance import NotFound, Provenance
from broker.grants.grant import Grant
from broker.ledger.ledger import Ledger
from broker.ledger.settlement import Receipt
from broker.ledger.watch import LedgerUnavailable
from broker.pipeline.pipeline import Asked, Pipeline
from broker.sessions import mint

Ask = Callable[..., Asked]
FORGED_CALL = """
INSERT INTO calls SELECT 'x', episode, 'forged', context_id, session, skill, fingerprint, effect, scope, cost,
budget_before, request_ref, owner, epoch, lease_until, opened_at, state, outcome, entry_index, output_ref, metadata,
closed_at, input_ref, deadline, root_task, events, updated_at, narrowing,
plan_ref, transition_ref FROM calls WHERE entry_index = 1
"""
LINKS = ["world", "entry", "record", "input", "plan", "effect", "output"]


@pytest.fixture
async def receipts(pipeline: Pipeline, ledger: Ledger, ask: Ask) -> list[Receipt]:
    """A success, a refusal, a failure, a denial and a plain answer, in this order."""
    _, poor = mint("ep1", [Grant("Test.Run", "test", 0, 2**40)], ttl=60)
    await ledger.add_session(poor)
    asked = [
        ask("once", {"a": 1}, "m1"),
        ask("once", {"refuse": 1}, "m2"),
        ask("once", {"do": "fail"}, "m3"),
        ask("once", {}, "m4", session=poor),
        ask("pure", {}, "m5"),
    ]
    return [await pipeline.call(one) for one in asked]


async def test_every_link_of_every_kind_of_call_holds(ledger: Ledger, receipts: list[Receipt]) -> None:
    provenance = Provenance(ledger)
    for receipt in receipts:
        walk = await provenance.why(receipt.task_id)
        assert [link.name for link in walk.links] == LINKS
        assert [link.fault for link in walk.links] == [None] * 7
        assert walk.entry.index == receipt.entry_index
    verdict = await provenance.verify("ep1")
    assert (verdict.entries, verdict.faults) == (5, ())


async def test_what_is_checked_while_calls_run_is_of_one_moment(pipeline: Pipeline, ledger: Ledger, ask: Ask) -> None:
    provenance = Provenance(ledger)
    await pipeline.call(ask("once", {}, "m0"))

    async def one_after_another(caller: int) -> None:
        for number in range(5):
            await pipeline.call(ask("once", {}, f"m{caller}-{number}"))

    running = asyncio.gather(*(one_after_another(caller) for caller in range(8)))
    while not running.done():
        assert (await provenance.verify("ep1")).faults == ()
        assert [link.fault for link in (await provenance.why("ep1:head")).links] == [None] * 7
    await running
    verdict = await provenance.verify("ep1")
    assert (verdict.entries, verdict.faults) == (41, ())


async def test_every_handle_leads_to_its_call(ledger: Ledger, receipts: list[Receipt]) -> None:
    provenance = Provenance(ledger)
    walk = await provenance.why(receipts[0].task_id)
    handles = ["ep1:1", f"a2a:ep1:{receipts[0].task_id}", walk.entry.hash, receipts[0].output_ref]
    handles += [link.detail for link in walk.links if link.detail.startswith("sha256:")]
    for handle in handles:
        assert (await provenance.why(handle)).entry.index == 1, handle
    assert (await provenance.why("2", episode="ep1")).entry.index == 2
    assert (await provenance.why("ep1:head")).entry.index == 5
    assert (await provenance.why("head", episode="ep1")).entry.index == 5


@pytest.mark.parametrize(
    "handle",
    [
        "ep1:99",
        "nope:1",
        "nope:head",
        "7",
        "head",
        "sha256:" + "0" * 64,
        "0" * 32,
        "a2a:ep1:x",
        "a2a:ep1:" + "0" * 32,
        "",
        "x y",
    ],
)
async def test_what_leads_nowhere(ledger: Ledger, receipts: list[Receipt], handle: str) -> None:
    with pytest.raises(NotFound):
        await Provenance(ledger).why(handle)


def _cells(path: Path) -> list[tuple[str, str, int, Any]]:
    """Every stored cell of the log, the objects and the outcomes that the log speaks for."""
    checked = {
        "objects": ("ref", "semantic_id", "payload"),
        "entries": ("episode", "entry_index", "hash", "encoded", "task_id"),
        "episodes": ("revision", "state_root", "log_head"),
        "calls": (
            "episode",
            "message_id",
            "skill",
            "fingerprint",
            "state",
            "outcome",
            "output_ref",
            "effect",
            "scope",
            "entry_index",
            "cost",
            "budget_before",
            "request_ref",
        ),
        "spend": ("effect", "scope", "spent"),
    }
    with closing(sqlite3.connect(path)) as connection:
        return [
            (table, column, rowid, value)
            for table, columns in checked.items()
            for column in columns
            for rowid, value in connection.execute(f"SELECT rowid, {column} FROM {table} ORDER BY rowid")
            if value is not None
        ]


def _write(path: Path, table: str, column: str, rowid: int, value: Any) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value, rowid))


def _changed(value: Any, position: int, bit: int) -> Any:
    if isinstance(value, int):
        return value + 100 + position
    data = bytearray(value.encode() if isinstance(value, str) else value)
    if not data:
        return value + type(value)(b"x" if isinstance(value, bytes) else "x")
    data[position % len(data)] ^= 1 << (bit % 7)
    return bytes(data).decode(errors="replace") if isinstance(value, str) else bytes(data)


async def test_a_changed_cell_anywhere_is_found(ledger: Ledger, ledger_path: Path, receipts: list[Receipt]) -> None:
    for table, column, rowid, value in _cells(ledger_path):
        _write(ledger_path, table, column, rowid, _changed(value, 3, 1))
        verdict = await Provenance(ledger).verify("ep1")
        assert verdict.faults, f"{table}.{column} of row {rowid} was changed and nothing was found"
        _write(ledger_path, table, column, rowid, value)
    assert (await Provenance(ledger).verify("ep1")).faults == ()


async def test_why_finds_a_changed_byte_in_any_object_of_its_call(
    ledger: Ledger, ledger_path: Path, receipts: list[Receipt]
) -> None:
    with closing(sqlite3.connect(ledger_path)) as connection:
        payloads = connection.execute("SELECT rowid, ref, payload FROM objects").fetchall()
    found: set[str] = set()
    for rowid, name, payload in payloads:
        _write(ledger_path, "objects", "payload", rowid, _changed(payload, len(payload) // 2, 0))
        for receipt in receipts:
            walk = await Provenance(ledger).why(receipt.task_id)
            if not walk.holds:
                found.add(name)
        _write(ledger_path, "objects", "payload", rowid, payload)
    assert found == {name for _, name, _ in payloads}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_any_flipped_bit_is_found(
    data: st.DataObject, ledger: Ledger, ledger_path: Path, receipts: list[Receipt]
) -> None:
    cells = [cell for cell in _cells(ledger_path) if cell[1] in ("payload", "encoded", "hash", "log_head")]
    table, column, rowid, value = data.draw(st.sampled_from(cells))
    changed = _changed(value, data.draw(st.integers(0, len(value) - 1)), data.draw(st.integers(0, 6)))
    _write(ledger_path, table, column, rowid, changed)
    try:
        assert (await Provenance(ledger).verify("ep1")).faults
    finally:
        _write(ledger_path, table, column, rowid, value)


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM entries WHERE entry_index = 5",
        "DELETE FROM entries WHERE entry_index = 3",
        "DELETE FROM entries",
        "DELETE FROM calls WHERE entry_index = 2",
        "DELETE FROM objects WHERE semantic_id = 'world/effect-result/v1'",
        "DELETE FROM objects WHERE semantic_id = 'world/effect-request/v1'",
        "DELETE FROM spend",
        "UPDATE entries SET entry_index = entry_index + 10",
        "UPDATE episodes SET revision = 4",
        "UPDATE calls SET state = 'failed', outcome = 'failed' WHERE entry_index = 1",
        "UPDATE calls SET state = 'rejected', outcome = 'refused' WHERE entry_index = 5",
        "UPDATE calls SET cost = 0; UPDATE spend SET spent = 0",
        "INSERT INTO entries SELECT episode, -1, hash, encoded, 'x' FROM entries WHERE entry_index = 1",
        FORGED_CALL,
        "UPDATE calls SET skill = CAST(x'80ff' AS TEXT) WHERE entry_index = 1",
        "UPDATE calls SET skill = x'6f6e6365' WHERE entry_index = 1",
        "UPDATE calls SET scope = NULL WHERE entry_index = 1",
        "UPDATE calls SET effect = x'00' WHERE entry_index = 1",
        "UPDATE entries SET entry_index = 'zzz' WHERE entry_index = 5",
        "UPDATE spend SET spent = x'00'",
    ],
)
async def test_cuts_are_found(ledger: Ledger, ledger_path: Path, receipts: list[Receipt], damage: str) -> None:
    with closing(sqlite3.connect(ledger_path, isolation_level=None)) as connection:
        connection.execute("PRAGMA foreign_keys=OFF")
        connection.executescript(damage)
    assert (await Provenance(ledger).verify("ep1")).faults


async def test_an_entry_of_another_episode_does_not_fit(
    pipeline: Pipeline, ledger: Ledger, ledger_path: Path, ask: Ask
) -> None:
    _, other = mint("ep2", [Grant("Test.Run", "test", 5, 2**40)], ttl=60)
    await ledger.add_session(other)
    await asyncio.gather(pipeline.call(ask("once")), pipeline.call(ask("once", session=other)))
    with closing(sqlite3.connect(ledger_path, isolation_level=None)) as connection:
        connection.execute("UPDATE entries SET episode = 'x' WHERE episode = 'ep1'")
        connection.execute("UPDATE entries SET episode = 'ep1' WHERE episode = 'ep2'")
    assert (await Provenance(ledger).verify("ep1")).faults


async def test_a_ledger_that_is_away_is_no_fault_in_it(
    ledger: Ledger, ledger_path: Path, receipts: list[Receipt]
) -> None:
    hidden = ledger_path.with_suffix(".hidden")
    ledger_path.rename(hidden)
    with pytest.raises(LedgerUnavailable):
        await Provenance(ledger).verify("ep1")
    hidden.rename(ledger_path)
    assert (await Provenance(ledger).verify("ep1")).faults == ()


async def test_an_empty_episode_is_sound_and_an_unknown_one_is_not_there(ledger: Ledger, ask: Ask) -> None:
    verdict = await Provenance(ledger).verify("ep1")
    assert (verdict.entries, verdict.faults) == (0, ())
    for name in ("nope", "\udcff"):
        with pytest.raises(NotFound):
            await Provenance(ledger).verify(name)


async def test_a_denial_whose_finish_phase_failed_is_sound(pipeline: Pipeline, ledger: Ledger, ask: Ask) -> None:
    _, poor = mint("ep1", [Grant("Test.Run", "test", 0, 2**40)], ttl=60)
    await ledger.add_session(poor)
    receipt = await pipeline.call(ask("once", {"finish": "crash"}, session=poor))
    assert receipt.state == "failed"
    assert (await Provenance(ledger).verify("ep1")).faults == ()
