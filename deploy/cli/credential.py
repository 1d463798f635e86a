"""Where the session's credential comes from: a file or the environment, never the command line."""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from . import screen
from .failure import Failure

if TYPE_CHECKING:
    from broker.sessions import Credential

VARIABLES = ("SKILLBUS_SESSION", "WORLD_SESSION")
MAX_FILE = 256

_LOOKS_LIKE_ONE = re.compile(r"[0-9A-Fa-f]{64}")


def find_credential(file: str | None, environ: Mapping[str, str] = os.environ) -> "Credential":
    """The credential in `file`, or the one that SKILLBUS_SESSION or WORLD_SESSION holds or names. Raises Failure."""
    if file is not None:
        if _LOOKS_LIKE_ONE.fullmatch(file.strip()):
            raise Failure(
                "--session takes the path of a file: on the command line every user of this machine can read a "
                "credential. Put it into a file of mode 0600 (`skillbus session new … --out FILE` does), or into the "
                "environment variable SKILLBUS_SESSION; this one should be revoked"
            )
        return _read(Path(file), "--session")
    for name in VARIABLES:
        value = environ.get(name, "").strip()
        if _LOOKS_LIKE_ONE.fullmatch(value):
            return _credential(value, name)
        if value:
            return _read(Path(value), name)
    raise Failure(
        "no session: make one with `skillbus session new EPISODE --preset workspace --out FILE` and name it with "
        "--session FILE or in the environment variable SKILLBUS_SESSION"
    )


def _read(path: Path, source: str) -> "Credential":
    # The value itself is never repeated: it may be a credential with a slip in it.
    try:
        # Opening a FIFO would wait for who writes into it, and a device may do anything.
        descriptor = os.open(path.expanduser(), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise ValueError("Is a directory" if stat.S_ISDIR(mode) else "Not a regular file")
            content = os.read(descriptor, MAX_FILE + 1)
        finally:
            os.close(descriptor)
    except (OSError, ValueError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise Failure(f"{source}: the credential can't be read, it must be a file's path: {reason}") from None
    if len(content) > MAX_FILE:
        raise Failure(f"{source}: the file is over {MAX_FILE} bytes, which is no credential")
    if mode & 0o077:
        screen.warn(f"{path} can be read by others (mode {stat.S_IMODE(mode):04o}): chmod 600 {path}")
    return _credential(content.decode("ascii", errors="replace").strip(), source)


def _credential(text: str, source: str) -> "Credential":
    from broker.sessions import Credential, SessionError

    try:
        return Credential(text)
    except SessionError as error:
        raise Failure(f"{source}: {error}") from None
