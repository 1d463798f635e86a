"""Whether a value is what a contract says: exactly the declared fields, of exactly the declared types."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any

from ..arguments import legible
from .syntax import MAX_NAME

MAX_PROBLEMS = 20
"""How many problems of one value are told."""


def problems(schema: Mapping[str, Any], value: Any) -> list[str]:
    """What is wrong with a value by a closed schema of an AIR, each with its place; none if it fits.

    No value is repeated; the name of a field that is not declared is.
    """
    found: list[str] = []
    left: list[tuple[Mapping[str, Any], Any, str]] = [(schema, value, "")]
    defs: Mapping[str, Any] = schema.get("$defs", {})
    while left and len(found) < MAX_PROBLEMS:
        part, item, place = left.pop()
        if (reference := part.get("$ref")) is not None:
            part = defs[reference.removeprefix("#/$defs/")]
        wanted = part["type"]
        if not _is(wanted, item):
            found.append(f"{place or 'it'} must be {_CALLED[wanted]}")
        elif wanted == "object":
            found += islice(_members(part, item, place), MAX_PROBLEMS)
            inner = [
                (part["properties"][name], item[name], _in(place, name)) for name in part["properties"] if name in item
            ]
            left += reversed(inner)
        elif wanted == "array":
            left += [(part["items"], each, f"{place}[{index}]") for index, each in reversed(list(enumerate(item)))]
    return found[:MAX_PROBLEMS]


_CALLED = {
    "string": "a text",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
}


def _is(wanted: str, value: Any) -> bool:
    if wanted == "string":
        return isinstance(value, str)
    if wanted == "boolean":
        return isinstance(value, bool)
    if wanted == "object":
        return isinstance(value, Mapping)
    if wanted == "array":
        return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return False
    finite = value == value and value not in (float("inf"), float("-inf"))
    return finite and (wanted == "number" or value == int(value))


def _members(schema: Mapping[str, Any], value: Mapping[str, Any], place: str) -> Iterator[str]:
    where = f" in {place}" if place else ""
    for name in schema["required"]:
        if name not in value:
            yield f'missing field "{name}"{where}'
    for name in value:
        if name not in schema["properties"]:
            yield f'unknown field "{legible(str(name)[:MAX_NAME])}"{where}; known: {", ".join(schema["properties"])}'


def _in(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
