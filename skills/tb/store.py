"""Where a memory is kept, whose it is, and what may be done with it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .provider import Provider, confined, provider

Mode = Literal["read", "write"]
Scope = Literal["session", "episode", "agent", "tenant"]
STORES = '"worker", "sqlite:FILE", or "postgresql:env:NAME" (or file:PATH), where the variable holds the URL'


@dataclass(frozen=True, slots=True)
class Store:
    """What keeps a memory: the worker's own database (`worker`), a SQLite file, or PostgreSQL.

    The URL of a PostgreSQL database holds a password, so it comes from `url`, as a secret does.
    """

    kind: Literal["worker", "sqlite", "postgresql"]
    file: Path | None = None
    url: Provider | None = None

    @classmethod
    def read(cls, text: str, folder: Path) -> "Store":
        """Raises ValueError, whose message does not repeat what was given."""
        kind, _, rest = text.partition(":")
        if text == "worker":
            return cls("worker")
        if kind == "sqlite" and rest:
            return cls("sqlite", file=confined(rest, folder))
        if kind == "postgresql" and rest.startswith(("env:", "file:")):
            return cls("postgresql", url=provider(rest, folder))
        raise ValueError(f"names no store; write {STORES}")


@dataclass(frozen=True, slots=True)
class MemoryGrant:
    """Leave to use one memory: in `modes`, within `scope`. `write` does not include `read`."""

    modes: frozenset[Mode]
    store: Store = Store("worker")
    scope: Scope = "episode"
