"""Packs for tests: skills that take their time and mark each run, and packs that can't be taken."""

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from skills import Context, Contract, Done, Effect, Failed, Outcome, PackContext, Plan, PlannedEffect, Skill

EFFECT, SCOPE = "Test.Mark", "test"
LOOK = 0.01

_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "marker": {"type": "string", "description": "A file that gets one line each time the effect runs"},
        "until": {"type": "string", "description": "A file that ends the wait by being there"},
        "seconds": {"type": "number", "description": "What ends it otherwise"},
        "progress": {"type": "string", "description": "Reported once it has begun, as a quarter"},
        "chunks": {
            "type": "array",
            "items": {},
            "description": "Sent ahead: the first at once, the rest after the wait",
        },
        "fail": {"type": "boolean", "description": "End in a failure"},
    },
    "required": ["marker"],
}


def slow(context: PackContext) -> Iterable[Skill]:
    """`slow`, which must not run twice, and `slow-repeatable`, which may."""
    return [_skill("slow"), _skill("slow-repeatable", repeatable=True)]


def broken(context: PackContext) -> Iterable[Skill]:
    raise RuntimeError("this pack can't be made")


def _skill(name: str, *, repeatable: bool = False) -> Skill:
    contract = Contract(
        id=name,
        title="Take time",
        description="Mark the run, then wait",
        input_schema=_SCHEMA,
        output_schema={"type": "object"},
        access=Effect(name=EFFECT, scope=SCOPE, cost=0),
        effects=(Effect(name=EFFECT, scope=SCOPE),),
        deadline=60,
        repeatable=repeatable,
    )
    return Skill(contract, _plan, _run)


def _plan(arguments: Any) -> Plan:
    if not isinstance(arguments, Mapping) or not isinstance(arguments.get("marker"), str):
        return Plan.refuse('missing required argument "marker"')
    return Plan.one(EFFECT, dict(arguments), scope=SCOPE)


async def _run(effect: PlannedEffect, context: Context) -> Outcome:
    payload = effect.payload
    marker, until = Path(payload["marker"]), payload.get("until")
    await asyncio.to_thread(_append, marker, f"{context.invocation_id}\n")
    chunks = list(payload.get("chunks", ()))
    if "progress" in payload:
        await context.progress(payload["progress"], 0.25)
    for chunk in chunks[:1]:
        await context.chunk(chunk)
    ends = asyncio.get_running_loop().time() + float(payload.get("seconds", 0 if until is None else 30))
    while asyncio.get_running_loop().time() < ends:
        if until and await asyncio.to_thread(Path(until).exists):
            break
        await asyncio.sleep(LOOK)
    for chunk in chunks[1:]:
        await context.chunk(chunk)
    if payload.get("fail"):
        return Failed("asked to fail")
    return Done({"ok": True})


def _append(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line)
