"""Secrets that a handler says everywhere and in every encoding are in nothing that is stored, sent or logged."""

import base64
import html
import io
import itertools
import json
import logging
import os
import re
import sqlite3
import string
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.agent.agent import SkillAgent
from broker.grants.grant import Grant
from broker.ledger.ledger import Ledger
from broker.pipeline.pipeline import Pipeline
from broker.sessions import mint
from broker.worktrees.worktrees import Worktrees
from deploy import logs
from skills import Catalog, PackContext
from skills.redaction.known import forget

from .house import House

TOOL = "planted.Leak"
CONTRACT = """module planted

type Order
    plants is Text

type Said
    text is Text
    parts is List of Text

memory Notes

tool Leak
    takes order as Order
    gives Said
    secrets KEY
    uses memory Notes read
    uses memory Notes write
    requires secret_read, memory_read, memory_write
"""
MANIFEST = """[tools."planted.Leak"]
python = "./leak.py:leak"
grants = ["secret_read", "memory_read", "memory_write"]
secrets = { KEY = "env:KEY" }
memories = { Notes = { modes = ["read", "write"] } }
"""
HANDLER = """
import base64, html, json, logging
from urllib.parse import quote

WAYS = {
    "plain": str,
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 behind a": lambda text: base64.b64encode(b"a" + text.encode()).decode(),
    "base64 behind ab": lambda text: base64.urlsafe_b64encode(b"ab" + text.encode()).decode().rstrip("="),
    "url": lambda text: quote(text, safe=""),
    "json": lambda text: json.dumps(json.dumps(text)),
    "html": html.escape,
    "hex": lambda text: text.encode().hex(),
    "HEX": lambda text: text.encode().hex().upper(),
}


async def leak(order, context):
    said = {"text": "said: ", "parts": []}
    for where, way in json.loads(order["plants"]):
        text = WAYS[way](context.secrets["KEY"])
        match where:
            case "output":
                said["text"] += f"<{text}>"
            case "part":
                said["parts"] += [text, f"({text}", ""]
            case "progress":
                await context.progress(f"at {text}", 0.5)
            case "chunk":
                await context.chunk(f"chunk {text}.")
            case "split":
                for character in f"split {text}.":
                    await context.chunk(character, artifact="split")
            case "data":
                await context.chunk({text: [text, {"deep": text}]}, artifact=f"data {text}")
            case "log":
                await context.log(f"it is {text}", "warning")
            case "logging":
                logging.getLogger("leak").warning("%s", text, extra={"field": [text]})
            case "memory":
                for key, value in ((text[:300], 1), ("key", [text])):
                    try:
                        await context.memories.Notes.put(key, value)
                        said["text"] += "kept"
                    except Exception as error:
                        said["text"] += str(error)
                await context.memories.Notes.put("fine", "a value")
            case "print":
                print(f"printed {text}")
                print("x" * 8180 + text + "x" * 9000, flush=True)
            case "halves":
                print("y" * 9000 + text[:9], end="", flush=True)
                await context.chunk("a round trip, so that the first half is read alone")
                print(text[9:] + "y" * 9000, flush=True)
            case "raise":
                raise RuntimeError(f"no {text}", {"arguments": text})
            case "handled":
                try:
                    raise KeyError(text)
                except KeyError:
                    logging.getLogger("leak").exception("it failed with %r", text)
    return said
"""
JAVASCRIPT = """
const WAYS = {
  plain: (text) => text,
  base64: (text) => Buffer.from(text).toString("base64"),
  url: encodeURIComponent,
  json: (text) => JSON.stringify(JSON.stringify(text)),
  hex: (text) => Buffer.from(text).toString("hex"),
};

export async function leak(order, context) {
  const said = { text: "said: ", parts: [] };
  for (const [where, way] of JSON.parse(order.plants)) {
    const text = WAYS[way](context.secrets.KEY);
    if (where === "output") said.text += `<${text}>`;
    if (where === "part") said.parts.push(text);
    if (where === "progress") await context.progress(`at ${text}`, 0.5);
    if (where === "chunk") await context.chunk(`chunk ${text}.`);
    if (where === "split") for (const each of `split ${text}.`) await context.chunk(each, "split");
    if (where === "data") await context.chunk({ [text]: [text] }, `data ${text}`);
    if (where === "log") await context.log(`it is ${text}`, "warning");
    if (where === "print") console.log(`printed ${text}\\n${"x".repeat(8180)}${text}${"x".repeat(9000)}`);
    if (where === "raise") throw new Error(`no ${text}`);
    const refused = (error) => (said.text += error.message);
    if (where === "memory") await context.memories.Notes.put("key", text).catch(refused);
  }
  return said;
}
"""
LANGUAGES = {
    "inline": 'python = "./leak.py:leak"',
    "process": 'python = "./leak.py:leak"\nisolation = "process"',
    "javascript": 'javascript = "./leak.mjs#leak"',
}
PLACES = ["output", "part", "progress", "chunk", "split", "data", "log", "logging", "memory", "raise", "handled"]
WAYS = ["plain", "base64", "base64 behind a", "base64 behind ab", "url", "json", "html", "hex", "HEX"]
# Nothing but the secrets may look like them by chance, so they are long enough; what stands in them is not tame.
SECRETS = st.text(string.ascii_letters + string.digits + "+/=&<>\"'\\% ~é字\n", min_size=12, max_size=60).filter(
    lambda value: len(value.replace("\n", "").strip()) >= 12 and value == value.strip()
)


@dataclass
class Leaky:
    """A house that serves the tool, and everything that it leaves or says."""

    house: House
    environ: dict[str, str]
    folder: Path
    log: io.StringIO
    catalog: Catalog
    sent: list[str] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    async def call(self, secret: str, plants: list[tuple[str, str]]) -> str:
        """Call the tool; how the call ended."""
        self.environ["KEY"] = secret
        arguments = {"plants": json.dumps(plants)}
        stream = self.house.stream(TOOL, arguments, message_id=f"m{next(self.numbers)}")
        await stream.end()
        self.sent += [json.dumps(body, ensure_ascii=False) for body in stream.answer.bodies]
        return stream.state

    async def close(self) -> None:
        """End the hosts; what they have printed is in the log then."""
        await self.catalog.close()

    @property
    def everything(self) -> str:
        """Every text and every byte that is kept, was sent or was logged, as text."""
        found = [*self.sent, self.log.getvalue()]
        for file in self.folder.rglob("*.db"):
            with closing(sqlite3.connect(file)) as connection:
                tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
                for (table,) in tables:
                    rows = connection.execute(f'SELECT * FROM "{table}"').fetchall()
                    found += [_text(cell) for row in rows for cell in row]
        found += [path.read_bytes().decode("latin-1") for path in self.folder.rglob("*.db*")]
        return "\n".join(found)


def _text(cell: Any) -> str:
    return cell.decode(errors="replace") if isinstance(cell, bytes) else str(cell)


@pytest.fixture
async def leaky(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Leaky]:
    """The tool is bound to the language that the test names, in the worker's process where it names none."""
    binding = LANGUAGES[getattr(request, "param", "inline")]
    tools, state = tmp_path / "tools", tmp_path / "state"
    tools.mkdir()
    state.mkdir()
    files = {"planted.tb": CONTRACT, "leak.py": HANDLER, "leak.mjs": JAVASCRIPT}
    files["skillbus.tools.toml"] = MANIFEST.replace(LANGUAGES["inline"], binding)
    for name, text in files.items():
        (tools / name).write_text(text)
    environ = {"PATH": os.environ["PATH"]}
    context = PackContext(environ=environ, state_dir=state)
    catalog = Catalog.load(context, installed=False, folders=[tools])
    assert catalog.problems == ()
    log = io.StringIO()
    before = logging.getLogger().handlers[:], logging.getLogger().level
    logs.configure("json", "debug", log)
    credential, session = mint("ep1", [Grant(TOOL, "tool", 10_000, 2**40)], ttl=3600)
    async with await Ledger.open(str(state / "ledger.db")) as ledger:
        await ledger.add_session(session)
        pipeline = Pipeline(catalog, ledger, Worktrees(tmp_path / "workspaces"), owner="w", version="0", agent="house")
        house = House(SkillAgent("house", pipeline, ledger, version="1"), credential)
        leaky = Leaky(house, environ, state, log, catalog)
        yield leaky
        await pipeline.close()
        await leaky.close()
    logging.getLogger().handlers[:], level = before
    logging.getLogger().setLevel(level)
    logging.captureWarnings(False)
    forget()


def forms(secret: str) -> set[str]:
    once = json.dumps(secret)[1:-1]
    found = {secret, once, json.dumps(once)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]}
    found |= {quote(secret, safe=""), html.escape(secret), secret.encode().hex(), secret.encode().hex().upper()}
    return found | {base64.b64encode(secret.encode()).decode().rstrip("=")}


def unbased(text: str) -> str:
    """All that base64 in the text could mean, from whichever character it is read."""
    meant = []
    for run in set(re.findall("[A-Za-z0-9+/]{16,}", text.replace("-", "+").replace("_", "/"))):
        for start in range(4):
            part = run[start:]
            meant.append(base64.b64decode(part + "A" * (-len(part) % 4)).decode(errors="replace"))
    return "\n".join(meant)


def check_clean(everything: str, secret: str) -> None:
    assert [form for form in forms(secret) if form in everything] == []
    assert secret not in unbased(everything)


@pytest.mark.parametrize("way", WAYS)
async def test_each_place_and_way(leaky: Leaky, way: str) -> None:
    secret = 'sk-live-/+"é<7\\ &%'
    for place in PLACES:
        state = await leaky.call(secret, [(place, way)])
        assert state == ("FAILED" if place == "raise" else "COMPLETED"), place
    everything = leaky.everything
    check_clean(everything, secret)
    assert everything.count("[secret]") >= len(PLACES)
    assert "a memory keeps no value of a secret" in everything
    assert "a value" in everything


@pytest.mark.parametrize("leaky", ["process", "javascript"], indirect=True)
async def test_hosts_in_both_languages(leaky: Leaky) -> None:
    secret = 'sk-live-/+"é<7\\ &%'
    places = ["output", "part", "progress", "chunk", "split", "data", "log", "print", "memory", "raise"]
    for way in ("plain", "base64", "url", "json", "hex"):
        plants = [(place, way) for place in places]
        assert await leaky.call(secret, plants) == "FAILED"
        assert await leaky.call(secret, plants[:-1]) == "COMPLETED"
        await leaky.call(secret, [("halves", way)])
    await leaky.close()
    everything = leaky.everything
    check_clean(everything, secret)
    halves = base64.b64encode(secret.encode()).decode()
    assert not [half for half in (secret[9:], halves[9:]) if half in everything]
    assert "printed [secret]" in everything
    assert "xxx[secret]xxx" in everything
    assert "a memory keeps no value of a secret" in everything


async def test_the_test_would_find_what_is_not_redacted(leaky: Leaky, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skills.redaction.redactor.Redactor._spans", lambda self, text: [])
    secret = "sk-live-0123456789"
    for place in ("output", "progress", "chunk", "logging", "memory"):
        leaky.sent.clear()
        await leaky.call(secret, [(place, "base64 behind a")])
        with pytest.raises(AssertionError):
            check_clean(leaky.everything, secret)


async def test_secrets_planted_at_random(leaky: Leaky) -> None:
    """One house for all of them: what was said once must stay hidden."""
    said: set[str] = set()

    async def one(secret: str, plants: list[tuple[str, str]]) -> None:
        said.add(secret)
        await leaky.call(secret, plants)

    cases: list[tuple[str, list[tuple[str, str]]]] = []
    plants = st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(WAYS)), min_size=1, max_size=6)

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(SECRETS, plants)
    def draw(secret: str, chosen: list[tuple[str, str]]) -> None:
        cases.append((secret, chosen))

    draw()
    for secret, chosen in cases:
        await one(secret, chosen)
    everything = leaky.everything
    for secret in said:
        check_clean(everything, secret)


async def test_a_handle_that_cannot_be_resolved_refuses_the_call(leaky: Leaky) -> None:
    await leaky.call("a secret value", [("log", "plain")])
    leaky.log.truncate(0)
    del leaky.environ["KEY"]
    arguments = {"plants": json.dumps([("memory", "plain")])}
    task = await leaky.house.send(TOOL, arguments, message_id="m0")
    assert task["task"]["status"]["state"] == "TASK_STATE_FAILED"
    log = leaky.log.getvalue()
    assert "the handler was not called: secrets can't be resolved: KEY (env): the variable is not set" in log
    assert "a value" not in leaky.everything
