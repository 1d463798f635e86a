"""`skillbus task`, and the calls that leave a task behind: in this process, and with a worker over RabbitMQ."""

import json
import re
import signal
import subprocess
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

import bus
from bus.client.leg import StreamEvent
from deploy.cli import task as module
from deploy.cli.failure import Failure
from deploy.cli.reports import Reports
from tests.deploy.conftest import LIMIT, Ended, Home, until
from tests.deploy.test_cli_screen import at_terminal
from tests.deploy.test_worker import PACK, Crew, end

Skillbus = Callable[..., Ended]
REPORTING = ("--arg", "progress=reading", "--arg-json", 'chunks=["one ", "two\\n", {"three": 3}]')


@pytest.fixture
def session(skillbus: Skillbus, home: Home, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a session on the episode ep1 that may take its time nine times."""
    file = home.folder / "ep1.session"
    assert skillbus("session", "new", "ep1", "--grant", "Test.Mark=test:9", "--out", str(file)).code == 0
    monkeypatch.setenv("SKILLBUS_SESSION", str(file))
    home.environment["SKILLBUS_SESSION"] = str(file)
    return file


@pytest.fixture
def crew(home: Home, session: Path, rabbitmq_url: str, unique_prefix: str) -> Crew:
    return Crew(home, rabbitmq_url, unique_prefix)


def listed(ended: Ended) -> list[dict[str, Any]]:
    assert ended.code == 0, ended.err
    found: list[dict[str, Any]] = json.loads(ended.out)
    return found


def newest(skillbus: Skillbus) -> str:
    task_id: str = listed(skillbus("task", "list", "--json"))[0]["id"]
    return task_id


def calc(skillbus: Skillbus, message_id: str, *options: str) -> str:
    """The id of the task that a call has become."""
    ended = skillbus("call", "calc", "--arg", "expr=6*7", "--message-id", message_id, "--raw", *options)
    assert ended.code == 0, ended.err
    task_id: str = json.loads(ended.out)["task"]["id"]
    return task_id


def cut_short(run: Skillbus, task_id: str) -> Ended:
    """How following a task that goes on ends, once the time was enough for its first event."""
    for seconds in (1, 4, 16):
        ended = run("task", "follow", task_id, "--timeout", f"{seconds}s")
        if "DEADLINE_EXCEEDED" not in ended.err:
            break
    return ended


# in this process


def test_tasks_are_listed_newest_first_over_pages(
    skillbus: Skillbus, session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert skillbus("task", "list") == Ended(0, "", "0 task(s)\n")
    monkeypatch.setattr(module, "PAGE", 2)
    ids = [calc(skillbus, f"m{number}") for number in range(3)]
    ids.append(calc(skillbus, "m3", "--context", "elsewhere"))
    ids.append(json.loads(skillbus("call", "slow", *PACK, "--message-id", "m4", "--raw").out)["task"]["id"])
    assert [each["id"] for each in listed(skillbus("task", "list", "--json"))] == ids[::-1]
    ended = skillbus("task", "list", "--limit", "3")
    assert (ended.code, ended.err) == (0, "3 task(s) of 5; --all lists every one\n")
    rows = [line.split() for line in ended.out.splitlines()]
    assert rows[0] == ["TASK", "STATE", "SKILL", "CHANGED", "MESSAGE"]
    assert [row[:3] for row in rows[1:]] == [
        [ids[4], "rejected", "slow"],
        [ids[3], "completed", "calc"],
        [ids[2], "completed", "calc"],
    ]
    assert rows[3][-1] == "m2"
    assert skillbus("task", "list", "--limit", "3", "--all").err == "5 task(s)\n"
    for options, found in (
        (("--status", "rejected"), ids[4:]),
        (("--status", "TASK_STATE_WORKING"), []),
        (("--context", "elsewhere"), ids[3:4]),
    ):
        assert [each["id"] for each in listed(skillbus("task", "list", *options, "--json"))] == found


def test_questions_that_are_too_large_for_one_message_shorten_the_page(
    skillbus: Skillbus, session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKILLBUS_MAX_MESSAGE_BYTES", str(16 << 10))
    small = calc(skillbus, "m1")
    ids = [small]
    for name, size in (("m2", 12_000), ("m3", 12_000), ("m4", 16_050)):
        arguments = json.dumps({"expr": "1", "query": "x" * size})
        ended = skillbus("call", "calc", "--json", arguments, "--message-id", name, "--raw")
        ids.append(json.loads(ended.out)["task"]["id"])
    tasks = listed(skillbus("task", "list", "--json"))
    assert [each["id"] for each in tasks] == ids[::-1]
    assert ["history" in each for each in tasks] == [False, True, True, True]
    shown = skillbus("task", "show", ids[3])
    assert shown.code == 0, shown.err
    assert "message " not in shown.out


def test_a_task_is_shown_with_its_question_and_its_result(skillbus: Skillbus, session: Path) -> None:
    task_id = calc(skillbus, "m1")
    ended = skillbus("task", "show", task_id)
    assert (ended.code, ended.err) == (0, "")
    said, result = ended.out.split("\n\n")
    lines = dict(line.split(maxsplit=1) for line in said.splitlines())
    assert lines.pop("since").endswith("Z")
    assert lines == {
        "task": task_id,
        "state": "completed",
        "context": "ep1",
        "skill": "calc",
        "message": "m1",
        "arguments": '{"expr": "6*7"}',
    }
    assert result == skillbus("call", "calc", "--arg", "expr=6*7", "--message-id", "m1").out
    told = json.loads(skillbus("task", "show", task_id, "--json").out)
    assert (told["id"], told["history"][0]["messageId"]) == (task_id, "m1")


def test_a_task_that_has_ended_is_followed_to_its_result(skillbus: Skillbus, session: Path) -> None:
    options = ("--arg", "marker=marks", *REPORTING, "--message-id", "m1", *PACK)
    called = skillbus("call", "slow", *options)
    task_id = newest(skillbus)
    assert skillbus("task", "follow", task_id) == called
    again = skillbus("task", "follow", task_id, "--after", "0")
    assert again == Ended(0, called.out, f'task {task_id}\n 25%  reading\none two\n{{"three": 3}}\n')
    assert skillbus("task", "follow", task_id, "--after", "0", "--quiet") == Ended(0, "", "")
    for option in ("--json-out", "--raw"):
        assert skillbus("task", "follow", task_id, option).out == skillbus("call", "slow", *options, option).out
        assert skillbus("task", "follow", task_id, "--after", "0", option).out == (
            skillbus("call", "slow", *options, option).out
        )
    ended = skillbus("task", "follow", task_id, "--after", "2", "--json")
    events = [json.loads(line) for line in ended.out.splitlines()]
    assert [event["seq"] for event in events] == [2, 3, 4, 5, 6]
    assert [event["final"] for event in events] == [False] * 4 + [True]
    assert [next(name for name in event if name not in ("seq", "final", "gap")) for event in events] == [
        "task", *["artifactUpdate"] * 3, "statusUpdate"
    ]  # fmt: skip
    (event,) = [json.loads(line) for line in skillbus("task", "follow", task_id, "--json").out.splitlines()]
    assert (event["seq"], event["final"], event["task"]["id"]) == (None, True, task_id)
    assert ended.err == ""


def test_strict_makes_what_came_of_a_followed_task_an_exit_code(skillbus: Skillbus, session: Path) -> None:
    skillbus("call", "slow", *PACK)
    task_id = newest(skillbus)
    assert skillbus("task", "follow", task_id).code == 0
    for options in ([], ["--json"], ["--after", "0"]):
        ended = skillbus("task", "follow", task_id, "--strict", *options)
        assert (ended.code, ended.err) == (
            3,
            "error: --strict: slow ended rejected (refused), and its status is error\n",
        )


def test_a_task_that_has_ended_cannot_be_canceled(skillbus: Skillbus, session: Path) -> None:
    task_id = calc(skillbus, "m1")
    ended = skillbus("task", "cancel", task_id)
    assert (ended.code, ended.out) == (6, "")
    assert ended.err == (
        "error: TASK_NOT_CANCELABLE: the task has ended: completed; "
        f"`skillbus task show {task_id}` shows what came of it\n"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show", "nowhere"], "no task 'nowhere' in the episode of this session: `skillbus task list` shows"),
        (["follow", "nowhere"], "no task 'nowhere'"),
        (["cancel", "nowhere"], "no task 'nowhere'"),
        (["list", "--status", "lost"], "--status 'lost' is none of working, completed, rejected, failed, canceled"),
        (["list", "--limit", "0"], "Invalid value for '--limit'"),
        (["follow", "x", "--json", "--raw"], "leave out --json-out, --raw and --quiet"),
        (["follow", "x", "--json-out", "--raw"], "give one of --json-out, --raw and --quiet"),
        (["follow", "x", "--timeout", "2d"], "--timeout is more than 0 and at most a day"),
        (["follow", "x", "--after", "-1"], "Invalid value for '--after'"),
        (["cancel", "x", "--timeout", "0"], "--timeout is more than 0"),
    ],
)
def test_an_error_says_what_to_do(skillbus: Skillbus, session: Path, arguments: list[str], says: str) -> None:
    ended = skillbus("task", *arguments)
    assert (ended.code, ended.out) == (1, "")
    assert says in ended.err
    assert len(ended.err.splitlines()) == 1


def test_another_episode_has_other_tasks(skillbus: Skillbus, session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task_id = calc(skillbus, "m1")
    monkeypatch.setenv("SKILLBUS_SESSION", skillbus("session", "new", "ep2", "-g", "Test.Mark=test:1").out.strip())
    assert skillbus("task", "list").err == "0 task(s)\n"
    assert skillbus("task", "show", task_id).err == skillbus("task", "show", task_id[::-1]).err.replace(
        task_id[::-1], task_id
    )


def test_a_task_of_another_process_is_followed_and_canceled_on_its_ledger(
    skillbus: Skillbus, session: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.environment["SKILLBUS_LEASE_SECONDS"] = "2"
    marks = home.folder / "marks"
    with home.start("call", "slow", "--arg", f"marker={marks}", "--arg-json", "seconds=50", *PACK) as process:
        until(marks.exists, "the effect")
        task_id = newest(skillbus)
        shown = skillbus("task", "show", task_id)
        assert "state      working\n" in shown.out
        assert "deadline   20" in shown.out
        followed = cut_short(skillbus, task_id)
        assert followed.code == 5, followed.err
        assert followed.err.endswith(f"take it up with `skillbus task follow {task_id} --after 0`\n")
        ended = skillbus("task", "cancel", task_id)
        assert (ended.code, ended.out) == (0, f"canceled {task_id}\n"), ended.err
        assert json.loads(skillbus("task", "cancel", task_id, "--json").out)["id"] == task_id
        out, _ = process.communicate(timeout=LIMIT)
    assert out.startswith("slow: canceled, error")
    assert "canceled" in skillbus("task", "follow", task_id).out.splitlines()[0]


def test_a_followed_call_shows_its_reports(skillbus: Skillbus, session: Path, home: Home) -> None:
    options = ("call", "slow", "--arg", "marker=marks", *REPORTING, *PACK)
    ended = skillbus(*options, "--follow", "--raw")
    task_id = newest(skillbus)
    assert (ended.code, ended.err) == (0, f'task {task_id}\n 25%  reading\none two\n{{"three": 3}}\n')
    task = json.loads(skillbus("task", "show", task_id, "--json").out)
    del task["history"]
    assert json.loads(ended.out) == {"task": task}
    assert skillbus(*options).err == ""  # no terminal looks
    assert skillbus(*options, "--follow", "--quiet") == Ended(0, "", "")
    shown = at_terminal(home, *options)
    assert re.search(r"task [0-9a-f]{32}.* 25%  reading.*one two\n{\"three\": 3}\n.*slow: completed", shown, re.DOTALL)
    assert "one two" not in at_terminal(home, *options, "--no-follow")


def test_an_agent_without_streams_is_called_all_the_same(
    skillbus: Skillbus, session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refusing(*_: Any, **__: Any) -> AsyncGenerator[StreamEvent, None]:
        events: list[StreamEvent] = []
        for event in events:
            yield event
        raise bus.UnsupportedOperation

    monkeypatch.setattr("bus.Client.stream", refusing)
    ended = skillbus("call", "calc", "--arg", "expr=6*7", "--follow", "--json-out")
    assert (ended.code, ended.err) == (0, "")
    assert json.loads(ended.out)["text"] == "42"


def test_reports_command_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    reports = Reports(shown=True)
    status = {"state": "TASK_STATE_WORKING", "message": {"parts": [{"text": "a\x1b[2J\nb"}]}}
    reports.take(StreamEvent({"statusUpdate": {"status": status}}, 0, 1, final=False, task_id="t\x07"))
    artifact = {"artifactId": "x", "parts": [{"text": "c\x1b[2J\nd"}]}
    reports.take(StreamEvent({"artifactUpdate": {"artifact": artifact}}, 1, 2, final=False))
    reports.take(StreamEvent({"task": {"id": "t", "status": {"state": "?"}}}, 2, 9, final=False, gap=True))
    reports.close()
    assert capsys.readouterr().err == (
        "task t\\x07\n      a\\x1b[2J\\nb\nc\\x1b[2J\nd\n(earlier reports are not kept any more)\n"
    )
    assert reports.seq == 9
    with pytest.raises(Failure, match="named no task"):
        _ = Reports(shown=True).response


def test_a_call_without_a_worker_cannot_be_left(skillbus: Skillbus, session: Path) -> None:
    ended = skillbus("call", "calc", "--arg", "expr=1", "--detach")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("error: --detach needs a worker: name the broker with --amqp-url")
    for option in ("--json-out", "--quiet", "--strict", "--follow"):
        ended = skillbus("call", "calc", "--detach", option)
        assert (ended.code, ended.out) == (1, "")
        assert ended.err.startswith("error: --detach waits for no result")
    assert skillbus("task", "list").err == "0 task(s)\n"


@pytest.mark.parametrize("verb", ["call", "follow"])
def test_a_cut_is_no_end(skillbus: Skillbus, session: Path, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    async def breaking(*_: Any, **__: Any) -> AsyncGenerator[StreamEvent, None]:
        yield StreamEvent({"task": {"id": "t-1", "status": {}}}, 0, 7, final=False, task_id="t-1")
        raise bus.StreamCut(task_id="t-1", task_seq=7)

    monkeypatch.setattr("bus.Client.stream", breaking)
    command = ("call", "calc", "--follow") if verb == "call" else ("task", "follow", "t-1")
    assert skillbus(*command) == Ended(
        5, "", "error: the stream was cut before its end; take it up with `skillbus task follow t-1 --after 7`\n"
    )


def test_an_interrupted_call_in_this_process_names_its_task(home: Home, session: Path, skillbus: Skillbus) -> None:
    marks, go = home.folder / "marks", home.folder / "go"
    arguments = ("--arg", f"marker={marks}", "--arg", f"until={go}")
    with home.start("call", "slow", *arguments, *PACK) as process:
        until(marks.exists, "the effect")
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        said = process.stderr.readline()
        go.touch()  # it ends within the time that it is given
        out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, out, err) == (130, "", "")
    task_id = newest(skillbus)
    assert said == f"interrupted; the call ends with this process: `skillbus task show {task_id}` says how\n"
    assert "state      completed" in skillbus("task", "show", task_id).out


# with a worker


@pytest.mark.rabbitmq
def test_a_call_is_left_followed_cut_and_taken_up(crew: Crew) -> None:
    home = crew.home
    marks, go = home.folder / "marks", home.folder / "go"
    with crew.worker():
        arguments = ("--arg", f"marker={marks}", "--arg", f"until={go}", *REPORTING)
        left = home.run("call", "slow", *arguments, "--detach", "--timeout", "50s", "--message-id", "m1")
        assert left.code == 0, left.err
        task_id = left.out.strip()
        assert left.out == f"{task_id}\n"
        assert left.err == (
            f"follow it with `skillbus task follow {task_id}`, end it with `skillbus task cancel {task_id}`\n"
        )
        until(marks.exists, "the effect")
        (working,) = listed(home.run("task", "list", "--status", "working", "--json"))
        assert working["id"] == task_id
        with home.start("task", "follow", task_id, "--after", "0", "--json") as process:
            assert process.stdout is not None
            seen = -1
            while seen < 2:
                seen = json.loads(process.stdout.readline())["seq"]
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=LIMIT)
        assert process.returncode == 130
        again = f"`skillbus task follow {task_id} --after 2` takes it up, `skillbus task cancel {task_id}` ends it"
        assert err == f"interrupted; the task goes on: {again}\n"
        cut, again = cut_short(home.run, task_id), f"`skillbus task follow {task_id} --after 2`"
        assert (cut.code, cut.out) == (5, "")
        assert cut.err.splitlines() == [
            f"task {task_id}",
            "one ",  # what it had sent ahead
            f"error: --timeout is over and the task goes on; take it up with {again}",
        ]
        with home.start("task", "follow", task_id, "--after", "2") as process:
            go.touch()
            out, err = process.communicate(timeout=LIMIT)
        assert (process.returncode, err) == (0, f'task {task_id}\ntwo\n{{"three": 3}}\n')
        assert out == home.run("call", "slow", *arguments, "--message-id", "m1").out
    assert len(marks.read_text().splitlines()) == 1


@pytest.mark.rabbitmq
@pytest.mark.parametrize("how", ["--follow", "--no-follow"])
def test_an_interrupted_call_goes_on_and_can_be_canceled(crew: Crew, how: str) -> None:
    home = crew.home
    marks, go = home.folder / "marks", home.folder / "go"
    with crew.worker():
        calling = crew.call("slow", "--arg", f"marker={marks}", "--arg", f"until={go}", "--message-id", "m1", how)
        until(marks.exists, "the effect")
        calling.send_signal(signal.SIGINT)
        left = end(calling)
        (task,) = listed(home.run("task", "list", "--json"))
        task_id = task["id"]
        assert left == Ended(
            130,
            "",
            "interrupted; the task goes on. "
            f"Follow it with `skillbus task follow {task_id}`, end it with `skillbus task cancel {task_id}`\n",
        )
        assert task["status"]["state"] == "TASK_STATE_WORKING"
        with home.start("task", "follow", task_id, "--strict", stdin=subprocess.DEVNULL) as following:
            ended = home.run("task", "cancel", task_id)
            out, err = following.communicate(timeout=LIMIT)
        assert (ended.code, ended.out) == (0, f"canceled {task_id}\n")
        assert out.startswith("slow: canceled, error")
        assert (following.returncode, err) == (
            3, "error: --strict: slow ended canceled (canceled), and its status is error\n"
        )  # fmt: skip
        assert home.run("task", "cancel", task_id).code == 0
