"""Streams of a task's events: the same for everyone who listens, to be taken up again at any place."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import orjson

from bus import DeadlineExceeded, Reply, TaskNotFound, UnsupportedOperation

from .. import answers
from ..ledger.tasks import Task, chunks_of
from ..ledger.watch import LedgerUnavailable
from ..pipeline.pipeline import Pipeline
from ..pipeline.runs import Run
from .listing import MAX_BYTES

LEAD = 0.25
"""Seconds that a stream waits for its task to be in the ledger before it begins without."""

POLL = 0.25
"""Seconds between two looks at a task that runs in another process."""

_RARELY = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sent:
    """One message of a stream: its place in the task's log, whether events before it are missing, or it is the last."""

    seq: int
    body: Mapping[str, Any] | bytes
    gap: bool = False
    last: bool = False


class Streams:
    """Brings the events of tasks to those who follow them.

    A task's log has place 0 for the task as it began, then what its call reported, then the result and the final
    status. Only the reports are stored as events; both ends are read from the call itself.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._tasks = pipeline.ledger.tasks

    async def send(self, run: Run, after: int | None, reply: Reply, *, keep: bool = True) -> None:
        """Answer with the events of a call that runs here, until it ends.

        When the caller goes away the call goes on; with `keep` this returns when it has ended, since the request that
        brought it is not done before.
        """
        task = await self._opened(run)
        if task is None:
            first = Sent(0, {"task": answers.submitted(run.task_id, run.context_id, self._pipeline.clock())})
        else:
            first = await self._lead(task, after or 0)
        await _tell(reply, run.task_id, first)
        if first.last:
            return
        accepting = asyncio.create_task(self._accept(run, reply)) if run.long else None
        try:
            if await self._rest(run.task_id, first.seq, reply, run=run):
                return
            if keep:
                await run.receipt()
            await _tell(reply, run.task_id, replace(first, last=True))  # to nobody: the request is done with
        finally:
            if accepting is not None:
                accepting.cancel()
                await asyncio.gather(accepting, return_exceptions=True)

    async def subscribe(self, task: Task, after: int | None, deadline: float | None, reply: Reply) -> None:
        """Answer with a task as it is, then with its further events, or those after place `after`.

        Raises UnsupportedOperation for a task that has ended, when there is nothing left to tell of it.
        """
        if task.receipt is not None and (after is None or after >= task.events + 2):
            raise UnsupportedOperation("the task has ended; ask for it with GetTask")
        first = await (self._lead(task, after) if after is not None else self._snapshot(task, gap=False))
        await _tell(reply, task.id, first)
        if first.last:
            return
        remaining = None if deadline is None else max(deadline - self._pipeline.clock(), 0.001)
        try:
            async with asyncio.timeout(remaining):
                ended = await self._rest(task.id, first.seq, reply)
        except TimeoutError:
            raise DeadlineExceeded("the deadline of the subscription has passed; the task goes on") from None
        if not ended:
            await _tell(reply, task.id, replace(first, last=True))  # to nobody: the request is done with

    async def taken(self, run: Run) -> Task | None:
        """The task as soon as the ledger has it, here or from another worker; None when its call has ended."""
        while not run.task.done():
            try:
                async with asyncio.timeout(POLL):
                    await run.opened.wait()
            except TimeoutError:
                pass
            task = await self._tasks.get(run.task_id, run.episode)
            if task is not None and not run.task.done():
                return task
        return None

    async def _accept(self, run: Run, reply: Reply) -> None:
        """Acknowledge the request of a stream that has begun, once the ledger has its task."""
        while True:
            try:
                if await self.taken(run) is not None:
                    await reply.accept()
                return
            except LedgerUnavailable:
                await self._tasks.watch.back()

    async def ended(self, task_id: str) -> Task:
        """A task once it has ended, wherever it runs."""
        with self._pipeline.wakes.follow(task_id) as news:
            while True:
                news.clear()
                found = await self._tasks.follow(task_id, 1 << 60)
                if found is None:
                    raise TaskNotFound
                if found[0].receipt is not None:
                    return found[0]
                await self._pause(found[0], news)

    async def _opened(self, run: Run) -> Task | None:
        try:
            async with asyncio.timeout(LEAD):
                await run.opened.wait()
        except TimeoutError:
            pass
        if run.task.done():
            await run.receipt()
        return await self._tasks.get(run.task_id, run.episode)

    async def _lead(self, task: Task, after: int) -> Sent:
        """The leading event of a stream that goes on after a place in the log."""
        if await self._is_missing(task, after):
            return await self._snapshot(task, gap=True)
        if task.receipt is not None and after < task.events + 2:
            return Sent(after, {"task": answers.begun(task)})
        if task.receipt is not None:
            return Sent(task.events + 2, {"task": answers.standing(task)}, last=True)
        if after == 0:
            return Sent(0, {"task": answers.begun(task)})
        return Sent(min(after, task.events), {"task": answers.standing(task)})

    async def _is_missing(self, task: Task, after: int) -> bool:
        if after >= task.events:
            return False
        found = await self._tasks.follow(task.id, after)
        return found is None or not found[1] or found[1][0].seq != after + 1

    async def _snapshot(self, task: Task, *, gap: bool) -> Sent:
        """The task as it is, with all that it has sent ahead and that is still kept."""
        if task.receipt is not None:
            return Sent(task.events + 2, {"task": answers.standing(task)}, gap=gap, last=True)
        found = await self._tasks.follow(task.id, 0) if task.events else None
        kept = [event for event in (found[1] if found else ()) if event.seq <= task.events]
        whole = not task.events or (len(kept) == task.events and sum(len(event.body) for event in kept) <= MAX_BYTES)
        artifacts = chunks_of(kept) if whole else []
        return Sent(task.events, {"task": answers.standing(task, artifacts=artifacts)}, gap=gap or not whole)

    async def _rest(self, task_id: str, after: int, reply: Reply, *, run: Run | None = None) -> bool:
        """Whether the stream came to its end; it does not when its caller goes away."""
        async for each in self._follow(task_id, after, run):
            if not reply.heard:
                return False
            await _tell(reply, task_id, each)
        return True

    async def _follow(self, task_id: str, after: int, run: Run | None) -> AsyncIterator[Sent]:
        with self._pipeline.wakes.follow(task_id) as news:
            while True:
                news.clear()
                over = run is not None and run.task.done()
                try:
                    found = await self._tasks.follow(task_id, after)
                except LedgerUnavailable:
                    await self._tasks.watch.back()
                    continue
                if found is None and run is None:
                    raise TaskNotFound
                task, events = found or (None, [])
                if task is not None:
                    if task.events > after and (not events or events[0].seq != after + 1):
                        snapshot = await self._snapshot(task, gap=True)
                        after, events = snapshot.seq, []
                        yield snapshot
                        if snapshot.last:
                            return
                    for event in events:
                        after = event.seq
                        yield Sent(event.seq, event.body)
                    if task.receipt is not None:
                        for each in _end(task, after):
                            yield each
                        return
                if over and run is not None:
                    await run.receipt()
                await self._pause(task, news)

    async def _pause(self, task: Task | None, news: asyncio.Event) -> None:
        """Wait until there may be news of a task."""
        here = self._pipeline.running(task.id, task.episode) if task is not None else None
        if task is not None:
            with suppress(LedgerUnavailable):
                await self._pipeline.recover(task)
        try:
            async with asyncio.timeout(_RARELY if here is not None and here.opened.is_set() else POLL):
                await news.wait()
        except TimeoutError:
            pass


def _end(task: Task, after: int) -> list[Sent]:
    """What is left of the last two events of a task."""
    if task.receipt is None:
        return []
    artifact, status = answers.ending(task.receipt)
    last = task.events + 2
    return [each for each in (Sent(last - 1, artifact), Sent(last, status, last=True)) if each.seq > after or each.last]


async def _tell(reply: Reply, task_id: str, sent: Sent) -> None:
    headers: dict[str, str | int | bool] = {"a2a-task-id": task_id, "a2a-task-seq": sent.seq}
    if sent.gap:
        headers["a2a-gap"] = True
    body = sent.body if isinstance(sent.body, bytes) else orjson.dumps(sent.body)
    await reply.send(body, final=sent.last, headers=headers)
