"""A JSON value as the host tools read it where they want text."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any


def text(value: Any) -> str:
    """Python's own text of a JSON value; "" for null. Raises ValueError for what is too large or nested too deeply."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    try:
        return str(_plain(value))
    except RecursionError:
        raise ValueError("the value is nested too deeply") from None


def _plain(value: Any) -> Any:
    """Numbers as a plain JSON decoder makes them, whatever decoded these."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
