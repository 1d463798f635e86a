import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from broker.worktrees.worktrees import WorktreeError, Worktrees

HOLDER = """
import fcntl, os, signal, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
signal.pause()
"""


WORKER = """
import asyncio, sys
from pathlib import Path
from broker import Worktrees
from skills.process import run_process

async def main():
    async with Worktrees(Path(sys.argv[1])).hold("ep1") as worktree:
        script = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
        command = [sys.executable, "-c", script, sys.argv[2]]
        if sys.argv[3] == "killed":
            await run_process(command, env={}, pass_fds=[worktree.lock])
        else:
            await asyncio.create_subprocess_exec(*command, pass_fds=[worktree.lock])
            while not await asyncio.to_thread(sys.stdin.readline):
                pass
    print("let go", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    repo = tmp_path / "repo"
    for arguments in (
        ["init", "-q", str(repo)],
        [
            "-C",
            str(repo),
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b.invalid",
            "commit",
            "-q",
            "--allow-empty",
            "-m",
            "begin",
        ],
    ):
        subprocess.run(["git", *arguments], check=True)
    return repo


async def test_an_empty_worktree(worktrees: Worktrees) -> None:
    path = await worktrees.create("ep1")
    assert path.is_dir()
    assert path.stat().st_mode & 0o777 == 0o700
    assert await worktrees.create("ep1") == path


def _git(repository: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, text=True, check=True).stdout


async def test_a_git_worktree_on_its_own_branch(worktrees: Worktrees, repository: Path) -> None:
    path = await worktrees.create("ep1", repo=repository)
    assert "[skillbus/ep1]" in _git(repository, "worktree", "list")
    assert (path / ".git").is_file()
    other = await worktrees.create("ep2", repo=repository, branch="work")
    assert "[work]" in _git(repository, "worktree", "list")
    assert other.is_dir()


async def test_many_worktrees_of_one_repository_at_once(worktrees: Worktrees, repository: Path) -> None:
    made = await asyncio.gather(*(worktrees.create(f"ep{n}", repo=repository) for n in range(8)))
    assert all(path.is_dir() for path in made)


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "../x", "A", ".locks", "-x", "a\n", "é"])
async def test_a_name_that_is_no_episode(worktrees: Worktrees, name: str) -> None:
    with pytest.raises(WorktreeError, match="not the name of an episode"):
        await worktrees.create(name)


async def test_what_can_not_be_made(worktrees: Worktrees, repository: Path, tmp_path: Path) -> None:
    await worktrees.create("ep1")
    with pytest.raises(WorktreeError, match="has a worktree already"):
        await worktrees.create("ep1", repo=repository)
    with pytest.raises(WorktreeError, match="a branch needs a repository"):
        await worktrees.create("ep2", branch="x")
    with pytest.raises(WorktreeError, match="git could not make the worktree"):
        await worktrees.create("ep3", repo=tmp_path / "none")
    with pytest.raises(WorktreeError, match="git could not make the worktree"):
        await worktrees.create("ep4", repo=repository, branch="--evil")
    assert not (worktrees.root / "ep3").exists()


async def test_a_link_is_no_worktree(worktrees: Worktrees, tmp_path: Path) -> None:
    await worktrees.create("ep1")
    outside = tmp_path / "outside"
    outside.mkdir()
    (worktrees.root / "ep2").symlink_to(outside)
    with pytest.raises(WorktreeError, match="not a folder of its own"):
        async with worktrees.hold("ep2"):
            pytest.fail("a link was opened")
    with pytest.raises(WorktreeError, match="has a worktree already"):
        await worktrees.create("ep2")
    with pytest.raises(WorktreeError, match="has no worktree"):
        async with worktrees.hold("ep3"):
            pytest.fail("nothing was opened")


async def test_one_at_a_time_in_the_order_asked(worktrees: Worktrees) -> None:
    await worktrees.create("ep1")
    inside: list[int] = []
    order: list[int] = []

    async def work(number: int) -> None:
        async with worktrees.hold("ep1"):
            inside.append(number)
            assert len(inside) == 1
            await asyncio.sleep(0)
            order.append(inside.pop())

    await asyncio.gather(*(work(n) for n in range(20)))
    assert order == list(range(20))


async def test_episodes_do_not_wait_for_each_other(worktrees: Worktrees) -> None:
    for name in ("ep1", "ep2"):
        await worktrees.create(name)
    async with worktrees.hold("ep1"), worktrees.hold("ep2"):
        pass


async def test_another_process_is_waited_for_and_its_death_frees_the_lock(worktrees: Worktrees) -> None:
    await worktrees.create("ep1")
    async with worktrees.hold("ep1"):
        pass
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, str(worktrees.path("ep1")), stdout=asyncio.subprocess.PIPE
    )
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"held\n"

    async def take() -> None:
        async with worktrees.hold("ep1"):
            pass

    waiting = asyncio.create_task(take())
    done, _ = await asyncio.wait({waiting}, timeout=0.05)
    assert not done
    holder.kill()
    await asyncio.wait_for(waiting, 10)
    await holder.wait()


@pytest.mark.parametrize("how", ["killed", "done"])
async def test_what_a_worker_has_started_keeps_the_lock_only_when_that_was_killed(
    worktrees: Worktrees, tmp_path: Path, how: str
) -> None:
    await worktrees.create("ep1")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORKER, str(worktrees.root), str(fifo), how,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    started = int(await asyncio.to_thread(fifo.read_text))
    waiting = asyncio.create_task(_hold(worktrees))
    try:
        if how == "killed":
            worker.kill()
            await worker.wait()
            done, _ = await asyncio.wait({waiting}, timeout=0.2)
            assert not done
            os.kill(started, signal.SIGKILL)
        else:
            assert worker.stdin is not None
            worker.stdin.write(b"\n")
        await asyncio.wait_for(waiting, 10)
    finally:
        with suppress(ProcessLookupError):
            os.kill(started, signal.SIGKILL)
        if worker.returncode is None:
            worker.kill()
            await worker.wait()


async def test_a_cancelled_wait_leaves_no_trace(worktrees: Worktrees) -> None:
    await worktrees.create("ep1")
    before = len(list(Path("/proc/self/fd").iterdir()))
    async with worktrees.hold("ep1"):
        waiting = asyncio.create_task(_hold(worktrees))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.wait_for(_hold(worktrees), 5)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert worktrees._turns == {}


async def _hold(worktrees: Worktrees) -> None:
    async with worktrees.hold("ep1"):
        pass
