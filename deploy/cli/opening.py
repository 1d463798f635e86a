"""Opening an episode to a new session: worktree, credential file, ledger, all of them or nothing."""

import asyncio
import fcntl
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from .failure import Failure
from .options import expanded

if TYPE_CHECKING:
    from broker.ledger.ledger import Ledger
    from broker.sessions import Credential, Session
    from broker.worktrees.worktrees import Worktrees

LOOK = 0.02
"""Seconds between two looks whether another has opened or ended its episode."""

LOCK = ".opening.lock"
"""The file in the folder of the worktrees of which one byte is an episode's turn; no episode can have its name."""

_STOPS = (signal.SIGTERM, signal.SIGHUP)


class Opening:
    """What `skillbus session new` does. `check` changes nothing; `carry_out` takes back what it did if a step fails."""

    def __init__(self, worktrees: "Worktrees", session: "Session", *, repo: Path | None, branch: str | None) -> None:
        self._worktrees = worktrees
        self._session = session
        self._repo = None if repo is None else expanded(repo).absolute()
        self._branch = branch or f"skillbus/{session.episode}"
        self._branch_named = branch is not None
        self._path = worktrees.path(session.episode)

    async def check(self, out: Path | None) -> None:
        """Everything that can be known to fail before it is begun. Raises Failure."""
        if out is not None:
            self._check_out(expanded(out))
        if self._path.is_symlink() or (self._path.exists() and not self._path.is_dir()):
            raise Failure(f"{self._path} is no folder: remove it, or name another episode")
        if self._repo is None:
            if self._branch_named:
                raise Failure("--branch is for a --repo: say which repository the worktree is made from")
        else:
            await self._check_repo(self._repo)

    async def carry_out(self, ledger: "Ledger", credential: "Credential", out: Path | None) -> Path:
        """Write the credential to `out`, make the worktree, keep the session; the worktree's path.

        What is taken back after a failed step is what this call made itself. Of several that open one episode each
        waits for the one before it, so that none builds on what is taken back.
        """
        with _in_order():
            async with turn(self._worktrees.root, self._session.episode):
                return await self._carry_out(ledger, credential, out)

    async def _carry_out(self, ledger: "Ledger", credential: "Credential", out: Path | None) -> Path:
        branch = None if self._repo is None else self._branch
        with ExitStack() as undo:
            if out is not None:
                self._write(expanded(out), credential, undo)
            async with self._worktrees.creating(self._session.episode, repo=self._repo, branch=branch):
                await ledger.add_session(self._session)
            undo.pop_all()
        return self._path

    def _write(self, out: Path, credential: "Credential", undo: ExitStack) -> None:
        try:
            descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise _taken(out) from None
        undo.callback(_unlink, out, os.fstat(descriptor))
        with os.fdopen(descriptor, "w") as file:
            file.write(credential.reveal() + "\n")

    def _check_out(self, out: Path) -> None:
        if out.exists() or out.is_symlink():
            raise _taken(out)
        if not os.access(out.parent, os.W_OK | os.X_OK):
            raise Failure(f"--out {out}: the folder {out.parent} is not there, or can't be written")

    async def _check_repo(self, repo: Path) -> None:
        from broker.worktrees.repository import Repository

        repository = Repository(repo)
        if shutil.which("git") is None:
            raise Failure("git is not installed: install it, or leave out --repo")
        if not await repository.exists():
            raise Failure(f"--repo {repo} is not a git repository")
        if await repository.commit() is None:
            raise Failure(f"--repo {repo} has no commit yet: a worktree begins at one")
        if not await repository.names_branch(self._branch):
            raise Failure(f"--branch {self._branch!r} is no name for a branch")
        if await repository.branch(self._branch) is not None:
            raise Failure(f"the branch {self._branch} is in {repo} already: name a new one with --branch")
        if self._path.exists():
            raise Failure(
                f"the episode {self._session.episode!r} has a worktree already, {self._path}: "
                "leave out --repo to open it to another session, or name another episode"
            )


@asynccontextmanager
async def turn(root: Path, episode: str) -> AsyncIterator[None]:
    """The turn of whoever opens or ends an episode, whose worktrees are in `root`: against any other process."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    place = int.from_bytes(sha256(episode.encode()).digest()[:4])
    descriptor = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while True:
            with suppress(BlockingIOError):
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
                break
            await asyncio.sleep(LOOK)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP are as Ctrl-C is, and what was made so far is taken back."""
    loop, task, stopped = asyncio.get_running_loop(), asyncio.current_task(), False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        if task is not None:
            task.cancel()

    for number in _STOPS:
        loop.add_signal_handler(number, stop)
    try:
        yield
    except asyncio.CancelledError:
        if stopped:
            raise KeyboardInterrupt from None
        raise
    finally:
        for number in _STOPS:
            loop.remove_signal_handler(number)


def _taken(out: Path) -> Failure:
    return Failure(f"--out {out} is there already: name a new file, a credential never replaces one")


def _unlink(path: Path, made: os.stat_result) -> None:
    """Remove the file if it is still the one that was made."""
    with suppress(OSError):
        if os.path.samestat(path.lstat(), made):
            path.unlink()
