"""The command as users run it, and as a test runs it in its own process."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

COMMAND = str(Path(sys.executable).with_name("skillbus"))
ROOT = Path(__file__).parents[2]
LIMIT = 60.0


@dataclass(frozen=True)
class Ended:
    """A run of the command that is over."""

    code: int
    out: str
    err: str


class Home:
    """A user's place: a folder to stand in, the state below it, and the command in both forms."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment

    @property
    def ledger(self) -> Path:
        return self.folder / "state" / "ledger.db"

    @property
    def workspaces(self) -> Path:
        return self.folder / "state" / "workspaces"

    def start(self, *arguments: str, **options: object) -> "subprocess.Popen[str]":
        """The command as a process of its own."""
        pipe = subprocess.PIPE
        return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
            [COMMAND, *arguments],
            **{"cwd": self.folder, "env": self.environment, "text": True, "stdin": pipe, "stdout": pipe, "stderr": pipe}
            | options,
        )

    def run(self, *arguments: str, stdin: str = "", **environment: str) -> Ended:
        """The command as a process of its own, to its end."""
        done = subprocess.run(
            [COMMAND, *arguments],
            cwd=self.folder,
            env=self.environment | environment,
            text=True,
            input=stdin,
            capture_output=True,
            timeout=LIMIT,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)


def until(holds: Callable[[], bool], what: str, *, limit: float = LIMIT) -> None:
    """Wait for something that only looking can tell of."""
    ends = time.monotonic() + limit
    while not holds():
        assert time.monotonic() < ends, f"{what} did not come within {limit:g} s"
        time.sleep(0.01)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A user who has nothing yet."""
    environment = {**os.environ, "SKILLBUS_STATE_DIR": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)}
    return Home(tmp_path, environment)


@pytest.fixture
def skillbus(home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """The command, run in the test's own process by the same user."""
    from deploy.cli.app import run

    monkeypatch.chdir(home.folder)
    monkeypatch.setenv("SKILLBUS_STATE_DIR", home.environment["SKILLBUS_STATE_DIR"])

    def call(*arguments: str) -> Ended:
        capsys.readouterr()
        code = run(arguments)
        said = capsys.readouterr()
        return Ended(int(code), said.out, said.err)

    return call


@pytest.fixture
def session(skillbus: Callable[..., Ended], home: Home, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a session on the episode ep1: five reads, five writes, one mark."""
    file = home.folder / "ep1.session"
    grants = ("Workspace.Read=worktree:5", "Workspace.Write=worktree:5", "Test.Mark=test:1")
    options = [option for grant in grants for option in ("--grant", grant)]
    ended = skillbus("session", "new", "ep1", *options, "--out", str(file))
    assert ended.code == 0, ended.err
    monkeypatch.setenv("SKILLBUS_SESSION", str(file))
    home.environment["SKILLBUS_SESSION"] = str(file)
    return file
