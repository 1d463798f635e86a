"""Calls that run in this process: who waits for one, what may interrupt it, who follows its task."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from ..ledger.operations import Receipt


class Canceled(Exception):
    """The call was canceled, or lost to another worker; what it was doing has ended."""


class Run:
    """One call that runs here. `opened` is set once its task is in the ledger, with an intent or with its outcome.

    `reserved` tells that the intent is this worker's, `lost` that it is not any more. `joined` tells that more than
    one has asked for it, `long` that it may take longer than its request may stay unacknowledged. `held` tells that an
    acknowledged request stays in this worker's hands until the call ends.
    """

    def __init__(
        self,
        task_id: str,
        session: str,
        episode: str,
        context_id: str,
        fingerprint: str,
        root_task: str | None,
        *,
        long: bool = False,
    ) -> None:
        self.task_id = task_id
        self.session = session
        self.context_id = context_id
        self.episode = episode
        self.fingerprint = fingerprint
        self.root_task = root_task
        self.long = long
        self.joined = False
        self.held = False
        self.opened = asyncio.Event()
        self.reserved = False
        self.lost = False
        self.canceled = False
        self._abandoned = False
        self._interruptible = False
        self._task: asyncio.Task[Receipt] | None = None

    def start(self, task: "asyncio.Task[Receipt]") -> None:
        """The task that runs the call."""
        self._task = task
        task.add_done_callback(lambda _: self.opened.set())

    @property
    def task(self) -> "asyncio.Task[Receipt]":
        """The task that runs the call; shield it, since others wait for it too."""
        if self._task is None:
            raise RuntimeError("the call was not started")
        return self._task

    async def receipt(self) -> Receipt:
        """What comes of the call. Whoever waits may go away without ending it."""
        return await asyncio.shield(self.task)

    def cancel(self) -> None:
        """End what can be ended of it; what comes of it is committed all the same."""
        self.canceled = True
        self._interrupt()

    def lose(self) -> None:
        """Another worker has it: end what can be ended of it, and commit nothing."""
        self.lost = True
        self._interrupt()

    def _interrupt(self) -> None:
        if self._interruptible and not self.task.done():
            self._interruptible = False  # once: a second one would break the handler's own end
            self.task.cancel()

    def abandon(self) -> None:
        """Let go of it as a process that dies would: nothing is committed."""
        self._abandoned = True
        self.task.cancel()

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """What a cancel ends. Raises Canceled when it did, and at the beginning when it came before."""
        if self._ending():
            raise Canceled
        self._interruptible = True
        try:
            yield
        except asyncio.CancelledError:
            if not self._ending():
                raise
            self.task.uncancel()
            raise Canceled from None
        finally:
            self._interruptible = False
        while self._ending() and self.task.cancelling():
            self.task.uncancel()  # it was asked to end and came to its result instead

    def _ending(self) -> bool:
        return (self.canceled or self.lost) and not self._abandoned


class Wakes:
    """Wakes those who follow a task when this process has written something of it."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}

    @contextmanager
    def follow(self, task_id: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever there may be news; the follower clears it before it looks."""
        event = asyncio.Event()
        waiting = self._waiting.setdefault(task_id, set())
        waiting.add(event)
        try:
            yield event
        finally:
            waiting.discard(event)
            if not waiting and self._waiting.get(task_id) is waiting:
                del self._waiting[task_id]

    def wake(self, task_id: str) -> None:
        """There may be news of a task."""
        for event in self._waiting.get(task_id, ()):
            event.set()
