"""Whether a value fits a contract, and can be carried to and from a handler in any language unchanged."""

from collections.abc import Mapping
from typing import Any

from ..arguments import legible
from ..tb.value import problems
from .guest.wire import EXACT


def fault(schema: Mapping[str, Any], value: Any) -> str | None:
    """The first thing that is wrong with a value by a closed schema of an AIR; None for one that fits.

    Besides what the schema says, a text holds no lone surrogate, and an integer is one that every language can hold
    (RFC 7493, sections 2.1 and 2.2). The message names the path, and no value.
    """
    found = problems(schema, value)
    return found[0] if found else _uncarried(schema, value)


def _uncarried(schema: Mapping[str, Any], value: Any) -> str | None:
    defs: Mapping[str, Any] = schema.get("$defs", {})
    left: list[tuple[Mapping[str, Any], Any, str]] = [(schema, value, "")]
    while left:
        part, item, place = left.pop()
        if (reference := part.get("$ref")) is not None:
            part = defs[reference.removeprefix("#/$defs/")]
        if isinstance(item, str):
            if legible(item) != item:
                return f"{place or 'it'} holds a lone surrogate"
        elif isinstance(item, Mapping):
            inner = [(part["properties"][name], each, f"{place}.{name}".lstrip(".")) for name, each in item.items()]
            left += reversed(inner)
        elif isinstance(item, list):
            left += [(part["items"], each, f"{place}[{index}]") for index, each in reversed(list(enumerate(item)))]
        elif part["type"] == "integer" and abs(item) > EXACT:
            return f"{place or 'it'} must be a whole number from -(2^53 - 1) to 2^53 - 1"
    return None
