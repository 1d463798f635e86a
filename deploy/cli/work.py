"""Running what a command does: one event loop, and what goes wrong in it as a Failure where a user can mend it."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from .failure import failure_of

T = TypeVar("T")


def perform(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end."""
    import asyncio

    try:
        return asyncio.run(work)
    except Exception as error:
        failure = failure_of(error)
        if failure is None:
            raise
        raise failure from error
