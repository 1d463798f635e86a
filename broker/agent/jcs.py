"""RFC 8785 (JCS): the canonical JSON that signatures of other people's formats are made over.

What Skillbus itself hashes is encoded by `skills.canonical`, which keeps every digit of a number; here a number is what
JavaScript makes of it.
"""

from collections.abc import Mapping
from typing import Any

import rfc8785

_EXACT = 2**53 - 1


class NoCanonicalForm(ValueError):
    """The value is no I-JSON (RFC 7493), so it has no canonical form; the message says why."""


def canonicalize(value: Any) -> bytes:
    """The canonical form of a JSON value, in UTF-8. Raises NoCanonicalForm."""
    try:
        return rfc8785.dumps(_as_doubles(value))
    except (rfc8785.CanonicalizationError, UnicodeEncodeError, OverflowError) as error:
        raise NoCanonicalForm(str(error)) from None
    except RecursionError:
        raise NoCanonicalForm("the value is nested too deeply") from None


def _as_doubles(value: Any) -> Any:
    """The value with each integer that no double holds as the double next to it, where the library would refuse it."""
    match value:
        case int() if abs(value) > _EXACT:
            return float(value)
        case Mapping():
            return {name: _as_doubles(member) for name, member in value.items()}
        case list() | tuple():
            return [_as_doubles(item) for item in value]
    return value
