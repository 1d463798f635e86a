"""From a text to its parts, and on to its AIR."""

from .air import Air
from .library import Library
from .syntax import Source


def parse(text: str | bytes, *, file: str = "<source>") -> Source:
    """The parts of a source; `file` is the name that its faults get. Raises NotAContract, with one fault."""
    from .parser import parse as parsed  # whoever has no contract needs no parser

    return parsed(text, file=file)


def compile_source(text: str | bytes, *, file: str = "<source>", others: Library | None = None) -> Air:
    """The AIR of one source; `others` is where its imports lead. Raises NotAContract."""
    source = parse(text, file=file)
    library = Library([source, *(others.sources if others else ())])
    return library.air(source.module.text)
