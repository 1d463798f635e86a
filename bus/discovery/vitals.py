"""What a server says of itself: the answers to `ping`, `info` and `stats`, and the heartbeat.

On the wire each is a JSON object with the fields below in camelCase; units stand in the names. A reader ignores members
that it does not know, and takes nothing for an answer in which one that it needs is missing or of another kind.
"""

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar, Self, TypeVar, Union, get_args, get_origin, get_type_hints

import orjson

from bus.link import State
from bus.server.stats import ServerStats

INTERVAL = 10.0
"""Seconds between two heartbeats of a server."""

MOST_INTERVAL = 3600.0
"""A heartbeat that promises the next one later than this is not believed."""

MISSED = 3
"""Heartbeats that may fail to come before a server counts as gone."""

_LONGEST = 1024
_MOST_ITEMS = 256

B = TypeVar("B", bound="Vitals")


@dataclass(frozen=True, slots=True)
class Vitals:
    """What all of them have in common: a kind, a form on the wire, and a way back."""

    KIND: ClassVar[str]

    def as_json(self) -> dict[str, Any]:
        """The members on the wire; what is None is left out."""
        found = asdict(self)
        return {_camel(name): value for name, value in found.items() if value is not None}

    @classmethod
    def read(cls, members: Mapping[str, Any]) -> Self | None:
        """What the members say; None if one that is needed is missing, or one is of another kind."""
        values = {}
        own: type = cls
        for name, kind, needed in _fields_of(own):
            value = members.get(_camel(name))
            if value is None:
                if needed:
                    return None
                continue
            try:
                values[name] = _value(kind, value)
            except ValueError:
                return None
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Pong(Vitals):
    """The answer to `ping`: whether the server takes calls, `running` of at most `slots` at the moment."""

    KIND = "ping"
    state: State
    running: int = 0
    slots: int = 0

    @property
    def ready(self) -> bool:
        """Whether the server takes calls; one whose slots are all in use takes the next when one is free."""
        return self.state is State.CONNECTED


@dataclass(frozen=True, slots=True)
class Info(Vitals):
    """The answer to `info`: what does not change while the server runs.

    `version` is the agent's, `software` what carries it. `card_hash` is the content address of the card with every
    skill, equal where the same is offered; `skills` their number. `operations` are the A2A methods that the agent
    answers. `interval_seconds` lie between two heartbeats.
    """

    KIND = "info"
    version: str = ""
    software: str = ""
    card_hash: str | None = None
    skills: int | None = None
    operations: tuple[str, ...] = ()
    slots: int = 0
    interval_seconds: float = INTERVAL


@dataclass(frozen=True, slots=True)
class Stats(Vitals):
    """The answer to `stats`: the state, and the counts of `bus.ServerStats` since the server was made.

    `paused` is why the server takes no calls, when it was told so. `calls` are those that the agent has in hand,
    whether or not somebody still waits for them.
    """

    KIND = "stats"
    state: State = State.CONNECTED
    paused: str | None = None
    slots: int = 0
    running: int = 0
    calls: int | None = None
    uptime_seconds: float = 0.0
    delivered: int = 0
    redelivered: int = 0
    answered: int = 0
    failed: int = 0
    refused: int = 0
    dead_lettered: int = 0
    requeued: int = 0
    unanswered: int = 0
    accepted: int = 0
    left: int = 0
    unheard: int = 0
    events: int = 0
    stale: int = 0
    losses: int = 0

    @classmethod
    def of(cls, counts: ServerStats, *, state: State, slots: int, paused: str | None = None) -> Self:
        """What a server counts, with the state that it is in."""
        known = {field.name for field in fields(cls)}
        return cls(state=state, paused=paused, slots=slots, **{n: v for n, v in asdict(counts).items() if n in known})


@dataclass(frozen=True, slots=True)
class Heartbeat(Vitals):
    """What a server says of itself every `interval_seconds`; `leaving` when it stops in good order."""

    KIND = "heartbeat"
    agent: str
    instance: str
    state: State
    interval_seconds: float
    version: str = ""
    card_hash: str | None = None
    slots: int = 0
    running: int = 0
    leaving: bool = False

    def encode(self) -> bytes:
        """The body of the message."""
        return orjson.dumps({"type": type_of(self.KIND), **self.as_json()})

    @classmethod
    def decode(cls, body: bytes) -> Self | None:
        """The heartbeat in a message's body, or None for something else."""
        members = read_object(body)
        beat = cls.read(members) if members.pop("type", None) == type_of(cls.KIND) else None
        return beat if beat is not None and 0 < beat.interval_seconds <= MOST_INTERVAL else None


def type_of(kind: str) -> str:
    """The member `type` that says what a body is."""
    return f"urn:skillbus:control:{kind}:v1"


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body; empty for something else."""
    try:
        value = orjson.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


@lru_cache
def _fields_of(cls: type) -> tuple[tuple[str, Any, bool], ...]:
    hints = get_type_hints(cls)
    return tuple((field.name, hints[field.name], field.default is MISSING) for field in fields(cls))


@lru_cache
def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _value(kind: Any, value: Any) -> Any:
    """The value as that kind. Raises ValueError."""
    if get_origin(kind) in (Union, types.UnionType):
        (kind,) = (each for each in get_args(kind) if each is not type(None))
    if get_origin(kind) is tuple:
        if not isinstance(value, list) or len(value) > _MOST_ITEMS:
            raise ValueError
        return tuple(_value(str, each) for each in value)
    if kind is bool or isinstance(value, bool):
        good = kind is bool and isinstance(value, bool)
    elif kind is float:
        good = isinstance(value, int | float) and math.isfinite(value) and value >= 0
    elif kind is int:
        good = isinstance(value, int) and value >= 0
    else:
        good = isinstance(value, str) and len(value) <= _LONGEST
    if not good:
        raise ValueError
    return kind(value)
