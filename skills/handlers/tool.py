"""A tool with its handler bound to it: where the code stands, and within which limits it runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Language = Literal["python", "javascript"]
Isolation = Literal["none", "process"]
Mode = Literal["read", "write"]

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Tool:
    """A bound tool.

    The code is `function` of `file`, or of the Python module `module`, which is one of `folder` or an installed one.
    JavaScript runs in a host process whatever `isolation` says. `takes` is what the contract calls the input.
    Where the contract takes or gives no declared type, `input_member` and `output_member` name the member of the
    schema's object that holds what the handler gets and returns.

    `concurrency` is how many calls run at once: a process for each, where there are processes. `memory` is the bytes
    that one may take. `grace` is the seconds between asking a handler to end and ending it. `output_bytes` is the
    size of what it may answer, `log_bytes` of what it may write into the log in one call.
    """

    id: str
    language: Language
    folder: Path
    function: str
    takes: str
    input_schema: Mapping[str, Any] = field(repr=False)
    output_schema: Mapping[str, Any] = field(repr=False)
    module: str | None = None
    file: Path | None = None
    input_member: str | None = None
    output_member: str | None = None
    isolation: Isolation = "none"
    concurrency: int = 1
    memory: int = 512 * MIB
    grace: float = 2.0
    start_seconds: float = 30.0
    output_bytes: int = MIB - (1 << 16)
    log_bytes: int = 256 << 10
    secrets: tuple[str, ...] = ()
    memories: Mapping[str, tuple[Mode, ...]] = field(default_factory=dict)

    @property
    def hosted(self) -> bool:
        """Whether its handler runs in a process of its own."""
        return self.language == "javascript" or self.isolation == "process"
