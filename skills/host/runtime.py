"""The `tools:` block of the original's `runtime.yaml`, where a host already has one."""

import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SYSTEM = Path("/etc/mklang/runtime.yaml")
MAX_BYTES = 1 << 20

log = logging.getLogger(__name__)


def tools_block(environ: Mapping[str, str]) -> Mapping[str, Any]:
    """The block of the first file that there is, as the original looks for it, or nothing; it is read leniently.

    MKLANG_CONFIG names the file; else it is `config/runtime.yaml` here, the user's, or the system's.
    """
    path = _found(environ)
    if path is None:
        return {}
    document = _read(path)
    tools = document.get("tools") if isinstance(document, Mapping) else None
    if not isinstance(tools, Mapping):
        return {}
    log.info("the tools of %s are taken, below our own configuration", path)
    return {str(name): table for name, table in tools.items()}


def _found(environ: Mapping[str, str]) -> Path | None:
    named = environ.get("MKLANG_CONFIG")
    if named:
        return _expanded(Path(named))
    candidates = [Path("config", "runtime.yaml")]
    folder = environ.get("MKLANG_CONFIG_DIR")
    home = environ.get("XDG_CONFIG_HOME") or (f"{environ['HOME']}/.config" if environ.get("HOME") else "")
    if folder or home:
        candidates.append(_expanded(Path(folder or f"{home}/mklang", "runtime.yaml")))
    return next((path for path in (*candidates, SYSTEM) if _is_file(path)), None)


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:
        return path  # the home of nobody: no such file


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False  # nobody lets us look


def _read(path: Path) -> Any:
    import yaml  # few have such a file, and the others do not wait for its parser

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(MAX_BYTES + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
        if len(data) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES} bytes")
        return yaml.safe_load(data)
    except OSError as error:
        log.warning("%s is not taken: %s", path, error.strerror)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # What the parser says may quote the file, a secret too.
        log.warning("%s is not taken: it is no YAML of at most %d bytes (%s)", path, MAX_BYTES, type(error).__name__)
    return None
