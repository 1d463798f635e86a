"""The runs of one process by the key of their request: whoever asks again gets the first run's answer."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

_T = TypeVar("_T")

KEPT = 256
"""Runs that are remembered after their end, the latest ones."""


class Run(Generic[_T]):
    """One run. `task_id` is known from some moment on, and after its end at the latest, where there is a task."""

    def __init__(self) -> None:
        self.task_id: str | None = None
        self.told = asyncio.Event()
        """The task's id is known, or there is none."""
        self.answer: asyncio.Future[_T] = asyncio.get_running_loop().create_future()

    def tell(self, task_id: str | None) -> None:
        """The task that the run works on."""
        if task_id and self.task_id is None:
            self.task_id = task_id
            self.told.set()


class Runs(Generic[_T]):
    """Runs under way and the last that ended. A run that failed or was given up is forgotten: it may be tried again."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._runs: dict[Hashable, Run[_T]] = {}

    def find(self, key: Hashable) -> Run[_T] | None:
        """The run of a request that came before."""
        return self._runs.get(key)

    async def start(self, key: Hashable, work: Callable[[Run[_T]], Awaitable[_T]]) -> _T:
        """Run a request for the first time."""
        run = self._runs[key] = Run()
        try:
            answer = await work(run)
        except BaseException as error:
            del self._runs[key]
            if isinstance(error, Exception):
                run.answer.set_exception(error)
                run.answer.exception()  # nobody has to wait for it
            else:
                run.answer.cancel()
            raise
        else:
            run.answer.set_result(answer)
            for old in [each for each, past in self._runs.items() if past.answer.done()][: -self._kept]:
                del self._runs[old]
            return answer
        finally:
            run.told.set()
