"""Repositories of which nothing is run, however they are configured."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from broker.worktrees.repository import GitError, Repository
from broker.worktrees.worktrees import Uncommitted, WorktreeError, Worktrees

NAMES = {f"GIT_{who}_{what}": "tester" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
HOOKS = (
    "post-checkout", "post-index-change", "reference-transaction", "pre-commit", "post-commit", "fsmonitor-watchman",
    "post-rewrite", "pre-auto-gc", "post-merge",
)  # fmt: skip


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], env=os.environ | NAMES, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    path = tmp_path / "repo"
    path.mkdir()
    (path / "a.txt").write_text("a\n")
    (path / ".gitignore").write_text("*.log\n")
    git(path, "init", "--quiet", "--initial-branch", "main")
    git(path, "add", ".")
    git(path, "commit", "--quiet", "-m", "a")
    return path


@pytest.fixture
def hostile(repo: Path, tmp_path: Path) -> Path:
    """The repository, configured to run something whenever anything is done with it. `proof` is written then."""
    evil = tmp_path / "evil"
    evil.write_text(f'#!/bin/sh\necho "$0 $*" >> {tmp_path / "proof"}\ncat\n')
    evil.chmod(0o700)
    for hook in HOOKS:
        (repo / ".git" / "hooks" / hook).write_text(evil.read_text())
        (repo / ".git" / "hooks" / hook).chmod(0o700)
    (repo / ".gitattributes").write_text("*.txt filter=evil\n*.md filter=a.b=c diff=evil\n*.on filter=branch\n")
    for name in ("b.md", "c.on"):
        (repo / name).write_text("x\n")
    (repo / ".gitmodules").write_text('[submodule "sub"]\n\tpath = sub\n\turl = ext::sh -c evil\n')
    git(repo, "add", ".")
    git(repo, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},sub")
    git(repo, "commit", "--quiet", "-m", "b")
    included = tmp_path / "included"
    included.write_text(f'[filter "branch"]\n\tsmudge = {evil}\n\tclean = {evil}\n')
    for name, value in {
        "core.fsmonitor": str(evil),
        "core.sshCommand": str(evil),
        "core.pager": str(evil),
        "filter.evil.smudge": f"{evil} smudge",
        "filter.evil.clean": f"{evil} clean",
        "filter.evil.process": str(evil),
        "filter.evil.required": "true",
        "filter.a.b=c.smudge": str(evil),
        "filter.a.b=c.clean": str(evil),
        "filter.a.b=c.required": "true",
        "diff.evil.textconv": str(evil),
        "diff.external": str(evil),
        "includeIf.onbranch:fix.path": str(included),
        "submodule.recurse": "true",
        "submodule.sub.update": f"!{evil}",
        "submodule.sub.url": f"ext::{evil}",
        "submodule.sub.active": "true",
        "protocol.allow": "always",
        "protocol.ext.allow": "always",
        "remote.origin.url": f"ext::{evil}",
        "remote.origin.promisor": "true",
        "hook.evil.command": str(evil),
        "hook.evil.event": "post-checkout",
        "alias.status": f"!{evil}",
        "init.templateDir": str(tmp_path),
    }.items():
        git(repo, "config", name, value)
    (tmp_path / "proof").unlink(missing_ok=True)
    return repo


@pytest.mark.parametrize("kind", ["hooks", "filter.evil.process", "filter.branch.smudge", "core.fsmonitor"])
def test_the_hostile_repository_does_run_what_it_names(hostile: Path, tmp_path: Path, kind: str) -> None:
    """What the next test shows would show nothing otherwise."""
    off = {
        "core.hooksPath": "/dev/null", "core.fsmonitor": "false", "filter.evil.process": "", "filter.evil.smudge": "",
        "filter.evil.required": "false", "filter.a.b=c.smudge": "", "filter.a.b=c.required": "false",
        "filter.branch.smudge": "",
    }  # fmt: skip
    off.pop("core.hooksPath" if kind == "hooks" else kind)
    environment = os.environ | {"GIT_CONFIG_COUNT": str(len(off))}
    for number, (name, value) in enumerate(off.items()):
        environment |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    subprocess.run(
        ["git", "-C", str(hostile), "worktree", "add", "-b", "fix", str(tmp_path / "w")],
        env=environment, capture_output=True, check=False,
    )  # fmt: skip
    assert (tmp_path / "proof").exists()


async def test_nothing_of_it_is_run(hostile: Path, tmp_path: Path) -> None:
    worktrees = Worktrees(tmp_path / "workspaces")
    path = await worktrees.create("ep1", repo=hostile, branch="fix")
    assert (path / "a.txt").read_text() == "a\n"
    assert (path / "b.md").read_text() == (path / "c.on").read_text() == "x\n"
    for name in ("a.txt", "b.md", "c.on"):
        (path / name).write_text("changed\n")  # so that git looks into it
    with pytest.raises(Uncommitted) as caught:
        await worktrees.remove("ep1")
    assert set(caught.value.paths) == {"a.txt", "b.md", "c.on"}
    await worktrees.remove("ep1", discard=True)
    assert not path.exists()
    with pytest.raises(WorktreeError):
        await worktrees.create("ep2", repo=hostile, branch="fix")
    assert not (tmp_path / "proof").exists()


async def test_the_variables_of_who_calls_do_not_reach_git(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "GIT_DIR": str(tmp_path / "none"),
        "GIT_INDEX_FILE": str(tmp_path / "index"),
        "GIT_EXTERNAL_DIFF": "false",
        "GIT_TRACE": str(tmp_path / "trace"),
    }.items():
        monkeypatch.setenv(name, value)
    path = await Worktrees(tmp_path / "workspaces").create("ep1", repo=repo)
    assert (path / "a.txt").exists()
    assert not (tmp_path / "trace").exists()
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("step", ["check_out", "hold", "block"])
@pytest.mark.parametrize("error", [GitError("no"), asyncio.CancelledError(), OSError(28, "No space left on device")])
async def test_a_failure_half_way_leaves_nothing_behind(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    worktrees = Worktrees(tmp_path / "workspaces")

    async def fail(*_: object) -> None:
        raise error

    if step == "check_out":
        monkeypatch.setattr(Repository, "check_out", fail)
    elif step == "hold":
        monkeypatch.setattr("broker.worktrees.worktrees.Directory.open", lambda *_, **__: 1 / 0)
    with pytest.raises((type(error), WorktreeError, ZeroDivisionError)):
        async with worktrees.creating("ep1", repo=repo):
            await fail()
    assert list(worktrees.root.iterdir()) == []
    assert git(repo, "branch", "--format", "%(refname:short)") == "main"
    assert len(git(repo, "worktree", "list").splitlines()) == 1
    monkeypatch.undo()
    assert (await worktrees.create("ep1", repo=repo) / "a.txt").exists()


@pytest.mark.parametrize("episode", ["ep1", "already"])
async def test_a_branch_whose_worktree_git_can_not_make_is_taken_back(repo: Path, tmp_path: Path, episode: str) -> None:
    (repo / ".git" / "worktrees").write_text("no folder")
    with pytest.raises(WorktreeError):
        await Worktrees(tmp_path / "workspaces").create(episode, repo=repo)
    assert git(repo, "branch", "--format", "%(refname:short)") == "main"


async def test_one_that_is_canceled_leaves_nothing_behind(repo: Path, tmp_path: Path) -> None:
    """Whenever the cancel comes: before, between or in the midst of git's commands."""
    worktrees = Worktrees(tmp_path / "workspaces")
    for steps in (1, 5, 20, 60, 150, 400):
        making = asyncio.create_task(worktrees.create("ep1", repo=repo))
        for _ in range(steps):
            await asyncio.sleep(0)
        making.cancel()
        (ended,) = await asyncio.gather(making, return_exceptions=True)
        if isinstance(ended, Path):
            await worktrees.remove("ep1")
            git(repo, "branch", "-D", "skillbus/ep1")
        assert list(worktrees.root.iterdir() if worktrees.root.exists() else []) == []
        assert git(repo, "branch", "--format", "%(refname:short)") == "main"
        assert len(git(repo, "worktree", "list").splitlines()) == 1


@pytest.mark.parametrize("branch", ["main", "topic"])
async def test_what_another_made_is_left_alone(repo: Path, tmp_path: Path, branch: str) -> None:
    git(repo, "branch", "topic")
    worktrees = Worktrees(tmp_path / "workspaces")
    with pytest.raises(WorktreeError, match="already"):
        await worktrees.create("ep1", repo=repo, branch=branch)
    assert git(repo, "branch", "--format", "%(refname:short)").split() == ["main", "topic"]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda path: (path / "a.txt").write_text("b"), {"a.txt"}),
        (lambda path: (path / "a.txt").unlink(), {"a.txt"}),
        (lambda path: (path / "new é\n.txt").write_text("b"), {"new é\n.txt"}),
        (lambda path: (path / "deep" / "er").mkdir(parents=True) or (path / "deep/er/f").write_text(""), {"deep/er/f"}),
        (lambda path: ((path / "s").write_text("") and None) or git(path, "add", "s"), {"s"}),
        (lambda path: git(path, "mv", "a.txt", "b.txt"), {"a.txt", "b.txt"}),
        (
            lambda path: (
                git(path, "checkout", "-q", "--detach") or git(path, "commit", "-q", "--allow-empty", "-m", "lost")
            ),
            {"HEAD, which is on no branch"},
        ),
    ],
    ids=["changed", "deleted", "untracked", "in a new folder", "staged", "renamed", "detached"],
)
async def test_work_is_not_lost_silently(repo: Path, tmp_path: Path, change: object, names: set[str]) -> None:
    worktrees = Worktrees(tmp_path / "workspaces")
    path = await worktrees.create("ep1", repo=repo)
    assert callable(change)
    change(path)
    with pytest.raises(Uncommitted) as caught:
        await worktrees.remove("ep1")
    assert set(caught.value.paths) == names
    assert path.is_dir()
    assert len(git(repo, "worktree", "list").splitlines()) == 2
    removed = await worktrees.remove("ep1", discard=True)
    assert not path.exists()
    assert removed.repository == repo / ".git"
    assert len(git(repo, "worktree", "list").splitlines()) == 1


@pytest.mark.parametrize(
    ("before", "after", "written"),
    [
        ({"core.ignoreStat": "true"}, (), "a.txt"),
        ({"core.ignoreCase": "true"}, (), "A.TXT"),
        (
            {"core.sparseCheckout": "true", "sparse.expectFilesOutsideOfPatterns": "true"},
            ("update-index", "--skip-worktree", "a.txt"),
            "a.txt",
        ),
        ({}, ("update-index", "--skip-worktree", "a.txt"), "a.txt"),
        ({}, ("update-index", "--assume-unchanged", "a.txt"), "a.txt"),
        ({"extensions.worktreeConfig": "true"}, ("config", "--worktree", "core.worktree", "{repo}"), "new.txt"),
    ],
    ids=["ignoreStat", "ignoreCase", "sparse", "skip-worktree", "assume-unchanged", "core.worktree"],
)
async def test_work_that_git_is_told_to_overlook_is_not_lost(
    repo: Path, tmp_path: Path, before: dict[str, str], after: tuple[str, ...], written: str
) -> None:
    for name, value in before.items():
        git(repo, "config", name, value)
    worktrees = Worktrees(tmp_path / "workspaces")
    path = await worktrees.create("ep1", repo=repo)
    if after:
        git(path, *(part.format(repo=repo) for part in after))
    (path / written).write_text("work")
    with pytest.raises(Uncommitted) as caught:
        await worktrees.remove("ep1")
    assert caught.value.paths == (written,)
    assert (path / written).read_text() == "work"


async def test_what_is_committed_or_ignored_does_not_keep_a_worktree(repo: Path, tmp_path: Path) -> None:
    worktrees = Worktrees(tmp_path / "workspaces")
    path = await worktrees.create("ep1", repo=repo, branch="fix")
    (path / "b.txt").write_text("b")
    (path / "x.log").write_text("x")
    git(path, "add", ".")
    git(path, "commit", "-q", "-m", "b")
    removed = await worktrees.remove("ep1")
    assert (removed.branch, removed.ignored) == ("fix", 1)
    assert not path.exists()
    assert git(repo, "show", "fix:b.txt") == "b"


async def test_a_submodule_with_anything_in_it_keeps_a_worktree(hostile: Path, tmp_path: Path) -> None:
    worktrees = Worktrees(tmp_path / "workspaces")
    path = await worktrees.create("ep1", repo=hostile, branch="fix")
    (path / "sub" / "f").write_text("work")
    with pytest.raises(Uncommitted, match="sub"):
        await worktrees.remove("ep1")
    assert not (tmp_path / "proof").exists()


async def test_a_plain_folder_is_removed_when_it_is_empty(tmp_path: Path) -> None:
    worktrees = Worktrees(tmp_path / "workspaces")
    path = await worktrees.create("ep1")
    (path / "notes").mkdir()
    with pytest.raises(Uncommitted, match=r"holds 1 thing\(s\) that no branch does: notes"):
        await worktrees.remove("ep1")
    await worktrees.remove("ep1", discard=True)
    assert not path.exists()
    await worktrees.create("ep1")
    await worktrees.remove("ep1")
    assert not path.exists()
    with pytest.raises(WorktreeError, match="has no worktree here"):
        await worktrees.remove("ep1")


async def test_a_plain_folder_inside_a_repository_is_not_taken_for_it(repo: Path) -> None:
    worktrees = Worktrees(repo / "workspaces")
    path = await worktrees.create("ep1")
    (path / "a.log").write_text("")
    with pytest.raises(Uncommitted, match=r"a\.log"):
        await worktrees.remove("ep1")
    (path / ".git").write_text("gitdir: nowhere\n")
    with pytest.raises(WorktreeError, match="could not look at the worktree"):
        await worktrees.remove("ep1")
    assert git(repo, "worktree", "list").count("\n") == 0
    await worktrees.remove("ep1", discard=True)
    assert not path.exists()
    assert (repo / "a.txt").exists()


async def test_a_worktree_is_not_removed_while_an_effect_runs_in_it(repo: Path, tmp_path: Path) -> None:
    worktrees, others = Worktrees(tmp_path / "workspaces"), Worktrees(tmp_path / "workspaces")
    path = await worktrees.create("ep1", repo=repo)
    async with others.hold("ep1"):
        removing = asyncio.create_task(worktrees.remove("ep1"))
        await asyncio.sleep(0)
        assert (path / "a.txt").exists()
        (path / "written.txt").write_text("by the effect")
    with pytest.raises(Uncommitted, match=r"written\.txt"):
        await removing


async def test_many_are_made_and_removed_at_once(repo: Path, tmp_path: Path) -> None:
    worktrees, others = Worktrees(tmp_path / "workspaces"), Worktrees(tmp_path / "workspaces")
    await asyncio.gather(*((worktrees, others)[n % 2].create(f"ep{n}", repo=repo) for n in range(6)))
    await asyncio.gather(*((worktrees, others)[n % 2].remove(f"ep{n}") for n in range(6)))
    assert len(git(repo, "worktree", "list").splitlines()) == 1
