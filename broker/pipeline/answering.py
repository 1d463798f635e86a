"""Answering those who wait for a call whose request is acknowledged already, once the call has ended."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import orjson

from bus import BusError, InvalidAgentResponse, InvalidParams

from .. import answers
from ..ledger.ledger import Ledger
from ..ledger.tasks import Task
from ..ledger.waiters import Waiter

Answer = Callable[[str, str, bytes | BusError], Awaitable[bool]]
"""Answers at an address, to an operation, with a body or an error; False when nobody is there any more.

See `bus.Server.answer`."""

log = logging.getLogger(__name__)


class Answering:
    """Answers the waiters of ended tasks, through `answer` once that is set; until then they stay."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._busy: dict[str, asyncio.Task[None]] = {}
        self.answer: Answer | None = None

    def begin(self, task_id: str, episode: str) -> asyncio.Task[None]:
        """Answer those who wait for this task, beside everything else."""
        found = self._busy.get(task_id)
        if found is None:
            found = self._busy[task_id] = asyncio.create_task(self._answer(task_id, episode), name=f"answer {task_id}")
            found.add_done_callback(lambda _: self._busy.pop(task_id))
        return found

    async def settled(self, task_id: str) -> None:
        """Wait until those who wait for this task are answered, if that is under way."""
        found = self._busy.get(task_id)
        if found is not None:
            await asyncio.wait({found})

    async def close(self) -> None:
        """Leave whoever is not answered yet to others."""
        for task in self._busy.values():
            task.cancel()
        await asyncio.gather(*self._busy.values(), return_exceptions=True)

    async def _answer(self, task_id: str, episode: str) -> None:
        try:
            waiting = await self._ledger.waiters.of(task_id)
            task = await self._ledger.tasks.get(task_id, episode) if waiting else None
            if task is None or task.receipt is None or self.answer is None:
                return
            for waiter in waiting:
                if not await self._tell(self.answer, waiter, await self._body(task, waiter)):
                    log.info("task %s: a caller who waited for it is gone", task_id)
                await self._ledger.waiters.drop([waiter])
        except BusError as error:
            log.info("task %s: those who wait for it are answered later: %s", task_id, error)
        except Exception:
            log.exception("task %s: those who wait for it could not be answered", task_id)

    async def _tell(self, answer: Answer, waiter: Waiter, body: bytes) -> bool:
        try:
            return await answer(waiter.address, waiter.operation, body)
        except InvalidAgentResponse as error:
            return await answer(waiter.address, waiter.operation, error)
        except InvalidParams:
            return False  # an address of another prefix: nobody reads there

    async def _body(self, task: Task, waiter: Waiter) -> bytes:
        said = answers.standing(task)
        if waiter.history and task.input_ref:
            kept = (await self._ledger.objects([task.input_ref])).get(task.input_ref)
            if kept is not None:
                said["history"] = [answers.asked(task, kept.payload)]
        return orjson.dumps({"task": said})
