"""What the operator sets for the AILANG tools: the table `[tools.ailang]`."""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Files = Literal["native", "binary"]

SWITCHED = ("Declassify", "Env", "Net")
"""Capabilities of a run that the operator must enable."""

_PREFIX = "tools.ailang"
_KEYS = ("binary", "sha256", "examples", "files", "state", "run_allow_caps", "run_net_allow", "run_net_allow_http")
_REF = re.compile(r"sha256:[0-9a-f]{64}")


class AilangSettingsError(ValueError):
    """The table can't be used; the message names each thing that is wrong, and never a value that may be secret."""


@dataclass(frozen=True, slots=True)
class AilangSettings:
    """The knobs of the AILANG tools.

    `binary` is the AILANG executable, and `pinned` the content address that it must have, if one is set. `examples` is
    the folder of the examples corpus. `files` says who reads, writes and edits. Policies and caches are kept in
    `state`, outside of every worktree. A run may have `allow_caps` besides IO and FS, and reach the loopback pairs
    `net_allow`, over plain HTTP only with `net_allow_http`.
    """

    binary: Path | None = None
    pinned: str | None = None
    examples: Path | None = None
    files: Files = "native"
    state: Path = Path()
    allow_caps: frozenset[str] = frozenset()
    net_allow: tuple[str, ...] = ()
    net_allow_http: bool = False

    @classmethod
    def resolve(
        cls, config: Mapping[str, Any], environ: Mapping[str, str], state_dir: Path | None = None
    ) -> "AilangSettings":
        """Read `config["ailang"]`, strictly: what a run may do must not depend on a misspelt key.

        Raises AilangSettingsError.
        """
        table = config.get("ailang", {})
        if not isinstance(table, Mapping):
            raise AilangSettingsError(f"{_PREFIX} must be a table")
        problems = [f"{_PREFIX}.{key} is not known; known are {', '.join(_KEYS)}" for key in table if key not in _KEYS]
        binary, examples, state = (_path(table, key, problems) for key in ("binary", "examples", "state"))
        pinned = _one_of(table, "sha256", _REF, "sha256: and 64 lower-case hexadecimal digits", problems)
        files = _one_of(table, "files", re.compile("native|binary"), "native or binary", problems)
        if files == "binary" and binary is None:
            problems.append(f'{_PREFIX}.files is "binary", and {_PREFIX}.binary is not set')
        if pinned and binary is None:
            problems.append(f"{_PREFIX}.sha256 is set, and {_PREFIX}.binary is not")
        caps = _caps(_texts(table, "run_allow_caps", problems), problems)
        pairs = _texts(table, "run_net_allow", problems)
        _check_pairs(pairs, problems)
        http = table.get("run_net_allow_http", False)
        if not isinstance(http, bool):
            problems.append(f"{_PREFIX}.run_net_allow_http must be true or false")
        if "Net" in caps and not pairs:
            problems.append("run capabilities: run_allow_caps Net needs at least one run_net_allow HOST:PORT")
        problems += [
            f"run capabilities: {key} is set but run_allow_caps does not name Net"
            for key in ("run_net_allow", "run_net_allow_http")
            if "Net" not in caps and table.get(key)
        ]
        if problems:
            raise AilangSettingsError("; ".join(problems))
        return cls(
            binary=binary,
            pinned=pinned,
            examples=examples,
            files="binary" if files == "binary" or (files is None and binary is not None) else "native",
            state=state or (state_dir or _state_home(environ)) / "ailang",
            allow_caps=frozenset(caps),
            net_allow=tuple(pairs),
            net_allow_http=http,
        )


def _state_home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_STATE_HOME") or "~/.local/state", "skillbus").expanduser()


def _path(table: Mapping[str, Any], key: str, problems: list[str]) -> Path | None:
    value = table.get(key)
    if value is None:
        return None
    if isinstance(value, str) and value.strip() and "\0" not in value:
        with suppress(RuntimeError):  # the home of nobody
            path = Path(value).expanduser()
            if path.is_absolute():
                return path
    problems.append(f"{_PREFIX}.{key} must be an absolute path")
    return None


def _one_of(table: Mapping[str, Any], key: str, form: re.Pattern[str], said: str, problems: list[str]) -> str | None:
    value = table.get(key)
    if value is None or (isinstance(value, str) and form.fullmatch(value)):
        return value
    problems.append(f"{_PREFIX}.{key} must be {said}")
    return None


def _texts(table: Mapping[str, Any], key: str, problems: list[str]) -> list[str]:
    value = table.get(key, [])
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return list(value)
    problems.append(f"{_PREFIX}.{key} must be an array of strings")
    return []


def _caps(names: Sequence[str], problems: list[str]) -> list[str]:
    for index, name in enumerate(names):
        if name not in SWITCHED:
            admitted = f"it admits only {', '.join(SWITCHED)} (IO and FS are always available)"
            problems.append(f'run capabilities: run_allow_caps names "{name}"; {admitted}')
        elif name in names[:index]:
            problems.append(f'run capabilities: run_allow_caps names "{name}" twice')
    return list(names)


def _check_pairs(pairs: Sequence[str], problems: list[str]) -> None:
    for index, pair in enumerate(pairs):
        why = _why_not(pair)
        if why is not None:
            problems.append(f'run capabilities: run_net_allow "{pair}" {why}')
        elif pair in pairs[:index]:
            problems.append(f'run capabilities: run_net_allow names "{pair}" twice')


def _why_not(pair: str) -> str | None:
    """Why a run's Net may not be given this HOST:PORT."""
    host, colon, port = pair.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or (":" in host and not bracketed):
        return "is not HOST:PORT (a bare host would open every loopback port; name one port, e.g. 127.0.0.1:7655)"
    try:
        address = ipaddress.ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        only = "only a loopback IP literal is admitted (127.0.0.1:PORT or [::1]:PORT)"
        return f"names a host by name; {only}"
    if not address.is_loopback or "%" in host:  # a zone is another interface's, whatever the address
        return "is not a loopback address; a run's Net reaches loopback only"
    if not (port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65_536):
        return "has an invalid port (want 1-65535)"
    canonical = f"[{address}]:{int(port)}" if address.version == 6 else f"{address}:{int(port)}"
    return None if pair == canonical else f'is not in canonical form; write "{canonical}"'
