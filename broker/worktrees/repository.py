"""Git repositories as an operator's sessions use them: nothing that a repository's configuration names is run.

The configuration of a repository can name programs: hooks, a file system monitor, filters of contents, transports. Here
each of them is switched off, those of the operator's own configuration too, for a worktree holds what others write.
"""

import asyncio
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

LIMIT = 120.0
"""Seconds that git gets for one command."""

_SETTINGS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.ignoreCase": "false",
    "core.ignoreStat": "false",
    "sparse.expectFilesOutsideOfPatterns": "false",
    "core.pager": "cat",
    "core.editor": "false",
    "core.askPass": "false",
    "core.sshCommand": "false",
    "core.alternateRefsCommand": "false",
    "credential.helper": "",
    "diff.external": "",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "submodule.recurse": "false",
    "status.submoduleSummary": "false",
    "branch.autoSetupMerge": "false",
    "worktree.guessRemote": "false",
    "advice.detachedHead": "false",
    "log.showSignature": "false",
}
_NAMED = r"^(filter|hook)\."
_FILTER = {"clean": "", "smudge": "", "process": "", "required": "false"}
_SHOWN = 500
_QUOTED = re.compile(r"'[^']*'")
_LINK = re.compile(r"gitdir: (.+)\n?", re.DOTALL)


class GitError(Exception):
    """Git can't do it; the message says why, in its words."""


@dataclass(frozen=True, slots=True)
class Loose:
    """What a worktree holds that no branch does: paths, relative to it; and how many files git is told to ignore."""

    paths: tuple[str, ...]
    ignored: int


class Repository:
    """A git repository, seen from a folder in it: its own, or one of its worktrees."""

    def __init__(self, folder: Path, *, ceiling: Path | None = None) -> None:
        """`ceiling` is a folder above which no repository is looked for; with one, the folder is a worktree's root."""
        self.folder = folder
        self._ceiling = ceiling

    @classmethod
    def of_worktree(cls, folder: Path) -> Self | None:
        """The repository whose worktree this folder is; None for a folder that is not one."""
        link = folder / ".git"
        try:
            if link.is_symlink() or not link.is_file() or not _LINK.fullmatch(link.read_text(errors="replace")):
                return None
        except OSError:
            return None
        return cls(folder, ceiling=folder.parent)

    async def exists(self) -> bool:
        return self.folder.is_dir() and await self._succeeds("rev-parse", "--git-dir")

    async def commit(self, name: str = "HEAD") -> str | None:
        """The commit that a name stands for, or None."""
        try:
            return await self._say("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        except GitError:
            return None

    async def branch(self, name: str) -> str | None:
        """The commit that a branch stands at, or None where there is no such branch."""
        return await self.commit(f"refs/heads/{name}")

    async def names_branch(self, name: str) -> bool:
        """Whether a branch can have this name."""
        return await self._succeeds("check-ref-format", "--branch", name)

    async def add_worktree(self, path: Path, branch: str) -> None:
        """Register a worktree on a new branch, and write nothing into it. Raises GitError, having left nothing."""
        before, beginning = await self.branch(branch), await self.commit()
        try:
            await self._say("worktree", "add", "--quiet", "--no-checkout", "-b", branch, "--", str(path), "HEAD")
        except BaseException as error:
            # git makes the branch first and leaves it; "already" beside the names says that one is another's
            taken = "already" in _QUOTED.sub("", str(error))
            if before is None and beginning is not None and not taken:
                await self.drop_worktree(path, branch, beginning)
            raise

    async def check_out(self) -> None:
        """Write the files of HEAD into this worktree. Raises GitError."""
        await self._say("reset", "--hard", "--quiet", "--no-recurse-submodules")

    async def drop_worktree(self, path: Path, branch: str, beginning: str) -> None:
        """Take back a worktree, whatever is in it, and its branch, if that stands where it began."""
        try:
            await self.remove_worktree(path)
        except GitError:
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
        await self._succeeds("update-ref", "-d", f"refs/heads/{branch}", beginning)

    async def remove_worktree(self, path: Path) -> None:
        """Remove a worktree, whatever is in it; its branch stays. Raises GitError."""
        await self._say("worktree", "remove", "--force", "--force", "--", str(path))

    async def common(self) -> Path:
        """The folder that all worktrees of the repository share. Raises GitError."""
        return Path(await self._say("rev-parse", "--path-format=absolute", "--git-common-dir"))

    async def head(self) -> str | None:
        """The branch that is checked out; None where there is none."""
        try:
            return (await self._say("symbolic-ref", "--quiet", "HEAD")).removeprefix("refs/heads/")
        except GitError:
            return None

    async def loose(self) -> Loose:
        """What this worktree holds that no branch does. Raises GitError.

        Nothing is run in submodules: one with anything in it counts. So do commits that no branch leads to, and files
        that the index is told not to look at.
        """
        said = await self._run(
            "status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all", "--ignored=matching",
            "--ignore-submodules=all",
        )  # fmt: skip
        lines = [os.fsdecode(line) for line in said.split(b"\0") if line]
        found = [line[3:] for line in lines if not line.startswith("!!")]
        for line in (await self._run("ls-files", "--stage", "-v", "-z")).split(b"\0"):
            about, _, path = line.partition(b"\t")
            tag, mode, name = about[:1], about[2:8], os.fsdecode(path)
            unseen = tag == b"S" or tag.islower()  # what `update-index` calls skip-worktree and assume-unchanged
            if _holds_something(self.folder / name) if mode == b"160000" else unseen and _is_there(self.folder / name):
                found.append(name)
        if await self.head() is None and not await self._say("for-each-ref", "--contains=HEAD", "refs/heads"):
            found.append("HEAD, which is on no branch")
        return Loose(tuple(dict.fromkeys(found)), len(lines) - sum(1 for line in lines if not line.startswith("!!")))

    async def _succeeds(self, *arguments: str) -> bool:
        try:
            await self._run(*arguments)
        except GitError:
            return False
        return True

    async def _say(self, *arguments: str) -> str:
        return os.fsdecode(await self._run(*arguments)).strip()

    async def _run(self, *arguments: str) -> bytes:
        # Which filters and hooks there are can hang on the branch, so each command looks anew.
        listed = await self._start(("config", "--null", "--name-only", "--get-regexp", _NAMED), {}, expect=(0, 1))
        settings = dict(_SETTINGS)
        for name in {os.fsdecode(key) for key in listed.split(b"\0") if key}:
            group, _, rest = name.partition(".")
            owner = f"{group}.{rest.rpartition('.')[0]}"
            if group == "filter":
                settings.update({f"{owner}.{key}": value for key, value in _FILTER.items()})
            else:
                settings.update({f"{owner}.enabled": "false", f"{owner}.command": "true"})
        return await self._start(arguments, settings)

    async def _start(
        self, arguments: Sequence[str], settings: dict[str, str], *, expect: tuple[int, ...] = (0,)
    ) -> bytes:
        if shutil.which("git") is None:
            raise GitError("git is not installed: install it, or leave out --repo")
        process = await asyncio.create_subprocess_exec(
            "git", "-C", str(self.folder), *arguments,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=self._environment(settings), start_new_session=True,
        )  # fmt: skip
        try:
            async with asyncio.timeout(LIMIT):
                said, errors = await process.communicate()
        except BaseException as error:
            if process.returncode is None:
                process.terminate()  # it removes its lock files
                await process.wait()
            if isinstance(error, TimeoutError):
                raise GitError(f"git {arguments[0]} did not end within {LIMIT:g} s") from None
            raise
        if process.returncode not in expect:
            raise GitError(errors.decode(errors="replace").strip()[-_SHOWN:] or f"git {arguments[0]} failed")
        return said

    def _environment(self, settings: dict[str, str]) -> dict[str, str]:
        found = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": os.environ.get("HOME", "/"),
            "LC_ALL": "C",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ALLOW_PROTOCOL": "none",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_CONFIG_COUNT": str(len(settings)),
        }
        if self._ceiling is not None:
            found["GIT_CEILING_DIRECTORIES"] = str(self._ceiling)
            found["GIT_WORK_TREE"] = str(self.folder)  # whatever core.worktree says
        for number, (name, value) in enumerate(settings.items()):
            found |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
        return found


def _is_there(path: Path) -> bool:
    return path.is_symlink() or path.exists()


def _holds_something(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError:
        return False
