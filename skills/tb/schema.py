"""Types as JSON Schema (2020-12)."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .syntax import Doc, Shape, Type

_BUILT_IN = {"Text": "string", "Number": "number", "Integer": "integer", "Boolean": "boolean"}
ROOT = "#/schemas/"

Name = Callable[[str], str]
"""The key of a type, among the schemas of an AIR, by the name that its source uses."""


def described(says: tuple[Doc, ...]) -> str:
    """The text of documentation lines."""
    return "\n".join(doc.text for doc in says)


def of_type(declared: Type, name: Name) -> dict[str, Any]:
    """The schema of a declared type: exactly its fields; null stands for nothing."""
    properties = {}
    for field in declared.fields:
        schema = of_shape(field.shape, name)
        properties[field.name.text] = schema | ({"description": described(field.says)} if field.says else {})
    return {
        "type": "object",
        **({"description": described(declared.says)} if declared.says else {}),
        "properties": properties,
        "required": [field.name.text for field in declared.fields if not field.shape.optional],
        "additionalProperties": False,
    }


def of_shape(shape: Shape, name: Name) -> dict[str, Any]:
    """The schema of what stands behind `is`, `as` or `gives`."""
    built_in = _BUILT_IN.get(shape.name.text)
    schema: dict[str, Any] = {"type": built_in} if built_in else {"$ref": ROOT + name(shape.name.text)}
    for _ in range(shape.lists):
        schema = {"type": "array", "items": schema}
    return schema


def wrapped(schema: Mapping[str, Any], member: str) -> dict[str, Any]:
    """The schema of an object whose only member is `member`."""
    return {"type": "object", "properties": {member: schema}, "required": [member], "additionalProperties": False}


def closed(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with everything that it refers to: an object at the top, the rest under `$defs`."""
    reference = schema.get("$ref")
    top = schemas[reference.removeprefix(ROOT)] if reference else schema
    defs: dict[str, Any] = {}
    left = list(references(top))
    while left:
        key = left.pop()
        if key not in defs:
            defs[key] = _moved(schemas[key])
            left += references(schemas[key])
    return {**_moved(top), **({"$defs": dict(sorted(defs.items()))} if defs else {})}


def references(schema: Any) -> Iterator[str]:
    """The keys of the schemas that this one refers to directly."""
    if isinstance(schema, Mapping):
        if isinstance(reference := schema.get("$ref"), str):
            yield reference.removeprefix(ROOT)
        yield from (key for value in schema.values() if isinstance(value, Mapping) for key in references(value))


def endless(schemas: Mapping[str, Any]) -> set[str]:
    """The types that no finite value has, because each needs another one of them."""
    finite: set[str] = set()
    needs = {key: set(_needed(schema)) for key, schema in schemas.items()}
    needed_by: dict[str, list[str]] = {key: [] for key in schemas}
    for key, others in needs.items():
        for other in others:
            needed_by[other].append(key)
    left = [key for key, others in needs.items() if not others]
    while left:
        key = left.pop()
        finite.add(key)
        for other in needed_by[key]:
            needs[other].discard(key)
            if not needs[other]:
                left.append(other)
    return set(schemas) - finite


def _needed(schema: Mapping[str, Any]) -> Iterator[str]:
    for name in schema["required"]:
        if isinstance(reference := schema["properties"][name].get("$ref"), str):
            yield reference.removeprefix(ROOT)


def _moved(schema: Any) -> Any:
    """The schema with its references turned from an AIR's `schemas` to `$defs`."""
    if isinstance(schema, Mapping):
        return {
            key: "#/$defs/" + value.removeprefix(ROOT) if key == "$ref" and isinstance(value, str) else _moved(value)
            for key, value in schema.items()
        }
    return [_moved(item) for item in schema] if isinstance(schema, list) else schema
