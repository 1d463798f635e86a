import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from skills.process import Finished, run_process

ENV = {"PATH": os.defpath}
FAMILY = """
import os, signal, sys, time
deaf = len(sys.argv) > 2
if deaf:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child:
    with open(sys.argv[1], "w") as fifo:
        fifo.write(f"{os.getpid()} {child}")
time.sleep(600)
"""


LEAVING = """
import os, sys, time
if not os.fork():
    os.setsid()
    with open(sys.argv[1], "w") as fifo:
        fifo.write(str(os.getpid()))
    time.sleep(600)
os.write(1, b"x" * 60_000)
time.sleep(600 * (len(sys.argv) - 2))
"""


def is_there(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has asked for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_program_and_what_it_says() -> None:
    script = "import sys; sys.stderr.write('e'); print(sys.stdin.read().upper()); sys.exit(3)"
    assert await run_process([sys.executable, "-c", script], env=ENV, stdin=b"hello") == Finished(
        3, b"HELLO\n", b"e", cut=False
    )


async def test_output_has_a_limit_and_input_need_not_be_read() -> None:
    script = "print('x' * 300_000)"
    finished = await run_process([sys.executable, "-c", script], env=ENV, stdin=b"y" * 1_000_000, limit=1000)
    assert (finished.status, finished.stdout, finished.cut) == (0, b"x" * 1000, True)


async def test_the_environment_is_the_one_given(tmp_path: Path) -> None:
    script = "import os; print(sorted(set(os.environ) - {'LC_CTYPE'}), os.getcwd())"
    finished = await run_process([sys.executable, "-c", script], env={"ONE": "1"}, cwd=tmp_path)
    assert finished.stdout.decode().strip() == f"['ONE'] {tmp_path.resolve()}"


async def test_what_cannot_be_started() -> None:
    with pytest.raises(OSError):
        await run_process(["/no/such/program"], env=ENV)


async def test_what_it_leaves_behind_ends_with_it() -> None:
    script = "import os, time\npid = os.fork()\nif pid: print(pid, flush=True)\nelse: time.sleep(600)"
    finished = await run_process([sys.executable, "-c", script], env=ENV)
    assert finished.status == 0
    assert not is_there(int(finished.stdout))


@pytest.mark.parametrize("canceled", [False, True])
async def test_what_has_left_its_group_is_not_waited_for(tmp_path: Path, canceled: bool) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    running = asyncio.create_task(
        run_process([sys.executable, "-c", LEAVING, str(fifo), *["stay"][:canceled]], env=ENV, stdin=b"y" * 1_000_000)
    )
    left = int(await asyncio.to_thread(fifo.read_text))
    try:
        if canceled:
            running.cancel()
        async with asyncio.timeout(60):
            await asyncio.wait([running])
        assert is_there(left)
    finally:
        os.kill(left, signal.SIGKILL)
    assert running.cancelled() if canceled else running.result().stdout == b"x" * 60_000


@pytest.mark.parametrize("how", [[], ["deaf"]], ids=["asked", "made to"])
async def test_a_cancel_ends_the_whole_group(tmp_path: Path, how: list[str]) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    running = asyncio.create_task(
        run_process([sys.executable, "-c", FAMILY, str(fifo), *how], env=ENV, grace=0.2 if how else 20)
    )
    pids = [int(pid) for pid in (await asyncio.to_thread(fifo.read_text)).split()]
    assert all(is_there(pid) for pid in pids)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not any(is_there(pid) for pid in pids)


async def test_a_signal_is_a_negative_status() -> None:
    script = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert (await run_process([sys.executable, "-c", script], env=ENV)).status == -signal.SIGKILL
