"""A skill that tells how far it has come, then waits until it is ended, and says when it is."""

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from skills import Context, Contract, Done, Effect, Outcome, PackContext, Plan, PlannedEffect, Skill
from skills.process import run_process

OBJECT: dict[str, Any] = {"type": "object"}
DEAF = 'trap "" TERM; sleep 600 & echo "$$ $!" > "$0"; wait'
"""A program with a child, both of which do not listen to SIGTERM; they say who they are into a FIFO."""


async def _steps(effect: PlannedEffect, context: Context) -> Outcome:
    marks = Path(effect.payload["marks"])
    _mark(marks, "begun")
    await context.progress("half way", 0.5)
    await context.chunk("one ")
    await context.chunk("two")
    try:
        if "pids" in effect.payload:
            await run_process(["sh", "-c", DEAF, effect.payload["pids"]], env={"PATH": os.defpath}, grace=0.2)
        if effect.payload.get("wait", True):
            await asyncio.Event().wait()
    finally:
        _mark(marks, "ended")
    return Done({"ok": True})


def _mark(path: Path, word: str) -> None:
    with path.open("a") as file:
        file.write(f"{word}\n")


def pack(_context: PackContext) -> Iterable[Skill]:
    contract = Contract(
        id="steps", title="steps", description="Take steps", input_schema=OBJECT, output_schema=OBJECT,
        access=Effect(name="Test.Mark", scope="test", cost=0), effects=(Effect(name="Test.Mark", scope="test"),),
        deadline=120,
    )  # fmt: skip
    return [Skill(contract, lambda arguments: Plan.one("Test.Mark", arguments, scope="test"), _steps)]
