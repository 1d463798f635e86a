"""A pack, what it is told when it is loaded, and why one is left out."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from .skill import Skill

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a pack, or a part of one that it can do without, was left out; `kind` says which of them it is.

    `distribution` is the name and version of what was installed with it; empty for what no distribution brought.
    """

    pack: str
    reason: str
    kind: str = "pack"
    distribution: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.pack!r}{brought_by(self.distribution)} is left out: {self.reason}"


@dataclass(frozen=True, slots=True)
class PackContext:
    """What a pack is told when it is loaded: the `[tools]` table of the configuration, and the environment.

    It may report a problem that it can be served in spite of, a backend that can't be loaded for instance.
    `state_dir` is where it may keep, in a folder of its own, what outlives the process. What it gives to `at_end` is
    awaited when the process ends in order, after the last call.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    report: Callable[[Problem], None] = field(default=lambda problem: log.warning("%s", problem), repr=False)
    state_dir: Path | None = None
    at_end: Callable[[Callable[[], Awaitable[None]]], None] = field(default=lambda end: None, repr=False)


PackFactory = Callable[[PackContext], Iterable[Skill]]


@dataclass(frozen=True, slots=True)
class Pack:
    """A named group of skills from one source, the `module:attribute` that made it."""

    name: str
    source: str
    skills: tuple[Skill, ...]
    distribution: str = ""


def distribution_of(point: EntryPoint) -> str:
    """The name and version of the distribution that registers an entry point; empty for one that none does."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else ""


def brought_by(distribution: str) -> str:
    """The words that name a distribution, where there is one."""
    return f" of {distribution}" if distribution else ""
