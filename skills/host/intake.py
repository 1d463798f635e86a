"""The documents of a folder, brought into an index: what is new or changed is read, what is gone is dropped."""

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..arguments import legible
from .index import Document, Index
from .passages import passages

SUFFIXES = frozenset({".md", ".markdown", ".txt", ".text", ".rst"})
MAX_BYTES = 4 << 20  # of one document
MAX_DOCUMENTS = 100_000  # of one folder


@dataclass(slots=True)
class Intake:
    """What became of a folder's files, by their names as they may be shown; `skipped` tells why of each."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


def take_in(index: Index, folder: Path) -> Intake:
    """Bring the index in line with a folder, all of it or nothing.

    Files and folders whose names begin with a dot are passed over, and so is every link: what is taken stands below
    the folder itself. Raises IndexUnusable, OSError where the folder can't be listed.
    """
    root = folder.resolve(strict=True)
    found = Intake()
    with index.change():
        known = {document.path: document for document in index.documents(os.fsencode(root))}
        for path in _files(root, found):
            before = known.pop(os.fsencode(path.relative_to(root)), None)
            _take(index, root, path, before, found)
        index.drop(known.values())
        found.removed += [document.name for document in known.values()]
    return found


def name_of(root: Path, path: Path) -> str:
    """How a document is called: by its folder's own name, and its path there."""
    name = legible(f"{root.name}/{path.relative_to(root)}".lstrip("/"))
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in name)


def _files(root: Path, found: Intake) -> Iterator[Path]:
    """Every file with a suffix of a document, in the order of the names."""
    count = 0

    def fail(error: OSError) -> None:
        if Path(error.filename) == root:
            raise error
        found.skipped[name_of(root, Path(error.filename))] = error.strerror or "it can't be listed"

    for folder, folders, files in os.walk(root, onerror=fail):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if name.startswith(".") or os.path.splitext(name)[1].lower() not in SUFFIXES:  # noqa: PTH122
                continue
            path = Path(folder, name)
            count += 1
            if count > MAX_DOCUMENTS:
                found.skipped[name_of(root, path)] = f"the folder holds more than {MAX_DOCUMENTS} documents"
                return
            yield path


def _take(index: Index, root: Path, path: Path, before: Document | None, found: Intake) -> None:
    """Read one file and take it, if it is not what the index has. One that can't be taken is not in the index."""
    name = name_of(root, path)
    data, reason = _read(path)
    if data is None:
        found.skipped[name] = reason
        if before is not None:
            index.drop([before])
        return
    digest = hashlib.sha256(data).hexdigest()
    if before is not None and before.hash == digest and before.name == name:
        found.unchanged.append(name)
        return
    text = data.decode("utf-8", "replace").removeprefix("\ufeff").replace("\0", " ")
    document = Document(0, os.fsencode(root), os.fsencode(path.relative_to(root)), name, digest, len(data))
    index.put(document, passages(text))
    (found.changed if before is not None else found.added).append(name)


def _read(path: Path) -> tuple[bytes | None, str]:
    """The bytes of a regular file, or why there are none."""
    try:
        # A FIFO would wait for who writes into it; a link may lead anywhere.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None, "it is not a regular file"
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        return None, "it is a link" if path.is_symlink() else error.strerror or "it can't be read"
    if len(data) > MAX_BYTES:
        return None, f"it is larger than {MAX_BYTES} bytes"
    if b"\0" in data[:8_192]:
        return None, "it is not a text"
    return data, ""
