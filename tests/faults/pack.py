"""Skills whose effect leaves a mark, says that it has begun, and can be held there until its worker is killed."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from skills import Context, Contract, Done, Effect, Outcome, PackContext, Plan, PlannedEffect, Skill

OBJECT: dict[str, Any] = {"type": "object"}


async def _mark(effect: PlannedEffect, context: Context) -> Outcome:
    payload = effect.payload
    marks = Path(payload["marks"])
    before = len(marks.read_text().splitlines()) if marks.exists() else 0
    with marks.open("a") as file:  # noqa: ASYNC230 - one short line, written before anything can end the worker
        file.write(f"{context.invocation_id}\n")
    if "begun" in payload and before == 0:
        await asyncio.to_thread(_say, Path(payload["begun"]))
        await asyncio.Event().wait()
    return Done({"ok": True, "runs": before + 1})


def _say(fifo: Path) -> None:
    fifo.write_text("begun\n")


async def _hold(effect: PlannedEffect, context: Context) -> Outcome:
    """Leave a mark, tell half of it, wait for the gate, tell the rest."""
    payload = effect.payload
    with Path(payload["marks"]).open("a") as file:  # noqa: ASYNC230
        file.write(f"{context.invocation_id}\n")
    chunks, gate = payload["chunks"], Path(payload["gate"])
    for number in range(chunks):
        if number == chunks // 2:
            await _open(gate)
        await context.chunk(f"{number} ", last=number == chunks - 1)
    await _open(gate)
    return Done({"ok": True})


async def _open(gate: Path) -> None:
    while not gate.exists():  # noqa: ASYNC110 - what is done in another process
        await asyncio.sleep(0.05)


def _skill(name: str, **changes: Any) -> Skill:
    contract = Contract(
        id=name, title=name, description=f"Leave a mark ({name})", input_schema=OBJECT, output_schema=OBJECT,
        access=Effect(name="Test.Mark", scope="test", cost=0), effects=(Effect(name="Test.Mark", scope="test"),),
        deadline=120, **changes,
    )  # fmt: skip
    run = _hold if name == "hold" else _mark
    return Skill(contract, lambda arguments: Plan.one("Test.Mark", arguments, scope="test"), run)


def pack(_context: PackContext) -> Iterable[Skill]:
    return [
        _skill("mark"), _skill("mark-again", repeatable=True), _skill("mark-placed", worktree=True), _skill("hold")
    ]  # fmt: skip
