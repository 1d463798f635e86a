"""RFC 8785 (JCS): the canonical JSON that signatures of other people's formats are made over.

What Skillbus itself hashes is encoded by `skills.canonical`, which keeps every digit of a number; here a number is what
JavaScript makes of it.
"""

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import orjson

_EXACT = 2**53 - 1


class NoCanonicalForm(ValueError):
    """The value is no I-JSON (RFC 7493), so it has no canonical form; the message says why."""


def canonicalize(value: Any) -> bytes:
    """The canonical form of a JSON value, in UTF-8. Raises NoCanonicalForm."""
    parts: list[str] = []
    try:
        _write(value, parts)
        return "".join(parts).encode()
    except UnicodeEncodeError:
        raise NoCanonicalForm("a string holds a lone surrogate") from None
    except RecursionError:
        raise NoCanonicalForm("the value is nested too deeply") from None


def _write(value: Any, out: list[str]) -> None:
    if isinstance(value, str):
        value.encode()  # orjson would say less of a lone surrogate
        out.append(orjson.dumps(value).decode())
    elif value is None or isinstance(value, bool):
        out.append({None: "null", True: "true", False: "false"}[value])
    elif isinstance(value, int) and abs(value) <= _EXACT:
        out.append(str(value))
    elif isinstance(value, int | float | Decimal):
        out.append(_number(value))
    elif isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise NoCanonicalForm("an object key is not a string")
        out.append("{")
        for index, key in enumerate(sorted(value, key=lambda key: key.encode("utf-16-be"))):
            if index:
                out.append(",")
            _write(key, out)
            out.append(":")
            _write(value[key], out)
        out.append("}")
    elif isinstance(value, list | tuple):
        out.append("[")
        for index, item in enumerate(value):
            if index:
                out.append(",")
            _write(item, out)
        out.append("]")
    else:
        raise NoCanonicalForm(f"{type(value).__name__} is not a JSON value")


def _number(value: int | float | Decimal) -> str:
    """As ECMAScript writes it (ECMA-262, Number::toString): the shortest digits that read back as the same double."""
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise NoCanonicalForm("a number is not finite, or larger than a double")
    if number == 0:
        return "0"
    shortest = Decimal(repr(number)).normalize()
    exponent = shortest.adjusted()
    if -6 <= exponent < 21:
        return format(shortest, "f")
    sign, digits, _ = shortest.as_tuple()
    first, rest = str(digits[0]), "".join(map(str, digits[1:]))
    return f"{'-' * sign}{first}{'.' if rest else ''}{rest}e{'+' if exponent > 0 else '-'}{abs(exponent)}"
