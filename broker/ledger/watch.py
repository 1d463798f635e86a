"""Whether the ledger can be reached, as this process sees it."""

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from sqlalchemy.exc import DBAPIError

from bus import Unavailable

FIRST_PAUSE = 0.1
MOST_PAUSE = 1.0
"""Seconds between two probes of a ledger that is away; the pause begins with the first and doubles up to the most."""

AHEAD = 0.5
"""Seconds before a deadline at which its caller is told: one who waits no longer than that has to hear it."""

SETTLED = 10.0
"""Seconds that a ledger has to be there before the pauses begin anew."""

_AWAY = frozenset(
    {
        sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOLFS,
        sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN,
    }
)  # fmt: skip

log = logging.getLogger(__name__)


class LedgerUnavailable(Unavailable):
    """The ledger can't be reached now: locked for too long, on a disk that is full or fails, read-only, or gone.

    `cause` is for logs. Whoever is answered with this error learns only when to come back.
    """

    default = "the ledger can't be reached now"

    def __init__(self, cause: str) -> None:
        super().__init__(metadata={"retryAfterMs": "2000"})
        self.cause = cause


def unavailable(error: BaseException) -> LedgerUnavailable | None:
    """What an error of the database means, if that is that the ledger is away; None for any other error."""
    if isinstance(error, LedgerUnavailable):
        return error
    found = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(found, OSError):
        return LedgerUnavailable(found.strerror or type(found).__name__)
    code = getattr(found, "sqlite_errorcode", None)
    if code is None or code & 0xFF not in _AWAY:
        return None
    return LedgerUnavailable(str(found))


class Watch:
    """Knows whether the ledger is away, and probes it until it is back. One line in the log each time.

    `probe` writes something durably, or raises LedgerUnavailable.
    """

    def __init__(self, probe: Callable[[], Awaitable[None]]) -> None:
        self._probe = probe
        self._away: str | None = None
        self._news = asyncio.Event()
        self._probing: asyncio.Task[None] | None = None
        self._failures = 0
        self._trouble = float("-inf")
        self._closed = False

    @property
    def away(self) -> str | None:
        """Why the ledger can't be reached; None when it can."""
        return self._away

    @property
    def closed(self) -> bool:
        """Whether nobody waits for the ledger any more."""
        return self._closed

    def steady_for(self) -> float:
        """Seconds since the ledger was last away, or late. Any thread may ask."""
        return time.monotonic() - self._trouble

    def late(self) -> None:
        """A transaction had to wait for so long that others may have missed theirs. Any thread may say so."""
        self._trouble = time.monotonic()

    def failed(self, error: LedgerUnavailable) -> None:
        """Somebody could not reach the ledger."""
        since, self._trouble = self.steady_for(), time.monotonic()
        if self._away is not None or self._closed:
            return
        if since > SETTLED:
            self._failures = 0
        self._tell(error.cause)
        log.error("the ledger can't be reached, calls are held until it can: %s", error.cause)
        self._probing = asyncio.create_task(self._probe_until_back(), name="ledger-watch")

    async def gone(self) -> str:
        """Wait until the ledger is away; why."""
        while self._away is None:
            await self._news.wait()
        return self._away

    async def back(self) -> None:
        """Wait until the ledger is there. Raises LedgerUnavailable when it is closed."""
        while self._away is not None:
            if self._closed:
                raise LedgerUnavailable(self._away)
            await self._news.wait()

    @asynccontextmanager
    async def limit(self, seconds: float) -> AsyncIterator[None]:
        """What is done here may go on past its deadline, in so many seconds, unless the ledger is away then.

        Raises Unavailable in that case, a little before.
        """
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None

        def look() -> None:
            nonlocal timer
            if self._away is not None:
                timeout.reschedule(loop.time())
            else:
                timer = loop.call_later(MOST_PAUSE, look)

        try:
            async with asyncio.timeout(None) as timeout:
                timer = loop.call_later(max(seconds - AHEAD, 0.0), look)
                try:
                    yield
                finally:
                    timer.cancel()
        except TimeoutError:
            if not timeout.expired():
                raise
            raise Unavailable(
                "the deadline passed while the ledger could not be reached", metadata={"retryAfterMs": "2000"}
            ) from None

    async def close(self) -> None:
        """Let nobody wait for the ledger any more."""
        self._closed = True
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)
        self._tell(self._away)

    def _tell(self, away: str | None) -> None:
        self._away = away
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _probe_until_back(self) -> None:
        since = time.monotonic()
        while True:
            await asyncio.sleep(min(MOST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._failures, 10)))
            self._failures += 1
            try:
                await self._probe()
            except LedgerUnavailable:
                continue
            except Exception:
                log.exception("the ledger could not be probed")
                continue
            break
        self._trouble = time.monotonic()
        log.warning("the ledger is back after %.1f s", time.monotonic() - since)
        self._tell(None)
