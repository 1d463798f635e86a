"""Running a call many times and saying how long it took."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Call = Callable[[int], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Run:
    """One run: calls a second, and the time of a call in milliseconds, middle and ninety-ninth of a hundred."""

    rate: float
    p50: float
    p99: float


async def run(call: Call, *, calls: int, in_flight: int, first: int) -> Run:
    """`calls` calls, at most `in_flight` at once, numbered from `first`."""
    numbers = iter(range(first, first + calls))
    taken: list[float] = []

    async def one_after_another() -> None:
        for number in numbers:
            begun = time.perf_counter()
            await call(number)
            taken.append(time.perf_counter() - begun)

    begun = time.perf_counter()
    await asyncio.gather(*(one_after_another() for _ in range(in_flight)))
    elapsed = time.perf_counter() - begun
    taken.sort()
    return Run(calls / elapsed, taken[calls // 2] * 1e3, taken[calls * 99 // 100] * 1e3)


def middle(runs: list[Run]) -> Run:
    """The median of each figure over several runs."""
    return Run(*(statistics.median(getattr(one, name) for one in runs) for name in ("rate", "p50", "p99")))
