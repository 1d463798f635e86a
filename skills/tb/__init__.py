"""The `.tb` language: contracts of external effects, their neutral form, and the manifest that binds them to handlers.

Everything here is pure but `folder`, and runs no handler. lark is imported with the first source that is parsed.
"""

# ruff: noqa: I001 - the groups are the map

# from a source to its AIR
from .fault import Extension, Fault, NotAContract, Oddity, Position
from .syntax import Source
from .library import Library
from .air import Air, AirTool
from .checker import CAPABILITIES, Requirements
from .formatter import fmt

__all__ = [
    "CAPABILITIES",
    "Air",
    "AirTool",
    "Extension",
    "Fault",
    "Library",
    "NotAContract",
    "Oddity",
    "Position",
    "Requirements",
    "Source",
    "compile_source",
    "fmt",
    "parse",
]


def parse(text: str | bytes, *, file: str = "<source>") -> Source:
    """The parts of a source; `file` is the name that its faults get. Raises NotAContract, with one fault."""
    from .parser import parse as parsed

    return parsed(text, file=file)


def compile_source(text: str | bytes, *, file: str = "<source>", others: Library | None = None) -> Air:
    """The AIR of one source; `others` is where its imports lead. Raises NotAContract."""
    source = parse(text, file=file)
    library = Library([source, *(others.sources if others else ())])
    return library.air(source.module.text)
