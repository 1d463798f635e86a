"""`make bench`: measures on the broker of SKILLBUS_TEST_AMQP_URL, or on a private node, and prints ratios.

`make bench BENCH_ARGS=soak` looks at memory instead, `BENCH_ARGS=handlers` at handlers of declared tools alone.
"""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import bus
from broker.chain.provenance import Provenance
from broker.grants.grant import Grant
from broker.ledger.ledger import Ledger
from broker.sessions import Credential, mint
from broker.worktrees.worktrees import Worktrees
from deploy.rabbitmq import PrivateNode

from . import bare, echo, handlers, soak
from .measure import Call, Run, middle, run

EPISODES = 16
BODY = json.dumps({"message": {"parts": [{"data": {"text": "x" * 200}}]}}).encode()


def main() -> None:
    if sys.argv[1:2] == ["soak"]:
        soak.main(sys.argv[2:])
        return
    if sys.argv[1:2] == ["handlers"]:
        handlers.main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--calls", type=int, default=2000, help="calls a run with many in flight (default 2000)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds, of which the median counts")
    parser.add_argument("--in-flight", type=int, default=64, help="calls at once (default 64)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as well")
    parser.add_argument("--serve", nargs=3, metavar=("KIND", "URL", "NAME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        kind, url, name = options.serve
        asyncio.run({"bare": bare.serve, "echo": echo.serve}[kind](url, name))
        return
    url = os.environ.get("SKILLBUS_TEST_AMQP_URL")
    console = Console()
    with ExitStack() as stack:
        if url is None:
            url = stack.enter_context(PrivateNode()).url
        figures = asyncio.run(bench(url, options, console))
    report(figures, console)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


async def bench(url: str, options: argparse.Namespace, console: Console) -> dict[str, Any]:
    mark = uuid.uuid4().hex[:8]
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skillbus-bench-")))
        calls: dict[str, Call] = {}
        await stack.enter_async_context(process("bare", url, f"bench-bare-{mark}"))
        caller = bare.Caller(url, f"bench-bare-{mark}")
        await caller.open()
        stack.push_async_callback(caller.close)
        calls["bare aio-pika echo"] = lambda _: caller.call(BODY)
        await stack.enter_async_context(process("echo", url, f"bench-echo-{mark}"))
        client = await stack.enter_async_context(await bus.connect(url))
        calls["bus echo"] = lambda _: client.request(f"bench-echo-{mark}", "SendMessage", BODY)
        agent = f"bench-{mark}"
        credentials = await prepare(folder)
        await stack.enter_async_context(worker(folder, url, agent))
        clients = [
            await stack.enter_async_context(await bus.connect(url, authorize=one.authorize)) for one in credentials
        ]
        calls["governed calc"] = lambda n: governed(clients[0], agent, "calc", {"expr": f"{n}*2"}, n)
        calls["governed ailang-read, one episode"] = lambda n: governed(
            clients[0], agent, "ailang-read", {"path": "a.txt"}, n
        )
        calls[f"governed ailang-read, {EPISODES} episodes"] = lambda n: governed(
            clients[n % EPISODES], agent, "ailang-read", {"path": "a.txt"}, n
        )
        runs: dict[tuple[str, int], list[Run]] = {}
        first = 0
        for number in range(options.rounds + 1):
            with console.status(f"round {number} of {options.rounds}" if number else "warming up"):
                for name, call in calls.items():
                    for in_flight in (1, options.in_flight):
                        count = max(options.calls if in_flight > 1 else options.calls // 8, 10)
                        count = count if number else max(count // 8, 10)
                        one = await run(call, calls=count, in_flight=in_flight, first=first)
                        first += count
                        if number:
                            runs.setdefault((name, in_flight), []).append(one)
        entries = await check(folder)
    rows: list[dict[str, Any]] = [
        {"name": name, "in_flight": n, "rate": m.rate, "p50_ms": m.p50, "p99_ms": m.p99}
        for (name, n), m in ((key, middle(found)) for key, found in runs.items())
    ]
    base = {row["in_flight"]: row["rate"] for row in rows if row["name"] == "bare aio-pika echo"}
    for row in rows:
        row["ratio"] = row["rate"] / base[row["in_flight"]]
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "rounds": options.rounds,
        "entries_verified": entries,
        "rows": rows,
    }


async def governed(client: bus.Client, agent: str, skill: str, arguments: Any, number: int) -> None:
    message = {
        "messageId": f"bench-{number}",
        "role": "ROLE_USER",
        "parts": [{"data": arguments}],
        "metadata": {"skill_id": skill},
    }
    answer = await client.send(agent, message)
    state = answer["task"]["status"]["state"]
    if state != "TASK_STATE_COMPLETED":
        raise RuntimeError(f"{skill} ended {state}")


async def prepare(folder: Path) -> list[Credential]:
    """A ledger with a session, and a worktree with one file, for each episode."""
    worktrees = Worktrees(folder / "workspaces")
    credentials = []
    async with await Ledger.open(str(folder / "ledger.db")) as ledger:
        for number in range(EPISODES):
            episode = f"bench-{number}"
            path = await worktrees.create(episode)
            (path / "a.txt").write_text("x" * 256)
            credential, session = mint(episode, [Grant("Workspace.Read", "worktree", 10**9, 2**40)], ttl=3600)
            await ledger.add_session(session)
            credentials.append(credential)
    return credentials


async def check(folder: Path) -> int:
    """The number of log entries, all of them verified: a run that is fast and wrong does not count."""
    async with await Ledger.open(str(folder / "ledger.db")) as ledger:
        verdicts = [await Provenance(ledger).verify(episode) for episode in await ledger.episodes()]
    faults = [fault for verdict in verdicts for fault in verdict.faults]
    if faults:
        raise RuntimeError(f"the log does not hold: {faults[0]}")
    return sum(verdict.entries for verdict in verdicts)


@asynccontextmanager
async def process(kind: str, url: str, name: str) -> AsyncIterator[None]:
    """A serving process of this benchmark."""
    async with running([sys.executable, "-m", "tests.bench", "--serve", kind, url, name], {}):
        yield


@asynccontextmanager
async def worker(folder: Path, url: str, agent: str) -> AsyncIterator[None]:
    """A worker as users run it."""
    environment = {
        "SKILLBUS_AMQP_URL": url,
        "SKILLBUS_AGENT": agent,
        "SKILLBUS_STATE_DIR": str(folder),
        "SKILLBUS_LOG_LEVEL": "warning",
        "SKILLBUS_DECLARE": "true",
    }
    command = [str(Path(sys.executable).with_name("skillbus")), "worker", "--ready-fd", "1"]
    async with running(command, environment):
        yield


@asynccontextmanager
async def running(command: list[str], environment: dict[str, str]) -> AsyncIterator[None]:
    started = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, env={**os.environ, **environment})
    try:
        if started.stdout is None or not await asyncio.wait_for(started.stdout.readline(), 60):
            raise RuntimeError(f"{command[-3:]} did not become ready")
        yield
    finally:
        if started.returncode is None:
            started.terminate()
        await started.wait()


def report(figures: dict[str, Any], console: Console) -> None:
    table = Table(title="calls a second, and beside the bare echo of the same run")
    for title in ("call", "in flight", "calls/s", "ratio", "p50 ms", "p99 ms"):
        table.add_column(title, justify="left" if title == "call" else "right")
    for row in figures["rows"]:
        table.add_row(
            row["name"],
            str(row["in_flight"]),
            f"{row['rate']:,.0f}",
            f"{row['ratio']:.2f}",
            f"{row['p50_ms']:.2f}",
            f"{row['p99_ms']:.2f}",
        )
    console.print(table)
    console.print(f"{figures['entries_verified']} log entries written and verified")


if __name__ == "__main__":
    main()
