"""The trailer of a commit or a pull request: which entries of which log it came from, and what the last of them is."""

import re
from dataclasses import dataclass
from typing import Self

_LINE = re.compile(
    r"World-Provenance: store=(?P<store>\S(?:.*\S)?) episode=(?P<episode>[a-z0-9][a-z0-9-]{0,63}) "
    r"entries=(?P<first>[1-9]\d{0,17})-(?P<last>[1-9]\d{0,17})[ \t]*"
)
_HEAD = re.compile(r"World-Head: (sha256:[0-9a-f]{64})[ \t]*")
_BEGINS = ("World-Provenance:", "World-Head:")


class TrailerError(ValueError):
    """A text holds no trailer, or one that can't be read; the message says which line."""


@dataclass(frozen=True, slots=True)
class Trailer:
    """Entries `first` to `last` of an episode's log in `store`; `head` is the hash of the last one.

    A trailer that another wrote may have no head: then only the store's name tells two logs apart.
    """

    store: str
    episode: str
    first: int
    last: int
    head: str | None = None

    def __post_init__(self) -> None:
        if not self.store.isprintable() or self.store != self.store.strip() or not self.store:
            raise TrailerError("the name of the store can't stand in a trailer: it has blanks at an end, or controls")

    def __str__(self) -> str:
        line = f"World-Provenance: store={self.store} episode={self.episode} entries={self.first}-{self.last}"
        return line if self.head is None else f"{line}\nWorld-Head: {self.head}"

    @classmethod
    def read(cls, text: str) -> list[Self]:
        """Every trailer of a commit message, or of any text. Raises TrailerError."""
        found: list[Self] = []
        headless = False
        for line in text.splitlines():
            if not line.startswith(_BEGINS):
                continue
            fields, head = _LINE.fullmatch(line), _HEAD.fullmatch(line)
            if fields is not None:
                first, last = int(fields["first"]), int(fields["last"])
                if first > last:
                    raise TrailerError(f"{line!r}: its entries end before they begin")
                found.append(cls(fields["store"], fields["episode"], first, last))
                headless = True
            elif head is not None and headless:
                begun = found.pop()
                found.append(cls(begun.store, begun.episode, begun.first, begun.last, head[1]))
                headless = False
            else:
                raise TrailerError(f"{line[:200]!r} can't be read, or stands alone")
        if not found:
            raise TrailerError("there is no World-Provenance trailer in it")
        return found
