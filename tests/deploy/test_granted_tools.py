"""The two examples of the contract language over RabbitMQ: with each thing granted, and with each in turn left out."""

import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import bus
from broker import Grant, mint
from deploy.house import House
from deploy.settings import Settings
from tests.skills.tb.page import ADVANCED, SIMPLE

SEARCH = "examples.tool_simple.SearchDatasets"
SUMMARIZE = "examples.tool_advanced.SummarizeWithContext"
FILE = "examples.filing.File"
FILING = """module examples.filing

uses ProjectKnowledge from examples.tool_advanced

tool File
    takes text as Text
    gives Integer
    uses memory ProjectKnowledge write
"""
KEY = "a key that nobody may see"
KEYS = {"LLM_API_KEY": KEY}
PYTHON = """
from pathlib import Path

Path(__file__).with_name("marker").touch()


async def search(request, context):
    return {"title": f"about {request['query']}"}


async def summarize(request, context):
    known = await context.memories.ProjectKnowledge.search(request["query"], 3)
    texts = ", ".join(entry["value"] for entry in known)
    return {"text": f"{len(context.secrets['LLM_API_KEY'])}: {texts}"}


async def file(text, context):
    return await context.memories.ProjectKnowledge.put("one", text)
"""
JAVASCRIPT = """
import fs from "node:fs";

fs.writeFileSync(new URL("marker", import.meta.url), "");

export const search = async (request) => ({ title: `about ${request.query}` });

export async function summarize(request, context) {
  const known = await context.memories.ProjectKnowledge.search(request.query, 3);
  const texts = known.map((entry) => entry.value).join(", ");
  return { text: `${context.secrets.LLM_API_KEY.length}: ${texts}` };
}

export const file = async (text, context) => context.memories.ProjectKnowledge.put("one", text);
"""
HANDLERS = {"python": "./handlers.py:{}", "javascript": "./handlers.mjs#{}"}
CAPABILITIES = ("network", "secret_read", "memory_read")
MANIFEST = """
[tools."{search}"]
{language} = "{search_handler}"
grants = {simple}

[tools."{summarize}"]
{language} = "{summarize_handler}"
grants = {advanced}

[tools."{file}"]
{language} = "{file_handler}"
grants = ["memory_write"]

[secrets]
LLM_API_KEY = "env:LLM_API_KEY"

[memories.ProjectKnowledge]
modes = ["read", "write"]
"""
each_language = pytest.mark.parametrize("language", list(HANDLERS))


class Serving:
    """A worker's agent on the broker, and a session that may call all three tools."""

    def __init__(self, house: House, client: bus.Client, folder: Path) -> None:
        self.house, self.client, self.folder = house, client, folder

    async def call(self, tool: str, **arguments: str) -> tuple[str, dict[str, Any]]:
        """The outcome that the reply names, and its data."""
        message = {"messageId": f"{tool}-{arguments}", "role": "ROLE_USER", "parts": [{"data": arguments}]}
        task = (await self.client.send("tools", {**message, "metadata": {"skill_id": tool}}))["task"]
        (artifact,) = task["artifacts"]
        return artifact["metadata"]["outcome"], artifact["parts"][0]["data"]

    def loaded(self) -> bool:
        return (self.folder / "marker").exists()


@asynccontextmanager
async def serving(
    tmp_path: Path,
    url: str,
    prefix: str,
    language: str,
    granted: Sequence[str],
    session: Sequence[str],
    environ: Mapping[str, str] = KEYS,
) -> AsyncIterator[Serving]:
    folder = tmp_path / "tools"
    folder.mkdir()
    handlers = {f"{name}_handler": HANDLERS[language].format(name) for name in ("search", "summarize", "file")}
    lists = {"simple": json.dumps([c for c in granted if c == "network"]), "advanced": json.dumps(granted)}
    manifest = MANIFEST.format(search=SEARCH, summarize=SUMMARIZE, file=FILE, language=language, **handlers, **lists)
    texts = {"simple.tb": SIMPLE, "advanced.tb": ADVANCED, "filing.tb": FILING, "skillbus.tools.toml": manifest}
    for name, text in {**texts, "handlers.py": PYTHON, "handlers.mjs": JAVASCRIPT}.items():
        (folder / name).write_text(text)
    settings = Settings(
        state_dir=tmp_path / "state", agent="tools", prefix=prefix, amqp_url=url, tools_dirs=(folder,), only_packs=()
    )
    house = await House.open(settings, environ={**os.environ, **environ})
    try:
        credential, minted = mint("ep1", [Grant(tool, "tool", 5, 1 << 62) for tool in session], ttl=600)
        await house.ledger.add_session(minted)
        async with (
            await house.serve(url),
            await bus.connect(url, authorize=credential.authorize, prefix=prefix) as client,
        ):
            yield Serving(house, client, folder)
    finally:
        await house.close()


@each_language
async def test_with_all_grants_both_examples_run(
    language: str, tmp_path: Path, rabbitmq_url: str, unique_prefix: str
) -> None:
    tools = (SEARCH, SUMMARIZE, FILE)
    async with serving(tmp_path, rabbitmq_url, unique_prefix, language, CAPABILITIES, tools) as served:
        assert served.house.catalog.problems == ()
        assert not served.loaded()
        outcome, said = await served.call(SEARCH, query="wool")
        assert (outcome, said["title"]) == ("succeeded", "about wool")
        assert served.loaded()
        assert (await served.call(FILE, text="wool is warm"))[0] == "succeeded"
        outcome, said = await served.call(SUMMARIZE, query="wool")
        assert (outcome, said["text"]) == ("succeeded", f"{len(KEY)}: wool is warm")


@each_language
@pytest.mark.parametrize("lacking", CAPABILITIES)
async def test_without_one_capability_the_call_is_refused_before_the_handler(
    language: str, lacking: str, tmp_path: Path, rabbitmq_url: str, unique_prefix: str
) -> None:
    granted = [capability for capability in CAPABILITIES if capability != lacking]
    async with serving(tmp_path, rabbitmq_url, unique_prefix, language, granted, (SEARCH, SUMMARIZE)) as served:
        refused = [SUMMARIZE, *([SEARCH] if lacking == "network" else [])]
        for tool in refused:
            with pytest.raises(bus.SkillNotFound, match="no such skill"):
                await served.call(tool, query="wool")
            reason = f"tool {tool} is refused: the manifest does not grant {lacking}"
            assert reason in [problem.reason for problem in served.house.catalog.problems]
        assert not served.loaded()
        if SEARCH not in refused:
            assert (await served.call(SEARCH, query="wool"))[0] == "succeeded"
            assert served.loaded()


@each_language
async def test_without_the_value_of_a_secret_the_call_fails_before_the_handler(
    language: str, tmp_path: Path, rabbitmq_url: str, unique_prefix: str
) -> None:
    tools = (SEARCH, SUMMARIZE)
    none = {"LLM_API_KEY": ""}
    async with serving(tmp_path, rabbitmq_url, unique_prefix, language, CAPABILITIES, tools, none) as served:
        outcome, said = await served.call(SUMMARIZE, query="wool")
        assert (outcome, said["world"]["effects"][0]["status"]) == ("failed", "failed")
        assert not served.loaded()


@each_language
async def test_without_a_grant_of_the_session_the_handler_is_not_loaded(
    language: str, tmp_path: Path, rabbitmq_url: str, unique_prefix: str
) -> None:
    async with serving(tmp_path, rabbitmq_url, unique_prefix, language, CAPABILITIES, (FILE,)) as served:
        for tool in (SEARCH, SUMMARIZE):
            with pytest.raises(bus.SkillNotFound, match="no such skill"):
                await served.call(tool, query="wool")
        assert not served.loaded()
