"""All eleven operations: the rows of `operations`, through every agent, broker and client.

What the SDK's handler gives over this bus and over HTTP is compared in full.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bus.names import OPERATIONS
from tests.conformance.agents import STRANGER, SdkHandler, Skills, Stand
from tests.conformance.callers import Failure, Native, short
from tests.conformance.operations import ROWS, Talk
from tests.conformance.stage import MemoryStage, Stage


@asynccontextmanager
async def standing(kind: str, stage: Stage, folder: Path) -> AsyncIterator[Stand]:
    async with Skills(stage, folder) if kind == "native" else SdkHandler(stage) as stand:
        yield stand


async def converse(stand: Stand, client: str) -> tuple[Talk, dict[str, Any]]:
    """Ask every row, in order; returns what came."""
    talk = Talk(stand, await stand.caller(client), await stand.caller(client, STRANGER))
    return talk, {row.what: await row.ask(talk) for row in ROWS if stand.kind in row.expected}


def told(outcome: Any) -> str:
    if isinstance(outcome, str):
        return outcome
    return " / ".join(map(short, outcome)) if isinstance(outcome, tuple) else short(outcome)


def wrong(kind: str, outcomes: dict[str, Any]) -> list[str]:
    """The rows that came out otherwise."""
    expected = {row.what: row.expected[kind] for row in ROWS if kind in row.expected}
    return [
        f"{what}: expected {expected[what]}, got {told(outcome)}"
        for what, outcome in outcomes.items()
        if told(outcome) != expected[what]
    ]


@pytest.mark.parametrize("client", ["native", "sdk"])
@pytest.mark.parametrize("kind", ["native", "sdk"])
async def test_every_operation(stage: Stage, tmp_path: Path, kind: str, client: str) -> None:
    async with standing(kind, stage, tmp_path) as stand:
        talk, outcomes = await converse(stand, client)
    found = wrong(kind, outcomes)
    assert not found, "\n".join(found)
    assert talk.asked == OPERATIONS


async def test_the_sdk_s_handler_gives_the_same_over_http(stage: Stage) -> None:
    found = []
    for client in ("sdk", "http"):
        async with SdkHandler(stage) as stand:
            _, outcomes = await converse(stand, client)
            found.append(outcomes)
    over_bus, over_http = found
    otherwise = wrong("sdk", over_http)
    assert not otherwise, "\n".join(otherwise)
    here, there = normalised(over_bus, {}), normalised(over_http, {})
    assert [what for what in here if here[what] != there[what]] == []


def normalised(value: Any, names: dict[str, str]) -> Any:
    """The same value, with ids by the order in which they come and without times."""
    if isinstance(value, dict):
        return {
            key: "TIME" if key in ("timestamp", "lastModified") else normalised(inner, names)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [normalised(inner, names) for inner in value]
    if isinstance(value, Failure):
        return [value.reason, normalised(value.words, names), normalised(value.data, names)]
    if isinstance(value, str):
        return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", lambda found: names.setdefault(found[0], f"id-{len(names)}"), value)
    return value


async def test_the_skills_answer_nobody_without_a_session(tmp_path: Path, unique_prefix: str) -> None:
    async with MemoryStage(unique_prefix) as stage, Skills(stage, tmp_path) as stand:
        caller = Native(await stage.connect(), "sample")
        for operation in sorted(OPERATIONS):
            body = {"message": stand.message("work")} if "Message" in operation else {"id": "t-1"}
            assert (await caller.call(operation, body)).reason == "UNAUTHENTICATED"
