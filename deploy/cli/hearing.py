"""What the libraries log while a command runs: left to the error that follows, or said as a warning."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from . import screen


@contextmanager
def silent() -> Iterator[None]:
    """Nothing of it is shown: what goes wrong is said once, by the error."""
    with _hearing(logging.NullHandler()):
        yield


@contextmanager
def aloud() -> Iterator[None]:
    """Warnings are shown: the host of a call in this process is who sits here."""
    with _hearing(_Warnings(logging.WARNING)):
        yield


@contextmanager
def _hearing(handler: logging.Handler) -> Iterator[None]:
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


class _Warnings(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "skills.catalog":  # the catalog itself is asked for its problems
            return
        cause = record.exc_info[1] if record.exc_info else None
        screen.warn(record.getMessage() + (f": {type(cause).__name__}: {cause}" if cause else ""))
