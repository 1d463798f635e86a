"""What stands behind search, search_kb and send_reply: the three protocols, and what a backend is told."""

import logging
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import SecretStr

from ..errors import SkillError

Kind = Literal["search", "kb", "mail"]

MAX_WAIT = 1e9  # seconds
MAX_SECRET = 65_536  # bytes of a secret's file

log = logging.getLogger(__name__)


class BackendError(SkillError):
    """The backend can't answer; the message reaches the caller, so it holds no secret.

    `retryable` says that the same call may go well later, after `retry_after` seconds where the backend knows: what is
    no number from 0 to MAX_WAIT is not known.
    """

    def __init__(self, message: str, *, retryable: bool = False, retry_after: float | None = None) -> None:
        self.retryable = retryable is True
        is_known = isinstance(retry_after, int | float) and 0 <= retry_after <= MAX_WAIT
        self.retry_after = retry_after if is_known else None
        super().__init__(message)


class Unconfigured(SkillError):
    """A backend lacks a setting; the message names it and shows no value."""


class SearchBackend(Protocol):
    async def search(self, query: str, *, max_results: int, days: int | None, topic: str | None) -> Any:
        """A list of `{title, url, snippet, published_date?}`; raises BackendError."""


class KnowledgeBackend(Protocol):
    async def lookup(self, query: str) -> Any:
        """A list of facts, each a text, the best one first; raises BackendError."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message that is to be sent. The same `key` is the same message, sent again; `seconds` is the time for it."""

    to: str
    body: str
    key: str
    seconds: float


class MailBackend(Protocol):
    async def send(self, message: Outgoing) -> Any:
        """`{sent, recorded, delivery, error?, note?, retryable?}`; raises BackendError.

        `sent` is true only when a system that answers for the delivery has accepted the message.
        """


@dataclass(frozen=True, slots=True)
class BackendContext:
    """What a backend's factory is told: the table of its tool, such as `[tools.search]`, and the environment."""

    kind: Kind
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    def option(self, name: str) -> str:
        """A setting: `SKILLBUS_<KIND>_<NAME>`, else `name` of the table; "" if it is not set."""
        found = self.environ.get(self._variable(name), "").strip()
        if found:
            return found
        value = self.config.get(name)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return ""
        return str(value).strip()

    def secret(self, name: str, *variables: str) -> SecretStr | None:
        """A secret, from the first that is set of: `SKILLBUS_<KIND>_<NAME>`, the other `variables`, the same with
        `_FILE`, which name a file, and `<name>_file` of the table. Raises Unconfigured for a file that can't be read.
        """
        names = (self._variable(name), *variables)
        for variable in names:
            value = self.environ.get(variable, "").strip()
            if value:
                return SecretStr(value)
        files = [self.environ.get(f"{variable}_FILE", "").strip() for variable in names]
        file = next(filter(None, files), "") or self.option(f"{name}_file")
        return _read(file, f"{name}_file") if file else None

    def _variable(self, name: str) -> str:
        return f"SKILLBUS_{self.kind.upper()}_{name.upper()}"


def _read(path: str, setting: str) -> SecretStr | None:
    try:
        # A FIFO would wait for who writes into it.
        descriptor = os.open(Path(path).expanduser(), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Unconfigured(f"{setting} is not a regular file")
            text = file.read(MAX_SECRET + 1).decode()
    except OSError as error:
        raise Unconfigured(f"{setting} can't be read: {error.strerror}") from None
    except (ValueError, RuntimeError):  # no UTF-8; a NUL in the path; the home of nobody
        raise Unconfigured(f"{setting} is not a file of UTF-8 text") from None
    if len(text) > MAX_SECRET:
        raise Unconfigured(f"{setting} is larger than {MAX_SECRET} bytes")
    return SecretStr(text.strip()) if text.strip() else None
