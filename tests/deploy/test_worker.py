import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import bus
from broker import Provenance
from broker.ledger.ledger import Ledger
from broker.sessions import Credential
from deploy.rabbitmq import PrivateNode
from tests.deploy.conftest import LIMIT, Ended, Home, until

Skillbus = Callable[..., Ended]
PACK = ("--pack", "tests.packs:slow")


class Crew:
    """Workers of one agent, started and awaited as processes."""

    def __init__(self, home: Home, url: str, prefix: str) -> None:
        self.home = home
        home.environment |= {"SKILLBUS_LEASE_SECONDS": "2", "SKILLBUS_DECLARE": "true"}
        home.environment |= {"SKILLBUS_AMQP_URL": url, "SKILLBUS_PREFIX": prefix, "SKILLBUS_LOG_FORMAT": "json"}

    @contextmanager
    def worker(self, *options: str) -> Iterator["subprocess.Popen[str]"]:
        """A worker that is ready; it is killed if the test leaves it running."""
        reading, writing = os.pipe()
        options = ("worker", "--ready-fd", str(writing), *PACK, *options)
        with self.home.start(*options, pass_fds=[writing], stdin=subprocess.DEVNULL) as process:
            os.close(writing)
            try:
                with os.fdopen(reading) as ready:
                    assert ready.read() == "ready\n", process.communicate(timeout=LIMIT)
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    def call(self, *arguments: str) -> "subprocess.Popen[str]":
        return self.home.start("call", *arguments, stdin=subprocess.DEVNULL)


@pytest.fixture
def crew(home: Home, session: Path, rabbitmq_url: str, unique_prefix: str) -> Crew:
    return Crew(home, rabbitmq_url, unique_prefix)


def end(process: "subprocess.Popen[str]") -> Ended:
    out, err = process.communicate(timeout=LIMIT)
    return Ended(process.returncode, out, err)


def events(ended: Ended) -> list[str]:
    """What a worker logged as JSON lines."""
    return [json.loads(line)["msg"] for line in ended.err.splitlines()]


@pytest.mark.rabbitmq
def test_a_worker_answers_calls_of_other_processes_and_ends_in_order(crew: Crew) -> None:
    with crew.worker("--instance", "w1") as worker:
        ended = end(crew.call("calc", "--arg", "expr=6*7", "--raw", "--strict"))
        assert ended.code == 0, ended.err
        assert json.loads(ended.out)["task"]["artifacts"][0]["parts"][0]["text"] == "42"
        seen = crew.home.run("skills").out.splitlines()[1]
        assert seen.split()[:3] == ["ailang-edit", "Workspace.Write=worktree", "5"]
        worker.send_signal(signal.SIGTERM)
        stopped = end(worker)
    assert (stopped.code, stopped.out) == (0, "")
    lines = [json.loads(line) for line in stopped.err.splitlines()]
    (ready,) = [line for line in lines if line["msg"] == "ready"]
    assert (ready["agent"], ready["slots"]) == ("skillbus", 64)
    assert ready["skills"] > 9
    assert re.fullmatch(r"w1-[0-9a-f]{8}", ready["instance"])
    assert [line["msg"] for line in lines][-1] == "stopped"


@pytest.mark.rabbitmq
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_call_that_runs_when_the_worker_stops_is_ended_and_answered(crew: Crew, number: signal.Signals) -> None:
    marks, go = crew.home.folder / "marks", crew.home.folder / "go"
    arguments = ("--arg", f"marker={marks}", "--arg", f"until={go}")
    with crew.worker() as worker:
        running = crew.call("slow", *arguments, "--strict")
        until(marks.exists, "the effect")
        worker.send_signal(number)
        # The queue is left before the running call has ended: a later one waits for another worker.
        assert worker.stderr is not None
        said = ""
        while "taking no more calls; 1 running" not in said:
            said = worker.stderr.readline()
            assert said
        later = crew.call("calc", "--arg", "expr=1")
        go.touch()
        ended = end(running)
        assert ended.code == 0, ended.err
        assert end(worker).code == 0
    with crew.worker():
        assert end(later).code == 0
    assert len(marks.read_text().splitlines()) == 1


@pytest.mark.rabbitmq
def test_a_second_signal_stops_at_once(crew: Crew) -> None:
    marks = crew.home.folder / "marks"
    arguments = ("--arg", f"marker={marks}", "--arg-json", "seconds=50", "--message-id", "m1")
    with crew.worker("--grace", "50") as worker:
        running = crew.call("slow", *arguments)
        until(marks.exists, "the effect")
        worker.send_signal(signal.SIGTERM)
        assert worker.stderr is not None
        while "taking no more calls" not in worker.stderr.readline():
            pass
        worker.send_signal(signal.SIGTERM)
        stopped = end(worker)
        assert stopped.code == 130
        assert "SIGTERM again: stopping at once" in events(stopped)
    with crew.worker():
        ended = end(running)
    assert ended.out.startswith("slow: failed, error, indeterminate  entry 1\n"), ended
    assert len(marks.read_text().splitlines()) == 1


@pytest.mark.rabbitmq
def test_what_outlasts_the_grace_is_left_to_its_redelivery(crew: Crew) -> None:
    marks, go = crew.home.folder / "marks", crew.home.folder / "go"
    arguments = ("--arg", f"marker={marks}", "--arg", f"until={go}")
    with crew.worker("--grace", "0.1") as worker:
        running = crew.call("slow-repeatable", *arguments)
        until(marks.exists, "the effect")
        worker.send_signal(signal.SIGTERM)
        assert end(worker).code == 130
    go.touch()
    with crew.worker():
        ended = end(running)
    assert ended.out.startswith("slow-repeatable: completed, ok  entry 1\n"), ended
    assert len(marks.read_text().splitlines()) == 2


@pytest.mark.rabbitmq
async def test_workers_share_a_queue_a_ledger_and_a_budget(crew: Crew) -> None:
    with crew.worker() as one, crew.worker() as other:
        credential = Credential(Path(crew.home.environment["SKILLBUS_SESSION"]).read_text().strip())
        prefix = crew.home.environment["SKILLBUS_PREFIX"]
        url = crew.home.environment["SKILLBUS_AMQP_URL"]
        outcomes: list[str] = []
        async with await bus.connect(url, authorize=credential.authorize, prefix=prefix) as client:
            for number in range(12):
                message = {
                    "messageId": f"m{number}",
                    "role": "ROLE_USER",
                    "parts": [{"data": {"path": ""}}],
                    "metadata": {"skill_id": "list_files"},
                }
                response = await client.send("skillbus", message)
                outcomes.append(response["task"]["artifacts"][0]["metadata"]["outcome"])
        assert outcomes == ["succeeded"] * 5 + ["denied:budget"] * 7
        for worker in (one, other):
            worker.send_signal(signal.SIGTERM)
            assert end(worker).code == 0
    async with await Ledger.open(str(crew.home.ledger)) as ledger:
        verdict = await Provenance(ledger).verify("ep1")
    assert (verdict.entries, verdict.faults) == (12, ())


@pytest.mark.rabbitmq
def test_a_worker_can_bring_its_own_rabbitmq(home: Home, session: Path) -> None:
    with home.start("worker", "--private-rabbitmq", "--log-format", "json", stdin=subprocess.DEVNULL) as worker:
        try:
            assert worker.stdout is not None
            assert worker.stderr is not None
            url = worker.stdout.readline().strip()
            while json.loads(worker.stderr.readline())["msg"] != "ready":
                pass
            ended = home.run("call", "calc", "--arg", "expr=6*7", "--amqp-url", url, "--json-out")
            assert json.loads(ended.out)["text"] == "42", ended
            worker.send_signal(signal.SIGTERM)
            assert end(worker).code == 0
        finally:
            if worker.poll() is None:
                worker.kill()


def test_a_signal_ends_a_worker_that_waits_for_its_broker(home: Home, session: Path) -> None:
    with home.start("worker", "--amqp-url", "amqp://127.0.0.1:1", stdin=subprocess.DEVNULL) as worker:
        assert worker.stderr is not None
        while "cannot connect" not in worker.stderr.readline():
            pass
        worker.send_signal(signal.SIGTERM)
        assert end(worker).code == 0


@pytest.mark.rabbitmq
def test_a_worker_that_the_broker_does_not_let_in_ends_with_2(crew: Crew) -> None:
    url = crew.home.environment["SKILLBUS_AMQP_URL"]
    ended = crew.home.run("worker", "--amqp-url", re.sub("//.*@", "//nobody:hush@", url))
    assert (ended.code, ended.out) == (2, "")
    assert "error: the worker can't start: UNAVAILABLE: the broker refuses" in ended.err.splitlines()[-1]
    assert "hush" not in ended.err


@pytest.mark.rabbitmq
def test_nobody_serves_such_an_agent(crew: Crew) -> None:
    ended = crew.home.run("call", "calc", "--agent", "nobody")
    assert ended.code == 1
    assert ended.err.startswith("error: SKILL_NOT_FOUND: no such agent on this broker. Start a worker for it")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "no broker: name it with --amqp-url"),
        (["--amqp-url", "http://x"], "--amqp-url: must begin with amqp:// or amqps://"),
        (["--amqp-url", "amqp://x", "--private-rabbitmq"], "there is a broker's URL already"),
        (["--amqp-url", "amqp://x", "--slots", "0"], "--slots"),
        (["--amqp-url", "amqp://x", "--ready-fd", "99"], "--ready-fd 99 is not open"),
        (["--amqp-url", "amqp://x", "--config", "nowhere.toml"], "nowhere.toml: there is no such file"),
        (["--amqp-url", "amqp://x", "--ledger", "/proc/nothing/ledger.db"], "/proc/nothing/ledger.db"),
        (["--amqp-url", "amqp://x", "--ledger", "mysql://x"], "--ledger"),
    ],
)
def test_a_worker_that_cannot_start_says_why_and_ends_with_2(
    skillbus: Skillbus, monkeypatch: pytest.MonkeyPatch, options: list[str], says: str
) -> None:
    monkeypatch.setattr("deploy.logs.configure", lambda *_: None)
    ended = skillbus("worker", *options)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: the worker can't start: ")
    assert says in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_state_folder_that_is_open_to_others_is_warned_of(
    skillbus: Skillbus, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.logs.configure", lambda *_: None)
    folder = home.folder / "state"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    ended = skillbus("worker", "--private-rabbitmq", "--ledger", "/proc/nothing/ledger.db", "--ready-fd", "99")
    assert "open to others" not in ended.err
    ended = skillbus("worker", "--amqp-url", "amqp://x", "--ledger", "/proc/nothing/ledger.db")
    assert f"warning: {folder} is open to others (mode 0755): chmod 700 {folder}" in ended.err


def test_a_worker_without_rabbitmq_says_what_to_install(skillbus: Skillbus, monkeypatch: pytest.MonkeyPatch) -> None:
    from deploy.rabbitmq import NodeError

    def missing(*_: object, **__: object) -> None:
        raise NodeError("RabbitMQ is not installed: install it")

    monkeypatch.setattr("deploy.logs.configure", lambda *_: None)
    monkeypatch.setattr(PrivateNode, "__init__", missing)
    ended = skillbus("worker", "--private-rabbitmq")
    assert ended.code == 2
    assert ended.err.endswith("RabbitMQ is not installed: install it\n")
