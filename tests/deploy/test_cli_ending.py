import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.worktrees.worktrees import Removed, Worktrees
from tests.deploy.conftest import Ended, Home
from tests.deploy.test_cli_session import git, listed

Skillbus = Callable[..., Ended]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "repository"
    path.mkdir()
    (path / "a.txt").write_text("a\n")
    git(path, "init", "--quiet", "--initial-branch", "main")
    git(path, "add", ".")
    git(path, "commit", "--quiet", "-m", "a")
    return path


@pytest.fixture
def worktree(skillbus: Skillbus, home: Home, repository: Path) -> Path:
    ended = skillbus(
        "session", "new", "ep1", "-g", "Workspace.Write=worktree:50", "--repo", str(repository), "--branch", "fix",
        "--out", str(home.folder / "c"),
    )  # fmt: skip
    assert ended.code == 0, ended.err
    return home.workspaces / "ep1"


def test_the_end_of_an_episode(skillbus: Skillbus, worktree: Path, repository: Path) -> None:
    (session,) = listed(skillbus)
    ended = skillbus("session", "end", "ep1")
    assert ended.code == 0, ended.err
    assert ended.out.splitlines() == [f"revoked {session['credentialId']}", f"removed {worktree}"]
    assert ended.err == f"branch fix stays in {repository / '.git'}\n"
    assert listed(skillbus) == []
    assert not worktree.exists()
    assert git(repository, "branch", "--format", "%(refname:short)").split() == ["fix", "main"]
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    again = skillbus("session", "end", "ep1")
    assert (again.code, again.out, again.err) == (0, "", "the episode ep1 has no worktree here\n")
    assert skillbus("log", "verify", "ep1").code == 0


TURN = """
import asyncio, sys
from pathlib import Path
from deploy.cli.opening import turn

async def main():
    async with asyncio.timeout(0), turn(Path(sys.argv[1]), sys.argv[2]):
        pass

asyncio.run(main())
"""


def test_nobody_opens_an_episode_while_its_worktree_is_removed(
    skillbus: Skillbus, worktree: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = Worktrees.remove
    others: list[bool] = []

    async def meanwhile(worktrees: Worktrees, episode: str, *, discard: bool = False) -> Removed:
        for name in (episode, "ep2"):
            turn = [sys.executable, "-c", TURN, str(worktrees.root), name]
            ended = await asyncio.to_thread(subprocess.run, turn, capture_output=True, check=False)
            others.append(ended.returncode == 0)
        return await removed(worktrees, episode, discard=discard)

    monkeypatch.setattr(Worktrees, "remove", meanwhile)
    assert skillbus("session", "end", "ep1").code == 0
    assert others == [False, True]


def test_uncommitted_work_keeps_the_worktree_and_not_the_sessions(
    skillbus: Skillbus, worktree: Path, home: Home
) -> None:
    written = skillbus(
        "call", "write_file", "--arg", "path=b.txt", "--arg", "content=x", "--session", str(home.folder / "c")
    )
    assert written.code == 0, written.err
    ended = skillbus("session", "end", "ep1")
    assert ended.code == 1
    assert ended.out.startswith("revoked ")
    assert "holds 1 thing(s) that no branch does: b.txt" in ended.err
    assert "commit it there, or say --discard" in ended.err
    assert (worktree / "b.txt").read_text() == "x"
    assert listed(skillbus) == []
    kept = skillbus("session", "end", "ep1", "--keep-worktree")
    assert (kept.code, kept.err) == (0, f"worktree {worktree} stays\n")
    assert skillbus("session", "end", "ep1", "--discard").code == 0
    assert not worktree.exists()


def test_what_can_not_be_ended(skillbus: Skillbus, worktree: Path) -> None:
    for options, says in (
        (("ep9",), "no episode 'ep9'"),
        (("../repository",), "is not the name of an episode"),
        (("ep1", "--keep-worktree", "--discard"), "say one"),
    ):
        ended = skillbus("session", "end", *options)
        assert (ended.code, ended.out) == (1, "")
        assert says in ended.err
        assert len(ended.err.splitlines()) == 1
    assert worktree.is_dir()


def test_the_link_to_the_repository_is_read_only_to_the_tools(skillbus: Skillbus, worktree: Path, home: Home) -> None:
    """In a worktree `.git` is a file."""
    link = (worktree / ".git").read_bytes()
    assert link.startswith(b"gitdir: ")
    session = ("--session", str(home.folder / "c"))
    for path in (".git", ".GIT", "./.git", ".git/config", "git~1", ".git."):
        for arguments in (
            ("ailang-write", {"path": path, "content": "x"}),
            ("ailang-edit", {"path": path, "old_text": "gitdir", "new_text": "x"}),
            ("write_file", {"path": path, "content": "x", "overwrite": True}),
        ):
            ended = skillbus("call", arguments[0], "--json", json.dumps(arguments[1]), "--strict", "--raw", *session)
            told = json.dumps(json.loads(ended.out)) if ended.out else ended.err
            assert '"ok": true' not in told, (path, arguments[0])
            assert '"written": true' not in told, (path, arguments[0])
    assert (worktree / ".git").read_bytes() == link
    names = {each.name for each in worktree.iterdir()}
    assert names == {".git", "a.txt"}
    denied = skillbus(
        "call", "ailang-write", "--json", '{"path": ".gitattributes", "content": "* filter=x"}', "--raw", *session
    )
    assert "fs_deny_write" in denied.out
