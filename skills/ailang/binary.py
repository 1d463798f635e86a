"""A program that is known by the hash of its bytes: what was hashed is what runs."""

import hashlib
import os
import stat
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from ..process import Finished, run_process

GRACE = 1.0
MAX_OUTPUT = 8_388_608
"""Bytes of each of its outputs."""

_QUIET = 2.0
"""Seconds after its last change from which a file's times tell of a further one."""

_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PIECE = 1 << 20

Identity = tuple[int, int, int, int, int]


class BinaryError(Exception):
    """The program can't be used, or is no longer the one that was pinned; the message says why."""


class Binary:
    """A program, opened once: `ref` is the content address of its bytes, `path` where it stands.

    It is executed through the descriptor that was hashed, so that nothing put in its place is ever run. `check` says
    whether its bytes are still the same, here and at its path.
    """

    def __init__(self, path: Path, descriptor: int, ref: str) -> None:
        self.path, self.ref = path, ref
        self._descriptor = descriptor
        self._known: set[Identity] = set()

    @classmethod
    def open(cls, path: Path, *, pinned: str | None = None) -> "Binary":
        """Open and hash a program. Raises BinaryError, as when its content address is not the one `pinned`."""
        try:
            descriptor = os.open(path, _OPEN)
        except OSError as error:
            raise BinaryError(f"{path} can't be opened: {error.strerror}") from None
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode) or not mode & 0o111:
                raise BinaryError(f"{path} is not an executable file")
            ref = _hash(descriptor)
            if pinned is not None and ref != pinned:
                raise BinaryError(f"{path} is {ref}, and {pinned} is pinned")
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor, ref)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()

    def check(self) -> None:
        """Raise BinaryError unless the program, and what stands at its path, have the bytes that were hashed.

        Hashes again only what has been touched since, or so lately that its times can't tell.
        """
        try:
            self._check(self._descriptor)
            there = os.open(self.path, _OPEN)
            try:
                self._check(there)
            finally:
                os.close(there)
        except OSError as error:
            raise BinaryError(f"the tool binary is gone: {error.strerror}; {_AGAIN}") from None

    async def run(
        self,
        arguments: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        stdin: bytes,
        pass_fds: Collection[int] = (),
    ) -> Finished:
        """Run the program, by its descriptor, and wait for its end; see `run_process`. Raises OSError."""
        # Looked up among this process's descriptors, so that it needs none of its own, even to read a script.
        program = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        return await run_process(
            [program, *arguments],
            env=env,
            cwd=cwd,
            stdin=stdin,
            limit=MAX_OUTPUT,
            grace=GRACE,
            pass_fds=pass_fds,
        )

    def _check(self, descriptor: int) -> None:
        before = os.fstat(descriptor)
        if _identity(before) in self._known:
            return
        if not stat.S_ISREG(before.st_mode) or _hash(descriptor) != self.ref:
            raise BinaryError(f"the tool binary's bytes have changed since it was pinned as {self.ref}; {_AGAIN}")
        if before.st_ctime + _QUIET < time.time():
            self._known.add(_identity(before))


_AGAIN = "start the worker again to take the new one"


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _hash(descriptor: int) -> str:
    digest, offset = hashlib.sha256(), 0
    while piece := os.pread(descriptor, _PIECE, offset):
        digest.update(piece)
        offset += len(piece)
    return f"sha256:{digest.hexdigest()}"
