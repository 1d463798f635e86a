"""The words of a value, by which it is found: the same for every database."""

import unicodedata
from collections.abc import Iterator
from typing import Any

MAX_WORD = 64
MAX_WORDS = 4_000
"""How many words of a value are indexed."""

MAX_QUERY = 16
"""How many words of a query are looked for."""


def words_of(value: Any) -> list[str]:
    """The words of all texts in a JSON value, in order; not of the names of its members."""
    words: list[str] = []
    for text in _texts(value):
        words += split(text)
        if len(words) >= MAX_WORDS:
            break
    return words[:MAX_WORDS]


def split(text: str) -> list[str]:
    """The words of a text: runs of letters and digits, without case and accents."""
    spread = unicodedata.normalize("NFKD", text.casefold())
    kept = (c if c.isalnum() else "" if unicodedata.category(c)[0] == "M" else " " for c in spread)
    return [word[:MAX_WORD] for word in "".join(kept).split()]


def query_words(text: str) -> list[str]:
    """The words that an entry must have, each once."""
    return list(dict.fromkeys(split(text)))[:MAX_QUERY]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner)
