"""Which paths of a worktree stay read-only, whatever their spelling."""

import fnmatch
import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from .errors import Protected

DENY_WRITE = (
    ".github/**",
    ".pi/**",
    ".claude/**",
    ".ailang/**",
    ".[gG][iI][tT][mM][oO][dD][uU][lL][eE][sſS]",
    ".[gG][iI][tT][aA][tT][tT][rR][iI][bB][uU][tT][eE][sſS]",
)

_GIT = re.compile(r"\.git|git~[0-9]+")
_TREE = "/**"
# What Unicode calls default ignorable and does not class as a format character; and the dot that a folded
# Turkish capital I leaves behind.
_IGNORABLE = re.compile(
    "[\u0307\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    "\U000e0000-\U000e0fff]"
)


@dataclass(frozen=True, slots=True)
class Protection:
    """The deny list of a directory; `.git` is always on it.

    A pattern that ends in `/**` names a directory and everything below; any other is a glob for the whole path
    and for its last name. Names are compared as the most forgiving file system would: without regard to case
    (as Unicode folds it), compatibility forms, invisible characters, trailing dots and spaces, or a stream's name.
    """

    deny: tuple[str, ...] = DENY_WRITE

    @property
    def text(self) -> str:
        """The policy as one line of text."""
        return f"fs_deny_write = [{', '.join(json.dumps(pattern, ensure_ascii=False) for pattern in self.deny)}]\n"

    @property
    def digest(self) -> str:
        """The SHA-256 of the policy's text, in hex."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def check(self, path: str) -> None:
        """Raise Protected if `path`, relative to the directory, must not be written."""
        spellings = [list(folded(path)), list(folded(path, streams=False))]
        if any(_GIT.fullmatch(name) for names in spellings for name in names):
            raise Protected(path, None)
        for pattern in self.deny:
            if any(_matches(pattern, names) for names in spellings):
                raise Protected(path, pattern)


def folded(path: str, *, streams: bool = True) -> Iterator[str]:
    """The names on the way, as the most forgiving file system compares them.

    A backslash separates too, and `.` and empty names are left out; without `streams` so is what follows a colon.
    """
    for name in path.replace("\\", "/").split("/"):
        bare = _fold(name if streams else name.partition(":")[0])
        if bare:
            yield bare


def _fold(name: str) -> str:
    if not name.isascii():
        visible = (char for char in unicodedata.normalize("NFKC", name) if unicodedata.category(char) != "Cf")
        name = _IGNORABLE.sub("", unicodedata.normalize("NFKC", "".join(visible).upper().casefold()))
    return name.casefold().rstrip(". ")


def _matches(pattern: str, names: list[str]) -> bool:
    if pattern.endswith(_TREE):
        tree = list(folded(pattern.removesuffix(_TREE)))
        return names[: len(tree)] == tree
    glob = "/".join(folded(pattern))
    return fnmatch.fnmatchcase("/".join(names), glob) or (bool(names) and fnmatch.fnmatchcase(names[-1], glob))
