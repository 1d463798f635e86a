"""The operations on a corpus of examples, without a binary."""

import asyncio
import json
import tempfile
from pathlib import Path
from time import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skills import Context, Directory, Done, Failed, PackContext, PlannedEffect, Skill
from skills.ailang import pack, stub
from skills.ailang.corpus import Corpus, CorpusError
from skills.ailang.examples import OPERATIONS, examples
from skills.ailang.native import EXAMPLES_TOOL
from tests.skills.ailang.transcripts import TRANSCRIPTS
from tests.skills.vectors import Row

FLAGGED = [row for row in TRANSCRIPTS if (row["request"] or {}).get("op") in OPERATIONS and "flags" in row["request"]]
MANIFEST = {
    "schema": "ailang.examples/v1",
    "examples": [
        {"path": "fold.ail", "status": "working", "tags": ["recursion", "list"], "description": "Sums a list"},
        {"path": "io.ail", "status": "working", "tags": ["io"], "description": "Prints, folded nowhere"},
        {"path": "old.ail", "status": "broken", "tags": ["io"], "description": ""},
        {"path": 1}, "x",
    ],
}  # fmt: skip
FOLD = "module fold\nlet sum = foldl(add, 0)\n"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "runnable" / "deep").mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(MANIFEST))
    (folder / "runnable" / "fold.ail").write_text(FOLD)
    (folder / "runnable" / "io.ail").write_text("module io\n")
    (folder / "runnable" / "deep" / "map.ail").write_text("let y = fmap(f)\n")
    (folder / "runnable" / "notes.txt").write_text("fold")
    (folder / "runnable" / "out.ail").symlink_to("/etc/passwd")
    (folder / "top.ail").write_text("module top\n")
    return folder


@pytest.fixture
def skills(corpus: Path) -> dict[str, Skill]:
    return {skill.id: skill for skill in pack(PackContext({"ailang": {"examples": str(corpus)}}))}


async def ask(corpus: Path | None, payload: dict[str, Any], root: Path, effect: str = "Ailang.CLI") -> Any:
    handle = examples(None if corpus is None else Corpus(corpus))
    with Directory.open(root) as directory:
        outcome = await handle(
            PlannedEffect("e1", effect, "worktree", 1, payload), Context("i", "e", time() + 60, directory)
        )
        if not isinstance(outcome, Done) or "tool" not in outcome.output:
            return outcome
        output = dict(outcome.output)
        assert (output.pop("tool"), output.pop("policy_digest")) == (EXAMPLES_TOOL, directory.protection.digest)
    return output


async def test_a_search_finds_by_tag_description_and_content(corpus: Path, tmp_path: Path) -> None:
    answer = await ask(corpus, {"op": "examples_search", "query": "FOLD"}, tmp_path, "Ailang.Discover")
    assert answer == {
        "ok": True,
        "argv": ["examples", "search", "FOLD"],
        "stdout": "Found 2 examples\n\n1. io.ail (description)\n   Prints, folded nowhere\n   Tags: io\n\n"
        "2. fold.ail (content)\n   Sums a list\n   Tags: recursion, list\n",
    }
    answer = await ask(corpus, {"op": "examples_search", "query": "recurs"}, tmp_path)
    assert "\n1. fold.ail (tag)\n" in answer["stdout"]
    answer = await ask(corpus, {"op": "examples_search", "query": "a fmap"}, tmp_path)
    assert "\n1. " in answer["stdout"]
    assert "map.ail (content)" in answer["stdout"]
    assert (await ask(corpus, {"op": "examples_search", "query": "zzz"}, tmp_path))["stdout"] == "Found 0 examples\n"


async def test_a_search_lists_ten_and_says_how_many_there_are(tmp_path: Path) -> None:
    (tmp_path / "runnable").mkdir()
    (tmp_path / "manifest.json").write_text('{"examples":[]}')
    for number in range(12):
        (tmp_path / "runnable" / f"x{number:02}.ail").write_text("fold")
    stdout = (await ask(tmp_path, {"op": "examples_search", "query": "fold"}, tmp_path))["stdout"]
    assert stdout.startswith("Found 12 examples\n\n1. x00.ail (content)\n")
    assert stdout.endswith("\n10. x09.ail (content)\n\n2 more; narrow the query\n")


async def test_the_list_is_of_what_works_unless_asked_otherwise(corpus: Path, tmp_path: Path) -> None:
    answer = await ask(corpus, {"op": "examples_list"}, tmp_path)
    assert answer["argv"] == ["examples", "list"]
    assert answer["stdout"].startswith("AILANG Examples (2/3)\n\nfold.ail (working)\n   Sums a list\n")
    flags = {"tags": "io, x", "status": "all"}
    answer = await ask(corpus, {"op": "examples_list", "flags": flags}, tmp_path)
    assert answer["argv"] == ["examples", "list", "--status", "all", "--tags", "io, x"]
    assert "io.ail (working)" in answer["stdout"]
    assert "old.ail (broken)" in answer["stdout"]
    assert "fold.ail" not in answer["stdout"]


async def test_an_example_is_shown_by_name(corpus: Path, tmp_path: Path) -> None:
    answer = await ask(corpus, {"op": "examples_show", "module": "fold"}, tmp_path)
    assert answer["stdout"] == f"fold.ail\n   Sums a list\n   Tags: recursion, list\n\n{FOLD}"
    for name, text in (("map.ail", "fmap"), ("top", "module top")):
        assert text in (await ask(corpus, {"op": "examples_show", "module": name}, tmp_path))["stdout"]
    for name in ("nope", "out", "manifest.json", "notes.txt"):
        answer = await ask(corpus, {"op": "examples_show", "module": name}, tmp_path)
        assert answer == {
            "ok": False, "argv": ["examples", "show", name], "exit_code": 1,
            "stderr": f"Error: example not found: {name}\n",
        }  # fmt: skip


async def test_tags_are_counted(corpus: Path, tmp_path: Path) -> None:
    answer = await ask(corpus, {"op": "examples_tags"}, tmp_path)
    assert answer["stdout"].split("\n\n")[1] == "  io (1 examples)\n  list (1 examples)\n  recursion (1 examples)\n"


@pytest.mark.parametrize("row", FLAGGED, ids=lambda row: row["id"])
async def test_a_flag_that_is_not_admitted_is_refused_as_recorded(row: Row, corpus: Path, tmp_path: Path) -> None:
    assert await ask(corpus, row["request"], tmp_path) == json.loads(row["stdout"])


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({"op": "examples_search"}, "op examples_search requires query"),
        ({"op": "examples_search", "query": ""}, "op examples_search requires query"),
        ({"op": "examples_search", "query": "-x"}, '"-x" looks like a flag; flags go in the flags field'),
        ({"op": "examples_search", "query": "a\nb"}, "query is malformed"),
        ({"op": "examples_search", "query": "a\0"}, "query is malformed"),
        ({"op": "examples_search", "query": "é" * 2049}, "query is malformed"),
        ({"op": "examples_search", "query": "a", "path": "b"}, "op examples_search does not take path"),
        ({"op": "examples_show"}, "op examples_show requires module"),
        ({"op": "examples_show", "module": "a/b"}, '"a/b" is not a simple token'),
        ({"op": "examples_show", "module": "a..b"}, '"a..b" is not a simple token'),
        ({"op": "examples_tags", "module": "x", "query": "y"}, "op examples_tags does not take module"),
        ({"op": "examples_list", "flags": {"json": ""}},
         "op examples_list does not admit flag --json (admitted: --status --tags)"),
        ({"op": "examples_list", "flags": {"tags": "a\0"}}, "flag --tags: is malformed"),
    ],
)  # fmt: skip
async def test_what_the_command_line_would_not_take(
    payload: dict[str, Any], text: str, corpus: Path, tmp_path: Path
) -> None:
    assert await ask(corpus, payload, tmp_path) == {"ok": False, "refused": text}


async def test_without_a_corpus_it_says_so_and_without_a_binary_as_well(corpus: Path, tmp_path: Path) -> None:
    for op in OPERATIONS:
        assert await ask(None, {"op": op}, tmp_path) == Done({"ok": False, "refused": stub.NO_CORPUS})
    for where in (None, corpus):
        assert await ask(where, {"op": "version"}, tmp_path) == Done({"ok": False, "refused": stub.NO_BINARY})
    assert await ask(corpus, {"op": "read"}, tmp_path) == Failed(
        'broker: Ailang.CLI refuses op "read": not in this effect\'s op allowlist'
    )


@pytest.mark.parametrize(
    ("manifest", "why"),
    [(None, "of the examples corpus can't be read"), ("{", "is not JSON"), ("[]", "no array"), ("{}", "no array")],
)
async def test_a_corpus_that_is_none_is_a_failure(tmp_path: Path, manifest: str | None, why: str) -> None:
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    outcome = await ask(tmp_path, {"op": "examples_tags"}, tmp_path)
    assert isinstance(outcome, Failed)
    assert why in outcome.reason
    with pytest.raises(CorpusError, match="can't be opened: No such file"):
        Corpus(tmp_path / "nowhere").listed()


def test_a_file_over_the_limit_is_an_error_and_not_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skills.ailang.corpus.MAX_FILE", 10)
    (tmp_path / "runnable").mkdir()
    (tmp_path / "manifest.json").write_text('{"examples":[]}')
    (tmp_path / "runnable" / "a.ail").write_text("x" * 11)
    with pytest.raises(CorpusError, match=r"runnable/a\.ail of the examples corpus is over 10 bytes"):
        list(Corpus(tmp_path).programs())


@given(st.text(max_size=20), st.sampled_from(["examples_search", "examples_show"]))
def test_no_query_breaks_it_or_leaves_the_corpus(text: str, op: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "runnable").mkdir()
        (folder / "manifest.json").write_text('{"examples":[]}')
        (folder / "runnable" / "out.ail").symlink_to("/etc/passwd")
        payload = {"op": op, "query" if op == "examples_search" else "module": text}
        answer = asyncio.run(ask(folder, payload, folder))
    assert isinstance(answer, dict)
    assert "root:" not in answer.get("stdout", "")


async def test_the_tools_of_the_pack_answer_over_the_corpus(skills: dict[str, Skill], tmp_path: Path) -> None:
    plan = skills["examples-search"].plan({"query": "foldl"})
    handler = skills["examples-search"].handler
    assert handler is not None
    with Directory.open(tmp_path) as directory:
        outcome = await handler(plan.effects[0], Context("i", "e", time() + 60, directory))
    assert isinstance(outcome, Done)
    assert outcome.output["stdout"].startswith("Found 1 examples\n")
