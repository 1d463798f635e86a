"""A corpus of AILANG examples: `manifest.json`, and programs in `runnable/`."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..directory import Directory
from ..errors import SkillError

MAX_FILES = 5_000
MAX_FILE = 1 << 20
MAX_MANIFEST = 8 << 20
MAX_DEPTH = 8

_SUFFIX = ".ail"


class CorpusError(Exception):
    """The corpus can't be read; the message says why."""


@dataclass(frozen=True, slots=True)
class Example:
    """What the manifest says of a program; a program that it does not name has only its path, below `runnable/`."""

    path: str
    description: str = ""
    tags: tuple[str, ...] = ()
    status: str = ""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class Corpus:
    """A folder of examples, read anew for every question: nothing outside of it is opened."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def listed(self) -> list[Example]:
        """The examples of the manifest, in its order. Raises CorpusError."""
        with self._opened() as folder:
            return list(_manifest(folder).values())

    def programs(self) -> Iterator[tuple[Example, str]]:
        """Every program in `runnable/` with its text, by path. Raises CorpusError."""
        with self._opened() as folder:
            known = _manifest(folder)
            for path in sorted(_paths(folder, "runnable")):
                below = path.removeprefix("runnable/")
                example = known.get(below) or known.get(path) or Example(below)
                yield example, _text(folder, path, MAX_FILE)

    def find(self, name: str) -> tuple[Example, str] | None:
        """The program of that name, with or without its suffix, and its text. Raises CorpusError."""
        wanted = name if name.endswith(_SUFFIX) else name + _SUFFIX
        with self._opened() as folder:
            known = _manifest(folder)
            paths = [*sorted(_paths(folder, "runnable")), wanted]
            for path in paths:
                if path.rpartition("/")[2] == wanted and _is_file(folder, path):
                    below = path.removeprefix("runnable/")
                    example = known.get(below) or known.get(path) or Example(below)
                    return example, _text(folder, path, MAX_FILE)
        return None

    def _opened(self) -> Directory:
        try:
            return Directory.open(self._path)
        except OSError as error:
            raise CorpusError(f"the examples corpus can't be opened: {error.strerror}") from None


def _manifest(folder: Directory) -> dict[str, Example]:
    """The manifest's examples by path."""
    try:
        manifest = json.loads(_text(folder, "manifest.json", MAX_MANIFEST))
    except (ValueError, RecursionError):
        raise CorpusError("the examples corpus's manifest.json is not JSON") from None
    entries = manifest.get("examples") if isinstance(manifest, dict) else None
    if not isinstance(entries, list):
        raise CorpusError("the examples corpus's manifest.json has no array of examples")
    found = (_example(entry) for entry in entries if isinstance(entry, Mapping))
    return {example.path: example for example in found if example.path}


def _example(entry: Mapping[str, Any]) -> Example:
    path, description, status = (
        value if isinstance(value := entry.get(name), str) else "" for name in ("path", "description", "status")
    )
    tags = entry.get("tags")
    named = tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else ()
    return Example(path, description, named, status)


def _paths(folder: Directory, path: str, depth: int = 0) -> Iterator[str]:
    """The programs below `path`; links are left out."""
    try:
        with folder.resolve(path) as location:
            entries = sorted(location.scan(), key=lambda entry: entry.name)
    except (OSError, SkillError):
        return
    for entry in entries[:MAX_FILES]:
        below = f"{path}/{entry.name}"
        if entry.kind == "directory" and depth < MAX_DEPTH:
            yield from _paths(folder, below, depth + 1)
        elif entry.kind == "file" and entry.name.endswith(_SUFFIX):
            yield below


def _is_file(folder: Directory, path: str) -> bool:
    try:
        with folder.resolve(path) as location:
            return location.kind == "file"
    except (OSError, SkillError, ValueError):
        return False


def _text(folder: Directory, path: str, limit: int) -> str:
    try:
        with folder.resolve(path) as location, location.open() as file:
            data = file.read(limit + 1)
    except (OSError, SkillError, ValueError):
        raise CorpusError(f"{path} of the examples corpus can't be read") from None
    if len(data) > limit:
        raise CorpusError(f"{path} of the examples corpus is over {limit} bytes")
    return data.decode(errors="replace")
