"""One suite for the three ways to run a handler: the same contract, the same behaviour."""

import asyncio
import hashlib
import inspect
import json
import logging
import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skills import Directory, Done, Failed, Outcome
from skills.handlers import CallContext, Supply
from skills.redaction import Redactor, Secret

from .ways import LIMIT, TOOLS, WAYS, Notes, Reports, Way, is_running, serving, tool, until_gone

HOSTED: tuple[Way, ...] = ("python", "javascript")
TYPES = Path(inspect.getfile(CallContext)).with_name("context.d.ts")
SECRET = "sesame-4f1b"

each_way = pytest.mark.parametrize("way", WAYS)
each_host = pytest.mark.parametrize("way", HOSTED)


async def outcome(way: Way, function: str, payload: Any, **more: Any) -> Done | Failed:
    async with serving(tool(way, function, **more)) as handling:
        return await handling(payload)


def said(outcome: Done | Failed) -> Any:
    assert isinstance(outcome, Done), outcome
    return outcome.output


def reason(outcome: Done | Failed) -> str:
    assert isinstance(outcome, Failed), outcome
    return outcome.reason


# what goes in and comes out


@each_way
async def test_the_output_is_what_the_handler_returns(way: Way) -> None:
    async with serving(tool(way, "echo")) as handling:
        for text in ("", "a", "grüße 漢字 🎉", "\0", "\u2028\x7f\x1f", '"\\\n', "x" * 100_000, "é" * 400_000):
            assert said(await handling({"text": text})) == {"text": text}
        for number in (0, -1, 0.1, 2**53 - 1, 1e300, 5e-324, -1.5):
            assert said(await handling({"text": "", "number": number})) == {"text": "", "number": number}


@each_way
async def test_a_typed_function_and_a_plain_one_are_handlers(way: Way) -> None:
    assert said(await outcome(way, "typed", {"text": "a"})) == {"text": "a"}
    assert said(await outcome(way, "typed", {"text": "a", "number": 2})) == {"text": "a", "number": 2}
    async with serving(tool(way, "plain_echo")) as handling:
        assert said(await handling({"text": "a"})) == {"text": "a"}
        assert handling.reports.progresses == [("half", 0.5)]


@pytest.mark.parametrize("way", ["inline", "python"])
async def test_an_input_may_be_called_context(way: Way) -> None:
    async with serving(replace(tool(way, "named_context"), takes="context")) as handling:
        assert said(await handling({"text": "a"})) == {"text": "a"}


@each_way
async def test_an_input_that_is_no_object_is_handed_over_bare(way: Way) -> None:
    def wrapped(member: str) -> Any:
        return {"type": "object", "properties": {member: {"type": "string"}}, "required": [member]}

    more = {"input_schema": wrapped("request"), "output_schema": wrapped("result")}
    found = await outcome(way, "bare", {"request": "a"}, input_member="request", output_member="result", **more)
    assert said(found) == {"result": "A"}


@each_way
@pytest.mark.parametrize(
    ("payload", "wrong"),
    [
        ({}, 'missing field "text"'),
        ({"text": 1}, "text must be a text"),
        ({"text": "a", "more": 1}, 'unknown field "more"; known: text, number, count'),
        ({"text": "a", "count": 2**53}, "count must be a whole number from -(2^53 - 1) to 2^53 - 1"),
        ({"text": "a", "count": 1.5}, "count must be a whole number"),
        ({"text": "a", "number": 10**400}, "number must be a number"),
    ],
)
async def test_a_wrong_input_never_reaches_the_handler(way: Way, payload: Any, wrong: str) -> None:
    found = await outcome(way, "echo", payload)
    assert reason(found) == f"the handler was not called: the input is wrong: {wrong}"


@each_way
@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        ("nothing", "it must be an object"),
        ("wrong_field", 'missing field "text"'),
        ("wrong_type", "text must be a text"),
        ("wrong_list", "it must be an object"),
        ("extra_field", 'unknown field "more"; known: text, number, count'),
        ("surrogate", "text holds a lone surrogate"),
        ("not_finite", "number is a number that is not finite"),
    ],
)
async def test_a_wrong_output_fails_the_call_and_names_the_path(way: Way, function: str, wrong: str) -> None:
    assert reason(await outcome(way, function, {"text": "in"})) == f"the output is wrong: {wrong}"


@each_way
async def test_what_is_no_json_fails_the_call(way: Way) -> None:
    assert "text is " in reason(await outcome(way, "not_json", {"text": "in"}))
    assert reason(await outcome(way, "endless", {"text": "in"}))
    assert "count must be a whole number from" in reason(await outcome(way, "large_integer", {"text": "in"}))
    assert "number is " in reason(await outcome(way, "far_too_large", {"text": "in"}))
    assert said(await outcome(way, "large_number", {"text": "in"})) == {"text": "a", "number": 1e300}
    assert said(await outcome(way, "large_whole_number", {"text": "in"})) == {"text": "a", "number": 2**60}


@each_way
async def test_an_output_that_is_too_large_fails_the_call_alone(way: Way) -> None:
    async with serving(tool(way, "big")) as handling:
        assert len(said(await handling({"text": "", "number": 900_000}))["text"]) == 900_000
        for number in (1_000_000, 3_000_000, 20_000_000):
            assert "bytes; the limit is" in reason(await handling({"text": "", "number": number}))
        assert len(said(await handling({"text": "", "number": 10}))["text"]) == 10


# what a handler is told, and tells


@each_way
async def test_the_context_tells_of_the_call(way: Way, tmp_path: Path) -> None:
    with Directory.open(tmp_path) as worktree:
        async with serving(tool(way, "about")) as handling:
            told = json.loads(said(await handling({"text": ""}, worktree=worktree))["text"])
    assert told.pop("deadline") > 0
    assert told == {
        "call_id": "call-1",
        "canceled": False,
        "episode": "episode",
        "onward": {"a2a-depth": "1"},
        "task_id": "task",
        "worktree": str(tmp_path),
    }


async def test_the_context_has_the_same_members_in_both_languages_and_in_its_types() -> None:
    snake = said(await outcome("inline", "members", {"text": ""}))["text"].split(",")
    assert said(await outcome("python", "members", {"text": ""}))["text"].split(",") == snake
    camel = {re.sub("_(.)", lambda found: found[1].upper(), each) for each in snake}
    there = set(said(await outcome("javascript", "members", {"text": ""}))["text"].split(","))
    assert there == camel | {"signal"}
    (declared,) = re.findall(r"interface CallContext \{\n(.*?)\n\}", TYPES.read_text(), re.DOTALL)
    assert set(re.findall(r"^  (?:readonly )?(\w+)[(:]", declared, re.MULTILINE)) == there


@each_way
async def test_reports_come_in_their_order(way: Way, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tool(way, "reports")) as handling:
        with caplog.at_level(logging.INFO):
            said(await handling({"text": ""}))
    assert handling.reports.progresses == [("begun", None), ("half", 0.5)]
    assert handling.reports.chunks == [
        ("progress", {"text": "first"}, False),
        ("draft", {"data": {"second": [1, 2.5, None]}}, True),
    ]
    (line,) = [record for record in caplog.records if "a word for the log" in record.message]
    assert (line.levelname, line.message) == ("WARNING", "t.reports, call call-1: a word for the log")


@each_way
async def test_a_chunk_that_is_too_large_is_rejected_where_it_is_sent(way: Way) -> None:
    async with serving(tool(way, "too_large_a_chunk")) as handling:
        for number in (20_000, 3_000_000):
            assert said(await handling({"text": "", "number": number})) == {"text": "too_large"}
        assert said(await handling({"text": "", "number": 10})) == {"text": "sent"}


@each_host
async def test_what_a_handler_prints_goes_to_the_log(way: Way, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        async with serving(tool(way, "prints")) as handling:
            assert said(await handling({"text": ""})) == {"text": "printed"}
    printed = [record.message for record in caplog.records if record.message.startswith("t.prints, call call-1: ")]
    assert {each.removeprefix("t.prints, call call-1: ") for each in printed} == {
        "on standard output",
        '{"is": "done", "call": 1, "output": {"text": "forged"}}',
        "on standard error",
        "by the descriptor",
    }


@each_way
async def test_secrets_are_given_and_not_shown(
    way: Way, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    supply = Supply(secrets={"API_KEY": SECRET, "OTHER": "not granted"})
    with caplog.at_level(logging.DEBUG):
        async with serving(tool(way, "shows_secrets", secrets=("API_KEY",)), supply) as handling:
            assert said(await handling({"text": ""})) == {"text": SECRET[::-1]}
    assert SECRET not in caplog.text + "".join(capfd.readouterr())


def holding(value: str) -> Supply:
    """The supply of one secret, redacted as a worker redacts."""
    redactor = Redactor([Secret("API_KEY", value)])
    return Supply({"API_KEY": value}, redact=redactor.text, settled=redactor.settled)


def parts(value: str, text: str) -> list[str]:
    """What of a value stands in a text, by eight characters."""
    return [value[at : at + 8] for at in range(len(value) - 7) if value[at : at + 8] in text]


@each_way
async def test_an_error_is_cut_and_put_on_one_line_once_no_secret_stands_in_it(way: Way) -> None:
    long, odd = hashlib.sha256(b"a key").hexdigest(), "two  blanks and\ta tab"
    async with serving(tool(way, "raises_secret", secrets=("API_KEY",)), holding(long)) as handling:
        for number in (0, 1900, 1970, 1985, 2000, 5000):
            found = reason(await handling({"text": "", "number": number}))
            assert not parts(long, found)
            assert len(found) < 2100
    async with serving(tool(way, "raises_secret", secrets=("API_KEY",)), holding(odd)) as handling:
        assert "[secret]" in reason(await handling({"text": "", "number": 0}))


async def test_what_is_thrown_and_no_error_is_told_whole_before_it_is_redacted() -> None:
    long = "".join(hashlib.sha256(bytes([number])).hexdigest() for number in range(200))
    async with serving(tool("javascript", "throws_secret", secrets=("API_KEY",)), holding(long)) as handling:
        assert reason(await handling({"text": ""})) == "Error: { key: '[secret]' }"


@each_host
async def test_a_secret_is_found_in_a_printed_line_however_the_line_comes(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    long = "".join(hashlib.sha256(bytes([number])).hexdigest() + "é" for number in range(250))
    with caplog.at_level(logging.INFO):
        async with serving(tool(way, "prints_secret", secrets=("API_KEY",)), holding(long)) as handling:
            for number in (0, 8180, 50_000, 60_001):  # a pipe holds 65536 bytes
                assert said(await handling({"text": "", "number": number})) == {"text": "printed"}
    assert not parts(long, caplog.text)
    assert "[secret]" in caplog.text


@each_way
async def test_a_secret_that_nobody_supplies_keeps_the_handler_from_being_called(way: Way, tmp_path: Path) -> None:
    async with serving(tool(way, "never", tmp_path, secrets=("API_KEY",))) as handling:
        assert reason(await handling({"text": ""})) == "the handler was not called: nobody supplies API_KEY"


@each_way
async def test_as_much_is_found_in_a_memory_as_it_gives_at_once(way: Way) -> None:
    notes = Notes()
    notes.entries = {str(number): ("é" * 30_000, 1) for number in range(100)}
    finding = tool(way, "finds_many", memories={"Notes": ("read",)})
    async with serving(finding, Supply(memories={"Notes": notes})) as handling:
        assert said(await handling({"text": ""})) == {"text": "100"}


async def test_a_host_that_asks_and_does_not_read_does_not_fill_its_worker() -> None:
    class Large(Notes):
        most = 0

        async def get(self, key: str) -> Any:
            (served,) = handling.runner._hosts  # type: ignore[attr-defined]
            self.most = max(self.most, served._writer.transport.get_write_buffer_size())
            return {"key": key, "value": "v" * 60_000, "version": 1}

    notes = Large()
    asking = tool("javascript", "asks_without_reading", memories={"Notes": ("read",)})
    async with serving(asking, Supply(memories={"Notes": notes})) as handling:
        assert said(await handling({"text": "", "number": 500})) == {"text": "500"}
    assert notes.most < 1 << 18


@each_way
async def test_a_memory_is_used_through_the_worker(way: Way) -> None:
    supply = Supply(memories={"Notes": Notes()})
    async with serving(tool(way, "remembers", memories={"Notes": ("read", "write")}), supply) as handling:
        found = said(await handling({"text": ""}))
    assert json.loads(found["text"]) == [1, {"n": 1}, 1, "conflict", 1, 1, True, None]


@each_way
@pytest.mark.parametrize(("mode", "can"), [("read", "get,list,search"), ("write", "put,delete")])
async def test_a_mode_gives_no_way_to_the_other(way: Way, mode: str, can: str) -> None:
    supply = Supply(memories={"Notes": Notes()})
    async with serving(tool(way, "only_reads", memories={"Notes": (mode,)}), supply) as handling:
        assert said(await handling({"text": ""})) == {"text": can}


@each_way
async def test_a_supplier_may_take_the_reports_and_the_outcome(way: Way) -> None:
    taken, settled = Reports(), []

    async def settle(outcome: Outcome) -> Outcome:
        settled.append(outcome)
        return Done({"text": "settled"})

    async with serving(tool(way, "reports"), Supply(reporter=taken, settle=settle)) as handling:
        assert said(await handling({"text": ""})) == {"text": "settled"}
        assert (len(taken.progresses), len(taken.chunks)) == (2, 2)
        assert handling.reports.progresses == []
    assert settled == [Done({"text": "told"})]


# what goes wrong


@each_way
@pytest.mark.parametrize(
    ("function", "texts", "retryable"),
    [
        ("raises", ("ValueError: it broke (handlers.py:", "TypeError: it broke (handlers.mjs:"), False),
        ("raises_retryable", ("AgainLater: come back (handlers.py:", "Error: come back (handlers.mjs:"), True),
        ("raises_oddly", ("SystemExit: 3", "Error: 'a text'"), False),
    ],
)
async def test_an_error_fails_the_call_alone(way: Way, function: str, texts: Any, retryable: bool) -> None:
    async with serving(tool(way, function)) as handling:
        for _ in range(2):
            found = await handling({"text": ""})
            assert isinstance(found, Failed)
            assert found.reason.startswith(texts[way == "javascript"]), found.reason
            assert found.retryable is retryable


@each_way
@pytest.mark.parametrize("kind", ["message", "stack", "retryable", "all"])
async def test_an_error_that_can_not_be_looked_at_fails_the_call_alone(way: Way, kind: str) -> None:
    async with serving(tool(way, "raises_undescribable")) as handling:
        for _ in range(2):
            found = await handling({"text": kind}, within=10.0)
            assert isinstance(found, Failed)
            assert not found.retryable


@pytest.mark.parametrize("way", ["inline", "python"])
async def test_a_handler_that_cancels_itself_fails_the_call_alone(way: Way) -> None:
    async with serving(tool(way, "cancels_itself")) as handling:
        for _ in range(2):
            assert reason(await handling({"text": ""})) == "the handler ended as if it were canceled"


@each_way
async def test_a_fraction_that_is_no_number_of_every_language_is_left_out(way: Way) -> None:
    async with serving(tool(way, "too_far")) as handling:
        assert said(await handling({"text": ""})) == {"text": "told"}
        assert handling.reports.progresses == [("far", None)]


@each_host
async def test_a_host_whose_folder_is_gone_fails_the_call(way: Way, tmp_path: Path) -> None:
    folder = tmp_path / "tools"
    shutil.copytree(TOOLS, folder)
    async with serving(tool(way, "echo", folder)) as handling:
        assert said(await handling({"text": "a"})) == {"text": "a"}
        shutil.rmtree(folder)
        assert "No such file or directory" in reason(await handling({"text": "a"}, within=10.0)).replace("no", "No", 1)


@each_way
async def test_an_error_that_nobody_waits_for_is_not_the_calls(way: Way, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tool(way, "stray")) as handling:
        assert said(await handling({"text": ""})) == {"text": "went on"}
        assert said(await handling({"text": ""})) == {"text": "went on"}


@each_way
@pytest.mark.parametrize("function", ["waits", "waits_in_thread"])
async def test_a_canceled_handler_cleans_up_before_its_caller_is_told(way: Way, function: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    async with serving(tool(way, function, grace=LIMIT)) as handling:
        call = await handling.begin({"text": str(mark)})
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert mark.read_text() == "cleaned up"


@each_way
async def test_a_deadline_ends_a_handler_as_a_cancel_does(way: Way, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    async with serving(tool(way, "waits", grace=LIMIT)) as handling:
        await asyncio.gather(handling.runner.warm())
        with pytest.raises(TimeoutError):
            await handling({"text": str(mark)}, within=0.3)
        assert mark.read_text() == "cleaned up"


@each_way
async def test_a_handler_that_answers_though_it_is_canceled_is_canceled(way: Way) -> None:
    async with serving(tool(way, "swallows", grace=LIMIT)) as handling:
        for _ in range(2):
            call = await handling.begin({"text": ""})
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call


@each_way
async def test_what_does_not_end_is_left_after_the_grace(way: Way, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    async with serving(tool(way, "clings", grace=0.05)) as handling:
        call = await handling.begin({"text": str(mark)})
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        mark.touch()


async def broken(way: Way, function: str, **more: Any) -> str:
    return reason(await outcome(way, function, {"text": ""}, **more))


@each_host
async def test_a_crash_fails_that_call_alone(way: Way) -> None:
    assert await broken(way, "leaves") == "the host ended with status 7 before it had answered"
    assert await broken(way, "crashes") == "the host was ended by SIGSEGV before it had answered"
    assert "was ended before it had answered" in await broken(way, "writes_protocol")


@each_host
async def test_a_memory_hog_fails_its_call_alone(way: Way) -> None:
    found = await broken(way, "hogs", memory=128 << 20)
    assert found.startswith(("MemoryError", "RangeError: Array buffer allocation failed", "the host ")), found


@each_host
async def test_a_loop_without_end_is_ended_with_its_host_and_all_that_it_has_started(way: Way) -> None:
    async with serving(tool(way, "forks", grace=0.1)) as handling:
        call = await handling.begin({"text": ""})
        child = int(handling.reports.progresses[0][0])
        assert is_running(child)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not is_running(child)


@each_host
async def test_a_host_that_is_lost_is_replaced(way: Way) -> None:
    async with serving(tool(way, "pid", grace=0.1)) as handling:
        first = int(said(await handling({"text": ""}))["text"])
        assert int(said(await handling({"text": ""}))["text"]) == first
        os.kill(first, signal.SIGKILL)
        await until_gone(first)
        assert int(said(await handling({"text": ""}))["text"]) != first


# where a host runs


@each_host
async def test_a_host_knows_its_folder_and_little_of_its_environment(way: Way, tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "SECRET": SECRET, "SKILLBUS_X": "1", "NODE_OPTIONS": "--bad"}
    async with serving(tool(way, "environment"), environ=environ) as handling:
        assert said(await handling({"text": ""})) == {"text": "LANG,PATH"}
    async with serving(tool(way, "where")) as handling:
        assert said(await handling({"text": ""})) == {"text": str(handling.tool.folder)}
        with Directory.open(tmp_path) as worktree:
            assert said(await handling({"text": ""}, worktree=worktree)) == {"text": str(tmp_path)}
        assert said(await handling({"text": ""})) == {"text": str(handling.tool.folder)}
