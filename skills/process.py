"""A program that a handler runs: in a process group of its own, which ends with it, however it ends."""

import asyncio
import os
import signal
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

GRACE = 5.0
"""Seconds between the request to end (SIGTERM) and the end (SIGKILL)."""

MAX_OUTPUT = 1 << 20
_LOOK = 0.01
_LONGEST_LOOK = 0.2
_LAST = 5.0
_PIECE = 1 << 16
_HELD = 1 << 20


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended: its exit status, negative for a signal, and what it wrote, `cut` where that was too much."""

    status: int
    stdout: bytes
    stderr: bytes
    cut: bool


async def run_process(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | str | None = None,
    pass_fds: Collection[int] = (),
    stdin: bytes = b"",
    limit: int = MAX_OUTPUT,
    grace: float = GRACE,
) -> Finished:
    """Run a program, by argument list and never through a shell, and wait for its end.

    When the program ends, and when the caller is canceled, whatever is left of its process group is asked to end, and
    after `grace` seconds made to; this returns, or lets the cancellation through, when all of it is gone. What has left
    the group is neither ended nor waited for. Of each of its outputs `limit` bytes are kept. It gets exactly the
    environment `env`, and the descriptors `pass_fds`. Raises OSError when it can't be started.
    """
    with ExitStack() as stack:
        fed = stack.enter_context(_Input(stdin))
        stdout, stderr = (stack.enter_context(_Output(limit)) for _ in range(2))
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=fed.theirs,
            stdout=stdout.theirs,
            stderr=stderr.theirs,
            cwd=cwd,
            env=dict(env),
            pass_fds=pass_fds,
            start_new_session=True,
        )
        for pipe in (fed, stdout, stderr):
            pipe.let_go()
        try:
            await exit_of(process)
        finally:
            await end_group(process, grace)
        stdout.read_rest()
        stderr.read_rest()
    return Finished(process.returncode or 0, bytes(stdout.kept), bytes(stderr.kept), stdout.cut or stderr.cut)


async def exit_of(process: asyncio.subprocess.Process) -> None:
    """Wait for the program alone: `wait` may wait for all that have inherited its pipes as well."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process.pid)
        loop, exited = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(descriptor, exited.set)
        try:
            await exited.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
    while process.returncode is None:  # noqa: ASYNC110 - asyncio learns of it a little later
        await asyncio.sleep(0.001)


async def end_group(process: asyncio.subprocess.Process, grace: float) -> None:
    """Ask what is left of a program's process group to end, after `grace` seconds make it, and wait for that."""
    try:
        if _signal(process.pid, signal.SIGTERM):
            await _gone(process.pid, grace)
    finally:
        if _signal(process.pid, signal.SIGKILL):
            # Killed is not gone yet. What the kernel can't end, because a disk holds it, is not waited for.
            await _gone(process.pid, _LAST)
        await exit_of(process)


async def _gone(group: int, seconds: float) -> None:
    """Come back when nothing of a process group runs any more, or after so many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            look = _LOOK
            while _is_alive(group):  # nobody tells when a group has become empty
                await asyncio.sleep(look)
                look = min(2 * look, _LONGEST_LOOK)


def _signal(group: int, number: int) -> bool:
    """Signal a process group. False when nothing of it is left."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


def _is_alive(group: int) -> bool:
    """Whether anything of a process group runs; what has ended and that nobody has asked for does not."""
    if not _signal(group, 0):
        return False
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _parent, belongs = stat.read_text().rpartition(")")[2].split()[:3]
            if int(belongs) == group and state not in "ZX":
                return True
    return False


class _Pipe:
    """A pipe to or from a program, whose end of it is `theirs`.

    Not asyncio's own, which has no end before the last that has inherited it is gone, wherever that went.
    """

    def __init__(self, ours: int, theirs: int) -> None:
        self._ours, self.theirs = ours, theirs
        os.set_blocking(ours, False)
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go()
        self._end()

    def let_go(self) -> None:
        """Leave their end to the program alone."""
        if self.theirs >= 0:
            os.close(self.theirs)
            self.theirs = -1

    def _end(self) -> None:
        if self._ours >= 0:
            self._loop.remove_reader(self._ours)
            self._loop.remove_writer(self._ours)
            os.close(self._ours)
            self._ours = -1


class _Input(_Pipe):
    """It is fed as fast as the program reads."""

    def __init__(self, data: bytes) -> None:
        self._rest = memoryview(data)
        theirs, ours = os.pipe()
        super().__init__(ours, theirs)
        self._loop.add_writer(ours, self._write)

    def _write(self) -> None:
        try:
            self._rest = self._rest[os.write(self._ours, self._rest) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._rest = memoryview(b"")
        if not self._rest:
            self._end()


class _Output(_Pipe):
    """What the program writes is `kept` up to the limit."""

    def __init__(self, limit: int) -> None:
        self.kept, self.cut = bytearray(), False
        self._limit = limit
        super().__init__(*os.pipe())
        self._loop.add_reader(self._ours, self._read)

    def read_rest(self) -> None:
        """Take what a program has left in the pipe: no more than a pipe holds, for others may write on."""
        for _ in range(_HELD // _PIECE):
            if not self._read():
                return

    def _read(self) -> bool:
        try:
            piece = os.read(self._ours, _PIECE)
        except BlockingIOError:
            return False
        if not piece:
            self._loop.remove_reader(self._ours)
        room = self._limit - len(self.kept)
        self.cut = self.cut or len(piece) > room
        self.kept += piece[:room]
        return bool(piece)
