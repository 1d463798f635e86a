"""The canonical encoding of JSON, and the content address of bytes.

One value has one encoding: keys sorted bytewise, no spaces, numbers as plain decimals, and no escapes but the
ones JSON demands. Everything that is hashed or stored is encoded here.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NoReturn

import orjson

MAX_DIGITS = 1024
MAX_EXPONENT = 10_000
MAX_NUMBER_BYTES = 16_384

_NUMBER = re.compile(r"-?(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|[\s\S])")
_FAST = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_SCALARS = (str, bool, int, type(None))


class NotCanonical(ValueError):
    """The value has no canonical encoding, or the text is not one JSON value; the message says why."""


def ref(data: bytes) -> str:
    """The content address of `data`: `sha256:` and 64 lower-case hex digits."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def encode(value: Any) -> bytes:
    """The canonical encoding of a JSON value.

    Raises NotCanonical for anything JSON or the number limits do not admit (infinity, a lone surrogate, a key
    that is no string, a number over the limits, nesting without end).
    """
    try:
        if _without_fractions(value):
            try:
                return orjson.dumps(value, option=_FAST)
            except orjson.JSONEncodeError:
                pass  # an integer over 64 bits, or something that the slow way names exactly
        parts: list[str] = []
        _write(value, parts)
        return "".join(parts).encode()
    except UnicodeEncodeError:
        raise NotCanonical("a string holds a lone surrogate") from None
    except RecursionError:
        raise NotCanonical("the value is nested too deeply") from None


def parse(text: str | bytes) -> Any:
    """The one JSON value in `text`, exactly: integers as int, other numbers as Decimal.

    Raises NotCanonical for what is not one JSON value in UTF-8, for duplicate members, for escaped surrogates
    and for numbers over the limits.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode()
        value = json.loads(
            text, parse_float=_number, parse_int=_number, parse_constant=_no_constant, object_pairs_hook=_members
        )
    except UnicodeDecodeError as error:
        raise NotCanonical(f"not UTF-8: {error}") from None
    except json.JSONDecodeError as error:
        raise NotCanonical(str(error)) from None
    except RecursionError:
        raise NotCanonical("the value is nested too deeply") from None
    for escape in _ESCAPE.finditer(text):
        if escape[1] and 0xD800 <= int(escape[1], 16) <= 0xDFFF:
            raise NotCanonical("JSON string contains an escaped surrogate")
    return value


def _without_fractions(value: Any) -> bool:
    """Whether the fast encoder writes this value canonically (it writes 1.0 for what must be 1)."""
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind is dict:
        return all(map(_without_fractions, value.values()))
    if kind is list:
        return all(map(_without_fractions, value))
    return False


def _write(value: Any, out: list[str]) -> None:
    if isinstance(value, str):
        out.append(orjson.dumps(value).decode() if _encodable(value) else "")
    elif value is None or isinstance(value, bool):
        out.append({None: "null", True: "true", False: "false"}[value])
    elif isinstance(value, int):
        if abs(value) >= 10**MAX_DIGITS:
            raise NotCanonical(f"a number has more than {MAX_DIGITS} digits")
        out.append(str(value))
    elif isinstance(value, (float, Decimal)):
        if not math.isfinite(value):
            raise NotCanonical("a number is not finite")
        out.append(_plain(Decimal(repr(value)) if isinstance(value, float) else value))
    elif isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise NotCanonical("an object key is not a string")
        out.append("{")
        for index, key in enumerate(sorted(value)):
            if index:
                out.append(",")
            _write(key, out)
            out.append(":")
            _write(value[key], out)
        out.append("}")
    elif isinstance(value, (list, tuple)):
        out.append("[")
        for index, item in enumerate(value):
            if index:
                out.append(",")
            _write(item, out)
        out.append("]")
    else:
        raise NotCanonical(f"{type(value).__name__} is not a JSON value")


def _encodable(text: str) -> bool:
    text.encode()
    return True


def _plain(number: Decimal) -> str:
    text = format(number, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    if len(text) > MAX_NUMBER_BYTES:
        raise NotCanonical(f"a number is longer than {MAX_NUMBER_BYTES} bytes")
    return "0" if text in ("-0", "") else text


def _number(literal: str) -> int | Decimal:
    match = _NUMBER.fullmatch(literal)
    if match is None:  # the JSON scanner hands over nothing else
        raise NotCanonical(f"{literal!r} is not a number")
    whole, fraction, exponent = match[1], match[2] or "", match[3]
    if len(whole) + len(fraction) > MAX_DIGITS:
        raise NotCanonical(f"a number has more than {MAX_DIGITS} digits")
    if exponent is not None and (len(exponent) > 6 or abs(int(exponent)) > MAX_EXPONENT):
        raise NotCanonical(f"a number's exponent is over {MAX_EXPONENT}")
    if not fraction and exponent is None:
        return int(literal)
    number = Decimal(literal)
    _plain(number)
    return number


def _no_constant(name: str) -> NoReturn:
    raise NotCanonical(f"{name} is not JSON")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise NotCanonical(f'duplicate object member "{key}"')
            seen.add(key)
    return members
