"""The parts of a source, as they stand there."""

import re
from dataclasses import dataclass

from .fault import Position

# how much there may be
MAX_SOURCE = 262_144
"""Bytes of a source in UTF-8."""
MAX_LINE = 2000
"""Characters of a line."""
MAX_NAME = 64
"""Characters of a name."""
MAX_PATH = 100
"""Characters of a module's name."""
MAX_DECLARATIONS = 1000
MAX_LISTS = 8
"""How many `List of` may stand before a type."""

# how names are written
NAME = re.compile(r"[A-Z][A-Za-z0-9]*")
IDENT = re.compile(r"[a-z][a-z0-9_]*")
HANDLE = re.compile(r"[A-Z][A-Z0-9_]*")
PATH = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*")

BUILT_IN = ("Text", "Number", "Integer", "Boolean")


@dataclass(frozen=True, slots=True)
class Word:
    """A name, where it stands."""

    text: str
    at: Position


@dataclass(frozen=True, slots=True)
class Doc:
    """A documentation line: `says "…"`."""

    text: str
    at: Position


@dataclass(frozen=True, slots=True)
class Shape:
    """What a value is: a type's name, in `lists` lists, perhaps left out."""

    name: Word
    lists: int
    optional: bool
    at: Position

    @property
    def text(self) -> str:
        return f"{'optional ' if self.optional else ''}{'List of ' * self.lists}{self.name.text}"


@dataclass(frozen=True, slots=True)
class Field:
    name: Word
    shape: Shape
    says: tuple[Doc, ...] = ()


@dataclass(frozen=True, slots=True)
class Type:
    name: Word
    says: tuple[Doc, ...]
    fields: tuple[Field, ...]
    at: Position


@dataclass(frozen=True, slots=True)
class Memory:
    name: Word
    says: tuple[Doc, ...]
    at: Position


@dataclass(frozen=True, slots=True)
class Takes:
    name: Word
    shape: Shape
    at: Position


@dataclass(frozen=True, slots=True)
class Gives:
    shape: Shape
    at: Position


@dataclass(frozen=True, slots=True)
class Requires:
    capabilities: tuple[Word, ...]
    at: Position


@dataclass(frozen=True, slots=True)
class Secrets:
    handles: tuple[Word, ...]
    at: Position


@dataclass(frozen=True, slots=True)
class Uses:
    memory: Word
    mode: str
    at: Position


Clause = Takes | Gives | Requires | Secrets | Uses | Doc


@dataclass(frozen=True, slots=True)
class Tool:
    name: Word
    clauses: tuple[Clause, ...]
    at: Position


@dataclass(frozen=True, slots=True)
class Import:
    """`uses Name, Name from module`: types and memories of another module."""

    names: tuple[Word, ...]
    module: Word
    at: Position


Declaration = Type | Memory | Tool | Import


@dataclass(frozen=True, slots=True)
class Source:
    """One file: its module, and what it declares, in order."""

    module: Word
    says: tuple[Doc, ...]
    declarations: tuple[Declaration, ...]
    file: str = "<source>"
