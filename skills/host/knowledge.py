"""The knowledge base `index`: facts from a full-text index, as `skillbus kb add` builds it."""

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any, Self

from .backends import BackendContext, BackendError, Unconfigured
from .index import Hit, Index, IndexUnusable

FACTS = 8
MAX_NAME = 200  # characters of a document's name in a fact

log = logging.getLogger(__name__)


class Knowledge:
    """The backend `index`. The file is opened for each query, so that an index that was built anew is taken."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @classmethod
    def configured(cls, context: BackendContext) -> Self:
        """On the file of `SKILLBUS_KB_FILE`. Raises Unconfigured."""
        file = context.option("file")
        if not file or "\0" in file:
            raise Unconfigured("set SKILLBUS_KB_FILE to the index that `skillbus kb add` has built")
        standing = Path(file).expanduser()
        if not standing.exists():  # it may be built meanwhile, so this is no reason to answer with made-up facts
            log.warning("the index %s is not there yet: `skillbus kb add DIR` makes it", standing)
        return cls(standing)

    async def lookup(self, query: str) -> Any:
        """The best passages, each behind the name of its document. Raises BackendError."""
        stop = threading.Event()
        work = asyncio.ensure_future(asyncio.to_thread(self._search, query, stop))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait([work])
            if not work.cancelled():
                work.exception()  # nobody is left who would hear of it
            raise

    def _search(self, query: str, stop: threading.Event) -> list[str]:
        try:
            with Index.open(self._file) as index:
                index.stop_when(stop)
                return [_fact(hit) for hit in index.search(query, FACTS)]
        except IndexUnusable as error:
            if error.busy:
                raise BackendError(str(error), retryable=True) from None
            # What is wrong with which file is the operator's business.
            raise BackendError("the index can't be used: see `skillbus kb list`") from None


def _fact(hit: Hit) -> str:
    name = hit.name if len(hit.name) <= MAX_NAME else f"…{hit.name[1 - MAX_NAME :]}"
    return f"{name}{f' — {hit.heading}' if hit.heading else ''}: {hit.body}"
