"""Where a secret's value comes from. Never the value: it is asked for at dispatch, by whoever runs the handler."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_MOST_WORDS = 64
SOURCES = 'env:NAME, file:PATH, or { command = ["program", "argument"] }'
"""What may stand for a secret in a manifest."""


@dataclass(frozen=True, slots=True)
class FromEnvironment:
    """The variable `name` of the worker's environment."""

    name: str

    def __str__(self) -> str:
        return f"env:{self.name}"


@dataclass(frozen=True, slots=True)
class FromFile:
    """The content of a file, as Docker and Kubernetes lay secrets out."""

    path: Path

    def __str__(self) -> str:
        return f"file:{self.path}"


@dataclass(frozen=True, slots=True)
class FromCommand:
    """What a program prints; it is started by this list, never through a shell."""

    argv: tuple[str, ...]

    def __str__(self) -> str:
        return f"command:{self.argv[0]}"


Provider = FromEnvironment | FromFile | FromCommand


def provider(given: Any, folder: Path) -> Provider:
    """The provider that a manifest names. Raises ValueError, whose message does not repeat what was given.

    A relative path is one below `folder`. An absolute one is taken as it is: the host decides where it mounts secrets.
    """
    if isinstance(given, str):
        kind, colon, rest = given.partition(":")
        if kind == "env" and colon and _VARIABLE.fullmatch(rest):
            return FromEnvironment(rest)
        if kind == "file" and colon and rest and "\0" not in rest:
            return FromFile(Path(rest) if rest.startswith("/") else confined(rest, folder))
        if kind == "command" and colon:
            raise ValueError('write a command as a list: { command = ["program", "argument"] }')
    elif isinstance(given, Mapping) and set(given) == {"command"}:
        argv = given["command"]
        words = isinstance(argv, list) and all(isinstance(word, str) and "\0" not in word for word in argv)
        if words and argv and argv[0] and len(argv) <= _MOST_WORDS:
            return FromCommand(tuple(argv))
        raise ValueError(f"a command is a list of 1 to {_MOST_WORDS} texts, the program first")
    raise ValueError(f"names no source of a secret; write {SOURCES}")


def confined(path: str, folder: Path) -> Path:
    """The absolute path of what is named relative to `folder`. Raises ValueError where that leads out of it."""
    home = folder.resolve()
    if "\0" in path or path.startswith(("/", "~")):
        raise ValueError("a path is relative to the manifest's folder")
    try:
        found = (home / path).resolve()
    except (OSError, RuntimeError):
        raise ValueError("a path leads nowhere: its links go in circles") from None
    if found == home or not found.is_relative_to(home):
        raise ValueError("a path must stay inside the manifest's folder")
    return found


_SHAPES = re.compile(
    r"""
    \bsk-(?:ant|proj|svcacct|live|test)-[\w-]{8,} | \bsk-[A-Za-z0-9]{12,} | \b(?:sk|pk|rk)_(?:live|test)_\w{8,}
    | \bgh[pousr]_[A-Za-z0-9]{16,} | \bgithub_pat_ | \bglpat-[\w-]{8,} | \bxox[abeoprs]-[\w-]{8,}
    | \b(?:AKIA|ASIA)[0-9A-Z]{16}\b | \bAIza[\w-]{30,} | \bhf_[A-Za-z0-9]{20,}
    | \beyJ[\w-]{8,}\.[\w-]+\. | -----BEGIN\ [A-Z ]*PRIVATE\ KEY
    | [a-z][a-z0-9+.-]{0,20}://[^\s/@:]*:[^\s/@]+@
    | (?i:\b(?:bearer|basic)\ +[\w.~+/=-]{8,})
    | (?i:(?:passw(?:or)?d|passphrase|token|api[_-]?key)\ *=\ *\S)
    | \b[0-9a-fA-F]{32,}\b
    """,
    re.VERBOSE,
)
_RUN = re.compile(r"[A-Za-z0-9+=_-]{32,}")


def looks_secret(text: str) -> bool:
    """Whether a text has the form of a secret's value: a known kind of key, a password in a URL, a long random word."""
    return _SHAPES.search(text) is not None or any(_is_random(run[0]) for run in _RUN.finditer(text))


def _is_random(run: str) -> bool:
    return all(sum(map(kind, run)) >= least for kind, least in ((str.isdigit, 4), (str.isupper, 2), (str.islower, 2)))


def secrets_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to everything in a tree of mappings and lists that looks like a secret's value."""
    if isinstance(value, str):
        if looks_secret(value):
            yield path
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(key, str) and _SHAPES.search(key):
                yield (*path, "…")
            else:
                yield from secrets_in(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from secrets_in(item, (*path, index))
