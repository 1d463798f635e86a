import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from deploy.child import Child

ROOT = Path(__file__).parents[2]
PAUSE = [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"]


def ends(pid: int, *, within: float) -> bool:
    """Wait until a process that need not be a child of this one is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], within)[0])
    finally:
        os.close(descriptor)


def start(command: list[str], folder: Path) -> tuple[Child, str]:
    """A child that has begun to run, and the first line that it wrote."""
    reader, writer = os.pipe()
    with os.fdopen(reader) as lines, os.fdopen(writer, "wb") as output:
        child = Child(command, env={"PATH": os.defpath}, cwd=folder, output=output)
        output.close()
        return child, lines.readline()


def test_it_runs_the_program_until_it_is_told_to_end(tmp_path: Path) -> None:
    child, line = start(PAUSE, tmp_path)
    assert (child.alive, child.status, line) == (True, None, "up\n")
    child.end()
    assert (child.alive, child.status) == (False, -signal.SIGTERM)


def test_one_that_heeds_no_signal_is_killed(tmp_path: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    child, _ = start([sys.executable, "-c", deaf], tmp_path)
    child.end(patience=0.01)
    assert child.status == -signal.SIGKILL


def test_a_frozen_one_ends_too(tmp_path: Path) -> None:
    child, _ = start(PAUSE, tmp_path)
    os.kill(child.pid, signal.SIGSTOP)
    child.end()
    assert child.status == -signal.SIGTERM


def test_it_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    children: list[Child] = []
    thread = threading.Thread(target=lambda: children.append(start(PAUSE, tmp_path)[0]))
    thread.start()
    thread.join()
    assert not ends(children[0].pid, within=0.2)
    children[0].end()


def test_a_program_that_is_missing_ends_at_once(tmp_path: Path) -> None:
    child, line = start([str(tmp_path / "absent")], tmp_path)
    assert "Traceback" in line
    child.end()
    assert child.status not in (None, 0)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_when_its_parent_is_killed(tmp_path: Path, how: signal.Signals) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from deploy.child import Child\n"
        f"child = Child({PAUSE!r}, env={{}}, cwd=Path('.'), output=sys.stderr.buffer)\n"
        "print(child.pid, flush=True)\n"
        "signal.pause()"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", script], env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.send_signal(how)
    assert ends(pid, within=10)
