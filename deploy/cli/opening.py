"""Opening an episode to a new session: worktree, credential file, ledger, all of them or nothing."""

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from .failure import Failure

if TYPE_CHECKING:
    from broker.ledger import Ledger
    from broker.sessions import Credential, Session
    from broker.worktrees import Worktrees


class Opening:
    """What `skillbus session new` does. `check` changes nothing; `carry_out` takes back what it did if a step fails."""

    def __init__(self, worktrees: "Worktrees", session: "Session", *, repo: Path | None, branch: str | None) -> None:
        self._worktrees = worktrees
        self._session = session
        self._repo = None if repo is None else repo.expanduser().absolute()
        self._branch = branch or f"skillbus/{session.episode}"
        self._branch_named = branch is not None
        self._path = worktrees.path(session.episode)
        self._is_new = not self._path.exists()

    def check(self, out: Path | None) -> None:
        """Everything that can be known to fail before it is begun. Raises Failure."""
        if out is not None:
            self._check_out(out.expanduser())
        if self._path.is_symlink() or (self._path.exists() and not self._path.is_dir()):
            raise Failure(f"{self._path} is no folder: remove it, or name another episode")
        if self._repo is None:
            if self._branch_named:
                raise Failure("--branch is for a --repo: say which repository the worktree is made from")
        else:
            self._check_repo(self._repo)

    async def carry_out(self, ledger: "Ledger", credential: "Credential", out: Path | None) -> Path:
        """Make the worktree, write the credential to `out`, keep the session; the worktree's path."""
        out = None if out is None else out.expanduser()
        written = False
        await self._make_worktree()
        try:
            if out is not None:
                descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                written = True
                with os.fdopen(descriptor, "w") as file:
                    file.write(credential.reveal() + "\n")
            await ledger.add_session(self._session)
        except BaseException:
            if out is not None and written:
                out.unlink(missing_ok=True)
            if self._is_new:
                self._remove_worktree()
            raise
        return self._path

    async def _make_worktree(self) -> None:
        if self._repo is None:
            await self._worktrees.create(self._session.episode)
            return
        try:
            await self._worktrees.create(self._session.episode, repo=self._repo, branch=self._branch)
        except BaseException:
            _git(self._repo, "branch", "-d", self._branch)  # git makes it first and leaves it
            raise

    def _remove_worktree(self) -> None:
        if self._repo is not None:
            _git(self._repo, "worktree", "remove", "--force", str(self._path))
            _git(self._repo, "branch", "-d", self._branch)
        else:
            with suppress(OSError):
                self._path.rmdir()

    def _check_out(self, out: Path) -> None:
        if out.exists() or out.is_symlink():
            raise Failure(f"--out {out} is there already: name a new file, a credential never replaces one")
        if not os.access(out.parent, os.W_OK | os.X_OK):
            raise Failure(f"--out {out}: the folder {out.parent} is not there, or can't be written")

    def _check_repo(self, repo: Path) -> None:
        if shutil.which("git") is None:
            raise Failure("git is not installed: install it, or leave out --repo")
        if not repo.is_dir() or _git(repo, "rev-parse", "--git-dir") is None:
            raise Failure(f"--repo {repo} is not a git repository")
        if _git(repo, "rev-parse", "--verify", "--quiet", "HEAD^{commit}") is None:
            raise Failure(f"--repo {repo} has no commit yet: a worktree begins at one")
        if _git(repo, "check-ref-format", "--branch", self._branch) is None:
            raise Failure(f"--branch {self._branch!r} is no name for a branch")
        if _git(repo, "rev-parse", "--verify", "--quiet", f"refs/heads/{self._branch}") is not None:
            raise Failure(f"the branch {self._branch} is in {repo} already: name a new one with --branch")
        if not self._is_new:
            raise Failure(
                f"the episode {self._session.episode!r} has a worktree already, {self._path}: "
                "leave out --repo to open it to another session, or name another episode"
            )


def _git(repo: Path, *arguments: str) -> str | None:
    """What git says, or None when it fails."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment = inherited | {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    command = ["git", "-C", str(repo), "-c", "core.hooksPath=/dev/null", *arguments]
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60
    )
    return done.stdout if done.returncode == 0 else None
