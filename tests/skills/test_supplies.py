"""Secrets and memories of bound tools, from a folder with a manifest to what is kept."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from skills import Catalog, Context, Done, Failed, Outcome, PackContext
from skills.memory import MemoryStore, Place
from skills.supplies import Supplies

CONTRACT = """module m

type Order
    do is Text

type Said
    text is Text
    number is optional Number

memory Notes
memory Other

tool Run
    takes order as Order
    gives Said
    secrets KEY
    uses memory Notes read
    uses memory Notes write
    uses memory Other read
    requires secret_read, memory_read, memory_write
"""
MANIFEST = """[tools."m.Run"]
python = "./run.py:run"
grants = ["secret_read", "memory_read", "memory_write"]
secrets = {{ KEY = "env:KEY" }}
memories = {{ Notes = {notes}, Other = {other} }}
"""
HANDLER = """
import asyncio
from pathlib import Path

marker = Path(__file__).with_name("marker")


async def run(order, context):
    with marker.open("a") as file:
        file.write("x")
    notes, do = context.memories.Notes, order["do"]
    found = await notes.get("count")
    count = (found["value"] if found else 0) + 1
    await notes.put("count", count)
    if do == "fail":
        raise RuntimeError("no")
    if do == "number":
        return {"text": "x", "number": float(context.secrets["KEY"])}
    if do == "keep":
        await notes.put("key", {"deep": context.secrets["KEY"]})
    if do == "wrong":
        return {"text": count}
    if do == "large":
        return {"text": "x" * 982_000}
    if do == "wait":
        await context.progress("waiting")
        await asyncio.Event().wait()
    if do == "conflict":
        await notes.put("count", 100, found["version"] if found else 0)
    if do == "public":
        return {"text": ",".join(n for n in dir(context.memories.Other) if n[0] != "_")}
    return {"text": str(count)}
"""
BOTH = '{ modes = ["read", "write"] }'
READ = '{ modes = ["read"] }'
Serve = Callable[..., Catalog]


@pytest.fixture
def environ() -> dict[str, str]:
    return {"KEY": "hunter2!"}


@pytest.fixture
def serve(tmp_path: Path, environ: dict[str, str]) -> Serve:
    def serve(notes: str = BOTH, other: str = READ, config: Any = None) -> Catalog:
        folder = tmp_path / "tools"
        folder.mkdir(exist_ok=True)
        (folder / "m.tb").write_text(CONTRACT)
        (folder / "run.py").write_text(HANDLER)
        (folder / "skillbus.tools.toml").write_text(MANIFEST.format(notes=notes, other=other))
        context = PackContext(config=config or {}, environ=environ, state_dir=tmp_path)
        return Catalog.load(context, installed=False, folders=[folder])

    return serve


class Reports:
    """Where the handler's reports go."""

    def __init__(self) -> None:
        self.told = asyncio.Event()

    async def progress(self, text: str, fraction: float | None) -> None:
        self.told.set()

    async def chunk(self, artifact: str, part: Mapping[str, Any], *, last: bool) -> None:
        raise AssertionError


def context(call: str = "c1", episode: str = "ep1", session: str = "s1", agent: str = "a", **changes: Any) -> Context:
    return Context(call, episode, time.time() + 30, session=session, agent=agent, **changes)


async def run(catalog: Catalog, do: str, where: Context | None = None, tool: str = "m.Run") -> Outcome:
    skill = catalog.get(tool)
    assert skill is not None
    assert skill.handler is not None, catalog.problems
    effect = skill.plan({"do": do}).effects[0]
    return await skill.handler(effect, where or context())


def calls(tmp_path: Path) -> int:
    marker = tmp_path / "tools" / "marker"
    return len(marker.read_text()) if marker.exists() else 0


async def test_a_memory_outlives_the_worker(serve: Serve, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        catalog = serve()
        assert await run(catalog, "", context(f"c{number}")) == Done({"text": str(number)})
        await catalog.close()
    assert (tmp_path / "memory.db").exists()


async def test_a_call_that_runs_again_has_its_first_outcome(serve: Serve, tmp_path: Path) -> None:
    """As when a worker dies between what the memory keeps and what the ledger does."""
    catalog = serve()
    first, again = context(), context()
    assert await run(catalog, "", first) == await run(catalog, "", again) == Done({"text": "1"})
    assert calls(tmp_path) == 1
    assert list(map(dict, first.accesses)) == list(map(dict, again.accesses))
    assert dict(first.accesses[0]) == {
        "memories": [
            {"memory": "m.Notes", "scope": "episode", "read": [["count", 0]], "written": [["count", 1]], "deleted": []}
        ]
    }
    assert await run(catalog, "", context(session="s2")) == Done({"text": "2"})
    await catalog.close()


@pytest.mark.parametrize(
    ("do", "reason"),
    [
        ("fail", "no"),
        ("wrong", "the output is wrong"),
        ("keep", "a memory keeps no value of a secret"),
        ("large", "the output of a call that changes a memory takes at most 978944 bytes"),
    ],
)
async def test_a_call_that_fails_changes_nothing(serve: Serve, do: str, reason: str) -> None:
    catalog = serve()
    asked = context()
    outcome = await run(catalog, do, asked)
    assert isinstance(outcome, Failed)
    assert reason in outcome.reason
    (memory,) = dict(asked.accesses[0])["memories"]
    assert (memory["read"], memory["written"]) == ([["count", 0]], [])
    assert await run(catalog, "", context("c2")) == Done({"text": "1"})
    await catalog.close()


async def test_a_call_that_is_canceled_changes_nothing_and_tells_what_it_read(serve: Serve) -> None:
    catalog = serve()
    reports = Reports()
    asked = context(reporter=reports)
    task = asyncio.create_task(run(catalog, "wait", asked))
    await asyncio.wait_for(reports.told.wait(), 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert dict(asked.accesses[0])["memories"][0]["read"] == [["count", 0]]
    assert await run(catalog, "", context("c2")) == Done({"text": "1"})
    await catalog.close()


async def test_a_number_that_is_a_secret(serve: Serve, environ: dict[str, str]) -> None:
    environ["KEY"] = "12345678"
    catalog = serve()
    outcome = await run(catalog, "number")
    assert isinstance(outcome, Failed)
    assert "once secrets are taken out of it" in outcome.reason
    await catalog.close()


async def test_scopes(serve: Serve) -> None:
    by_session = '{ modes = ["read", "write"], scope = "session" }'
    by_agent = '{ modes = ["read", "write"], scope = "agent" }'
    catalog = serve()
    assert await run(catalog, "", context("c1")) == Done({"text": "1"})
    assert await run(catalog, "", context("c2", episode="ep2")) == Done({"text": "1"})
    assert await run(catalog, "", context("c3", session="s2")) == Done({"text": "2"})
    await catalog.close()
    catalog = serve(by_session)
    assert await run(catalog, "", context("c4")) == Done({"text": "1"})
    assert await run(catalog, "", context("c5", episode="ep2")) == Done({"text": "2"})
    assert await run(catalog, "", context("c6", session="s2")) == Done({"text": "1"})
    await catalog.close()
    catalog = serve(by_agent)
    assert await run(catalog, "", context("c7")) == Done({"text": "1"})
    assert await run(catalog, "", context("c8", episode="ep2", session="s2")) == Done({"text": "2"})
    await catalog.close()


async def test_read_gives_no_way_to_write(serve: Serve) -> None:
    catalog = serve()
    assert await run(catalog, "public") == Done({"text": "get,list,search"})
    await catalog.close()


@pytest.mark.parametrize(
    ("notes", "other", "changes", "reason"),
    [
        ('{ modes = ["read", "write"], scope = "agent" }', READ, {"agent": ""}, "the call has no agent"),
        (*('{ modes = ["read", "write"], store = "postgresql:env:URL" }',) * 2, {}, "can't be resolved: the variable"),
        (*('{ modes = ["read", "write"], store = "postgresql:env:KEY" }',) * 2, {}, "is no postgresql://"),
    ],
)
async def test_what_cannot_be_supplied_refuses_the_call(
    serve: Serve, tmp_path: Path, notes: str, other: str, changes: dict[str, str], reason: str
) -> None:
    catalog = serve(notes, other)
    outcome = await run(catalog, "", context(**changes))
    assert isinstance(outcome, Failed)
    assert outcome.reason.startswith("the handler was not called: ")
    assert reason in outcome.reason
    assert "hunter2" not in outcome.reason
    assert calls(tmp_path) == 0
    await catalog.close()


@pytest.mark.parametrize(
    ("notes", "reason"),
    [
        (
            '{ modes = ["read", "write"], scope = "tenant" }',
            "the memory Notes is kept by tenant, and this worker has none",
        ),
        ('{ modes = ["read", "write"], store = "sqlite:notes.db" }', "its memories must be kept in one store"),
    ],
)
def test_what_no_call_could_be_supplied_with_is_not_published(serve: Serve, notes: str, reason: str) -> None:
    catalog = serve(notes)
    assert len(catalog) == 0
    (problem,) = catalog.problems
    assert problem.reason.startswith(f"tool m.Run is refused: {reason}")


async def test_a_memory_of_a_tenant_is_the_workers_for_all_its_agents(serve: Serve) -> None:
    by_tenant = '{ modes = ["read", "write"], scope = "tenant" }'
    for tenant, agent, count in (("acme", "a", "1"), ("acme", "b", "2"), ("other", "a", "1")):
        catalog = serve(by_tenant, config={"memory": {"tenant": tenant}})
        assert await run(catalog, "", context(f"{tenant}-{agent}", agent=agent)) == Done({"text": count})
        await catalog.close()


@pytest.mark.parametrize("tenant", [7, "a\nb", "x" * 129])
def test_a_tenant_is_a_short_text(tenant: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tools\.memory\.tenant"):
        Supplies(PackContext(config={"memory": {"tenant": tenant}}, state_dir=tmp_path))


async def test_a_memory_that_is_imported_is_the_one_of_the_module_that_declares_it(tmp_path: Path) -> None:
    declared = CONTRACT.replace("module m", "module n")
    imported = CONTRACT.replace("memory Notes\n", "").replace("module m\n", "module m\n\nuses Notes from n\n")
    (tmp_path / "m.tb").write_text(imported)
    (tmp_path / "n.tb").write_text(declared)
    (tmp_path / "run.py").write_text(HANDLER)
    manifest = MANIFEST.format(notes=BOTH, other=READ)
    (tmp_path / "skillbus.tools.toml").write_text(manifest + manifest.replace("m.Run", "n.Run"))
    folder = PackContext(environ={"KEY": "hunter2!"}, state_dir=tmp_path)
    catalog = Catalog.load(folder, installed=False, folders=[tmp_path])
    for tool, notes in (("m.Run", "n.Notes"), ("n.Run", "Notes")):
        skill = catalog.get(tool)
        assert skill is not None
        assert skill.contract.requirements is not None
        assert {f"{notes} read", f"{notes} write"} <= set(skill.contract.requirements.memory)
    assert await run(catalog, "", context("c1"), "m.Run") == Done({"text": "1"})
    assert await run(catalog, "", context("c2"), "n.Run") == Done({"text": "2"})
    await catalog.close()


async def test_a_secret_that_is_missing_refuses_the_call(serve: Serve, tmp_path: Path, environ: dict[str, str]) -> None:
    catalog = serve()
    del environ["KEY"]
    assert await run(catalog, "") == Failed(
        "the handler was not called: secrets can't be resolved: KEY (env): the variable is not set"
    )
    assert calls(tmp_path) == 0
    environ["KEY"] = "there again"  # nothing is kept from call to call
    assert await run(catalog, "") == Done({"text": "1"})
    await catalog.close()


async def test_the_workers_store_and_its_limits(serve: Serve, tmp_path: Path) -> None:
    catalog = serve(config={"memory": {"store": "sqlite:mine.db", "keys": 1}})
    assert await run(catalog, "") == Done({"text": "1"})
    await catalog.close()
    store = await MemoryStore.open(f"sqlite:///{tmp_path / 'mine.db'}")
    assert (await store.get(Place("m.Notes", "episode", "ep1"), "count"))[1] == 1
    await store.close()


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"stor": "worker"}, "known keys are store, tenant, keys, total_bytes, value_bytes"),
        ({"keys": 0}, "tools.memory.keys: must be a number from 1"),
        ({"keys": True}, "tools.memory.keys: must be a number from 1"),
        ({"value_bytes": 1 << 20}, "must be at most 262144"),
        ({"store": "postgresql://user:hunter2@host/db"}, "tools.memory.store: names no store"),
        ({"store": 5}, "must be a text"),
        ("worker", "known keys are"),
    ],
)
def test_a_table_that_is_wrong_leaves_the_folder_out(serve: Serve, table: Any, reason: str) -> None:
    catalog = serve(config={"memory": table})
    (problem,) = catalog.problems
    assert reason in problem.reason
    assert "hunter2" not in problem.reason
    assert len(catalog) == 0


async def test_a_store_that_is_gone_fails_the_call_for_now(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "memory.db").mkdir()
    catalog = serve()
    with caplog.at_level(logging.WARNING):
        outcome = await run(catalog, "")
    assert isinstance(outcome, Failed)
    assert "the store can't be opened" in outcome.reason
    (tmp_path / "memory.db").rmdir()
    assert await run(catalog, "") == Done({"text": "1"})
    await catalog.close()
