"""Long skills: their contract allows more than ten minutes, and a FIFO says when they end."""

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from broker.pipeline.planned import LONG
from skills import Context, Contract, Done, Effect, Outcome, PackContext, Plan, PlannedEffect, Skill

OBJECT: dict[str, Any] = {"type": "object"}


async def _long(effect: PlannedEffect, context: Context) -> Outcome:
    """Writes a mark when it begins, and one when it ends in order; the file `go` lets it end."""
    marks, go = Path(effect.payload["marks"]), Path(effect.payload["go"])
    await context.progress("under way", 0.5)  # before the mark: a test that sees it may take the ledger away
    _mark(marks, "begun")
    try:
        while not go.exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        _mark(marks, "interrupted")
        raise
    _mark(marks, "ended")
    return Done({"ok": True, "worker": os.getpid()})


def _mark(path: Path, word: str) -> None:
    with path.open("a") as file:
        file.write(f"{word} {os.getpid()}\n")


def _skill(name: str, **changes: Any) -> Skill:
    contract = Contract(
        id=name, title=name, description=f"Take long ({name})", input_schema=OBJECT, output_schema=OBJECT,
        access=Effect(name="Test.Mark", scope="test", cost=0), effects=(Effect(name="Test.Mark", scope="test"),),
        deadline=LONG + 1, **changes,
    )  # fmt: skip
    return Skill(contract, lambda arguments: Plan.one("Test.Mark", arguments, scope="test"), _long)


def pack(_context: PackContext) -> Iterable[Skill]:
    return [_skill("long"), _skill("long-again", repeatable=True), _skill("long-placed", worktree=True)]
