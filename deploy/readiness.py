"""What a supervisor may know of a worker: a file that is there while it takes calls, and systemd's notifications."""

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from bus import State

BEAT = 1.0
"""Seconds between two looks at the worker; the file is touched each time."""


class Readiness:
    """Tells of one worker for as long as it runs.

    `state` and `paused` are those of its server. The file exists while calls are taken, and only then; its time of
    change is at most a few `BEAT` old in a worker that is alive. Where systemd asks for it (`NOTIFY_SOCKET`), it hears
    READY once, STATUS at each change, STOPPING, and WATCHDOG at each look: a worker that waits for its ledger or its
    broker is alive, and starting it again would not help it.
    """

    def __init__(
        self,
        state: Callable[[], State],
        paused: Callable[[], str | None],
        *,
        file: Path | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._state = state
        self._paused = paused
        self._file = file
        self._socket = environ.get("NOTIFY_SOCKET")
        self._told: str | None = None

    async def run(self) -> None:
        """Tell until cancelled, then that the worker is not ready any more."""
        self._notify("READY=1")
        try:
            while True:
                self._look()
                await asyncio.sleep(BEAT)
        finally:
            self._notify("STOPPING=1")
            self._mark(ready=False)

    def _look(self) -> None:
        state, reason = self._state(), self._paused()
        self._mark(ready=state is State.CONNECTED)
        status = "taking calls" if state is State.CONNECTED else f"{state}: {reason}" if reason else str(state)
        if status != self._told:
            self._told = status
            self._notify(f"STATUS={status}")
        self._notify("WATCHDOG=1")

    def _mark(self, *, ready: bool) -> None:
        if self._file is not None:
            # A file that can't be written is missing, which says the same as a worker that is not ready.
            with suppress(OSError):
                self._file.touch() if ready else self._file.unlink(missing_ok=True)

    def _notify(self, text: str) -> None:
        if not self._socket:
            return
        address = "\0" + self._socket[1:] if self._socket.startswith("@") else self._socket
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sending:
            sending.sendto(text.encode(), address)
