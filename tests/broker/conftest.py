import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from broker.agent.agent import SkillAgent
from broker.grants.grant import Grant
from broker.ledger.ledger import Ledger
from broker.pipeline.pipeline import Asked, Pipeline
from broker.sessions import Credential, Session, mint
from broker.worktrees.worktrees import Worktrees
from skills import Catalog, Context, Contract, Done, Effect, EffectResult, Failed, Outcome, Plan, PlannedEffect, Skill

from .house import House

OBJECT: dict[str, Any] = {"type": "object"}
SECRET = "what nobody but the host may read"


class Poison(BaseException):
    """What no handler should raise."""


@dataclass
class Effects:
    """What the test skills do, and how often they did it."""

    runs: list[Any] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    started: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, effect: PlannedEffect, context: Context) -> Outcome:
        self.runs.append(dict(effect.payload))
        match effect.payload.get("do"):
            case "fail":
                return Failed(f"it did not work: {SECRET}", retryable=True)
            case "odd reason":
                return Failed(b"bytes")  # type: ignore[arg-type]
            case "exit":
                raise SystemExit(3)
            case "base":
                raise Poison(SECRET)
            case "none":
                return None  # type: ignore[return-value]
            case "dict":
                return Done([1])  # type: ignore[arg-type]
            case "cancel":
                raise asyncio.CancelledError
            case "time out":
                raise TimeoutError(SECRET)
            case "raise":
                raise RuntimeError(SECRET)
            case "wait":
                self.started.set()
                await self.gate.wait()
            case "report":
                await context.progress("half way", 0.5)
                await context.chunk("one ")
                await context.chunk("two", last=True)
                self.started.set()
                await self.gate.wait()
            case "stubborn":
                self.started.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    await self.gate.wait()
            case "deaf":
                self.started.set()
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
            case "large":
                return Done({"text": "x" * (1 << 20)})
            case "odd":
                return Done({"text": "\ud800"})
        return Done({"ok": True, "ran": len(self.runs)})


def _plan(effect: str) -> Callable[[Any], Plan]:
    def plan(arguments: Any) -> Plan:
        if not isinstance(arguments, dict) or "refuse" in arguments:
            return Plan.refuse("not like this")
        if "break" in arguments:
            return Plan.one("Other", {})
        match arguments.get("crash"):
            case "exit":
                raise SystemExit(3)
            case "base":
                raise Poison
            case 1:
                raise RuntimeError(SECRET)
        if "mutate" in arguments:
            arguments["mutate"] = "changed"
        return Plan.one(effect, arguments, scope="test", finish=bool(arguments.get("finish")))

    return plan


def _finish(arguments: Any, result: EffectResult) -> dict[str, Any]:
    match arguments["finish"]:
        case "crash":
            raise ValueError("a finish phase must not raise")
        case "index":
            raise IndexError
        case "exit":
            raise SystemExit(3)
    return {"status": result.status, "shape": "new", "saw": arguments}


def _contract(name: str, **changes: Any) -> Contract:
    effect = Effect(name="Test.Run", scope="test")
    fields: dict[str, Any] = {
        "id": name, "title": name, "description": name, "input_schema": OBJECT, "output_schema": OBJECT,
        "access": Effect(name="Test.Run", scope="test", cost=0), "effects": (effect,),
    }  # fmt: skip
    return Contract(**fields | changes)


@pytest.fixture
def effects() -> Effects:
    return Effects()


@pytest.fixture
def catalog(effects: Effects) -> Catalog:
    catalog = Catalog()
    assert catalog.add(
        "test",
        [
            Skill(_contract("once"), _plan("Test.Run"), effects.run, _finish),
            Skill(_contract("again", repeatable=True), _plan("Test.Run"), effects.run),
            Skill(_contract("placed", worktree=True), _plan("Test.Run"), effects.run),
            Skill(_contract("quick", deadline=0.05), _plan("Test.Run"), effects.run),
            Skill(_contract("pure", access=None, effects=()), lambda a: Plan.answer({"ok": True, "got": a})),
            Skill(
                _contract("hidden", access=Effect(name="Other", scope="test", cost=0)), _plan("Test.Run"), effects.run
            ),
        ],
    )
    return catalog


@pytest.fixture
def ledger_path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
async def ledger(ledger_path: Path) -> AsyncIterator[Ledger]:
    async with await Ledger.open(str(ledger_path)) as ledger:
        yield ledger


@pytest.fixture
async def credential(ledger: Ledger) -> Credential:
    """The credential of a session on episode `ep1` with 50 runs of Test.Run."""
    credential, session = mint("ep1", [Grant("Test.Run", "test", 50, 2**40)], ttl=3600)
    await ledger.add_session(session)
    return credential


@pytest.fixture
async def session(ledger: Ledger, credential: Credential) -> Session:
    session = await ledger.session(credential.id)
    assert session is not None
    return session


@pytest.fixture
def worktrees(tmp_path: Path) -> Worktrees:
    return Worktrees(tmp_path / "workspaces")


@pytest.fixture
async def pipeline(catalog: Catalog, ledger: Ledger, worktrees: Worktrees) -> AsyncIterator[Pipeline]:
    pipeline = Pipeline(catalog, ledger, worktrees, owner="w1", version="0")
    yield pipeline
    await pipeline.close()


@pytest.fixture
def ask(session: Session) -> Callable[..., Asked]:
    def ask(skill: str, arguments: Any = None, message_id: str = "m1", **changes: Any) -> Asked:
        fields = {
            "session": session,
            "skill_id": skill,
            "arguments": {} if arguments is None else arguments,
            "message_id": message_id,
            "context_id": "ep1",
            "deadline": time.time() + 30,
        }
        return Asked(**fields | changes)

    return ask


@pytest.fixture
def house(pipeline: Pipeline, ledger: Ledger, credential: Credential) -> House:
    return House(SkillAgent("house", pipeline, ledger, version="1", url="amqp://h/v?agent=house"), credential)


@pytest.fixture
async def other(
    catalog: Catalog, ledger_path: Path, worktrees: Worktrees, credential: Credential
) -> AsyncIterator[House]:
    """Another worker of the same agent."""
    async with await Ledger.open(str(ledger_path)) as ledger:
        pipeline = Pipeline(catalog, ledger, worktrees, owner="w2", version="0")
        yield House(SkillAgent("house", pipeline, ledger, version="1"), credential)
        await pipeline.close()
