"""One leg of a stream: the events under one correlation, checked and in order, up to their end or a cut."""

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bus import wire
from bus.client.pending import Call
from bus.driver import Incoming
from bus.errors import BusError, StreamCut
from bus.limits import Limits
from bus.names import ERROR, FINAL, GAP, SEQUENCE, STREAM, TASK_ID, TASK_SEQUENCE

BUFFER = 4096
"""Events that wait for a slow reader; one more, and the stream is cut, to be taken up when the reader is there."""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event of a stream: the `StreamResponse` object, and its places.

    `seq` counts within one correlation and begins anew when the stream is taken up again; `task_seq` is the place in
    the task's log, where the agent keeps one. `final` marks the last event. `gap` tells that events before this one
    are not kept any more, and that it holds the whole task instead.
    """

    body: dict[str, Any]
    seq: int
    task_seq: int | None
    final: bool
    gap: bool = False
    task_id: str | None = None


class Leg:
    """Takes the replies to one call and hands them out."""

    call: Call

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._events: deque[StreamEvent] = deque()
        self._wake = asyncio.Event()
        self._correlation: str | None = None
        self._run: object = None
        self._next = 0

    def attach(self, call: Call) -> None:
        """The call whose replies these are."""
        self.call = call
        call.result.add_done_callback(lambda _: self._wake.set())

    async def next(self, idle: float) -> StreamEvent | None:
        """The next event; None at the end. Raises `StreamCut`, or what the call failed with."""
        while not self._events:
            if self.call.result.done():
                self.call.result.result()
                return None
            self._wake.clear()
            try:
                # Before the first event, the resending of the call is what watches over it.
                async with asyncio.timeout(idle if self.call.started else None):
                    await self._wake.wait()
            except TimeoutError:
                self.call.fail(StreamCut(f"nothing came for {idle:g} s"))
        return self._events.popleft()

    def close(self) -> None:
        """Whatever became of the call was heard, or is not wanted."""
        result = self.call.result
        if result.done() and not result.cancelled():
            result.exception()

    def take(self, message: Incoming) -> None:
        """One reply. Called in the order of the queue."""
        headers = message.properties.headers
        if self._correlation is None:
            self._correlation = message.properties.correlation_id
            self._run = headers.get(STREAM)
            self.call.started = True
            self._wake.set()
        elif message.properties.correlation_id != self._correlation:
            return  # another attempt's stream: the same events once more
        sequence = headers.get(SEQUENCE)
        final = headers.get(FINAL) is True
        if not isinstance(sequence, int):
            self.call.fail(StreamCut("an event has no number"))
        elif final and headers.get(ERROR) is True and (sequence <= self._next or self._run != headers.get(STREAM)):
            self._read(message, headers, sequence)
        elif self._run != headers.get(STREAM):
            self.call.fail(StreamCut("another run of the request has taken over"))
        elif sequence > self._next:
            self.call.fail(StreamCut(f"event {self._next} is missing"))
        elif sequence == self._next:
            self._read(message, headers, sequence)

    def _read(self, message: Incoming, headers: Mapping[str, Any], sequence: int) -> None:
        try:
            body = wire.read_reply(message, self._limits)
        except BusError as error:
            self.call.fail(error)
            return
        if len(self._events) >= BUFFER:
            self.call.fail(StreamCut("the reader is too slow"))
            return
        self._next += 1
        task_sequence, task_id = headers.get(TASK_SEQUENCE), headers.get(TASK_ID)
        final = headers.get(FINAL) is True
        if body or not final:  # an empty last one is the end and no event
            self._events.append(
                StreamEvent(
                    body,
                    sequence,
                    task_sequence if isinstance(task_sequence, int) else None,
                    final,
                    headers.get(GAP) is True,
                    task_id if isinstance(task_id, str) else _task_id(body),
                )
            )
        self._wake.set()
        if final:
            self.call.succeed(body)


def _task_id(body: Mapping[str, Any]) -> str | None:
    for kind, key in (("task", "id"), ("statusUpdate", "taskId"), ("artifactUpdate", "taskId"), ("message", "taskId")):
        found = body.get(kind)
        if isinstance(found, Mapping) and isinstance(found.get(key), str) and found[key]:
            return str(found[key])
    return None
