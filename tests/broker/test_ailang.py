"""The eight AILANG tools behind grants, budgets and the ledger, with a stand-in for the binary."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, select

from broker import answers
from broker.chain.provenance import Provenance
from broker.chain.replay import Replay
from broker.grants.grant import PRESETS, Grant, sees
from broker.ledger import records, schema
from broker.ledger.ledger import Ledger
from broker.ledger.settlement import Receipt
from broker.pipeline.pipeline import Asked, Pipeline
from broker.sessions import Session, mint
from broker.worktrees.worktrees import Worktrees
from bus import SkillNotFound
from skills import Catalog, PackContext, canonical
from skills.ailang import pack
from tests.skills.ailang.standin import QUIET, StandIn
from tests.skills.ailang.transcripts import TRANSCRIPTS

ROWS = {row["id"]: row for row in TRANSCRIPTS}
SWITCHES = {"run_allow_caps": ["Env", "Net"], "run_net_allow": ["127.0.0.1:17655"]}
FAR = 2**40
EIGHT = {
    "ailang-check", "ailang-cli", "ailang-edit", "ailang-read", "ailang-run", "ailang-write", "builtins-search",
    "examples-search",
}  # fmt: skip


@pytest.fixture
def binary(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path / "bin")


@pytest.fixture
def catalog(binary: StandIn, tmp_path: Path) -> Catalog:
    catalog = Catalog()
    table = {"binary": str(binary.path), **SWITCHES}
    assert catalog.add("ailang", pack(PackContext({"ailang": table}, state_dir=tmp_path / "state")))
    return catalog


@pytest.fixture
async def episode(ledger: Ledger, worktrees: Worktrees) -> Path:
    return await worktrees.create("ep1")


@pytest.fixture
async def open_session(ledger: Ledger) -> Callable[..., Any]:
    async def open_session(**budgets: int) -> Session:
        """A session with these budgets, by the last part of the effect's name."""
        names = {effect.rpartition(".")[2]: (effect, scope) for effect, scope in PRESETS["se-tools"]}
        grants = [Grant(*names[name], budget, FAR) for name, budget in budgets.items()]
        _, session = mint("ep1", grants, ttl=3600)
        await ledger.add_session(session)
        return session

    return open_session


@pytest.fixture
async def call(pipeline: Pipeline, episode: Path) -> Callable[..., Any]:
    count = 0

    async def call(session: Session, skill: str, arguments: Any, *, of: Pipeline = pipeline) -> Receipt:
        nonlocal count
        count += 1
        return await of.call(Asked(session, skill, arguments, f"m{count}", "ep1", time.time() + 60))

    return call


def output(receipt: Receipt) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(receipt.output)
    return value


def visible(session: Session, catalog: Catalog, now: int) -> set[str]:
    return {skill.id for skill in catalog if sees(session.grants, skill.contract.access, now)}


async def test_six_grants_show_eight_tools(catalog: Catalog, open_session: Callable[..., Any]) -> None:
    now = int(time.time())
    six = await open_session(Read=1, Write=1, Check=1, Run=1, Discover=1, CLI=1)
    assert visible(six, catalog, now) == EIGHT
    assert visible(await open_session(Write=0), catalog, now) == {"ailang-write", "ailang-edit"}
    assert visible(await open_session(Discover=0), catalog, now) == {"builtins-search", "examples-search"}
    assert visible(await open_session(RunEnv=9, RunNet=9), catalog, now) == set(), "a run is seen by Ailang.Run alone"
    assert visible(await open_session(Run=0, RunEnv=9), catalog, now) == {"ailang-run"}


async def test_the_preset_is_of_all_eight_effects(catalog: Catalog) -> None:
    declared = {(effect.name, effect.scope) for skill in catalog for effect in skill.contract.effects}
    assert set(PRESETS["se-tools"]) == declared


async def test_a_grant_with_budget_0_lists_and_denies(
    call: Callable[..., Any], open_session: Callable[..., Any], binary: StandIn
) -> None:
    session = await open_session(Check=0, Run=0, RunEnv=1)
    receipt = await call(session, "ailang-check", {"path": "a.ail"})
    assert (receipt.state, receipt.outcome) == ("rejected", "denied:budget")
    body = output(receipt)
    assert body.pop("world")["effects"][0]["status"] == "denied"
    assert body == {"ok": False, "status": "denied", "refused": "the Ailang.Check effect ended denied"}
    receipt = await call(session, "ailang-run", {"path": "a.ail"})
    assert (receipt.outcome, list(output(receipt))) == ("denied:budget", ["world"])
    assert binary.calls(summaries=True) == []


async def test_each_run_spends_the_effect_of_its_capabilities(
    call: Callable[..., Any], open_session: Callable[..., Any], binary: StandIn, ledger: Ledger
) -> None:
    session = await open_session(Run=1, RunEnv=1)
    binary.play(ROWS["run-env-argv"], any=True)
    receipt = await call(
        session, "ailang-run", {"path": "sum.ail", "caps": ["IO", "FS", "Env"], "argv": ["numbers.txt"]}
    )
    assert receipt.outcome == "succeeded"
    assert output(receipt)["policy"]["security_mode"] == "trusted_host"
    net = await call(session, "ailang-run", {"path": "sum.ail", "caps": ["Net"]})
    assert net.outcome == "denied:effect-name"
    again = await call(session, "ailang-run", {"path": "sum.ail", "caps": ["Env"]})
    assert again.outcome == "denied:budget"
    assert await ledger.spent("ep1") == {("Ailang.RunEnv", "worktree"): 1}


async def test_spend_is_the_episodes_over_sessions_and_restarts(
    call: Callable[..., Any],
    open_session: Callable[..., Any],
    binary: StandIn,
    ledger_path: Path,
    catalog: Catalog,
    worktrees: Worktrees,
) -> None:
    binary.play(ROWS["builtins_list"])
    first = await call(await open_session(Discover=2), "builtins-search", {"query": "FILE"})
    assert output(first)["count"] == 2
    async with await Ledger.open(str(ledger_path)) as again:
        restarted = Pipeline(catalog, again, worktrees, owner="w2", version="0")
        session = await open_session(Discover=2)
        second = await call(session, "builtins-search", {}, of=restarted)
        assert second.outcome == "succeeded"
        third = await call(session, "examples-search", {"query": "x"}, of=restarted)
        assert third.outcome == "denied:budget"
        await restarted.close()


async def test_refusals_on_three_levels_look_as_the_page_says(
    call: Callable[..., Any], open_session: Callable[..., Any], binary: StandIn, ledger: Ledger
) -> None:
    session = await open_session(Read=5, CLI=5, Run=5, RunEnv=5)
    of_plan = await call(session, "ailang-read", {"path": "../x"})
    assert (of_plan.outcome, output(of_plan)["world"]["effects"]) == ("refused", [])
    binary.play(ROWS["read-missing"])
    of_policy = await call(session, "ailang-read", {"path": "nope.ail"})
    assert (of_policy.outcome, output(of_policy)["ok"]) == ("succeeded", False)
    binary.play(QUIET, any=True)
    of_handler = await call(session, "ailang-run", {"path": "x", "caps": ["Declassify"]})
    assert (of_handler.outcome, list(output(of_handler))) == ("failed", ["world"])
    assert await ledger.spent("ep1") == {("Workspace.Read", "worktree"): 1, ("Ailang.Run", "worktree"): 1}
    with pytest.raises(SkillNotFound):
        await call(session, "ailang-write", {"path": "a", "content": ""})


async def test_a_check_and_what_it_becomes(
    call: Callable[..., Any], open_session: Callable[..., Any], binary: StandIn
) -> None:
    session = await open_session(Check=5)
    binary.play(ROWS["ai_check-type-error"])
    body = output(await call(session, "ailang-check", {"path": "bad.ail"}))
    assert (body["ok"], body["passed"], body["error_count"], body["errors"][0]["code"]) == (True, False, 1, "ERROR")
    assert body.keys() == {"ok", "passed", "error_count", "errors", "world"}
    binary.play({**QUIET, "stdout": '{"ok":false,"refused":"no"}'}, any=True)
    refused = await call(session, "ailang-check", {"path": "bad.ail"})
    assert output(refused).items() >= {"ok": False, "status": "ok", "refused": "no"}.items()
    (artifact,) = answers.finished(refused)["artifacts"]
    assert artifact["metadata"]["status"] == "error"  # that of the effect, in the output, is another
    binary.play(QUIET, kill=True)
    failed = await call(session, "ailang-check", {"path": "bad.ail"})
    assert failed.outcome == "failed"
    assert output(failed)["refused"] == "the Ailang.Check effect ended failed"


async def test_an_episode_of_the_eight_holds_and_has_one_encoding(
    call: Callable[..., Any],
    open_session: Callable[..., Any],
    binary: StandIn,
    ledger: Ledger,
    episode: Path,
    catalog: Catalog,
) -> None:
    """Inputs, plans, results and outputs are canonical JSON, with nothing escaped that need not be."""
    session = await open_session(Read=9, Write=9, Check=9, Run=9, Discover=9, CLI=9)
    odd = "<b>&\u2028é"
    binary.play(QUIET, any=True)
    for skill, arguments in {
        "ailang-read": {"path": odd},
        "ailang-write": {"path": "a.txt", "content": odd},
        "ailang-edit": {"path": "a.txt", "old_text": odd, "new_text": ""},
        "ailang-check": {"path": odd},
        "ailang-run": {"path": odd},
        "builtins-search": {"query": odd},
        "examples-search": {"query": odd},
        "ailang-cli": {"op": "check", "path": odd},
    }.items():
        receipt = await call(session, skill, arguments)
        entry = json.loads(receipt.output)
        assert receipt.output == canonical.encode(entry)
    assert (await Provenance(ledger).verify("ep1")).faults == ()
    replayed = [each async for each in Replay(ledger, catalog).episode("ep1")]
    assert [(each.differences, each.missing, each.untold) for each in replayed] == [((), None, ())] * 8
    wanted = {records.INPUT, records.PLAN, records.OUTPUT, records.RESULT}
    found = set()
    for kept in (await every_object(ledger)).values():
        if kept.semantic_id in wanted:
            found.add(kept.semantic_id)
            assert kept.payload == canonical.encode(canonical.parse(kept.payload))
            assert b"\\u" not in kept.payload
    assert found == wanted


async def every_object(ledger: Ledger) -> dict[str, records.Object]:
    def refs(connection: Connection) -> list[str]:
        return list(connection.scalars(select(schema.objects.c.ref)))

    return await ledger.objects(await ledger._database.read(refs))
