"""What stands in a memory, and what a call wants changed in it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .place import Place


@dataclass(frozen=True, slots=True)
class Entry:
    """A key with its version, and its value as JSON where that was asked for."""

    key: str
    version: int
    value: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """A value to be put under a key, or None for its end.

    `over` is the version that must stand there when the call ends: 0 for none, None for any. `version` is the one that
    the key gets, or a higher one if another call was there first; of an end the one that the key had.
    """

    version: int
    over: int | None
    value: str | None = None
    words: tuple[str, ...] = field(default=(), repr=False)


Changes = Mapping[Place, Mapping[str, Change]]
Versions = Mapping[Place, Mapping[str, int]]
