"""The worktrees of episodes: made from a repository or empty, opened by descriptor, locked while an effect runs.

The lock is on the folder itself: it is wherever the folder is, nobody can remove the one and keep the other, and it
ends with the process that holds it.
"""

import asyncio
import fcntl
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from skills import Directory

from ..sessions import EPISODE
from .repository import GitError, Loose, Repository

_SHOWN = 5
_POLL = (0.002, 0.005, 0.01, 0.02, 0.05)


class WorktreeError(Exception):
    """A worktree can't be made or used; the message says why."""


class Uncommitted(WorktreeError):
    """A worktree holds work that no branch does: `paths`, relative to it."""

    def __init__(self, path: Path, paths: tuple[str, ...]) -> None:
        self.paths = paths
        shown = ", ".join(paths[:_SHOWN]) + (", …" if len(paths) > _SHOWN else "")
        super().__init__(f"{path} holds {len(paths)} thing(s) that no branch does: {shown}")


@dataclass(frozen=True, slots=True)
class Removed:
    """A worktree that was removed, with so many files that git was told to ignore; its branch stays in `repository`."""

    path: Path
    ignored: int
    branch: str | None = None
    repository: Path | None = None


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
        async with self.creating(episode, repo=repo, branch=branch) as path:
            return path

    @asynccontextmanager
    async def creating(
        self, episode: str, *, repo: Path | None = None, branch: str | None = None
    ) -> AsyncIterator[Path]:
        """Make a worktree as `create` does, and take back what was made if that or the block fails."""
        path = self.path(episode)
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.is_dir() and not path.is_symlink() and repo is None:
            yield path
            return
        self._check_absent(path, episode)
        if repo is None:
            if branch is not None:
                raise WorktreeError("a branch needs a repository: give --repo DIR")
            path.mkdir(mode=0o700)
            try:
                yield path
            except BaseException:
                with suppress(OSError):
                    path.rmdir()
                raise
            return
        repository, branch = Repository(repo), branch or f"skillbus/{episode}"
        try:
            async with self._metadata():
                self._check_absent(path, episode)
                beginning = await repository.commit()
                await repository.add_worktree(path, branch)
        except GitError as error:
            raise WorktreeError(f"git could not make the worktree: {error}") from None
        try:
            async with self.hold(episode):
                await Repository(path, ceiling=self.root).check_out()
            yield path
        except BaseException as error:
            async with self._metadata():
                await repository.drop_worktree(path, branch, beginning or "")
            if isinstance(error, GitError):
                raise WorktreeError(f"git could not check out the worktree: {error}") from None
            raise

    async def remove(self, episode: str, *, discard: bool = False) -> Removed:
        """Remove an episode's worktree, once no effect runs in it. Its branch stays.

        Raises Uncommitted, having removed nothing, when that would lose work and `discard` does not allow it; and
        WorktreeError.
        """
        path = self.path(episode)
        async with self.hold(episode):
            repository = Repository.of_worktree(path)
            try:
                if repository is None:
                    loose = Loose(tuple(sorted(each.name for each in path.iterdir())), 0)
                else:
                    loose = await repository.loose()
                if loose.paths and not discard:
                    raise Uncommitted(path, loose.paths)
                if repository is not None:
                    branch, common = await repository.head(), await repository.common()
                    async with self._metadata():
                        await Repository(common).remove_worktree(path)
                    return Removed(path, loose.ignored, branch, common)
            except GitError as error:
                if not discard:
                    raise WorktreeError(f"git could not look at the worktree {path}: {error}") from None
            await asyncio.to_thread(shutil.rmtree, path)
            return Removed(path, 0)

    def _check_absent(self, path: Path, episode: str) -> None:
        if path.exists() or path.is_symlink():
            raise WorktreeError(f"the episode {episode!r} has a worktree already")

    @asynccontextmanager
    async def _metadata(self) -> AsyncIterator[None]:
        """The one turn of those that change what a repository knows of its worktrees."""
        async with self._turn(".git"), _locked(self.root):
            yield

    @asynccontextmanager
    async def hold(self, episode: str) -> AsyncIterator[Directory]:
        """The episode's worktree, for one effect at a time: in this process in the order asked, and against others.

        The lock ends with the process that holds it, however it ends, and with the programs that it has given the lock
        to. Raises WorktreeError when the worktree is missing or is not a real folder of its own.
        """
        path = self.path(episode)
        async with self._turn(episode), AsyncExitStack() as stack:
            try:
                if path.resolve(strict=True) != path or not path.is_dir():
                    raise WorktreeError(f"the worktree of {episode!r} is not a folder of its own")
                held = await stack.enter_async_context(_locked(path))
                directory = stack.enter_context(Directory.open(path, lock=held))
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
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # for whoever has inherited it as well
        os.close(descriptor)
