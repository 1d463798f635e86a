"""The one writer of a process: operations that come while it writes share the next transaction."""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy.engine import Connection

from bus import BusError, Unavailable

from .database import Database
from .operations import Claim, Closing, Fenced, Operation
from .settlement import Transaction
from .watch import LedgerUnavailable

MAX_BATCH = 128

log = logging.getLogger(__name__)

_Waiting = tuple[Operation, "asyncio.Future[Any]"]


class Writer:
    """Runs operations in the order they come, many to a transaction.

    An operation that is refused does not touch the others. A transaction that fails as a whole is tried once more for
    each operation alone, so that one bad one can't spoil the rest. While the ledger is away, what has happened already
    (outcomes, reports) is kept until it is back; what only asks for leave fails with LedgerUnavailable.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[_Waiting] = deque()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def submit(self, operation: Operation) -> "asyncio.Future[Any]":
        """Hand in an operation; the future is done when its result is durable. The order of calls is the order kept."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_exception(Unavailable("the ledger is closed"))
            return future
        away = self._database.watch.away
        if away is not None and not _has_happened(operation):
            future.set_exception(LedgerUnavailable(away))
            return future
        self._waiting.append((operation, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._drain(), name="ledger-writer")
        return future

    async def close(self) -> None:
        """Write what was handed in, and take no more."""
        self._closed = True
        if self._task is not None:
            await self._task

    async def _drain(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
            await self._write(batch)

    async def _write(self, batch: Sequence[_Waiting]) -> None:
        results: Sequence[Any]
        while batch:
            operations = [operation for operation, _ in batch]
            try:
                results = await self._database.write(partial(self._apply, operations))
            except LedgerUnavailable as error:
                batch = await self._keep(batch, error)
                continue
            except Exception:
                if len(batch) > 1:
                    for one in batch:
                        await self._write([one])
                    return
                log.exception("the ledger did not take an operation")
                results = [Unavailable("the ledger did not take the call", metadata={"retryAfterMs": "1000"})]
            _tell(batch, results)
            return

    async def _keep(self, batch: Sequence[_Waiting], error: LedgerUnavailable) -> Sequence[_Waiting]:
        """What is left of a batch once the ledger is back; all that waits has been told that it is away."""
        waiting, self._waiting = [*batch, *self._waiting], deque()
        kept = [each for each in waiting if _has_happened(each[0])]
        asking = [each for each in waiting if not _has_happened(each[0])]
        _tell(asking, [error] * len(asking))
        try:
            await self._database.watch.back()
        except LedgerUnavailable as closed:
            _tell(kept, [closed] * len(kept))
            return ()
        return kept

    def _apply(self, operations: Sequence[Operation], connection: Connection) -> list[Any]:
        return _apply(connection, operations, self._database.watch.steady_for())


def _has_happened(operation: Operation) -> bool:
    return not isinstance(operation, Claim) and not (isinstance(operation, Closing) and operation.epoch is None)


def _tell(batch: Sequence[_Waiting], results: Sequence[Any]) -> None:
    for (_, future), result in zip(batch, results, strict=True):
        if future.done():
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)


def _apply(connection: Connection, operations: Sequence[Operation], steady: float) -> list[Any]:
    transaction = Transaction(connection, operations, steady=steady)
    results: list[Any] = []
    for operation in operations:
        try:
            results.append(transaction.run(operation))
        except (BusError, Fenced) as refusal:
            results.append(refusal)  # decided before anything was changed; any other error spoils the whole
    transaction.flush()
    return results
