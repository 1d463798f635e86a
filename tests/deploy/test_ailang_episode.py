"""An episode of the AILANG tools as its operator and its agent have it: RabbitMQ, a worker, a stand-in binary."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.conftest import LIMIT, Ended, Home
from tests.skills.ailang.standin import QUIET, StandIn
from tests.skills.ailang.transcripts import TRANSCRIPTS

Skillbus = Callable[..., Ended]
ROWS = {row["id"]: row for row in TRANSCRIPTS}


def repository(folder: Path) -> Path:
    """A git repository with one file."""
    folder.mkdir()
    (folder / "hello.ail").write_text('println("hello from ailang-run")\n')
    git = ("git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org")
    for arguments in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "one")):
        subprocess.run([*git, *arguments], check=True, stdin=subprocess.DEVNULL, capture_output=True)
    return folder


@pytest.mark.rabbitmq
def test_an_episode(
    skillbus: Skillbus, home: Home, rabbitmq_url: str, unique_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = StandIn(home.folder / "bin")
    table = {"binary": str(binary.path), "files": "native", "run_allow_caps": ["Env"]}
    for name, value in {
        "SKILLBUS_AMQP_URL": rabbitmq_url,
        "SKILLBUS_PREFIX": unique_prefix,
        "SKILLBUS_DECLARE": "true",
        "SKILLBUS_TOOLS": json.dumps({"ailang": table}),
    }.items():
        monkeypatch.setenv(name, value)
        home.environment[name] = value

    file = home.folder / "ep1.session"
    repo = repository(home.folder / "repo")
    made = skillbus(
        "session", "new", "ep1", "--preset", "se-tools", "--budget", "3", "--ttl", "4h",
        "--repo", str(repo), "--branch", "fix", "--out", str(file),
    )  # fmt: skip
    assert made.code == 0, made.err
    assert file.stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("SKILLBUS_SESSION", str(file))
    root = home.workspaces / "ep1"

    def call(tool: str, arguments: dict[str, Any], *options: str) -> Any:
        ended = skillbus("call", tool, "--json", json.dumps(arguments), "--raw", *options)
        assert ended.code == 0, ended.err
        task = json.loads(ended.out)["task"]
        (artifact,) = task["artifacts"]
        return artifact["metadata"]["outcome"], artifact["parts"][0]["data"]

    reading, writing = os.pipe()
    with home.start("worker", "--ready-fd", str(writing), pass_fds=[writing], stdin=subprocess.DEVNULL) as worker:
        os.close(writing)
        try:
            with os.fdopen(reading) as ready:
                assert ready.read() == "ready\n", worker.communicate(timeout=LIMIT)
            seen = {skill["id"]: skill["tier"] for skill in json.loads(skillbus("skills", "--json").out)}
            assert seen["ailang-run"] == "live"
            assert seen["examples-search"] == "stub"

            outcome, body = call("ailang-read", {"path": "hello.ail"})
            assert (outcome, body["content"]) == ("succeeded", 'println("hello from ailang-run")\n')
            edit = {"path": "hello.ail", "old_text": "ailang-run", "new_text": "pi"}
            assert call("ailang-edit", edit)[1]["ok"] is True
            assert (root / "hello.ail").read_text() == 'println("hello from pi")\n'

            binary.play(ROWS["ai_check-passed"])
            outcome, body = call("ailang-check", {"path": "good.ail"})
            assert (outcome, body["passed"], body["errors"]) == ("succeeded", True, [])

            binary.play(ROWS["run-hello"])
            outcome, body = call("ailang-run", {"path": "hello.ail", "caps": ["IO"]})
            assert (body["admitted"], body["stdout"], body["policy"]["caps"]) == (True, "hello from pi\n", ["FS", "IO"])
            binary.play(ROWS["run-env-argv"])
            given = {"path": "sum.ail", "caps": ["Env", "FS", "IO"], "argv": ["numbers.txt"], "stdin": "1\n2\n"}
            outcome, body = call("ailang-run", given)
            assert (outcome, body["stdout"]) == ("succeeded", "15\n")
            (started,) = binary.calls()
            assert (started["stdin"], started["cwd"]) == ("1\n2\n", str(root.resolve()))

            outcome, body = call("ailang-read", {"path": "../repo/hello.ail"})
            assert (outcome, body["world"]["effects"]) == ("refused", [])
            outcome, body = call("ailang-write", {"path": ".git", "content": "x"})
            assert body["refused"] == "write .git: .git/ is read-only to the lane's tools"

            binary.play(QUIET, sleep=True)
            slow = ("ailang-run", {"path": "long.ail"}, "--message-id", "slow")
            skillbus("call", slow[0], "--json", json.dumps(slow[1]), *slow[2:], "--timeout", "4s")
            outcome, body = call(*slow)  # what came of it, also if the caller was gone before
            assert (outcome, list(body)) == ("failed", ["world"])
            binary.play(QUIET, any=True)
            outcome, _ = call("ailang-run", {"path": "none.ail"})
            assert outcome == "failed"  # `{"ok":true}` is no envelope
            outcome, body = call("ailang-run", {"path": "none.ail"})
            assert (outcome, body["world"]["effects"][0]["status"]) == ("denied:budget", "denied")
            worker.send_signal(signal.SIGTERM)
            out, err = worker.communicate(timeout=LIMIT)
            assert worker.returncode == 0, (out, err)
        finally:
            if worker.poll() is None:
                worker.kill()

    assert (home.ledger.parent / "ailang" / "policies" / "ep1.toml").exists()
    assert "the tool binary did not end within" in err
    assert "no recognised outcome envelope" in err
    verified = skillbus("log", "verify", "ep1")
    assert verified.code == 0, verified.out + verified.err
    for entry in range(1, 11):
        walked = skillbus("why", str(entry), "--episode", "ep1")
        assert walked.code == 0, walked.out + walked.err
