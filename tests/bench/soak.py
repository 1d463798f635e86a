"""`python -m tests.bench soak`: whether the memory of a client and of a worker stays as it is over many calls.

Both are processes of their own. After each part of the calls the client waits until nothing is under way and collects
its garbage; then the resident memory of both is read. A line is laid through the readings after the warm-up: what
counts is its slope, in bytes a call. Nothing here depends on how long anything takes.
"""

import argparse
import asyncio
import contextlib
import gc
import itertools
import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import bus
from broker.chain.provenance import Provenance
from broker.grants.grant import Grant
from broker.ledger.ledger import Ledger
from broker.sessions import Credential, mint
from deploy.rabbitmq import PrivateNode

from . import echo

PARTS = 25
WARM_UP = 5
"""Parts of the whole that are not looked at: caches fill, pools grow."""

BOUND = 64.0
"""Bytes a call. A call of the smallest kind that is kept for good costs some 2000."""

SECRET = "SKILLBUS_SOAK_SECRET"
EVENTS = 10
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Reading:
    """After `calls` calls: resident bytes of both, what the client still has in its tables, who runs at the worker."""

    calls: int
    client: int
    worker: int
    pending: int


def slope(points: list[tuple[int, int]]) -> float:
    """The slope of the line with the least squares through these points."""
    count = len(points)
    middle_x, middle_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / sum((x - middle_x) ** 2 for x, _ in points)


def main(arguments: list[str]) -> None:
    """Run, print the figures, and end with status 1 where memory grows."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench soak", description=__doc__)
    parser.add_argument("--load", choices=("governed", "echo", "streams"), default="governed", help="what is called")
    parser.add_argument("--calls", type=int, default=50_000, help="calls in all (default 50000)")
    parser.add_argument("--in-flight", type=int, default=64, help="calls at once (default 64)")
    parser.add_argument("--bound", type=float, default=BOUND, help="bytes a call that are borne (default %(default)g)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the readings to FILE as well")
    parser.add_argument("--client", nargs=2, metavar=("URL", "AGENT"), help=argparse.SUPPRESS)
    parser.add_argument("--agent", nargs=2, metavar=("URL", "AGENT"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.client:
        asyncio.run(call(options.client[0], options.client[1], options))
        return
    if options.agent:
        asyncio.run(echo.serve(options.agent[0], options.agent[1]))
        return
    with ExitStack() as stack:
        url = os.environ.get("SKILLBUS_TEST_AMQP_URL") or stack.enter_context(PrivateNode()).url
        readings = asyncio.run(soak(url, options))
    grown = report(readings, options.bound, Console())
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in readings], indent=2) + "\n", encoding="utf-8")
    sys.exit(1 if grown else 0)


async def soak(url: str, options: argparse.Namespace) -> list[Reading]:
    """Run both processes and read their memory."""
    agent = f"soak-{uuid.uuid4().hex[:8]}"
    own = [sys.executable, "-m", "tests.bench", "soak"]
    async with AsyncExitStack() as stack:
        stack.push_async_callback(bus.remove, url, agent)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skillbus-soak-")))
        secret = ""
        if options.load == "governed":
            secret = await prepare(folder)
            command = [str(Path(sys.executable).with_name("skillbus")), "worker", "--ready-fd", "1"]
            settings = {"AMQP_URL": url, "AGENT": agent, "STATE_DIR": str(folder), "LOG_LEVEL": "warning"}
            settings["DECLARE"] = "true"
            environment = {f"SKILLBUS_{name}": value for name, value in settings.items()}
        else:
            command, environment = [*own, "--agent", url, agent], {}
        worker = await stack.enter_async_context(running(command, environment))
        await line(worker)
        given = ["--load", options.load, "--calls", str(options.calls), "--in-flight", str(options.in_flight)]
        client = await stack.enter_async_context(running([*own, *given, "--client", url, agent], {SECRET: secret}))
        readings = []
        for _ in range(PARTS):
            said = json.loads(await line(client))
            readings.append(Reading(said["calls"], resident(client.pid), resident(worker.pid), said["pending"]))
            assert client.stdin is not None
            client.stdin.write(b"\n")
        if options.load == "governed":
            await check(folder, readings[-1].calls)
    return readings


async def prepare(folder: Path) -> str:
    """A ledger with a session; returns the secret of its credential."""
    async with await Ledger.open(str(folder / "ledger.db")) as ledger:
        credential, session = mint("soak", [Grant("Workspace.Read", "worktree", 10**9, 2**40)], ttl=24 * 3600)
        await ledger.add_session(session)
    return credential.reveal()


async def check(folder: Path, calls: int) -> None:
    """Every call is in the log, and the log holds."""
    async with await Ledger.open(str(folder / "ledger.db")) as ledger:
        verdict = await Provenance(ledger).verify("soak")
    if verdict.faults or verdict.entries != calls:
        raise RuntimeError(f"{calls} calls, {verdict.entries} entries, faults: {verdict.faults[:3]}")


async def call(url: str, agent: str, options: argparse.Namespace) -> None:
    """The client's process: a part of the calls, a line about it, and so on when a line comes back."""
    secret = os.environ.pop(SECRET, "")
    authorize = Credential(secret).authorize if secret else None
    numbers = itertools.count()
    async with await bus.connect(url, authorize=authorize) as client:
        one = calling(client, agent, options.load)
        for part in range(1, PARTS + 1):
            todo = iter(range(options.calls * (part - 1) // PARTS, options.calls * part // PARTS))

            async def one_after_another(todo: Any = todo) -> None:
                for _ in todo:
                    await one(next(numbers))

            await asyncio.gather(*(one_after_another() for _ in range(options.in_flight)))
            gc.collect()
            kept = client.stats().pending + len(client._pending._by_id)
            print(json.dumps({"calls": options.calls * part // PARTS, "pending": kept}), flush=True)
            await asyncio.to_thread(sys.stdin.readline)


def calling(client: bus.Client, agent: str, load: str) -> Callable[[int], Awaitable[None]]:
    """What one call is."""

    async def governed(number: int) -> None:
        message = {
            "messageId": f"soak-{number}",
            "role": "ROLE_USER",
            "parts": [{"data": {"expr": f"{number}*2"}}],
            "metadata": {"skill_id": "calc"},
        }
        answer = await client.send(agent, message)
        if answer["task"]["artifacts"][0]["parts"][0]["text"] != str(number * 2):
            raise RuntimeError(f"call {number} was answered with {answer}")

    async def plain(number: int) -> None:
        body = {"number": number}
        if await client.request(agent, "SendMessage", body) != body:
            raise RuntimeError(f"call {number} was answered with something else")

    async def stream(number: int) -> None:
        body = {"number": number, "events": EVENTS}
        seen = [event async for event in client.stream(agent, "SendStreamingMessage", body)]
        if [event.seq for event in seen] != list(range(EVENTS)):
            raise RuntimeError(f"stream {number} had other events")

    return {"governed": governed, "echo": plain, "streams": stream}[load]


def resident(pid: int) -> int:
    """The bytes that a process has in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def report(readings: list[Reading], bound: float, console: Console) -> bool:
    """Print the figures. Returns whether memory grows, or something is left in a table."""
    table = Table(title="resident memory, MiB")
    for title in ("calls", "client", "worker"):
        table.add_column(title, justify="right")
    for each in readings[:: max(1, len(readings) // 12)] + readings[-1:]:
        table.add_row(f"{each.calls:,}", f"{each.client / 2**20:.1f}", f"{each.worker / 2**20:.1f}")
    console.print(table)
    looked_at = readings[WARM_UP - 1 :]
    grown = False
    for side in ("client", "worker"):
        found = slope([(each.calls, getattr(each, side)) for each in looked_at])
        grown = grown or found > bound
        console.print(f"{side}: {found:+.1f} bytes a call (at most {bound:g} are borne)")
    left = max(each.pending for each in readings)
    console.print(f"left in the client's tables: {left}")
    return grown or left > 0


async def line(process: asyncio.subprocess.Process) -> bytes:
    """The next line that a process prints."""
    assert process.stdout is not None
    said = await process.stdout.readline()
    if not said:
        raise RuntimeError("a process of the soak ended early")
    return said


@contextlib.asynccontextmanager
async def running(command: list[str], environment: dict[str, str]) -> AsyncIterator[asyncio.subprocess.Process]:
    started = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **environment}
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.terminate()
        await started.wait()
