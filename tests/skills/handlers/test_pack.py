"""A folder of contracts, handlers and a manifest: what is published, what is refused, and what is touched when."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from skills import Catalog, Context, Done, Failed, PackContext, Skill
from skills.handlers import Supplier, Supply, Tool, Withheld
from skills.handlers.pack import folder_pack
from skills.tb.satisfaction import Bound

from .ways import Notes

SIMPLE = """module examples.tool_simple

type DatasetSearchRequest
    query is Text

type DatasetSearchResult
    title is Text

tool SearchDatasets
    takes request as DatasetSearchRequest
    gives DatasetSearchResult
    requires network
"""
ADVANCED = """module examples.tool_advanced

type SearchRequest
    query is Text

type Summary
    text is Text

memory ProjectKnowledge

tool SummarizeWithContext
    uses memory ProjectKnowledge read
    takes request as SearchRequest
    gives Summary
    requires network, secret_read, memory_read
    secrets LLM_API_KEY
"""
BARE = """module examples.bare

tool Shout
    takes text as Text
    gives Text
"""
PYTHON = """
from pathlib import Path

Path(__file__).with_name("marker").touch()


async def search(request, context):
    await context.progress("searching")
    return {"title": f"about {request['query']}"}


def summarize(request, context):
    return {"text": request["query"]}


def shout(text):
    return text.upper()
"""
JAVASCRIPT = """
import fs from "node:fs";

fs.writeFileSync(new URL("marker", import.meta.url), "");

export async function search(request, context) {
  await context.progress("searching");
  return { title: `about ${request.query}` };
}

export const summarize = async (request) => ({ text: request.query });
export const shout = async (text) => text.toUpperCase();
"""
BINDINGS = (
    'python = "handlers:{}"',
    'python = "./handlers.py:{}"\nisolation = "process"',
    'javascript = "./handlers.mjs#{}"',
)
each_binding = pytest.mark.parametrize("binding", BINDINGS, ids=["inline", "python", "javascript"])

TABLE = '[tools."{}"]\n{}\n{}\n'
SEARCH, SUMMARIZE, SHOUT = (
    "examples.tool_simple.SearchDatasets",
    "examples.tool_advanced.SummarizeWithContext",
    "examples.bare.Shout",
)
GRANTS = {
    "grants": '["network", "secret_read", "memory_read"]',
    "secrets": '{ LLM_API_KEY = "env:LLM_API_KEY" }',
    "memories": '{ ProjectKnowledge = { modes = ["read"] } }',
}


def written(folder: Path, contract: str, *tables: str) -> Path:
    (folder / "contract.tb").write_text(contract)
    (folder / "handlers.py").write_text(PYTHON)
    (folder / "handlers.mjs").write_text(JAVASCRIPT)
    (folder / "skillbus.tools.toml").write_text("\n".join(tables))
    return folder


def loaded(*folders: Path) -> Catalog:
    return Catalog.load(PackContext(environ=dict(os.environ)), installed=False, folders=folders)


async def called(skill: Skill, arguments: Any, episode: str = "episode") -> Done | Failed:
    plan = skill.plan(arguments)
    assert skill.handler is not None
    return await asyncio.wait_for(
        skill.handler(plan.effects[0], Context("call", episode, time.time() + 30)), timeout=30
    )


@each_binding
async def test_a_bound_tool_is_a_skill_whose_handler_is_loaded_with_its_first_call(
    binding: str, tmp_path: Path
) -> None:
    folder = written(tmp_path, SIMPLE, TABLE.format(SEARCH, binding.format("search"), 'grants = ["network"]'))
    catalog = loaded(folder)
    assert (catalog.problems, [skill.id for skill in catalog]) == ((), [SEARCH])
    skill = catalog.get(SEARCH)
    assert skill is not None
    assert skill.plan({"query": 7}).refused
    assert not (folder / "marker").exists()
    assert await called(skill, {"query": "wool"}) == Done({"title": "about wool"})
    assert (folder / "marker").exists()
    await catalog.close()


@each_binding
async def test_a_tool_may_take_and_give_what_is_no_object(binding: str, tmp_path: Path) -> None:
    catalog = loaded(written(tmp_path, BARE, TABLE.format(SHOUT, binding.format("shout"), "")))
    skill = catalog.get(SHOUT)
    assert skill is not None
    assert await called(skill, {"text": "a"}) == Done({"result": "A"})
    await catalog.close()


@each_binding
@pytest.mark.parametrize(
    ("lacking", "reason"),
    [
        ({"grants": '["secret_read", "memory_read"]'}, "the manifest does not grant network"),
        ({"grants": '["network", "memory_read"]'}, "the manifest does not grant secret_read"),
        ({"grants": '["network", "secret_read"]'}, "the manifest does not grant memory_read"),
        ({"secrets": "{}"}, "the manifest binds no source for secret LLM_API_KEY"),
        ({"memories": "{}"}, "the manifest grants no memory access ProjectKnowledge read"),
    ],
)
def test_a_tool_that_lacks_a_grant_is_reported_and_none_of_it_is_touched(
    binding: str, lacking: dict[str, str], reason: str, tmp_path: Path
) -> None:
    grants = "\n".join(f"{name} = {value}" for name, value in {**GRANTS, **lacking}.items())
    folder = written(tmp_path, ADVANCED, TABLE.format(SUMMARIZE, binding.format("summarize"), grants))
    catalog = loaded(folder)
    assert len(catalog) == 0
    (problem,) = catalog.problems
    assert (problem.kind, problem.pack) == ("tool", SUMMARIZE)
    assert problem.reason == f"tool {SUMMARIZE} is refused: {reason}"
    assert not (folder / "marker").exists()


@each_binding
async def test_a_tool_gets_what_its_supplier_gives_for_this_call(binding: str, tmp_path: Path) -> None:
    grants = "\n".join(f"{name} = {value}" for name, value in GRANTS.items())
    folder = written(tmp_path, ADVANCED, TABLE.format(SUMMARIZE, binding.format("summarize"), grants))
    ends: list[Any] = []
    problems: list[Any] = []

    def supplier_of(bound: Bound) -> Supplier:
        async def supply(tool: Tool, context: Context) -> Supply:
            if context.episode != "episode":
                raise Withheld("not for this episode")
            return Supply(dict.fromkeys(bound.secrets, "value"), dict.fromkeys(bound.memories, Notes()))

        return supply

    context = PackContext(environ=dict(os.environ), report=problems.append, at_end=ends.append)
    (skill,) = folder_pack(folder, context, supplier_of)
    assert await called(skill, {"query": "wool"}, episode="other") == Failed(
        "the handler was not called: not for this episode"
    )
    assert not (folder / "marker").exists()
    assert await called(skill, {"query": "wool"}) == Done({"text": "wool"})
    assert problems == []
    for end in ends:
        await end()


def test_faults_of_contracts_and_manifest_are_reported_and_the_rest_is_served(tmp_path: Path) -> None:
    table = TABLE.format(SEARCH, BINDINGS[0].format("search"), 'grants = ["network"]')
    folder = written(tmp_path, SIMPLE, table, TABLE.format("m.Stray", BINDINGS[0].format("f"), ""))
    (folder / "wrong.tb").write_text("module wrong\n\ntool X\n    gives Nothing\n")
    (folder / "unbound.tb").write_text(BARE)
    catalog = loaded(folder)
    assert {problem.kind for problem in catalog.problems} >= {"contract"}
    assert [skill.id for skill in catalog] == [SEARCH]


def test_a_folder_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    (problem,) = loaded(tmp_path / "nowhere").problems
    assert problem.reason == "it can't be read: No such file or directory"


def test_a_tool_of_two_folders_is_the_first_ones(tmp_path: Path) -> None:
    table = TABLE.format(SEARCH, BINDINGS[0].format("search"), 'grants = ["network"]')
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        written(tmp_path / name, SIMPLE, table)
    catalog = loaded(tmp_path / "a", tmp_path / "b")
    assert [pack.name for pack in catalog.packs] == ["a"]
    assert "is taken by the pack 'a'" in catalog.problems[0].reason
