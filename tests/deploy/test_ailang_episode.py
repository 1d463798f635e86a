"""An episode of the AILANG tools as its operator and its agent have it: RabbitMQ, a worker, a stand-in binary."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from a2a.client.client import ClientConfig
from a2a.client.client_factory import ClientFactory
from a2a.types.a2a_pb2 import AgentCard, SendMessageRequest
from google.protobuf.json_format import MessageToDict, ParseDict

import bus
from broker.sessions import Credential
from bus.sdk.transport import register
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

            note = {"path": "notes.txt", "content": "one line\n"}
            written = [call("ailang-write", note, "--message-id", "m-1") for _ in range(2)]
            (root / "notes.txt").write_text("changed meanwhile\n")
            written += asyncio.run(sent_again(rabbitmq_url, unique_prefix, file, "ailang-write", note, "m-1"))
            assert written == [written[0]] * 4
            assert (root / "notes.txt").read_text() == "changed meanwhile\n"

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

            other = home.folder / "ep2.session"
            made = skillbus("session", "new", "ep2", "--preset", "se-tools", "--repo", str(repo), "--out", str(other))
            assert made.code == 0, made.err
            calc = ("call", "calc", "--arg", "expr=1", "--session", str(other))
            assert skillbus(*calc).code == 0
            live = json.loads(skillbus("session", "list", "--json").out)
            assert [session["episode"] for session in live] == ["ep2", "ep1"]
            assert skillbus("session", "revoke", live[0]["credentialId"]).code == 0
            assert "UNAUTHENTICATED" in skillbus(*calc).err
            assert skillbus("session", "end", "ep2").code == 0
            assert not (home.workspaces / "ep2").exists()

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
    for entry in range(1, 12):
        walked = skillbus("why", str(entry), "--episode", "ep1")
        assert walked.code == 0, walked.out + walked.err
    run = len(binary.calls(summaries=True))
    again = json.loads(skillbus("replay", "ep1", "--json").out)
    assert [(entry["index"], entry["equal"], entry["notCompared"]) for entry in again["calls"]] == [
        (index, True, []) for index in range(1, 12)
    ]
    assert [entry["outcome"] for entry in again["calls"]].count("failed") == 2
    assert skillbus("replay", "ep1").code == 0
    assert len(binary.calls(summaries=True)) == run  # nothing was run

    trailer = skillbus("provenance", "ep1").out
    assert trailer.startswith(f"World-Provenance: store={home.ledger} episode=ep1 entries=1-11\n")
    assert skillbus("provenance", "--verify", f"Do something\n\n{trailer}").code == 0
    kept = skillbus("session", "end", "ep1")
    assert (kept.code, "holds 2 thing(s) that no branch does" in kept.err) == (1, True)


async def sent_again(
    url: str, prefix: str, file: Path, skill: str, arguments: dict[str, Any], message_id: str
) -> list[tuple[str, Any]]:
    """What the bus's own client gets for a message, and that of the SDK."""
    credential = Credential(file.read_text().strip())
    message = {
        "messageId": message_id, "role": "ROLE_USER", "parts": [{"data": arguments}], "metadata": {"skill_id": skill},
    }  # fmt: skip
    async with await bus.connect(url, authorize=credential.authorize, prefix=prefix) as client:
        native = await client.send("skillbus", message)
        told = await client.request("skillbus", "GetExtendedAgentCard", {})
    card = ParseDict(told, AgentCard(), ignore_unknown_fields=True)
    factory = ClientFactory(ClientConfig(streaming=False))
    register(factory, broker=url, authorize=credential.authorize)
    sdk = factory.create(card)
    try:
        (event,) = [event async for event in sdk.send_message(ParseDict({"message": message}, SendMessageRequest()))]
    finally:
        await sdk.close()
    found = []
    for response in (native, MessageToDict(event)):
        (artifact,) = response["task"]["artifacts"]
        found.append((artifact["metadata"]["outcome"], artifact["parts"][0]["data"]))
    return found
