"""A JSON value as the host tools read it where they want text."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any


def text(value: Any, *, at_most: int) -> str:
    """Python's own text of a JSON value; "" for null, and a string as it is, however long.

    Raises ValueError for what is nested too deeply, or would be longer than `at_most`: that is found before the text
    is made.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    try:
        return str(_Plain(at_most).of(value))
    except RecursionError:
        raise ValueError("the value is nested too deeply") from None


class _Plain:
    """Makes numbers as a plain JSON decoder makes them, whatever decoded these, while there is room for their text.

    What is taken of the room is no more than the text will take.
    """

    def __init__(self, room: int) -> None:
        self._at_most = self._room = room

    def of(self, value: Any) -> Any:
        if isinstance(value, str):
            self._take(len(value) + 2)
            return value
        if isinstance(value, Mapping):
            self._take(max(4 * len(value), 2))
            return {self.of(key): item if type(item) is int else self.of(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            self._take(max(2 * len(value), 2))
            return [item if type(item) is int else self.of(item) for item in value]
        if isinstance(value, Decimal):
            return float(value)
        return value

    def _take(self, characters: int) -> None:
        self._room -= characters
        if self._room < 0:
            raise ValueError(f"the value takes more than {self._at_most} characters")
