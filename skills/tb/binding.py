"""What a manifest says: which handler keeps which contract, and what it is granted."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..contract import Risk
from .handler import HandlerName
from .provider import Provider
from .store import MemoryGrant

Isolation = Literal["none", "process"]


@dataclass(frozen=True, slots=True)
class Binding:
    """What is said about one tool.

    `effect` and `scope` are what a session's grant has to name. `grants`, `secrets` and `memories` are what the
    contract's requirements are compared with. `deadline` is in seconds; `concurrency` is how many calls of the tool one
    worker runs at a time.
    """

    handler: HandlerName
    effect: str
    scope: str = "tool"
    grants: frozenset[str] = frozenset()
    secrets: Mapping[str, Provider] = field(default_factory=dict)
    memories: Mapping[str, MemoryGrant] = field(default_factory=dict)
    deadline: float = 10.0
    concurrency: int = 4
    isolation: Isolation = "none"
    repeatable: bool = False
    worktree: bool = False
    title: str = ""
    risk: Risk = field(default_factory=Risk)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Bindings by tool id. `folder` is where its paths begin."""

    tools: Mapping[str, Binding]
    folder: Path = Path()
