"""The one layout of a contract."""

from collections.abc import Iterable, Iterator
from typing import NoReturn

from .fault import Fault, NotAContract, Position
from .syntax import (
    MAX_LINE,
    MAX_SOURCE,
    Doc,
    Field,
    Gives,
    Import,
    Memory,
    Requires,
    Secrets,
    Source,
    Takes,
    Tool,
    Type,
    Uses,
)

_INDENT = "    "


def fmt(source: Source) -> str:
    """The source, laid out anew: four spaces, an empty line between declarations, everything in the order it had.

    Means the same, and formats to itself. Raises NotAContract where the layout takes more than a source may have.
    """
    blocks = [(source.module.at, "\n".join([f"module {source.module.text}", *_docs(source.says, "")]))]
    blocks += [(each.at, "\n".join(_declaration(each))) for each in source.declarations]
    for at, block in blocks:
        if any(len(line) > MAX_LINE for line in block.split("\n")):
            _refuse(source, at, f"laid out, a line of this has more than {MAX_LINE} characters")
    text = "\n\n".join(block for _, block in blocks) + "\n"
    if len(text.encode()) > MAX_SOURCE:
        _refuse(source, source.module.at, f"laid out, the source has more than {MAX_SOURCE} bytes")
    return text


def _refuse(source: Source, at: Position, message: str) -> NoReturn:
    raise NotAContract([Fault("limit", at, message, "write it in two", source.file)])


def _declaration(each: Type | Memory | Tool | Import) -> Iterator[str]:
    if isinstance(each, Import):
        yield f"uses {', '.join(name.text for name in each.names)} from {each.module.text}"
        return
    yield f"{type(each).__name__.lower()} {each.name.text}"
    if isinstance(each, Tool):
        for clause in each.clauses:
            yield _INDENT + _clause(clause)
    else:
        yield from _docs(each.says, _INDENT)
    if isinstance(each, Type):
        for field in each.fields:
            yield from _field(field)


def _field(field: Field) -> Iterator[str]:
    yield f"{_INDENT}{field.name.text} is {field.shape.text}"
    yield from _docs(field.says, _INDENT * 2)


def _clause(clause: Takes | Gives | Requires | Secrets | Uses | Doc) -> str:
    match clause:
        case Takes():
            return f"takes {clause.name.text} as {clause.shape.text}"
        case Gives():
            return f"gives {clause.shape.text}"
        case Requires():
            return f"requires {', '.join(word.text for word in clause.capabilities)}"
        case Secrets():
            return f"secrets {', '.join(word.text for word in clause.handles)}"
        case Uses():
            return f"uses memory {clause.memory.text} {clause.mode}"
        case Doc():
            return _doc(clause)


def _docs(says: Iterable[Doc], indent: str) -> Iterator[str]:
    return (indent + _doc(doc) for doc in says)


def _doc(doc: Doc) -> str:
    text = doc.text.replace("\\", "\\\\").replace('"', '\\"')
    return f'says "{text}"'
