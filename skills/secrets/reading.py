"""What a provider gives: a variable of the environment, the content of a file, the output of a command."""

import asyncio
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from ..errors import SkillError
from ..process import run_process
from ..tb.provider import FromCommand, FromEnvironment, FromFile, Provider

MAX_VALUE = 1 << 16
"""Bytes of a value."""

COMMAND_SECONDS = 10.0
"""How long a command may take."""

GRACE = 1.0
PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")
"""The variables that a command gets; no other, as any may hold a secret."""


class NotResolved(SkillError):
    """A provider gives no value, for the reason that the message is; no value and no path is part of it."""


async def read(provider: Provider, environ: Mapping[str, str], *, seconds: float = COMMAND_SECONDS) -> bytes:
    """What the provider gives now; of a file and of an output without one line end at its end. Raises NotResolved.

    At most MAX_VALUE bytes and three more. A file may be readable by others, as Docker and Kubernetes mount it, but not
    writable. A command gets PASSED of the environment and nothing on its standard input; what it writes to standard
    error is thrown away, as it may hold the value.
    """
    match provider:
        case FromEnvironment(name):
            if name not in environ:
                raise NotResolved("the variable is not set")
            return os.fsencode(environ[name])
        case FromFile(path):
            return _without_line_end(await asyncio.to_thread(_content, path))
        case FromCommand(argv):
            return _without_line_end(await _output(argv, environ, seconds))


def kind_of(provider: Provider) -> str:
    """What kind of a provider it is, in the words of a manifest."""
    match provider:
        case FromEnvironment():
            return "env"
        case FromFile():
            return "file"
        case FromCommand():
            return "command"


def _content(path: Path) -> bytes:
    try:
        # what is opened might be a pipe that nobody writes to
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise NotResolved(f"the file can't be opened: {os.strerror(error.errno or 0)}") from None
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise NotResolved("it is no regular file")
        if mode & stat.S_IWOTH:
            raise NotResolved("every user may write the file: take that away with chmod o-w")
        return os.read(descriptor, MAX_VALUE + 3)
    except OSError as error:
        raise NotResolved(f"the file can't be read: {os.strerror(error.errno or 0)}") from None
    finally:
        os.close(descriptor)


async def _output(argv: tuple[str, ...], environ: Mapping[str, str], seconds: float) -> bytes:
    env = {name: environ[name] for name in PASSED if name in environ}
    try:
        async with asyncio.timeout(seconds):
            finished = await run_process(
                argv, env={"PATH": os.defpath, **env}, cwd="/", limit=MAX_VALUE + 3, grace=GRACE
            )
    except TimeoutError:
        raise NotResolved(f"the command did not end within {seconds:g} s") from None
    except (OSError, ValueError) as error:
        cause = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "it is no command"
        raise NotResolved(f"the command can't be started: {cause}") from None
    if finished.status:
        raise NotResolved(f"the command ended with status {finished.status}")
    return finished.stdout


def _without_line_end(value: bytes) -> bytes:
    return value.removesuffix(b"\n").removesuffix(b"\r")
