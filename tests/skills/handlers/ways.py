"""The three ways to run a handler, and a call of one as the pipeline makes it."""

import asyncio
import os
import select
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from skills import Context, Directory, Done, Failed, PlannedEffect
from skills.handlers import Rejected, Runner, Supply, Tool, handler_of, runner_of

TOOLS = Path(__file__).parent / "tools"
TEXT = {"type": "string"}
SHAPE: dict[str, Any] = {
    "type": "object",
    "properties": {"text": TEXT, "number": {"type": "number"}, "count": {"type": "integer"}},
    "required": ["text"],
    "additionalProperties": False,
}
Way = Literal["inline", "python", "javascript"]
WAYS: tuple[Way, ...] = ("inline", "python", "javascript")
LIMIT = 30.0


def tool(way: Way, function: str, folder: Path = TOOLS, **more: Any) -> Tool:
    """A tool with a handler of the conformance suite, or of another folder."""
    source = folder / ("handlers.mjs" if way == "javascript" else "handlers.py")
    given: dict[str, Any] = {"input_schema": SHAPE, "output_schema": SHAPE, "grace": 0.5, **more}
    return Tool(
        f"t.{function}",
        "javascript" if way == "javascript" else "python",
        folder,
        function,
        "request",
        file=source,
        isolation="none" if way == "inline" else "process",
        **given,
    )


@dataclass
class Reports:
    """What handlers report; `came` is set by each progress."""

    progresses: list[tuple[str, float | None]] = field(default_factory=list)
    chunks: list[tuple[str, Mapping[str, Any], bool]] = field(default_factory=list)
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def progress(self, text: str, fraction: float | None) -> None:
        self.progresses.append((text, fraction))
        self.came.set()

    async def chunk(self, artifact: str, part: Mapping[str, Any], *, last: bool) -> None:
        if len(str(part)) > 10_000:
            raise ValueError("too large")
        self.chunks.append((artifact, part, last))


class Notes:
    """A memory in a dict."""

    def __init__(self) -> None:
        self.entries: dict[str, tuple[Any, int]] = {}

    async def get(self, key: str) -> Mapping[str, Any] | None:
        if key not in self.entries:
            return None
        value, version = self.entries[key]
        return {"key": key, "value": value, "version": version}

    async def search(self, text: str, limit: int) -> list[Mapping[str, Any]]:
        found = [key for key, (value, _) in self.entries.items() if text in str(value)]
        return [entry for key in found[:limit] if (entry := await self.get(key)) is not None]

    async def put(self, key: str, value: Any, version: int | None) -> int:
        stands = self.entries.get(key, (None, 0))[1]
        if version not in (None, stands):
            raise Rejected("conflict", f"version {stands} stands there")
        self.entries[key] = (value, stands + 1)
        return stands + 1

    async def delete(self, key: str, version: int | None) -> bool:
        return self.entries.pop(key, None) is not None

    async def list(self, prefix: str, limit: int, after: str) -> Any:
        keys = sorted(key for key in self.entries if key.startswith(prefix) and key > after)
        return [{"key": key, "version": self.entries[key][1]} for key in keys[:limit]]


@dataclass
class Handling:
    """A tool that is being served."""

    tool: Tool
    runner: Runner
    supply: Supply
    reports: Reports = field(default_factory=Reports)
    numbers: int = 0

    async def __call__(
        self, payload: Mapping[str, Any], *, worktree: Directory | None = None, within: float = LIMIT
    ) -> Done | Failed:
        self.numbers += 1
        context = Context(
            f"call-{self.numbers}",
            "episode",
            time.time() + within,
            worktree,
            self.reports,
            "task",
            {"a2a-depth": "1"},
        )

        async def supplier(tool: Tool, context: Context) -> Supply:
            return self.supply

        handler = handler_of(self.tool, self.runner, supplier)
        async with asyncio.timeout(within):
            return await handler(PlannedEffect("e1", "T", "t", 1, payload), context)

    async def begin(self, payload: Mapping[str, Any], **more: Any) -> asyncio.Task[Done | Failed]:
        """A call that has reported its progress once."""
        self.reports.came.clear()
        task = asyncio.create_task(self(payload, **more))
        came = asyncio.create_task(self.reports.came.wait())
        await asyncio.wait((task, came), timeout=LIMIT, return_when=asyncio.FIRST_COMPLETED)
        if not came.done():
            came.cancel()
            raise AssertionError(f"it did not begin: {task}")
        return task


@asynccontextmanager
async def serving(
    tool: Tool, supply: Supply | None = None, environ: Mapping[str, str] = os.environ
) -> AsyncIterator[Handling]:
    runner = runner_of(tool, environ)
    try:
        yield Handling(tool, runner, supply or Supply())
    finally:
        await runner.close()


def is_running(pid: int) -> bool:
    """Whether any thread of a process runs."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        return not select.select([descriptor], [], [], 0)[0]
    finally:
        os.close(descriptor)


async def until_gone(pid: int) -> None:
    async with asyncio.timeout(LIMIT):
        while is_running(pid):  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.01)
