"""How much a memory holds, and what a key and a value may be."""

from dataclasses import dataclass
from typing import Any

import orjson

from .. import canonical
from .errors import TooMuch, Unfit


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes are of UTF-8: of a key, of a value's canonical JSON. The last two are of one memory within one scope.

    `accesses` is how many keys one call may have looked at or changed, as each of them is recorded.
    """

    key_bytes: int = 512
    value_bytes: int = 1 << 16
    keys: int = 10_000
    total_bytes: int = 16 << 20
    accesses: int = 2_000


LIMITS = Limits()


def check_key(key: Any, limits: Limits = LIMITS) -> str:
    """The key. Raises Unfit for what is none, TooMuch for one that is too long."""
    if not isinstance(key, str) or not key:
        raise Unfit("a key is a text, and not empty")
    _check_text(key, "a key", limits)
    return key


def check_prefix(prefix: Any, what: str, limits: Limits = LIMITS) -> str:
    """The beginning of keys, which may be empty. Raises as `check_key` does."""
    if not isinstance(prefix, str):
        raise Unfit(f"{what} is a text")
    _check_text(prefix, what, limits)
    return prefix


def encode_value(value: Any, limits: Limits = LIMITS) -> str:
    """The value as it is kept. Raises Unfit for what JSON can't say, TooMuch for what is too large."""
    try:
        encoded = canonical.encode(value)
        orjson.loads(encoded)  # what can be written and not read again would stand there for good
    except canonical.NotCanonical as error:
        raise Unfit(f"the value can't be kept: {error}") from None
    except orjson.JSONDecodeError:
        raise Unfit("the value can't be kept: a number is larger than a double, or it is nested too deeply") from None
    if len(encoded) > limits.value_bytes:
        raise TooMuch(f"the value is {len(encoded)} bytes; a memory keeps at most {limits.value_bytes}")
    return encoded.decode()


def check_version(version: Any) -> int | None:
    """A version to compare with: None for any, 0 for none at all. Raises Unfit."""
    if version is not None and (type(version) is not int or not 0 <= version < 1 << 53):
        raise Unfit("a version is a whole number; 0 means that there is no such key")
    return version


def check_limit(limit: Any, most: int) -> int:
    """How many entries are asked for. Raises Unfit."""
    if type(limit) is not int or not 1 <= limit <= most:
        raise Unfit(f"limit is a whole number from 1 to {most}")
    return limit


def _check_text(text: str, what: str, limits: Limits) -> None:
    if any(ord(character) < 32 or 0xD800 <= ord(character) < 0xE000 for character in text):
        raise Unfit(f"{what} holds no control character and no lone surrogate")
    if len(text.encode()) > limits.key_bytes:
        raise TooMuch(f"{what} is longer than {limits.key_bytes} bytes")
