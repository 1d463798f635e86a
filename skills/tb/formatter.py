"""The one layout of a contract."""

from collections.abc import Iterable, Iterator

from .syntax import Doc, Field, Gives, Import, Memory, Requires, Secrets, Source, Takes, Tool, Type, Uses

_INDENT = "    "


def fmt(source: Source) -> str:
    """The source, laid out anew: four spaces, an empty line between declarations, everything in the order it had.

    Means the same, and formats to itself.
    """
    blocks = ["\n".join([f"module {source.module.text}", *_docs(source.says, "")])]
    blocks += ["\n".join(_declaration(each)) for each in source.declarations]
    return "\n\n".join(blocks) + "\n"


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
