from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Any

import pytest

from skills import Context, Directory, Outcome, PackContext, PlannedEffect, Skill
from skills.ailang import pack
from tests.skills.ailang.standin import StandIn

PAIR = "127.0.0.1:17655"
SWITCHES: dict[str, Any] = {"run_allow_caps": ["Declassify", "Env", "Net"], "run_net_allow": [PAIR]}


@dataclass
class Lane:
    """The eight tools over a stand-in binary, at work in one worktree."""

    folder: Path
    settings: dict[str, Any] = field(default_factory=dict)
    episode: str = "ep1"

    def __post_init__(self) -> None:
        for name in ("root", "examples", "state"):
            (self.folder / name).mkdir()
        self.binary = StandIn(self.folder / "bin")
        self.root = self.folder / "root"
        self.table = {
            "binary": str(self.binary.path),
            "examples": str(self.folder / "examples"),
            "state": str(self.folder / "state"),
            **SWITCHES,
            **self.settings,
        }
        self.skills = {skill.id: skill for skill in self.load()}

    def load(self) -> list[Skill]:
        return list(pack(PackContext({"ailang": self.table})))

    @contextmanager
    def context(self, seconds: float = 60) -> Iterator[Context]:
        with Directory.open(self.root) as directory:
            yield Context("a2a:ep1:1", self.episode, time() + seconds, directory)

    async def request(self, effect: str, payload: dict[str, Any], *, seconds: float = 60) -> Outcome:
        """What the handler of an effect makes of a request."""
        planned = PlannedEffect("e1", effect, "worktree", 1, payload)
        skill = next(
            skill for skill in self.skills.values() if effect in {declared.name for declared in skill.contract.effects}
        )
        assert skill.handler is not None
        with self.context(seconds) as context:
            return await skill.handler(planned, context)

    async def call(self, tool: str, arguments: dict[str, Any]) -> Outcome:
        """What the handler makes of a tool's plan, which must have an effect."""
        skill = self.skills[tool]
        (effect,) = skill.plan(arguments).effects
        assert skill.handler is not None
        with self.context() as context:
            return await skill.handler(effect, context)


@pytest.fixture(scope="module")
def lane(tmp_path_factory: pytest.TempPathFactory) -> Lane:
    """One for all tests of a module: what the binary has verified once need not be verified again."""
    return Lane(tmp_path_factory.mktemp("lane"))


@pytest.fixture
def make_lane(tmp_path: Path) -> Callable[..., Lane]:
    """A lane of a test's own, with settings of its own."""
    return lambda **settings: Lane(tmp_path, settings)
