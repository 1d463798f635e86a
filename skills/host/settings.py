"""What the operator sets for the file tools, and where each setting came from."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

Source = Literal["env", "config", "default"]
Backend = Literal["local", "stub"]
T = TypeVar("T")

log = logging.getLogger(__name__)

PREFIXES = ("SKILLBUS_FS_", "MKLANG_FS_")  # the first that is set wins

_KINDS: Mapping[str, type] = {"backend": str, "write": bool, "workspace": str}
_SAID: Mapping[type, str] = {str: "a string", bool: "true or false"}
_ON = frozenset({"1", "true", "yes", "on"})


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """A value and its source: the environment beats the configuration, which beats the default."""

    value: T
    source: Source


@dataclass(frozen=True, slots=True)
class FileSettings:
    """The knobs of list_files, read_file and write_file.

    A `backend` other than "local" is the offline tier. `write` false refuses every write. `root` is the workspace
    of a host that runs the tools by itself, None for its current directory; a worker always uses the worktree of
    the episode instead.
    """

    backend: Setting[Backend]
    write: Setting[bool]
    root: Setting[str | None]

    @classmethod
    def resolve(
        cls, config: Mapping[str, Any], environ: Mapping[str, str], *, write_default: bool = True
    ) -> "FileSettings":
        """Read `config["fs"]` and the `SKILLBUS_FS_*` and `MKLANG_FS_*` variables, leniently.

        What has the wrong type or is blank counts as not set, and what has the wrong type is warned of. Writes are on
        by default, because a session must be granted them anyway; a host without grants says `write_default=False`.
        """
        section = config.get("fs")
        _warn(section)
        warn_of_variables(PREFIXES[0], ("BACKEND", "ROOT", "WRITE"), environ)
        fs: Mapping[str, Any] = section if isinstance(section, Mapping) else {}
        return cls(_backend(fs, environ), _write(fs, environ, write_default), _root(fs, environ))


def _warn(section: Any) -> None:
    """Say what of the `[tools.fs]` table is not taken; never a value, which may have been meant for another place."""
    if section is None:
        return
    if not isinstance(section, Mapping):
        log.warning("tools.fs is not taken: it must be a table")
        return
    for name, value in section.items():
        if name not in _KINDS:
            log.warning("tools.fs.%s is not taken: known are %s", name, ", ".join(_KINDS))
        elif not isinstance(value, _KINDS[name]):
            log.warning("tools.fs.%s is not taken: it must be %s", name, _SAID[_KINDS[name]])


def warn_of_variables(prefix: str, known: Collection[str], environ: Mapping[str, str]) -> None:
    """Say which variables begin like ours and are none; never a value."""
    for name in sorted(environ):
        if name.startswith(prefix) and name.removeprefix(prefix) not in known:
            log.warning("%s is not taken: known are %s", name, ", ".join(prefix + each for each in sorted(known)))


def _backend(fs: Mapping[str, Any], environ: Mapping[str, str]) -> Setting[Backend]:
    found = _variable(environ, "BACKEND")
    if found:
        return Setting(_known(found), "env")
    configured = fs.get("backend")
    if isinstance(configured, str) and configured.strip():
        return Setting(_known(configured), "config")
    return Setting("local", "default")


def _write(fs: Mapping[str, Any], environ: Mapping[str, str], default: bool) -> Setting[bool]:
    found = _variable(environ, "WRITE")
    if found:
        return Setting(found.lower() in _ON, "env")
    configured = fs.get("write")
    if isinstance(configured, bool):
        return Setting(configured, "config")
    return Setting(default, "default")


def _root(fs: Mapping[str, Any], environ: Mapping[str, str]) -> Setting[str | None]:
    found = _variable(environ, "ROOT")
    if found:
        return Setting(_directory(found), "env")
    configured = fs.get("workspace")
    if isinstance(configured, str) and configured.strip():
        return Setting(_directory(configured.strip()), "config")
    return Setting(None, "default")


def _variable(environ: Mapping[str, str], name: str) -> str:
    """The first variable of this name that is not blank, stripped."""
    return next((value for prefix in PREFIXES if (value := environ.get(prefix + name, "").strip())), "")


def _known(backend: str) -> Backend:
    return "local" if backend.strip().lower() == "local" else "stub"


def _directory(path: str) -> str:
    """The directory; what can't be one stays as it is, and is none where it is used."""
    try:
        return str(Path(path).expanduser().resolve())
    except (OSError, ValueError, RuntimeError):  # too long, or with a NUL; the home of nobody, or links in a circle
        return path
