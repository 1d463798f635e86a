"""What a running call reports: progress and chunks of artifacts, as events of its task."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from bus import Unavailable

from ..answers import moment, status_message
from ..ledger.ledger import Ledger
from ..ledger.operations import Call, Fenced, Progress

INTERVAL = 0.1
"""Seconds between two reports of progress; those that come faster are left out, the newest is not."""

MAX_TEXT = 4096
MAX_CHUNK = 64 << 10
MAX_CHUNKS = 8 << 20
"""Bytes of all chunks of one call together."""

OUTPUT = "output"
"""The artifact that holds the result; no chunk can belong to it."""

log = logging.getLogger(__name__)


class Reports:
    """The `skills.Reporter` of one run of one call. Nothing is shown to anyone before the ledger has it."""

    def __init__(
        self, ledger: Ledger, call: Call, epoch: int, clock: Callable[[], float], told: Callable[[str], None]
    ) -> None:
        self._ledger = ledger
        self._call = call
        self._epoch = epoch
        self._clock = clock
        self._told = told
        self._artifacts: set[str] = set()
        self._size = 0
        self._count = 0
        self._held: bytes | None = None
        self._next = 0.0
        self._later: asyncio.Task[None] | None = None
        self._closed = False

    async def progress(self, text: str, fraction: float | None) -> None:
        """See `skills.Context.progress`."""
        if self._closed:
            return
        self._count += 1
        now = self._clock()
        status: dict[str, Any] = {"state": "TASK_STATE_WORKING", "timestamp": moment(now)}
        if text:
            name = f"{self._call.task_id}-{self._epoch}-{self._count}"
            status["message"] = status_message(name, self._call.task_id, self._call.context_id, _cut(text))
        update: dict[str, Any] = {
            "taskId": self._call.task_id,
            "contextId": self._call.context_id,
            "status": status,
        }
        if fraction is not None:
            update["metadata"] = {"fraction": min(max(float(fraction), 0.0), 1.0)}
        self._held = orjson.dumps({"statusUpdate": update})
        wait = self._next - asyncio.get_running_loop().time()
        if wait <= 0:
            await self._write()
        elif self._later is None or self._later.done():
            self._later = asyncio.create_task(self._write_after(wait))

    async def chunk(self, artifact: str, part: Mapping[str, Any], *, last: bool) -> None:
        """See `skills.Context.chunk`."""
        if self._closed:
            return
        if artifact == OUTPUT or not 0 < len(artifact) <= 128:
            raise ValueError(f"an artifact's name has 1 to 128 characters and is not {OUTPUT!r}")
        append = artifact in self._artifacts
        update = {
            "taskId": self._call.task_id,
            "contextId": self._call.context_id,
            "artifact": {"artifactId": f"{self._call.task_id}-{artifact}", "name": artifact, "parts": [dict(part)]},
            "append": append,
            "lastChunk": last,
        }
        try:
            body = orjson.dumps({"artifactUpdate": update})
        except TypeError as error:
            raise ValueError(f"a chunk must be JSON: {error}") from None
        self._size += len(body)
        if len(body) > MAX_CHUNK or self._size > MAX_CHUNKS:
            raise ValueError(f"a chunk has at most {MAX_CHUNK} bytes, all of a call together {MAX_CHUNKS}")
        self._artifacts.add(artifact)
        await self._write(body)

    async def close(self) -> None:
        """Write what was held back, and take no more."""
        self._closed = True
        if self._later is not None:
            self._later.cancel()
            await asyncio.gather(self._later, return_exceptions=True)
        await self._write()

    async def _write_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._write()

    async def _write(self, *more: bytes) -> None:
        held, self._held = self._held, None
        events = [*([held] if held is not None else ()), *more]
        if not events:
            return
        self._next = asyncio.get_running_loop().time() + INTERVAL
        try:
            # Shielded: what was handed in is written, whatever becomes of the handler meanwhile.
            await asyncio.shield(self._ledger.report(Progress(self._call, self._epoch, self._clock(), events)))
        except Fenced:
            self._closed = True  # somebody else runs the call now; the commit will find out
        except Unavailable as error:
            log.warning("a report of call %s was not kept: %s", self._call.task_id, error)
        else:
            self._told(self._call.task_id)


def _cut(text: str) -> str:
    clean = text.encode(errors="replace")[:MAX_TEXT]
    return clean.decode(errors="ignore")
