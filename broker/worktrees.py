"""The worktrees of episodes: made from a repository or empty, opened by descriptor, locked while an effect runs.

The lock is on the folder itself: it is wherever the folder is, nobody can remove the one and keep the other, and it
ends with the process that holds it.
"""

import asyncio
import fcntl
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from skills import Directory

from .sessions import EPISODE

_POLL = (0.002, 0.005, 0.01, 0.02, 0.05)


class WorktreeError(Exception):
    """A worktree can't be made or used; the message says why."""


class Worktrees:
    """The folder that holds one worktree an episode, each named after it."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}

    def path(self, episode: str) -> Path:
        if not EPISODE.fullmatch(episode):
            raise WorktreeError(f"{episode!r} is not the name of an episode")
        return self.root / episode

    async def create(self, episode: str, *, repo: Path | None = None, branch: str | None = None) -> Path:
        """Make the worktree of a new episode: a git worktree of `repo` on a new `branch`, or an empty folder.

        An existing worktree is left as it is when nothing else is asked for. Raises WorktreeError.
        """
        path = self.path(episode)
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.is_dir() and not path.is_symlink() and repo is None:
            return path
        if path.exists() or path.is_symlink():
            raise WorktreeError(f"the episode {episode!r} has a worktree already")
        if repo is None:
            if branch is not None:
                raise WorktreeError("a branch needs a repository: give --repo DIR")
            path.mkdir(mode=0o700)
            return path
        async with self._turn(".git"), _locked(self.root):
            await _git(repo, "worktree", "add", "-b", branch or f"skillbus/{episode}", "--", str(path))
        return path

    @asynccontextmanager
    async def hold(self, episode: str) -> AsyncIterator[Directory]:
        """The episode's worktree, for one effect at a time: in this process in the order asked, and against others.

        The lock ends with the process that holds it, however it ends. Raises WorktreeError when the worktree is
        missing or is not a real folder of its own.
        """
        path = self.path(episode)
        async with self._turn(episode), AsyncExitStack() as stack:
            try:
                if path.resolve(strict=True) != path or not path.is_dir():
                    raise WorktreeError(f"the worktree of {episode!r} is not a folder of its own")
                held = await stack.enter_async_context(_locked(path))
                directory = stack.enter_context(Directory.open(path))
                if not os.path.samestat(os.fstat(held), path.lstat()):
                    raise WorktreeError(f"the worktree of {episode!r} was replaced by another")
            except OSError:
                raise WorktreeError(f"the episode {episode!r} has no worktree here") from None
            yield directory

    @asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[None]:
        turn, users = self._turns.get(name, (asyncio.Lock(), 0))
        self._turns[name] = turn, users + 1
        try:
            async with turn:
                yield
        finally:
            turn, users = self._turns.pop(name)
            if users > 1:
                self._turns[name] = turn, users - 1


@asynccontextmanager
async def _locked(folder: Path) -> AsyncIterator[int]:
    """Hold the lock on a folder, against other processes. Raises OSError when it is no folder, or a link to one."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        attempt = 0
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_POLL[min(attempt, len(_POLL) - 1)])
                attempt += 1
        yield descriptor
    finally:
        os.close(descriptor)


async def _git(repo: Path, *arguments: str) -> None:
    if shutil.which("git") is None:
        raise WorktreeError("git is not installed: install it, or leave out --repo")
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": os.environ.get("HOME", "/"),
        "LC_ALL": "C",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
    }
    process = await asyncio.create_subprocess_exec(
        "git", "-C", str(repo), "-c", "core.hooksPath=/dev/null", *arguments,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        env=environment, start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(120):
            _, errors = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise WorktreeError("git did not end within 120 s") from None
    if process.returncode:
        raise WorktreeError(f"git could not make the worktree: {errors.decode(errors='replace').strip()[-500:]}")
