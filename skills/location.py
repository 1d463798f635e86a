"""One place in a directory, held open from the moment its path was resolved."""

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from types import TracebackType
from typing import Literal, NoReturn

from .protection import Protection

Kind = Literal["file", "directory", "other"]

NEW_FILE_MODE = 0o644

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PROBE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ENTER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LINKS = {errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in a directory and what stands there; a link is "link" whatever it points at."""

    name: str
    kind: Literal["file", "directory", "link", "other"]


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Make an OSError inside name `path`, relative to the directory, in place of what the call was given."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, path or ".") from None


def kind_of(mode: int) -> Kind:
    return "directory" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"


class Location:
    """A resolved place below a directory: `path` with every link followed, "" for the directory itself.

    `kind` is None where nothing stands yet; `size` is the size of a file, in bytes. What follows reaches the place
    through held descriptors, so nothing that is renamed or replaced meanwhile leads it elsewhere. Every OSError
    names the path relative to the directory. Close it, or use it as a context manager.
    """

    def __init__(
        self,
        requested: str,
        names: list[str],
        *,
        here: int,
        target: int | None = None,
        missing: tuple[str, ...] = (),
        folder: bool = False,
        protection: Protection,
        while_open: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.requested = requested
        self.path = "/".join([*names, *missing])
        self.kind: Kind | None = None
        self.size = 0
        self._above = names
        self._missing = missing
        self._name = missing[-1] if missing else names[-1] if names else ""
        self._folder = folder  # asked for with a trailing slash, so only a directory will do
        self._protection = protection
        self._while_open = while_open
        self._here, self._target = here, target
        if not missing:
            status = os.fstat(here if target is None else target)
            self.kind, self.size = kind_of(status.st_mode), status.st_size

    @property
    def lacks_folder(self) -> bool:
        """Whether not even the folder is there that this place would be in."""
        return len(self._missing) > 1

    def close(self) -> None:
        for descriptor in (self._here, self._target):
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)
        self._here, self._target = -1, None

    def __enter__(self) -> "Location":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def open(self) -> FileIO:
        """The file, for reading. Only a regular file is ever opened: nothing here blocks or wakes a device."""
        self._needs_file()
        with naming(self.path):
            if self.kind is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            descriptor = os.open(self._name, _READ, dir_fd=self._here)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            self._not_regular()
        return FileIO(descriptor, "rb")

    def scan(self) -> Iterator[Entry]:
        """The entries of this directory, in no order, without `.` and `..`."""
        with naming(self.path):
            if self.kind is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            if self.kind != "directory":
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._here)
            try:
                with os.scandir(descriptor) as entries:
                    for entry in entries:
                        yield Entry(entry.name, _entry_kind(entry))
            finally:
                os.close(descriptor)

    def write(self, data: bytes, *, mode: int | None = None, parents: bool = False, replace: bool = True) -> None:
        """Put a file with `data` here, at once and whole: a reader sees the old file or the new one.

        `mode` None keeps the mode of the file that is replaced, which must be writable, and gives a new one 0644.
        `parents` makes missing directories. Without `replace` a file that stands here, even since a moment, is a
        FileExistsError. Survives the end of this process, not a power cut: nothing is flushed to the disk.
        Once the directory is closed nothing is put here any more; what was at work ends with Closed.
        Raises Protected for what must stay read-only, asked for by name or reached through a link.
        """
        self._protection.check(self.requested)
        self._protection.check(self.path)
        self._needs_file()
        with naming(self.path):
            if self._folder:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if self.kind and not replace:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            if mode is None:
                mode = self._kept_mode()
            if self.lacks_folder:
                if not parents:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                self._make_parents()
            temporary = self._temporary(data, mode)
            try:
                self._put(temporary, replace=replace)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=self._here)
                raise

    def _kept_mode(self) -> int:
        if self._target is None:
            return NEW_FILE_MODE
        os.close(os.open(self._name, _PROBE, dir_fd=self._here))
        return stat.S_IMODE(os.fstat(self._target).st_mode) & 0o777

    def _make_parents(self) -> None:
        *parents, _ = self._missing
        for name in parents:
            with suppress(FileExistsError), self._while_open():
                os.mkdir(name, dir_fd=self._here)
            entered = os.open(name, _ENTER, dir_fd=self._here)
            os.close(self._here)
            self._here = entered
        self._missing = self._missing[-1:]

    def _temporary(self, data: bytes, mode: int) -> str:
        """A new file beside the target, with its name independent of the target's, which may be of full length."""
        name = f".{secrets.token_hex(8)}.tmp"
        with self._while_open():
            descriptor = os.open(name, _CREATE, 0o600, dir_fd=self._here)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fchmod(descriptor, mode)
        except BaseException:
            with suppress(OSError):
                os.unlink(name, dir_fd=self._here)
            raise
        finally:
            os.close(descriptor)
        return name

    def _put(self, temporary: str, *, replace: bool) -> None:
        with self._while_open():  # to the end, so that nothing lands once the directory is closed
            if replace or not self._link(temporary):
                os.rename(temporary, self._name, src_dir_fd=self._here, dst_dir_fd=self._here)

    def _link(self, temporary: str) -> bool:
        """Give the file its name unless that is taken; False where there are no hard links.

        There the check at the start is all there is.
        """
        try:
            os.link(temporary, self._name, src_dir_fd=self._here, dst_dir_fd=self._here, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return False
        os.unlink(temporary, dir_fd=self._here)
        return True

    def _needs_file(self) -> None:
        if self.kind == "directory":
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self.path or ".")
        if self.kind == "other":
            self._not_regular()

    def _not_regular(self) -> NoReturn:
        raise OSError(errno.EINVAL, "Not a regular file", self.path)


def _entry_kind(entry: "os.DirEntry[str]") -> Literal["file", "directory", "link", "other"]:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    return "file" if entry.is_file(follow_symlinks=False) else "other"
