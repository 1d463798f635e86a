"""What a call gets from its worker: the values of its secrets, and its memories."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..skill import Context, Outcome, Reporter
from .tool import Tool


class Memory(Protocol):
    """One memory, as one call may use it; values are JSON. Each raises Rejected for what it does not do."""

    async def get(self, key: str) -> Mapping[str, Any] | None:
        """`{"key", "value", "version"}`, or None."""

    async def list(self, prefix: str, limit: int, after: str) -> Sequence[Mapping[str, Any]]:
        """`{"key", "version"}` of each entry behind the key `after`, in order of the keys."""

    async def search(self, text: str, limit: int) -> Sequence[Mapping[str, Any]]:
        """The entries that match best, as `get` gives them."""

    async def put(self, key: str, value: Any, version: int | None) -> int:
        """Write, over this version alone unless it is None (0: nothing stands there); the new version."""

    async def delete(self, key: str, version: int | None) -> bool:
        """Whether there was something to delete."""


class Withheld(Exception):
    """What the contract requires can't be had: the call is refused, and its handler is not called."""


async def _as_it_is(outcome: Outcome) -> Outcome:
    return outcome


@dataclass(frozen=True, slots=True)
class Supply:
    """What one call gets.

    `redact` takes the values of its secrets out of whatever its handler says into the log; of a text that goes on,
    `settled` says how many characters may be told before the rest is known. Its progress and its chunks
    go to `reporter`, where there is one, rather than to the call's own. `settle` is asked once what the outcome comes
    to when the handler has ended, well or not; it is not asked for a call that is canceled. `earlier` is what the call
    came to when a worker that is gone had run it: then the handler is not called.
    """

    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    memories: Mapping[str, Memory] = field(default_factory=dict, repr=False)
    redact: Callable[[str], str] = field(default=lambda text: text, repr=False)
    settled: Callable[[str], int] = field(default=len, repr=False)
    reporter: Reporter | None = field(default=None, repr=False)
    settle: Callable[[Outcome], Awaitable[Outcome]] = field(default=_as_it_is, repr=False)
    earlier: Outcome | None = field(default=None, repr=False)


class Supplier(Protocol):
    """Asked at the dispatch of each call, before its handler."""

    async def __call__(self, tool: Tool, context: Context) -> Supply:
        """Raises Withheld."""


async def nothing(tool: Tool, context: Context) -> Supply:
    """The supplier of tools that need neither secrets nor memories; it withholds from any other."""
    if tool.secrets:
        raise Withheld(f"there is no provider for the secret {tool.secrets[0]}")
    if tool.memories:
        raise Withheld(f"there is no store for the memory {next(iter(tool.memories))}")
    return Supply()
