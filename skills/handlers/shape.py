"""Whether a value has the shape that a contract declares: JSON Schema, as much of it as contracts are made of."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..arguments import legible
from .guest.wire import EXACT

KNOWN = {
    *("$schema", "$id", "$defs", "$ref", "title", "description", "default", "examples"),
    *("type", "properties", "required", "additionalProperties", "items", "enum", "minimum", "maximum"),
}


class Shapeless(ValueError):
    """The schema says something that is not checked here."""


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raise Shapeless for a schema with a keyword that `faults` would pass over."""
    unknown = schema.keys() - KNOWN
    if unknown:
        raise Shapeless(f"the schema's keyword {min(unknown)!r} is not known")
    for group in ("properties", "$defs"):
        for each in schema.get(group, {}).values():
            check_schema(each)
    if "items" in schema:
        check_schema(schema["items"])


def fault(schema: Mapping[str, Any], value: Any, root: Mapping[str, Any] | None = None) -> str | None:
    """The first thing that is wrong with a value, and the path to it, such as `/title: it is missing`.

    None for a value that fits. No value is repeated; names of members are.
    """
    try:
        return next(_faults(schema, value, "", schema if root is None else root), None)
    except RecursionError:
        return "/: it is nested too deeply"


def _faults(schema: Mapping[str, Any], value: Any, path: str, root: Mapping[str, Any]) -> Iterator[str]:
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    kind = schema.get("type")
    if kind is not None and not _IS[kind](value):
        yield f"{path or '/'}: it must be {_NAMES[kind]}, and is {_named(value)}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path or '/'}: it is none of the values that are allowed"
    if isinstance(value, str):
        if legible(value) != value:
            yield f"{path or '/'}: it holds a lone surrogate"
    elif isinstance(value, Mapping):
        yield from _members(schema, value, path, root)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _faults(schema.get("items", {}), item, f"{path}/{index}", root)
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{path or '/'}: it is larger than a number may be"
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        if kind == "integer":
            low, high = max(schema.get("minimum", -EXACT), -EXACT), min(schema.get("maximum", EXACT), EXACT)
        if not low <= value <= high:
            yield f"{path or '/'}: it must be from {low} to {high}"


def _members(schema: Mapping[str, Any], value: Mapping[str, Any], path: str, root: Mapping[str, Any]) -> Iterator[str]:
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}/{name}: it is missing"
    for name, each in value.items():
        if name in properties:
            yield from _faults(properties[name], each, f"{path}/{name}", root)
        elif schema.get("additionalProperties", True) is False:
            yield f"{path}/{legible(name)[:64]}: there is no such field"
        else:
            yield from _faults({}, each, f"{path}/{legible(name)[:64]}", root)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


_IS: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "number": _is_number,
    "integer": lambda value: _is_number(value) and value % 1 == 0,
    "null": lambda value: value is None,
}
_NAMES = {
    "object": "an object",
    "array": "a list",
    "string": "a text",
    "boolean": "true or false",
    "number": "a number",
    "integer": "a whole number",
    "null": "null",
}


def _named(value: Any) -> str:
    for kind in ("null", "boolean", "object", "array", "string", "number"):
        if _IS[kind](value):
            return "true or false" if kind == "boolean" else _NAMES[kind]
    return "something else"
