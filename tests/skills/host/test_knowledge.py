import asyncio
from pathlib import Path

import pytest

from skills import PackContext, Skill
from skills.host import bind, search_kb
from skills.host.index import Index
from skills.host.intake import take_in
from tests.skills.host.asking import ask


def skill(file: Path) -> Skill:
    return search_kb(bind("kb", PackContext({"kb": {"file": str(file)}})))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    docs = tmp_path / "docs"
    docs.mkdir()
    for number in range(12):
        (docs / f"{number:02}.md").write_text(f"# Part {number}\nrefund rule {number}\x1b[31m\n")
    (docs / "long.md").write_text("# " + "h" * 300 + "\n" + "needle " * 2_000)
    with Index.open(tmp_path / "kb.db", make=True) as index:
        take_in(index, docs)
    return tmp_path / "kb.db"


async def test_facts_come_from_the_documents(file: Path) -> None:
    output = await ask(skill(file), {"query": "refund rule 7"})
    assert (output["stub"], output["error"]) == (False, None)
    assert output["facts"][0] == "docs/07.md — Part 7: refund rule 7\x1b[31m"
    assert len(output["facts"]) == 8
    assert "note" not in output
    assert (await ask(skill(file), {"q": "nothing like it"}))["facts"] == []
    assert (await ask(skill(file), {"query": "*\"'("}))["facts"] == []


async def test_a_fact_is_bounded(file: Path) -> None:
    facts = (await ask(skill(file), {"query": "needle"}))["facts"]
    assert facts
    assert max(map(len, facts)) < 2_000
    assert all(fact.endswith("needle") for fact in facts)


async def test_a_new_index_is_taken_at_the_next_query(file: Path, tmp_path: Path) -> None:
    served = skill(file)
    (tmp_path / "docs" / "new.md").write_text("zebra")
    assert (await ask(served, {"query": "zebra"}))["facts"] == []
    with Index.open(file, make=True) as index:
        take_in(index, tmp_path / "docs")
    assert (await ask(served, {"query": "zebra"}))["facts"] == ["docs/new.md: zebra"]


async def test_an_index_that_is_not_there_is_an_error_without_its_path(tmp_path: Path) -> None:
    output = await ask(skill(tmp_path / "none.db"), {"query": "x"})
    assert output["error"] == "kb lookup failed: the index can't be used: see `skillbus kb list`"
    assert (output["retryable"], output["facts"]) == (False, [])
    assert str(tmp_path) not in str(output)


async def test_an_index_that_is_held_is_retryable(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skills.host.index.BUSY_SECONDS", 0.01)
    with Index.open(file, make=True) as index:
        index._connection.execute("BEGIN EXCLUSIVE")
        output = await ask(skill(file), {"query": "refund"})
    assert (output["error"], output["retryable"]) == ("kb lookup failed: another process is writing to it", True)


async def test_a_cancel_waits_for_its_thread(file: Path) -> None:
    task = asyncio.create_task(ask(skill(file), {"query": "refund"}))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_the_index_of_the_state_is_taken_by_itself(file: Path, tmp_path: Path) -> None:
    binding = bind("kb", PackContext(state_dir=tmp_path))
    assert (binding.name, binding.source, binding.tier) == ("index", "default", "live")
    assert bind("kb", PackContext(state_dir=tmp_path / "docs")).tier == "stub"
    assert bind("kb", PackContext({"kb": {"backend": "stub"}}, state_dir=tmp_path)).tier == "stub"
    assert bind("kb", PackContext({}, {"MKLANG_KB_BACKEND": "fake"}, state_dir=tmp_path)).tier == "fake"


def test_an_index_that_is_named_and_not_there_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert skill(tmp_path / "none.db").tier == "live"
    assert "none.db is not there yet: `skillbus kb add DIR` makes it" in caplog.text
