"""Reading a manifest: every fault is named by its key, and no value is repeated."""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from ..errors import SkillError
from .binding import Manifest
from .document import Document, ShortDocument, key, told
from .provider import SOURCES, secrets_in

MANIFEST = "skillbus.tools.toml"
"""The name of the file."""
MAX_MANIFEST = 1_048_576
"""Bytes of a manifest."""
MAX_TEXT = 1024
"""Characters of a text in a manifest."""


class ManifestError(SkillError):
    """A manifest that can't be taken; `problems` names every fault by its key. No value is repeated."""

    def __init__(self, problems: Iterable[str], *, file: str = MANIFEST) -> None:
        self.problems = tuple(f"{file}: {problem}" for problem in problems)
        super().__init__("; ".join(self.problems))


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file. Raises ManifestError, OSError."""
    if path.exists() and not path.is_file():
        raise ManifestError(["is no regular file"], file=path.name)
    with path.open("rb") as opened:
        data = opened.read(MAX_MANIFEST + 1)
    if len(data) > MAX_MANIFEST:
        raise ManifestError([f"is longer than {MAX_MANIFEST} bytes"], file=path.name)
    try:
        given = tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ManifestError(["is not UTF-8"], file=path.name) from None
    except (ValueError, RecursionError) as error:  # a whole number may have more digits than Python reads
        where = re.search(r"\(at [a-z0-9, ]+\)", str(error))  # the other words may hold what stands there
        raise ManifestError([f"is not TOML {where[0] if where else ''}".rstrip()], file=path.name) from None
    return manifest(given, path.parent, file=path.name)


def manifest(given: Mapping[str, Any], folder: Path = Path(), *, file: str = MANIFEST) -> Manifest:
    """The manifest that a TOML document, or `{"bindings": …, "grants": …}`, says. Raises ManifestError."""
    short = bool(given) and given.keys() <= {"bindings", "grants"}
    if not short:
        problems = list(_unfit(given))
        if problems:
            raise ManifestError(problems, file=file)
    model: type[BaseModel] = ShortDocument if short else Document
    try:
        read: Any = model.model_validate(given, context={"folder": folder})
    except ValidationError as error:
        problems = [told(model, each) for each in error.errors(include_url=False, include_input=False)]
        raise ManifestError(dict.fromkeys(problems), file=file) from None
    return Manifest(read.bindings(folder), folder)


def _unfit(given: Mapping[str, Any]) -> Iterator[str]:
    """What must not even be looked at closer, as it may be repeated then."""
    for where in _long(given):
        yield f"{key(where)}: is longer than {MAX_TEXT} characters"
        return
    for where in secrets_in(given):
        yield f"{key(where)}: looks like a secret's value, which never stands in a manifest; write {SOURCES}"


def _long(value: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, str) and len(value) > MAX_TEXT:
        yield where
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from [(*where, "…")] if len(name) > MAX_TEXT else _long(item, (*where, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _long(item, (*where, index))
