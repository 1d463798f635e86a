import json
import os
import shlex
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.sessions import Credential
from deploy.cli.opening import Opening
from tests.deploy.conftest import COMMAND, Ended, Home

Skillbus = Callable[..., Ended]


def git(folder: Path, *arguments: str) -> str:
    names = {f"GIT_{who}_{what}": "tester" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], env=os.environ | names, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "repository"
    path.mkdir()
    (path / "a.txt").write_text("a\n")
    git(path, "init", "--quiet", "--initial-branch", "main")
    git(path, "add", ".")
    git(path, "commit", "--quiet", "-m", "a")
    return path


def listed(skillbus: Skillbus, *options: str) -> list[dict[str, object]]:
    ended = skillbus("session", "list", "--json", *options)
    assert ended.code == 0, ended.err
    found: list[dict[str, object]] = json.loads(ended.out)
    return found


def test_the_credential_is_alone_on_stdout_and_everything_else_on_stderr(skillbus: Skillbus, home: Home) -> None:
    ended = skillbus("session", "new", "ep1", "--grant", "Workspace.Read=worktree:3", "--ttl", "90m")
    assert ended.code == 0
    credential = Credential(ended.out.removesuffix("\n"))
    assert credential.reveal() not in ended.err
    assert credential.id in ended.err
    assert "session for episode ep1: 1 grant(s), expires" in ended.err
    assert "(in 1h30m)" in ended.err
    assert (home.workspaces / "ep1").is_dir()
    (session,) = listed(skillbus)
    assert session["credentialId"] == credential.id
    assert session["live"] is True
    grants = session["grants"]
    assert isinstance(grants, list)
    assert [(g["effect"], g["scope"], g["budget"]) for g in grants] == [("Workspace.Read", "worktree", 3)]


def test_a_credential_file_is_private_and_new(skillbus: Skillbus, home: Home) -> None:
    file = home.folder / "c"
    ended = skillbus("session", "new", "ep1", "--preset", "workspace", "--budget", "7", "--out", str(file))
    assert ended.code == 0
    assert ended.out == ""
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    credential = Credential(file.read_text().strip())
    assert credential.id in ended.err
    assert credential.reveal() not in ended.err
    again = skillbus("session", "new", "ep1", "--preset", "workspace", "--out", str(file))
    assert again.code == 1
    assert "is there already" in again.err
    assert file.read_text().strip() == credential.reveal()
    assert len(listed(skillbus)) == 1


def test_the_state_is_private(skillbus: Skillbus, session: Path, home: Home) -> None:
    assert stat.S_IMODE((home.folder / "state").stat().st_mode) == 0o700
    assert stat.S_IMODE(home.ledger.stat().st_mode) == 0o600


def test_presets_and_grants_add_up(skillbus: Skillbus) -> None:
    skillbus("session", "new", "ep1", "--preset", "se-tools", "--grant", "Mail.Send=mail:1")
    (session,) = listed(skillbus)
    grants = session["grants"]
    assert isinstance(grants, list)
    assert len(grants) == 9
    assert {g["budget"] for g in grants} == {1, 50}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["Ep", "-g", "A=b:1"], "is not a name"),
        (["ep1", "-g", "x"], 'invalid --grant "x": want EFFECT=SCOPE:BUDGET'),
        (["ep1", "-g", "A=b:-1"], "budget must not be negative"),
        (["ep1"], "no grants"),
        (["ep1", "--preset", "workspace", "--out", "~nobody-here/x"], "home of a user who is not known"),
        (["ep1", "--preset", "workspace", "--repo", "~nobody-here/x"], "home of a user who is not known"),
        (["ep1", "--preset", "all"], "no preset 'all'"),
        (["ep1", "-g", "A=b:1", "--budget", "3"], "--budget is for a --preset"),
        (["ep1", "--preset", "workspace", "--budget", "99999999999999999999"], "--budget"),
        (["ep1", "-g", "A=b:99999999999999999999"], "is not an integer"),
        (["ep1", "-g", "A=b:1", "--ttl", "9" * 400], "is over a hundred years"),
        (["ep1", "-g", "A=b:1", "--ttl", "soon"], "--ttl 'soon' is no duration"),
        (["ep1", "-g", "A=b:1", "--ttl", "1"], "--ttl must be at least 2s"),
        (["ep1", "-g", "Web.Search=web:1?before=1", "--strict"], "there is no time at which after and before hold"),
        (["ep1", "-g", "A=b:1", "--branch", "x"], "--branch is for a --repo"),
        (["ep1", "-g", "A=b:1", "--repo", "nowhere"], "is not a git repository"),
        (["ep1", "-g", "A=b:1", "--out", "nowhere/c"], "is not there, or can't be written"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_made(
    skillbus: Skillbus, home: Home, options: list[str], says: str
) -> None:
    ended = skillbus("session", "new", *options)
    assert ended.code == 1
    assert ended.out == ""
    assert says in ended.err
    assert len(ended.err.splitlines()) == 1
    assert not (home.folder / "state").exists()


def test_a_worktree_is_made_from_a_repository(skillbus: Skillbus, home: Home, repository: Path) -> None:
    ended = skillbus("session", "new", "ep1", "-g", "A=b:1", "--repo", str(repository), "--branch", "topic/1")
    assert ended.code == 0, ended.err
    worktree = home.workspaces / "ep1"
    assert (worktree / "a.txt").read_text() == "a\n"
    assert git(worktree, "branch", "--show-current") == "topic/1"
    for option, says in ((["--branch", "topic/1"], "the branch topic/1 is in"), ([], "has a worktree already")):
        again = skillbus("session", "new", "ep1", "-g", "A=b:1", "--repo", str(repository), *option)
        assert again.code == 1
        assert says in again.err
    assert skillbus("session", "new", "ep1", "-g", "A=b:1").code == 0
    assert len(listed(skillbus)) == 2


def test_a_repository_without_a_commit_is_refused(skillbus: Skillbus, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "--quiet")
    ended = skillbus("session", "new", "ep1", "-g", "A=b:1", "--repo", str(empty))
    assert ended.code == 1
    assert "has no commit yet" in ended.err


@pytest.mark.parametrize("with_repository", [False, True])
def test_nothing_is_half_done_when_the_ledger_does_not_take_the_session(
    skillbus: Skillbus, home: Home, repository: Path, monkeypatch: pytest.MonkeyPatch, with_repository: bool
) -> None:
    async def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("broker.ledger.ledger.Ledger.add_session", refuse)
    options = ["--repo", str(repository)] if with_repository else []
    ended = skillbus("session", "new", "ep1", "-g", "A=b:1", "--out", "c", *options)
    assert ended.code == 1
    assert "No space left on device" in ended.err
    assert not (home.folder / "c").exists()
    assert not (home.workspaces / "ep1").exists()
    assert git(repository, "branch", "--format", "%(refname:short)") == "main"
    assert len(git(repository, "worktree", "list").splitlines()) == 1


SLOW_GIT = """#!/bin/sh
case " $* " in *" reset "*) echo reset > {fifo}; exec sleep 600;; esac
exec {git} "$@"
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_half_done_when_it_is_stopped(home: Home, repository: Path, number: signal.Signals) -> None:
    """While git writes the files of the worktree."""
    fifo, folder = home.folder / "fifo", home.folder / "bin"
    os.mkfifo(fifo)
    folder.mkdir()
    (folder / "git").write_text(SLOW_GIT.format(fifo=fifo, git=shutil.which("git")))
    (folder / "git").chmod(0o755)
    home.environment["PATH"] = f"{folder}:{home.environment['PATH']}"
    with home.start("session", "new", "ep1", "-g", "A=b:1", "--out", "c", "--repo", str(repository)) as process:
        assert fifo.read_text() == "reset\n"
        assert (home.workspaces / "ep1" / ".git").exists()
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert not (home.folder / "c").exists()
    assert not (home.workspaces / "ep1").exists()
    assert git(repository, "branch", "--format", "%(refname:short)") == "main"
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert json.loads(home.run("session", "list", "--all", "--json").out) == []


def test_a_worktree_that_was_there_before_stays(
    skillbus: Skillbus, session: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("broker.ledger.ledger.Ledger.add_session", refuse)
    assert skillbus("session", "new", "ep1", "-g", "A=b:1").code == 1
    assert (home.workspaces / "ep1").is_dir()


@pytest.mark.parametrize("with_repository", [False, True])
def test_of_two_at_once_with_one_file_the_loser_takes_nothing_away(
    skillbus: Skillbus, home: Home, repository: Path, monkeypatch: pytest.MonkeyPatch, with_repository: bool
) -> None:
    options = ["--repo", str(repository)] if with_repository else []
    command = ["session", "new", "ep1", "-g", "A=b:1", "--out", "c", *options]
    checked = Opening.check

    async def overtaken(opening: Opening, out: Path | None) -> None:
        await checked(opening, out)
        ended = home.run(*command)
        assert ended.code == 0, ended.err

    monkeypatch.setattr(Opening, "check", overtaken)
    ended = skillbus(*command)
    assert ended.code == 1
    assert "is there already" in ended.err
    assert (home.workspaces / "ep1").is_dir()
    assert Credential((home.folder / "c").read_text().strip())
    if with_repository:
        assert "skillbus/ep1" in git(repository, "branch", "--format", "%(refname:short)")
        assert len(git(repository, "worktree", "list").splitlines()) == 2


def test_a_branch_that_another_made_meanwhile_stays(
    skillbus: Skillbus, home: Home, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = Opening.check

    async def overtaken(opening: Opening, out: Path | None) -> None:
        await checked(opening, out)
        git(repository, "branch", "skillbus/ep1")

    monkeypatch.setattr(Opening, "check", overtaken)
    ended = skillbus("session", "new", "ep1", "-g", "A=b:1", "--out", "c", "--repo", str(repository))
    assert ended.code == 1
    assert "skillbus/ep1" in git(repository, "branch", "--format", "%(refname:short)")
    assert not (home.folder / "c").exists()
    assert not (home.workspaces / "ep1").exists()


def test_any_number_at_once_open_one_episode(home: Home) -> None:
    command = ("session", "new", "ep1", "-g", "A=b:1", "--out", "c")
    processes = [home.start(*command) for _ in range(3)]
    ended = [process.communicate(timeout=60) for process in processes]
    assert sorted(process.returncode for process in processes) == [0, 1, 1], ended
    assert (home.workspaces / "ep1").is_dir()
    assert Credential((home.folder / "c").read_text().strip())


def test_a_second_session_is_told_what_the_episode_has_spent(skillbus: Skillbus, session: Path) -> None:
    assert skillbus("call", "list_files", "--arg", "path=").code == 0
    ended = skillbus("session", "new", "ep1", "-g", "Workspace.Read=worktree:3")
    assert "Workspace.Read=worktree:3, 2 left: the episode has spent 1" in ended.err


def test_a_list_shows_the_living_and_all_of_them_on_request(skillbus: Skillbus, session: Path) -> None:
    skillbus("session", "new", "ep2", "-g", "A=b:1")
    (ep1,) = listed(skillbus, "--episode", "ep1")
    assert skillbus("session", "revoke", str(ep1["credentialId"])[:8]).code == 0
    assert [s["episode"] for s in listed(skillbus)] == ["ep2"]
    assert {s["episode"]: s["state"] for s in listed(skillbus, "--all")} == {"ep1": "revoked", "ep2": "live"}
    table = skillbus("session", "list").out.splitlines()
    assert table[0].split() == ["ID", "EPISODE", "STATE", "EXPIRES", "GRANTS"]
    assert [line.split()[1] for line in table[1:]] == ["ep2"]


def test_an_empty_list_says_so(skillbus: Skillbus, session: Path) -> None:
    skillbus("session", "revoke", "--episode", "ep1")
    ended = skillbus("session", "list")
    assert (ended.code, ended.out) == (0, "")
    assert "no session is alive; --all shows 1 more" in ended.err
    assert listed(skillbus) == []


def test_a_revoked_session_calls_nothing(skillbus: Skillbus, session: Path) -> None:
    assert skillbus("session", "revoke", "--episode", "ep1").code == 0
    ended = skillbus("call", "calc", "--arg", "expr=1")
    assert ended.code == 1
    assert "UNAUTHENTICATED" in ended.err


def test_an_unknown_session_is_not_revoked(skillbus: Skillbus, session: Path, home: Home) -> None:
    name = "0" * 64
    ended = skillbus("session", "revoke", name)
    assert ended.code == 1
    assert ended.err == (
        f"error: refusing: no session credential {name} in {home.ledger} "
        "(already revoked, or minted in another store); nothing was revoked\n"
    )
    found = listed(skillbus)[0]["credentialId"]
    assert skillbus("session", "revoke", str(found)).out == f"revoked {found}\n"
    assert "already revoked" in skillbus("session", "revoke", str(found)).err


def test_revoking_wants_one_of_id_and_episode(skillbus: Skillbus) -> None:
    for options in ([], ["0" * 8, "--episode", "ep1"]):
        assert "say which session" in skillbus("session", "revoke", *options).err
    assert "64 hexadecimal digits" in skillbus("session", "revoke", "0" * 7).err


def test_a_credential_in_place_of_its_id_is_told_apart(skillbus: Skillbus, session: Path) -> None:
    text = session.read_text().strip()
    ended = skillbus("session", "revoke", text)
    assert ended.code == 1
    assert Credential(text).id in ended.err
    assert text not in ended.err
    assert len(listed(skillbus)) == 1


def test_an_ambiguous_prefix_revokes_nothing(
    skillbus: Skillbus, session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skillbus("session", "new", "ep2", "-g", "A=b:1")
    sessions = listed(skillbus)

    async def alike(self: object, *, episode: str | None = None) -> list[object]:
        return [type("Session", (), {"id": "ab" * 4 + str(s["credentialId"])[8:]})() for s in sessions]

    monkeypatch.setattr("broker.ledger.ledger.Ledger.list_sessions", alike)
    ended = skillbus("session", "revoke", "abababab")
    assert ended.code == 1
    assert "2 sessions begin with abababab" in ended.err


def test_a_reader_that_is_gone_leaves_no_live_session(home: Home) -> None:
    with home.start("session", "new", "ep1", "-g", "A=b:1") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == 130
    ended = home.run("session", "list", "--json", "--all")
    assert [s["state"] for s in json.loads(ended.out)] == ["revoked"]


@pytest.mark.parametrize("closed", [False, True])
def test_a_credential_that_cannot_be_told_is_of_a_revoked_session(home: Home, closed: bool) -> None:
    command = shlex.join([COMMAND, "session", "new", "ep1", "-g", "A=b:1"])
    done = subprocess.run(
        f"{command} {'>&-' if closed else '>/dev/full'}",
        shell=True, cwd=home.folder, env=home.environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert (
        "the session was revoked, for its credential was not told: the standard output can't be written" in done.stderr
    )
    assert len(done.stderr.splitlines()) == 1
    ended = home.run("session", "list", "--json", "--all")
    assert [s["state"] for s in json.loads(ended.out)] == ["revoked"]


@pytest.mark.parametrize("verb", [["list", "--all"], ["revoke"]])
def test_an_episode_that_is_no_text_is_one_line(skillbus: Skillbus, session: Path, verb: list[str]) -> None:
    ended = skillbus("session", *verb, "--episode", "\udcff")
    assert (ended.code, ended.out) == (1, "")
    assert "no UTF-8 text" in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_ledger_that_is_no_regular_file_is_refused(home: Home) -> None:
    os.mkfifo(home.folder / "fifo")
    for path, says in (("fifo", "is not a regular file"), ("/dev/null", "is not a regular file"), (".", "directory")):
        ended = home.run("session", "new", "ep1", "-g", "A=b:1", "--ledger", path)
        assert (ended.code, ended.out) == (1, "")
        assert says in ended.err
        assert len(ended.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("grant", "why"),
    [
        ("Workspace.Wirte=worktree:1", "no skill that is loaded has this effect"),
        ("Workspace.Write=elsewhere:1", "the scope of this effect is worktree"),
        ("Mail.Send=mail:1", "the policy of this host denies it (deny: send_reply)"),
        ("Workspace.Write=worktree:1?max-recipients=1", "can fulfil its constraints"),
    ],
)
def test_a_grant_of_no_use_is_warned_of_and_strictly_refused(
    skillbus: Skillbus, home: Home, grant: str, why: str
) -> None:
    (home.folder / "skillbus.toml").write_text('[policy]\ndeny = ["send_reply"]\n')
    strict = skillbus("session", "new", "ep1", "-g", grant, "--strict")
    assert (strict.code, strict.out) == (1, "")
    assert why in strict.err
    assert strict.err.rstrip().endswith("nothing was minted")
    assert not home.ledger.exists()
    minted = skillbus("session", "new", "ep1", "-g", grant)
    assert (minted.code, f"warning: the grant {grant} is of no use here: " in minted.err) == (0, True)
    assert why in minted.err
    assert "warning" not in skillbus("session", "new", "ep2", "-g", "Workspace.Write=worktree:1", "--strict").err


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("grants = 5", "want a list `grants` of tables"),
        ('[[grants]]\neffect = "E"\nscope = "s"\nbudget = 1\nonly.pth = "x"', 'grant 1: there is no constraint "pth"'),
        ("{", "is neither TOML nor JSON"),
        ("[[", "is neither TOML nor JSON"),
        ("[" * 100_000, "is neither TOML nor JSON"),
        (None, "can't be read: No such file or directory"),
    ],
)
def test_what_is_no_file_of_grants_is_refused(skillbus: Skillbus, home: Home, content: str | None, why: str) -> None:
    if content is not None:
        (home.folder / "grants").write_text(content)
    ended = skillbus("session", "new", "ep1", "--grants", "grants")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("error: grants")
    assert why in ended.err
    assert len(ended.err.splitlines()) == 1


def test_grants_may_be_json(skillbus: Skillbus, home: Home) -> None:
    only = {"path": ["a b/**"], "max-bytes": 1}
    document = {"grants": [{"effect": "Workspace.Write", "scope": "worktree", "budget": 1, "only": only}]}
    (home.folder / "g.json").write_text(json.dumps(document))
    assert skillbus("session", "new", "ep1", "--grants", "g.json", "-g", "Workspace.Read=worktree:1").code == 0
    (session,) = listed(skillbus)
    grants = session["grants"]
    assert isinstance(grants, list)
    assert [g.get("constraints") for g in grants] == [None, "path=a%20b/**&max-bytes=1"]


def test_the_host_denies_what_was_granted(skillbus: Skillbus, home: Home) -> None:
    assert skillbus("session", "new", "ep1", "-g", "Workspace.Write=worktree:3?path=docs/**", "-o", "c").code == 0
    write = ("call", "write_file", "--session", "c", "--arg", "content=x", "--raw")
    assert '"denied:constraint"' in skillbus(*write, "--arg", "path=a.md").out
    assert "denied:constraint: path=docs/**" in skillbus("why", "ep1:head").out
    (home.folder / "skillbus.toml").write_text("[policy]\ndeny_writes = true\n")
    assert '"denied:policy"' in skillbus(*write, "--arg", "path=docs/a.md").out
    assert "denied:policy: deny_writes: write_file" in skillbus("why", "ep1:head").out
    assert "write_file" not in skillbus("skills", "--session", "c").out
    assert skillbus("log", "verify").code == 0
