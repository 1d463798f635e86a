"""A directory tree that nothing can be opened outside of."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from types import TracebackType

from .errors import Closed, Escape
from .location import Location, naming
from .protection import Protection

MAX_LINKS = 40
MAX_PATH = 4096
MAX_STEPS = 10_000

_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_ENTER = _LOOK | os.O_DIRECTORY


class Directory:
    """Opened once by descriptor; every path is resolved beneath it, name by name and link by link.

    No path is checked and then opened: each step opens the next name in the directory that the step before
    opened, never following a link by itself. A link is read and its target walked the same way, so it may point
    anywhere inside, relative or absolute, and leads nowhere outside. `protection` says what stays read-only.
    Safe to use from any thread; closing it ends what is still at work with Closed. `lock` is the descriptor that its
    user is alone in it by, if any: a program that gets it too keeps others out should it outlive this process.
    """

    def __init__(self, descriptor: int, path: str, protection: Protection, lock: int | None = None) -> None:
        self.protection, self.lock = protection, lock
        self._descriptor = descriptor
        self._parts = tuple(name for name in path.split("/") if name)
        self._lock = Lock()

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, protection: Protection | None = None, lock: int | None = None
    ) -> "Directory":
        """Open a directory by the path it has now. Raises OSError."""
        real = Path(path).resolve(strict=True)
        return cls(os.open(real, _ENTER), str(real), protection or Protection(), lock)

    @property
    def closed(self) -> bool:
        return self._descriptor < 0

    @property
    def path(self) -> Path:
        """The path that it was opened by, for programs that are told where to work; nothing here goes by it."""
        return Path("/", *self._parts)

    def close(self) -> None:
        """Let a file that is being put in its place get there; once this returns, nothing is put anywhere any more."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> "Directory":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def resolve(self, path: str) -> Location:
        """The place that `path` names, "" or "." for the directory itself.

        Raises Escape if the way leads out, OSError where it ends early (a file in the place of a directory, more
        than 40 links, a name that is too long), ValueError for a NUL or what has no encoding. What is not there is
        no error: the location's `kind` is None.
        """
        if "\0" in path:
            raise ValueError("embedded null byte")
        if len(os.fsencode(path)) >= MAX_PATH:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
        walk = _Walk(self, path)
        try:
            return walk.to_the_end()
        except BaseException:
            walk.close()
            raise

    def located(self) -> str:
        """The absolute path that it was opened by, for a program that needs one.

        Raises OSError when something else stands there now, Closed once it is closed.
        """
        path = "/" + "/".join(self._parts)
        with self._while_open():
            ours = os.fstat(self._descriptor)
        if not os.path.samestat(ours, os.lstat(path)):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), ".")
        return path

    def _enter(self) -> int:
        """A new descriptor of this directory, for the caller to close."""
        with self._while_open():
            return os.dup(self._descriptor)

    @contextmanager
    def _while_open(self) -> Iterator[None]:
        """Keep the directory from being closed meanwhile. Raises Closed if it is."""
        with self._lock:
            if self._descriptor < 0:
                raise Closed("the directory is closed")
            yield


class _Walk:
    """A way through a directory: `_here` is the directory reached, `_names` the way to it from the root.

    Only one descriptor is held however deep the way goes. A way may pass through the directories above the root by
    their names (`_above` counts how many levels up it is), as long as it comes back: nothing is opened there.
    """

    def __init__(self, directory: Directory, path: str) -> None:
        self._directory = directory
        self._path = path
        self._pending = path.split("/")[::-1]
        self._names: list[str] = []
        self._above = len(directory._parts) if path.startswith("/") else 0
        self._links = 0
        self._steps = 0
        self._here = directory._enter()

    def close(self) -> None:
        os.close(self._here)

    def to_the_end(self) -> Location:
        while self._pending:
            name = self._pending.pop()
            if name in ("", "."):
                continue
            if name == "..":
                self._go_up()
            elif self._above:
                self._come_back(name)
            else:
                found = self._step(name)
                if found is not None:
                    return found
        if self._above:
            raise Escape(self._path)
        return self._location()

    def _step(self, name: str) -> Location | None:
        """Go into `name`; a location if the way ends there."""
        way = "/".join([*self._names, name])
        self._count(way)
        try:
            with naming(way):
                found = os.open(name, _LOOK, dir_fd=self._here)
        except FileNotFoundError:
            return self._nothing_at(name)
        try:
            mode = os.fstat(found).st_mode
            if stat.S_ISDIR(mode):
                self._move(found)
                self._names.append(name)
                return None
            if stat.S_ISLNK(mode):
                with naming(way):
                    target = os.readlink("", dir_fd=found)
                self._follow(target, way)
                os.close(found)
                return None
            if self._pending:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), way)
            self._names.append(name)
            return self._location(target=found)
        except BaseException:
            os.close(found)
            raise

    def _nothing_at(self, name: str) -> Location:
        rest = [name for name in reversed(self._pending) if name not in ("", ".")]
        if ".." in rest:
            way = "/".join([*self._names, name])
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), way)
        return self._location(missing=(name, *rest), folder=bool(self._pending) and self._pending[0] in ("", "."))

    def _follow(self, target: str, way: str) -> None:
        self._links += 1
        if self._links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), way)
        if target.startswith("/"):
            self._above = len(self._directory._parts)
            self._return([])
        self._pending.extend(reversed(target.split("/")))

    def _go_up(self) -> None:
        if self._names and not self._above:
            self._return(self._names[:-1])
        else:
            self._above = min(self._above + 1, len(self._directory._parts))

    def _come_back(self, name: str) -> None:
        parts = self._directory._parts
        if name != parts[len(parts) - self._above]:
            raise Escape(self._path)
        self._above -= 1

    def _return(self, names: list[str]) -> None:
        """Start again from the root: `..` of the file system may by now lie outside."""
        self._move(self._directory._enter())
        for index, name in enumerate(names):
            way = "/".join(names[: index + 1])
            self._count(way)
            with naming(way):
                self._move(os.open(name, _ENTER, dir_fd=self._here))
        self._names = names

    def _move(self, here: int) -> None:
        before, self._here = self._here, here
        os.close(before)

    def _count(self, way: str) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), way)

    def _location(self, *, target: int | None = None, missing: tuple[str, ...] = (), folder: bool = False) -> Location:
        return Location(
            self._path,
            self._names,
            here=self._here,
            target=target,
            missing=missing,
            folder=folder,
            protection=self._directory.protection,
            while_open=self._directory._while_open,
        )
