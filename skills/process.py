"""A program that a handler runs: in a process group of its own, which ends with it, however it ends."""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

GRACE = 5.0
"""Seconds between the request to end (SIGTERM) and the end (SIGKILL)."""

MAX_OUTPUT = 1 << 20
_LOOK = 0.01
_LONGEST_LOOK = 0.2
_LAST = 5.0


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
    stdin: bytes = b"",
    limit: int = MAX_OUTPUT,
    grace: float = GRACE,
) -> Finished:
    """Run a program, by argument list and never through a shell, and wait for its end.

    When the program ends, and when the caller is canceled, whatever is left of its process group is asked to end, and
    after `grace` seconds made to; this returns, or lets the cancellation through, when all of it is gone. Of each of
    its outputs `limit` bytes are kept. It gets exactly the environment `env`. Raises OSError when it can't be started.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=cwd,
        env=dict(env),
        start_new_session=True,
    )
    outputs = [asyncio.create_task(_read(stream, limit)) for stream in (process.stdout, process.stderr)]
    feeding = asyncio.create_task(_feed(process.stdin, stdin))
    try:
        await exit_of(process)
    finally:
        try:
            await end_group(process, grace)
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, *outputs, return_exceptions=True)
    (stdout, more), (stderr, much) = (output.result() for output in outputs)
    return Finished(process.returncode or 0, stdout, stderr, more or much)


async def exit_of(process: asyncio.subprocess.Process) -> None:
    """Wait for the program alone: `wait` may wait for all that have inherited its outputs as well."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    loop, exited = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, exited.set)
    try:
        await exited.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def end_group(process: asyncio.subprocess.Process, grace: float) -> None:
    """Ask what is left of a program's process group to end, after `grace` seconds make it, and wait for that."""
    try:
        if _signal(process.pid, signal.SIGTERM):
            await _gone(process.pid, grace)
    finally:
        if _signal(process.pid, signal.SIGKILL):
            # Killed is not gone yet. What the kernel can't end, because a disk holds it, is not waited for.
            await _gone(process.pid, _LAST)
        await process.wait()


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


async def _read(stream: asyncio.StreamReader | None, limit: int) -> tuple[bytes, bool]:
    kept, cut = bytearray(), False
    while stream is not None and (piece := await stream.read(1 << 16)):
        room = limit - len(kept)
        cut = cut or len(piece) > room
        kept += piece[:room]
    return bytes(kept), cut


async def _feed(stream: asyncio.StreamWriter | None, data: bytes) -> None:
    if stream is None:
        return
    with suppress(BrokenPipeError, ConnectionResetError):
        stream.write(data)
        await stream.drain()
    stream.close()
