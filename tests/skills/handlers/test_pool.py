"""Hosts that are kept, replaced and ended, and those that do not start."""

import asyncio
import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from skills import Context, Done, Failed
from skills.handlers import Supply, host, runner_of
from skills.handlers.call import Call
from skills.handlers.pool import FIRST_PAUSE, Pool
from skills.handlers.tool import Tool

from .ways import LIMIT, Way, is_running, serving, tool, until_gone

HOSTED: tuple[Way, ...] = ("python", "javascript")
each_host = pytest.mark.parametrize("way", HOSTED)

CALLS = 1000


def call_of(tool: Tool, text: str = "") -> Call:
    return Call(tool, {"text": text}, Context("call", "episode", time.time() + LIMIT), Supply())


def written(folder: Path, *, python: str = "", javascript: str = "") -> Path:
    (folder / "handlers.py").write_text(python)
    (folder / "handlers.mjs").write_text(javascript)
    return folder


@each_host
async def test_a_thousand_calls_each_have_one_outcome_though_hosts_are_killed(way: Way) -> None:
    dice = random.Random(7)
    pool = Pool(tool(way, "echo", concurrency=4, grace=0.2), os.environ)
    outcomes: dict[int, list[object]] = {number: [] for number in range(CALLS)}
    numbers = iter(range(CALLS))

    async def caller() -> None:
        for number in numbers:
            outcome = await pool.run(call_of(pool.tool, str(number)))
            outcomes[number].append(outcome)
            if number % 50 == 49 and pool.pids:
                with suppress(ProcessLookupError):
                    os.kill(dice.choice(pool.pids), signal.SIGKILL)

    await asyncio.gather(*(caller() for _ in range(8)))
    pids = pool.pids
    await pool.close()
    assert all(len(each) == 1 for each in outcomes.values())
    done = {number: each[0] for number, each in outcomes.items() if isinstance(each[0], Done)}
    failed = [each[0] for each in outcomes.values() if isinstance(each[0], Failed)]
    assert all(outcome.output == {"text": str(number)} for number, outcome in done.items() if isinstance(outcome, Done))
    assert len(done) + len(failed) == CALLS
    assert len(failed) <= CALLS // 50
    assert all("SIGKILL" in each.reason for each in failed)
    assert not any(map(is_running, pids))


@each_host
async def test_no_more_hosts_than_calls_at_once(way: Way) -> None:
    pool = Pool(tool(way, "pid", concurrency=2), os.environ)
    assert pool.pids == []
    outcomes = await asyncio.gather(*(pool.run(call_of(pool.tool)) for _ in range(12)))
    found = {outcome.output["text"] for outcome in outcomes if isinstance(outcome, Done)}
    assert found <= set(map(str, pool.pids))
    assert len(pool.pids) == 2
    await pool.close()


@each_host
async def test_a_pool_can_be_warmed_and_ends_in_order(way: Way) -> None:
    pool = Pool(tool(way, "pid", concurrency=3), os.environ)
    await pool.warm()
    pids = pool.pids
    assert len(pids) == 3
    await pool.close()
    assert not any(map(is_running, pids))
    late = await pool.run(call_of(pool.tool))
    assert late == Failed("its host can't be started: the worker is ending", retryable=True)


@each_host
async def test_the_calls_of_a_pool_that_is_closed_fail(way: Way) -> None:
    async with serving(tool(way, "spins", grace=0.1)) as handling:
        running = await handling.begin({"text": ""})
        waiting = asyncio.create_task(handling({"text": ""}))
        await asyncio.wait_for(handling.runner.close(), LIMIT)
        assert isinstance(await running, Failed)
        assert isinstance(await waiting, Failed)


@pytest.mark.parametrize(
    ("way", "source", "text"),
    [
        ("inline", "def f(:\n", "handlers.py:f can't be loaded: SyntaxError: "),
        ("python", "def f(:\n", "handlers.py:f can't be loaded: SyntaxError: "),
        ("javascript", "export function f( {\n", "handlers.mjs#f can't be loaded: SyntaxError: "),
        (
            "javascript",
            "let a;\nretrn a;\n",
            "handlers.mjs#f can't be loaded: SyntaxError: Unexpected identifier 'a' (handlers.mjs:2)",
        ),
        (
            "javascript",
            "let a;\nimport { b } from 'node:fs';\n",
            "does not provide an export named 'b' (handlers.mjs:2)",
        ),
        ("inline", "g = 1\n", "handlers.py:f can't be loaded: AttributeError: "),
        ("python", "f = 1\n", "handlers.py:f is a int, not a function"),
        ("javascript", "export const f = 1;\n", "handlers.mjs#f can't be loaded: Error: it exports no function f"),
        ("inline", "def f(query): ...\n", "handlers.py:f has no parameter 'request', which is what"),
        ("python", "def f(request, other): ...\n", "handlers.py:f asks for 'other'; a handler is given"),
        ("python", "import nowhere_at_all\n", "handlers.py:f can't be loaded: ModuleNotFoundError: "),
        ("javascript", "import './nowhere.mjs';\n", "handlers.mjs#f can't be loaded: Error: Cannot find module"),
        ("python", "import sys; sys.exit(3)\n", "handlers.py:f can't be loaded: SystemExit: 3"),
    ],
)
async def test_a_handler_that_can_not_be_loaded_fails_its_calls_with_the_reason(
    way: Way, source: str, text: str, tmp_path: Path
) -> None:
    async with serving(tool(way, "f", written(tmp_path, python=source, javascript=source))) as handling:
        found = await handling({"text": ""})
    assert isinstance(found, Failed)
    assert text in found.reason
    assert not found.retryable


async def test_without_node_the_reason_says_so(tmp_path: Path) -> None:
    async with serving(tool("javascript", "echo"), environ={"PATH": str(tmp_path)}) as handling:
        found = await handling({"text": ""})
    assert isinstance(found, Failed)
    assert "there is no `node` on the PATH; install Node 20 or newer" in found.reason


async def test_a_host_that_does_not_start_is_tried_again_after_a_pause(tmp_path: Path) -> None:
    now = 100.0
    written(tmp_path, python="import os\nprint('a last word')\nos._exit(9)\n")
    pool = Pool(tool("python", "f", tmp_path), os.environ, clock=lambda: now)

    async def reason() -> str:
        found = await pool.run(call_of(pool.tool))
        assert isinstance(found, Failed)
        assert found.retryable
        return found.reason

    assert await reason() == (
        "its host can't be started: the host ended with status 9 before it was ready; its last words: a last word"
    )
    written(tmp_path, python="def f(request): return request\n")
    now += FIRST_PAUSE / 2
    assert "its last words" in await reason()
    now += FIRST_PAUSE
    assert await pool.run(call_of(pool.tool, "a")) == Done({"text": "a"})
    await pool.close()


async def test_a_handler_that_takes_too_long_to_load_is_not_waited_for(tmp_path: Path) -> None:
    written(tmp_path, python="import threading\nthreading.Event().wait()\n")
    async with serving(tool("python", "f", tmp_path, start_seconds=0.3)) as handling:
        found = await handling({"text": ""})
    assert isinstance(found, Failed)
    assert "has not loaded its handler within 0.3 s" in found.reason


SLOW = """
import pathlib
import time

while not pathlib.Path(__file__).with_name("go").exists():
    time.sleep(0.005)


def f(request):
    return request
"""


async def test_a_start_that_takes_longer_than_its_call_is_kept_for_the_next(tmp_path: Path) -> None:
    async with serving(tool("python", "f", written(tmp_path, python=SLOW))) as handling:
        with pytest.raises(TimeoutError):
            await handling({"text": "a"}, within=0.1)
        again = asyncio.create_task(handling({"text": "b"}))
        (tmp_path / "go").touch()
        assert await again == Done({"text": "b"})
        assert isinstance(handling.runner, Pool)
        assert len(handling.runner.pids) == 1


async def test_a_start_that_nobody_waits_for_ends_with_the_pool(tmp_path: Path) -> None:
    async with serving(tool("python", "f", written(tmp_path, python=SLOW))) as handling:
        with pytest.raises(TimeoutError):
            await handling({"text": "a"}, within=0.1)


async def test_what_leaves_its_process_group_holds_nothing_up(tmp_path: Path) -> None:
    written(
        tmp_path,
        python="""
import subprocess

def f(request):
    child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    return {"text": str(child.pid)}
""",
    )
    async with serving(tool("python", "f", tmp_path)) as handling:
        found = await handling({"text": ""})
    assert isinstance(found, Done)
    os.kill(int(found.output["text"]), signal.SIGKILL)


async def test_a_child_that_holds_the_socket_does_not_hide_the_end_of_its_host(tmp_path: Path) -> None:
    written(
        tmp_path,
        python="""
import os
import signal
import time

async def f(request, context):
    child = os.fork()
    if child == 0:
        signal.pause()
    await context.progress(str(child))
    os._exit(3)
""",
    )
    async with serving(tool("python", "f", tmp_path)) as handling:
        found = await handling({"text": ""})
        assert found == Failed("the host ended with status 3 before it had answered")
        assert not is_running(int(handling.reports.progresses[0][0]))


async def test_an_error_that_node_does_not_survive_fails_its_call(tmp_path: Path) -> None:
    source = """
export async function f(request) {
  setTimeout(() => { throw new Error("from a timer"); }, 1);
  await new Promise(() => {});
}
"""
    async with serving(tool("javascript", "f", written(tmp_path, javascript=source))) as handling:
        for _ in range(2):
            found = await handling({"text": ""})
            assert isinstance(found, Failed)
            assert found.reason == "Error: from a timer (handlers.mjs:3)"


@pytest.mark.parametrize(
    ("way", "source"),
    [
        ("python", "async def f(request, context):\n    while True:\n        await context.log('x' * 1000)\n"),
        (
            "javascript",
            "export async function f(request, context) { for (;;) await context.log('x'.repeat(1000)); }\n",
        ),
    ],
)
async def test_who_says_too_much_is_ended(
    way: Way, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(host, "TRAFFIC", 1 << 20)
    folder = written(tmp_path, python=source, javascript=source)
    async with serving(tool(way, "f", folder, log_bytes=5000)) as handling:
        found = await handling({"text": ""})
    assert isinstance(found, Failed)
    assert "sent more than 1048576 bytes in one call, and was ended" in found.reason
    assert caplog.text.count("xxx\n") <= 5
    assert caplog.text.count("it writes more than 5000 bytes; the rest is left out") == 1


async def test_a_thread_that_does_not_end_keeps_its_place(tmp_path: Path) -> None:
    source = """
import pathlib
import time


def f(request, context):
    context.progress("begun")
    while not pathlib.Path(request["text"]).exists():
        time.sleep(0.005)
    return request
"""
    mark = tmp_path / "mark"
    async with serving(tool("inline", "f", written(tmp_path, python=source), grace=0.05)) as handling:
        call = await handling.begin({"text": str(mark)})
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(TimeoutError):
            await handling({"text": "b"}, within=0.1)
        mark.touch()
        assert await handling({"text": str(mark)}) == Done({"text": str(mark)})


async def test_modules_of_two_folders_are_two_modules(tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "words.py").write_text(f"WORD = {name!r}\n")
        written(folder, python="from .words import WORD\ndef f(request): return {'text': WORD}\n")
        async with serving(tool("inline", "f", folder)) as handling:
            found.append(await handling({"text": ""}))
    assert found == [Done({"text": "a"}), Done({"text": "b"})]


def test_nothing_of_a_handler_is_read_before_the_first_call(tmp_path: Path) -> None:
    for way in ("inline", *HOSTED):
        runner_of(tool(way, "f", tmp_path / "nowhere"), os.environ)


PARENT = """
import asyncio, os, sys, time
from skills.handlers.pool import Pool
from tests.skills.handlers.ways import tool
from tests.skills.handlers.test_pool import call_of

async def main():
    pool = Pool(tool(sys.argv[1], "spins", concurrency=2), os.environ)
    await pool.warm()
    running = asyncio.create_task(pool.run(call_of(pool.tool)))
    print(*pool.pids, flush=True)
    await running

asyncio.run(main())
"""


@each_host
async def test_hosts_end_when_their_worker_is_killed(way: Way) -> None:
    root = Path(__file__).parents[3]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, way, stdout=asyncio.subprocess.PIPE, cwd=root
    )
    assert process.stdout is not None
    pids = list(map(int, (await asyncio.wait_for(process.stdout.readline(), LIMIT)).split()))
    assert len(pids) == 2
    assert all(map(is_running, pids))
    process.kill()
    await process.wait()
    for pid in pids:
        await until_gone(pid)


@each_host
async def test_what_a_host_prints_before_its_first_call_is_limited(
    way: Way, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = written(
        tmp_path,
        python='for _ in range(2000):\n    print("x" * 100)\nasync def echo(request): return request\n',
        javascript='for (let i = 0; i < 2000; i++) console.log("x".repeat(100));\nexport const echo = (r) => r;\n',
    )
    with caplog.at_level("INFO"):
        async with serving(tool(way, "echo", folder, log_bytes=1000)) as handling:
            assert await handling({"text": "a"}) == Done({"text": "a"})
    assert caplog.text.count("x" * 100) < 30
