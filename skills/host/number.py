"""A JSON value as the host tools read it where they want a whole number."""

from decimal import Decimal
from typing import Any

from ..errors import Refused


def whole(name: str, given: Any) -> int:
    """Python's own `int()` of a JSON value: 3, 3.9 and "3" are 3. Raises Refused.

    A decimal is what a plain JSON decoder makes of it, so that one that no float can hold is infinite.
    """
    try:
        return int(float(given) if isinstance(given, Decimal) else given)
    except (TypeError, ValueError, OverflowError):
        raise Refused(f"{name} must be an integer") from None
