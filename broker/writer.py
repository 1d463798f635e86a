"""The one writer of a process: operations that come while it writes share the next transaction."""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from bus import BusError, Unavailable

from .database import Database
from .operations import Fenced, Operation
from .settlement import Transaction

MAX_BATCH = 128
RETRY_AFTER = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)

log = logging.getLogger(__name__)

_Waiting = tuple[Operation, "asyncio.Future[Any]"]


class Writer:
    """Runs operations in the order they come, many to a transaction.

    An operation that is refused does not touch the others. A transaction that fails as a whole is tried again
    while the database may come back, then once for each operation alone, so that one bad one can't spoil the rest.
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

    async def _write(self, batch: Sequence[_Waiting], pauses: Sequence[float] = RETRY_AFTER) -> None:
        operations = [operation for operation, _ in batch]
        for pause in (*pauses, None):
            try:
                results = await self._database.write(lambda connection: _apply(connection, operations))
                break
            except Exception as error:
                if pause is not None and may_pass(error):
                    log.warning("the ledger did not take a transaction, trying again in %s s: %s", pause, error)
                    await asyncio.sleep(pause)
                    continue
                if len(batch) > 1:
                    for one in batch:
                        await self._write([one], ())
                    return
                log.exception("the ledger did not take an operation")
                results = [Unavailable("the ledger did not take the call", metadata={"retryAfterMs": "1000"})]
                break
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)


def _apply(connection: Connection, operations: Sequence[Operation]) -> list[Any]:
    transaction = Transaction(connection, operations)
    results: list[Any] = []
    for operation in operations:
        try:
            results.append(transaction.run(operation))
        except (BusError, Fenced) as refusal:
            results.append(refusal)  # decided before anything was changed; any other error spoils the whole
    transaction.flush()
    return results


def may_pass(error: Exception) -> bool:
    """Whether trying again can help: the database is locked, restarting or away."""
    return isinstance(error, (OSError, OperationalError, InterfaceError)) or (
        isinstance(error, DBAPIError) and error.connection_invalidated
    )
