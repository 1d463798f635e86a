import asyncio
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.chain.provenance import NotFound
from broker.chain.replay import Replay, Replayed
from broker.grants.grant import parse_grant
from broker.grants.policy import HostPolicy
from broker.ledger.ledger import Ledger
from broker.pipeline.pipeline import Asked, Pipeline
from broker.sessions import Session, mint
from broker.worktrees.worktrees import Worktrees
from skills import Catalog, EffectResult, Plan, Skill

from ..conftest import Effects
from ..house import House

Ask = Callable[..., Asked]


async def replayed(ledger: Ledger, catalog: Catalog, episode: str = "ep1") -> list[Replayed]:
    return [call async for call in Replay(ledger, catalog).episode(episode)]


def changed(catalog: Catalog, **changes: Any) -> Catalog:
    """The same skills, as another release has them."""
    found = Catalog()
    assert found.add("test", [replace(skill, **changes) for skill in catalog])
    return found


def stages(call: Replayed) -> list[str]:
    return [difference.stage for difference in call.differences]


async def grant(ledger: Ledger, *grants: str, episode: str = "ep1") -> Session:
    _, session = mint(episode, [parse_grant(text, expires_at=2**40, now=0) for text in grants], ttl=60)
    await ledger.add_session(session)
    return session


@pytest.fixture
async def calls(pipeline: Pipeline, ledger: Ledger, ask: Ask) -> None:
    """A call of every kind of end."""
    poor = await grant(ledger, "Test.Run=test:0")
    wrong = await grant(ledger, "Test.Run=test:9", "Other=test:3")
    asked = [
        ask("once", {"a": 1.0}, "m1"),
        ask("once", {"refuse": 1}, "m2"),
        ask("once", {"do": "fail"}, "m3"),
        ask("once", {}, "m4", session=poor),
        ask("pure", {"text": "é\n"}, "m5"),
        ask("once", {"finish": "yes"}, "m6"),
        ask("once", {"finish": "crash"}, "m7"),
        ask("once", {"finish": "crash", "do": "fail"}, "m8"),
        ask("again", {"do": "large"}, "m9"),
        ask("quick", {"do": "wait"}, "m10"),
        ask("hidden", {}, "m11", session=wrong),
        ask("once", {"finish": "yes", "do": "fail"}, "m12"),
    ]
    for one in asked:
        await pipeline.call(one)


async def test_every_kind_of_call_comes_out_equal(calls: None, ledger: Ledger, catalog: Catalog) -> None:
    found = await replayed(ledger, catalog)
    assert [(call.entry.index, call.differences, call.missing, call.untold) for call in found] == [
        (index, (), None, ()) for index in range(1, 13)
    ]
    (one,) = [await Replay(ledger, catalog).call("ep1:4")]
    assert (one.equal, one.entry.outcome) == (True, "denied:budget")
    with pytest.raises(NotFound):
        await replayed(ledger, catalog, "ep9")
    with pytest.raises(NotFound):
        await Replay(ledger, catalog).call("ep1:99")


async def test_nothing_is_run_or_written(
    calls: None, ledger: Ledger, ledger_path: Path, catalog: Catalog, effects: Effects
) -> None:
    def rows() -> list[str]:
        with closing(sqlite3.connect(ledger_path)) as connection:
            return list(connection.iterdump())

    ran, before = len(effects.runs), rows()
    await replayed(ledger, catalog)
    assert (len(effects.runs), rows()) == (ran, before)


async def test_changed_plan_code_is_found(calls: None, ledger: Ledger, catalog: Catalog) -> None:
    def plan(arguments: Any) -> Plan:
        return Plan.one("Test.Run", {**arguments, "more": 1}, scope="test")

    found = await replayed(ledger, changed(catalog, plan=plan))
    assert [stages(call) for call in found if call.entry.skill == "once" and call.entry.outcome == "succeeded"] == [
        ["plan"],
        ["plan"],
    ]
    assert "they differ at /effects/0/payload/more" in found[0].differences[0].what
    assert not any(call.equal for call in found)


async def test_a_plan_that_raises_is_found(calls: None, ledger: Ledger, catalog: Catalog) -> None:
    def plan(arguments: Any) -> Plan:
        raise RuntimeError

    found = await replayed(ledger, changed(catalog, plan=plan))
    assert {tuple(stages(call)) for call in found} == {("plan",)}


async def test_a_refusal_that_became_an_answer_is_found(calls: None, ledger: Ledger, catalog: Catalog) -> None:
    def plan(arguments: Any) -> Plan:
        found = catalog.get("once")
        assert found is not None
        return replace(found.plan(arguments), refused=False)

    again = await replayed(ledger, changed(catalog, plan=plan))
    assert stages(again[1]) == ["end"]  # the plan's bytes are the same
    assert again[1].differences[0].what == "completed (succeeded) now, recorded is rejected (refused)"


async def test_changed_finish_code_is_found(calls: None, ledger: Ledger, catalog: Catalog) -> None:
    def finish(arguments: Any, result: EffectResult) -> Mapping[str, Any]:
        return {"status": result.status, "shape": "newer", "saw": arguments}

    found = await replayed(ledger, changed(catalog, finish=finish))
    assert [stages(call) for call in found if not call.equal] == [
        ["output"],
        ["output", "end"],  # it failed, and now it does not
        ["output"],  # failed either way
        ["output"],
    ]
    assert "they differ at /shape" in next(call for call in found if not call.equal).differences[0].what


async def test_a_skill_that_is_gone_or_has_another_contract_is_not_equal(
    calls: None, ledger: Ledger, catalog: Catalog
) -> None:
    other = Catalog()
    for skill in catalog:
        if skill.id == "once":
            contract = skill.contract.model_copy(update={"description": "of another release"})
            assert other.add("test", [Skill(contract, skill.plan, skill.handler, skill.finish)])
    found = await replayed(ledger, other)
    assert not any(call.equal or call.differences for call in found)
    assert {call.missing for call in found if call.entry.skill == "pure"} == {"the skill pure is not loaded here"}
    assert all("the contract of once is another" in str(c.missing) for c in found if c.entry.skill == "once")


@pytest.mark.parametrize(
    ("change", "index"),
    [
        ("UPDATE grants SET budget = 7", 1),
        ("UPDATE grants SET scope = 'other'", 1),
        ("UPDATE grants SET expires_at = 5", 1),
        ("UPDATE grants SET scope = 'other'", 4),
        ("DELETE FROM grants", 1),
    ],
)
async def test_a_decision_that_the_grants_do_not_give_is_found(
    calls: None, ledger: Ledger, ledger_path: Path, catalog: Catalog, change: str, index: int
) -> None:
    with closing(sqlite3.connect(ledger_path, isolation_level=None)) as connection:
        connection.execute(change)
    found = await replayed(ledger, catalog)
    assert stages(found[index - 1]) == ["decision"]
    assert "the grants say" in found[index - 1].differences[0].what


async def test_a_session_that_is_gone_is_found(
    calls: None, ledger: Ledger, ledger_path: Path, catalog: Catalog
) -> None:
    with closing(sqlite3.connect(ledger_path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM sessions")
    found = await replayed(ledger, catalog)
    assert stages(found[0]) == ["decision"]
    assert found[1].equal  # without an effect there was nothing to decide


async def test_a_log_that_was_changed_is_said_first(
    calls: None, ledger: Ledger, ledger_path: Path, catalog: Catalog
) -> None:
    with closing(sqlite3.connect(ledger_path, isolation_level=None)) as connection:
        connection.execute("UPDATE objects SET payload = payload || ' ' WHERE semantic_id LIKE '%effect-result%'")
    found = await replayed(ledger, catalog)
    assert stages(found[0]) == ["log"]
    assert "hash to" in found[0].differences[0].what
    assert found[1].equal


async def test_what_the_log_does_not_keep_is_named(
    catalog: Catalog, ledger: Ledger, worktrees: Worktrees, ask: Ask, effects: Effects
) -> None:
    denying = Pipeline(catalog, ledger, worktrees, owner="w9", version="0", policy=HostPolicy(deny=("once",)))
    await denying.call(ask("once", {}, "m1"))
    await denying.close()
    narrowed = await grant(ledger, "Test.Run=test:5?subject=ann")
    pipeline = Pipeline(catalog, ledger, worktrees, owner="w1", version="0")
    await pipeline.call(ask("once", {}, "m2", session=narrowed, caller="ann"))
    late = await grant(ledger, "Test.Run=test:5?skill=again")
    await pipeline.call(ask("again", {}, "m3", session=late, caller="ann"))
    await pipeline.close()
    found = await replayed(ledger, catalog)
    assert all(call.equal for call in found)
    assert [call.untold for call in found] == [
        ("decision: the policy of the host at that time is not kept",),
        ("decision: it hangs on constraints, and not all that they are put on is kept",),
        (),  # which skill it was is kept
    ]


async def test_a_canceled_call_and_one_that_nobody_knows_of(
    house: House, other: House, ledger: Ledger, ledger_path: Path, catalog: Catalog, effects: Effects
) -> None:
    running = asyncio.create_task(house.send("once", {"do": "wait"}))
    await asyncio.wait_for(effects.started.wait(), 20)
    (task,) = (await house.ask("ListTasks", {}))["tasks"]
    await house.ask("CancelTask", {"id": task["id"]})
    await running
    effects.started.clear()
    lost = asyncio.create_task(house.send("once", {"do": "wait", "n": 2}, message_id="m2"))
    await asyncio.wait_for(effects.started.wait(), 20)
    with closing(sqlite3.connect(ledger_path, isolation_level=None)) as connection:
        connection.execute("UPDATE calls SET lease_until = 1, owner = 'gone' WHERE state IS NULL")
    await other.send("once", {"do": "wait", "n": 2}, message_id="m2")
    effects.gate.set()
    await lost
    found = await replayed(ledger, catalog)
    assert [(call.entry.outcome, call.differences, call.untold) for call in found] == [
        ("canceled", (), ()),
        ("indeterminate", (), ()),
    ]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
asking = st.tuples(
    st.sampled_from(["once", "again", "pure"]),
    st.fixed_dictionaries(
        {},
        optional={
            "a": values, "refuse": st.just(1), "finish": st.sampled_from(["yes", "crash"]),
            "do": st.sampled_from(["fail", "raise", "none", "odd"]),
        },
    ),
)  # fmt: skip


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=st.lists(asking, min_size=1, max_size=12), budgets=st.tuples(st.integers(0, 4), st.integers(0, 4)))
def test_whatever_was_asked_comes_out_equal(
    catalog: Catalog, tmp_path_factory: pytest.TempPathFactory, asked: list[Any], budgets: tuple[int, int]
) -> None:
    async def run() -> None:
        folder = tmp_path_factory.mktemp("replay")
        grants = [f"Test.Run=test:{budgets[0]}", "Other=test:1", f"Test.Run=test:{budgets[1]}"]
        async with await Ledger.open(str(folder / "ledger.db")) as ledger:
            session = await grant(ledger, *grants)
            pipeline = Pipeline(catalog, ledger, Worktrees(folder / "w"), owner="w1", version="0")
            await asyncio.gather(
                *(
                    pipeline.call(Asked(session, skill, arguments, f"m{n}", "ep1", time.time() + 30))
                    for n, (skill, arguments) in enumerate(asked)
                )
            )
            await pipeline.close()
            found = await replayed(ledger, catalog)
            assert len(found) == len(asked)
            assert [(call.differences, call.missing, call.untold) for call in found] == [((), None, ())] * len(asked)

    asyncio.run(run())


async def test_whatever_was_changed_in_the_file_is_an_answer_and_no_crash(
    calls: None, ledger: Ledger, ledger_path: Path, catalog: Catalog
) -> None:
    tables = {
        "calls": ("session", "closed_at", "message_id", "skill", "outcome", "cost", "budget_before", "effect"),
        "objects": ("payload", "semantic_id"),
        "entries": ("encoded", "hash"),
    }
    with closing(sqlite3.connect(ledger_path, isolation_level=None)) as connection:
        cells = [
            (table, column, rowid, value)
            for table, columns in tables.items()
            for column in columns
            for rowid, value in connection.execute(f"SELECT rowid, {column} FROM {table} WHERE {column} IS NOT NULL")
        ]
        for table, column, rowid, value in cells:
            other = (b"\xff", "[]", -1)[rowid % 3]
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (other, rowid))
            found = await replayed(ledger, catalog)
            assert len(found) == 12
            if column not in ("closed_at", "session"):  # which only serve the work of some calls
                assert not all(call.equal for call in found), (table, column, rowid, other)
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value, rowid))
    assert all(call.equal for call in await replayed(ledger, catalog))
