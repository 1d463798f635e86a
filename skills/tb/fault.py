"""What is wrong with a contract, and where; what is only odd about it; what goes beyond the page's own language."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import SkillError


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a source: line and column count from 1, columns in characters."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Fault:
    """One reason why a source is no contract.

    `message` is the rule that is broken, the same for every source; `hint` adds to it what stands there, or what would
    be right. Neither repeats text that is no well-formed name: it may be a secret.
    """

    code: str
    at: Position
    message: str
    hint: str = ""
    file: str = "<source>"

    def __str__(self) -> str:
        said = (self.hint, self.message) if self.message.startswith("expected: ") else (self.message, self.hint)
        return f"{self.file}:{self.at.line}:{self.at.column}: {'; '.join(filter(None, said))}"

    def as_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "file": self.file,
            "line": self.at.line,
            "column": self.at.column,
            "message": self.message,
            "hint": self.hint,
        }


class NotAContract(SkillError):
    """A source, or a folder of them, that has faults; the message is the first one's."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__(str(self.faults[0]))


@dataclass(frozen=True, slots=True)
class Oddity:
    """A warning: the contract means something, perhaps not what was meant. `capability` is what it is about."""

    code: str
    at: Position
    capability: str
    file: str = "<source>"

    def __str__(self) -> str:
        return f"{self.file}:{self.at.line}:{self.at.column}: {_ODD[self.code].format(self.capability)}"

    def as_json(self) -> dict[str, Any]:
        """As the vectors write it, without column and file."""
        return {"code": self.code, "line": self.at.line, "capability": self.capability}


_ODD = {
    "unknown-capability": "the capability {0} is none that is known; a manifest has to grant exactly this word",
    "implied-capability": "the clause needs {0}, which is required all the same; write `requires {0}`",
    "unused-capability": "{0} is required and no clause makes use of it; add the clause, or take the word out",
}


@dataclass(frozen=True, slots=True)
class Extension:
    """One use of what goes beyond the page's own language; `--strict` names it."""

    what: str
    at: Position
    file: str = "<source>"

    def __str__(self) -> str:
        return f"{self.file}:{self.at.line}:{self.at.column}: {self.what} is an extension of the language"

    def as_json(self) -> dict[str, Any]:
        return {"what": self.what, "file": self.file, "line": self.at.line, "column": self.at.column}
