"""A child process that ends when this process ends, even by SIGKILL."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO

_LAUNCH = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the starting process is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class Child:
    """A running program; the kernel kills it when this process ends (Linux: the parent-death signal).

    The program must end its own children. It reads nothing, writes into `output`, and gets no signal from the
    terminal.
    """

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: IO[bytes]) -> None:
        launch = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), *command]
        started: Future[subprocess.Popen[bytes]] = Future()

        def keep() -> None:
            try:
                process = subprocess.Popen(
                    launch,
                    cwd=cwd,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            except BaseException as error:
                started.set_exception(error)
            else:
                started.set_result(process)
                process.wait()

        # The kernel takes the end of the thread that forked for the end of the parent: this one lives as long as
        # the child does.
        threading.Thread(target=keep, name=f"keeper of {Path(command[0]).name}", daemon=True).start()
        self._process = started.result()

    @property
    def pid(self) -> int:
        """The process id, to signal it by."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status, or None while it runs; negative when a signal ended it."""
        return self._process.poll()

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.status is None

    def end(self, how: signal.Signals = signal.SIGTERM, *, patience: float = 20.0) -> None:
        """Signal the program and wait until it is gone; it is killed when that takes longer than `patience`."""
        self._process.send_signal(how)
        self._process.send_signal(signal.SIGCONT)  # a stopped one would not see it
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
