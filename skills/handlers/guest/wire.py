"""Messages between a worker and a host of handlers: one JSON text a line.

Numbers are what every handler's language can hold: integers up to 2**53 - 1, else the nearest double.
"""

import json
from typing import Any, NoReturn

EXACT = 2**53 - 1
"""The largest integer that is exact in every language (RFC 7493, section 2.2)."""


def encode(message: Any) -> bytes:
    """One line. Raises ValueError and TypeError for what is not JSON."""
    return json.dumps(message, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def decode(line: bytes | str) -> Any:
    """What a line says. Raises ValueError, and RecursionError for what nests too deep."""
    return json.loads(line, parse_int=_number, parse_constant=_no_constant)


def _number(text: str) -> int | float:
    if len(text) < 16:
        return int(text)
    number = float(text)
    return int(text) if abs(number) <= EXACT else number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
