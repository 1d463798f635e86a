"""A tiny handler in the worker's process, in a Python host and in a JavaScript host: calls a second, and the start."""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from skills import Context, Done
from skills.handlers import Runner, Supply, Tool, runner_of
from skills.handlers.call import Call

from .measure import Call as Measured
from .measure import Run, middle, run

SHAPE: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}
PYTHON = "async def echo(request):\n    return request\n\n\ndef plain(request):\n    return request\n"
JAVASCRIPT = "export const echo = async (request) => request;\n"
PAYLOAD = {"text": "x" * 200}
STARTS = 5


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="make bench BENCH_ARGS=handlers", description=__doc__)
    parser.add_argument("--calls", type=int, default=2000, help="calls a run (default 2000)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds, of which the median counts")
    parser.add_argument("--hosts", type=int, default=2, help="hosts of a tool (default 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as well")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="skillbus-bench-") as folder:
        rows = asyncio.run(bench(Path(folder), options))
    report(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


async def bench(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    (folder / "handlers.py").write_text(PYTHON)
    (folder / "handlers.mjs").write_text(JAVASCRIPT)
    tools = {
        "in process, async": _tool(folder, "echo", concurrency=64),
        "in process, thread": _tool(folder, "plain", concurrency=64),
        "Python host": _tool(folder, "echo", concurrency=options.hosts, isolation="process"),
        "JavaScript host": _tool(folder, "echo", concurrency=options.hosts, language="javascript"),
    }
    starts = {name: await _starts(tool) for name, tool in tools.items()}
    runners = {name: runner_of(tool, os.environ) for name, tool in tools.items()}
    for runner in runners.values():
        await runner.warm()
    runs: dict[tuple[str, int], list[Run]] = {}
    for number in range(options.rounds + 1):
        for name, runner in runners.items():
            for in_flight in (1, 16):
                calls = options.calls if number else max(options.calls // 8, 10)
                one = await run(_calling(runner, tools[name]), calls=calls, in_flight=in_flight, first=0)
                if number:
                    runs.setdefault((name, in_flight), []).append(one)
    for runner in runners.values():
        await runner.close()
    figures = {key: middle(found) for key, found in runs.items()}
    return [
        {
            "name": name, "in_flight": count, "rate": one.rate, "p50_ms": one.p50, "p99_ms": one.p99,
            "start_ms": starts[name],
        }
        for (name, count), one in figures.items()
    ]  # fmt: skip


def _tool(folder: Path, function: str, *, language: Any = "python", **more: Any) -> Tool:
    file = folder / ("handlers.py" if language == "python" else "handlers.mjs")
    return Tool(f"bench.{function}", language, folder, function, "request", SHAPE, SHAPE, file=file, **more)


def _calling(runner: Runner, tool: Tool) -> Measured:
    async def call(number: int) -> None:
        context = Context(f"call-{number}", "bench", time.time() + 60)
        outcome = await runner.run(Call(tool, PAYLOAD, context, Supply()))
        if not isinstance(outcome, Done) or outcome.output != PAYLOAD:
            raise RuntimeError(f"{tool.id}: {outcome}")

    return call


async def _starts(tool: Tool) -> float:
    """Milliseconds from nothing to the first answer, the middle of some."""
    taken = []
    for number in range(STARTS):
        runner = runner_of(tool, os.environ)
        begun = time.perf_counter()
        await _calling(runner, tool)(number)
        taken.append((time.perf_counter() - begun) * 1e3)
        await runner.close()
    return statistics.median(taken)


def report(rows: list[dict[str, Any]]) -> None:
    table = Table(title="calls of a handler, without a bus and a ledger")
    for title in ("handler", "in flight", "calls/s", "p50 ms", "p99 ms", "first call ms"):
        table.add_column(title, justify="left" if title == "handler" else "right")
    for row in rows:
        table.add_row(
            row["name"], str(row["in_flight"]), f"{row['rate']:,.0f}", f"{row['p50_ms']:.2f}", f"{row['p99_ms']:.2f}",
            f"{row['start_ms']:.0f}",
        )  # fmt: skip
    Console().print(table)
