"""Where the value of a secret comes from: the environment, a file, or a command. A source never holds a value."""

import asyncio
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import SkillError
from ..process import run_process

MAX_VALUE = 1 << 16
"""Bytes of a value."""

COMMAND_SECONDS = 10.0
GRACE = 1.0
PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")
"""The variables that a command gets besides those that its source names."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WRONG = (
    "a secret's source is env:NAME, file:PATH, or a table with command = [program, argument …], and perhaps "
    "environment = [names] and seconds"
)


class BadSource(SkillError, ValueError):
    """What is declared is no source. The message never repeats it: somebody may have put the value there."""


class NotResolved(SkillError):
    """A source gives no value, for the reason that the message is; no value and no path is part of it."""


@dataclass(frozen=True, slots=True)
class EnvironmentSource:
    """A variable of the worker's environment."""

    name: str
    kind = "env"

    async def read(self, environ: Mapping[str, str]) -> bytes:
        """The value. Raises NotResolved."""
        if self.name not in environ:
            raise NotResolved("the variable is not set")
        return os.fsencode(environ[self.name])


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file, as Docker and Kubernetes mount them; links are followed, which is how Kubernetes changes a value.

    It is read anew at each dispatch. Others may read it, as both of them have it so, but not write it.
    """

    path: Path
    kind = "file"

    async def read(self, environ: Mapping[str, str]) -> bytes:
        """The value, without one line end at its end. Raises NotResolved."""
        return _without_line_end(await asyncio.to_thread(self._read))

    def _read(self) -> bytes:
        try:
            # what is opened might be a pipe that nobody writes to
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
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


@dataclass(frozen=True, slots=True)
class CommandSource:
    """A program, by argument list and without a shell, whose standard output is the value.

    It gets PATH, HOME, LANG, LC_ALL, TMPDIR and the variables that `environment` names, and ends within `seconds`.
    What it writes to standard error is thrown away, as it may hold the value.
    """

    command: tuple[str, ...] = field(repr=False)
    environment: tuple[str, ...] = ()
    seconds: float = COMMAND_SECONDS
    kind = "command"

    async def read(self, environ: Mapping[str, str]) -> bytes:
        """The value, without one line end at its end. Raises NotResolved."""
        env = {name: environ[name] for name in (*PASSED, *self.environment) if name in environ}
        try:
            async with asyncio.timeout(self.seconds):
                finished = await run_process(
                    self.command, env={"PATH": os.defpath, **env}, cwd="/", limit=MAX_VALUE + 3, grace=GRACE
                )
        except TimeoutError:
            raise NotResolved(f"the command did not end within {self.seconds:g} s") from None
        except (OSError, ValueError) as error:
            cause = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "it is no command"
            raise NotResolved(f"the command can't be started: {cause}") from None
        if finished.status:
            raise NotResolved(f"the command ended with status {finished.status}")
        return _without_line_end(finished.stdout)


Source = EnvironmentSource | FileSource | CommandSource


def source_of(declared: Any, folder: Path) -> Source:
    """The source that a manifest in `folder` declares; a relative path is one from there.

    `env:NAME`, `file:PATH`, or a table `{command = ["program", "argument"], environment = ["NAME"], seconds = 10}`.
    Raises BadSource.
    """
    if isinstance(declared, str):
        kind, _, rest = declared.partition(":")
        if kind == "env" and _VARIABLE.fullmatch(rest):
            return EnvironmentSource(rest)
        if kind == "file" and rest and "\0" not in rest:
            return FileSource(folder / Path(rest).expanduser())
    elif isinstance(declared, Mapping) and declared.keys() <= {"command", "environment", "seconds"}:
        command, names = declared.get("command"), declared.get("environment", [])
        seconds = declared.get("seconds", COMMAND_SECONDS)
        if (
            _texts(command)
            and command
            and command[0]
            and _texts(names)
            and all(map(_VARIABLE.fullmatch, names))
            and isinstance(seconds, (int, float))
            and not isinstance(seconds, bool)
            and 0 < seconds <= 60
        ):
            return CommandSource(tuple(command), tuple(names), float(seconds))
    raise BadSource(_WRONG)


def _texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) and "\0" not in each for each in value)


def _without_line_end(value: bytes) -> bytes:
    return value.removesuffix(b"\n").removesuffix(b"\r")
