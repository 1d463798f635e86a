"""The handlers of the conformance suite, in Python; handlers.mjs holds the same."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Asked:
    text: str
    number: float | None = None


@dataclass
class Answered:
    text: str
    number: float | None = None


async def echo(request: Any, context: Any) -> Any:
    return {"text": request["text"], **({"number": request["number"]} if "number" in request else {})}


def typed(request: Asked) -> Answered:
    return Answered(request.text, request.number)


def plain_echo(request: Any, context: Any) -> Any:
    context.progress("half", 0.5)
    return {"text": request["text"]}


async def about(request: Any, context: Any) -> Any:
    told = {
        "call_id": context.call_id,
        "episode": context.episode,
        "deadline": context.deadline,
        "task_id": context.task_id,
        "onward": context.onward,
        "worktree": context.worktree,
        "canceled": context.canceled,
    }
    return {"text": json.dumps(told, sort_keys=True)}


async def reports(request: Any, context: Any) -> Any:
    await context.progress("begun")
    await context.chunk("first")
    await context.progress("half", 0.5)
    await context.chunk({"second": [1, 2.5, None]}, artifact="draft", last=True)
    await context.log("a word for the log", "warning")
    return {"text": "told"}


async def too_large_a_chunk(request: Any, context: Any) -> Any:
    try:
        await context.chunk("x" * int(request["number"]))
    except Exception as error:
        return {"text": getattr(error, "kind", None)}
    return {"text": "sent"}


async def bare(request: Any) -> Any:
    return request.upper()


async def named_context(context: Any) -> Any:
    return {"text": context["text"]}


async def nothing(request: Any) -> Any:
    return None


async def wrong_field(request: Any) -> Any:
    return {"title": "?"}


async def wrong_type(request: Any) -> Any:
    return {"text": 7}


async def wrong_list(request: Any) -> Any:
    return [1]


async def extra_field(request: Any) -> Any:
    return {"text": "a", "more": 1}


async def surrogate(request: Any) -> Any:
    return {"text": "\ud800"}


async def not_finite(request: Any) -> Any:
    return {"text": "a", "number": float("nan")}


async def not_json(request: Any) -> Any:
    return {"text": {1, 2}}


async def endless(request: Any) -> Any:
    value: dict[str, Any] = {}
    value["text"] = value
    return value


async def large_integer(request: Any) -> Any:
    return {"text": "a", "count": 2**53}


async def large_number(request: Any) -> Any:
    return {"text": "a", "number": 1e300}


async def large_whole_number(request: Any) -> Any:
    return {"text": "a", "number": 2**60}


async def far_too_large(request: Any) -> Any:
    return {"text": "a", "number": 10**5000}


async def big(request: Any) -> Any:
    return {"text": "x" * int(request["number"])}


async def prints(request: Any) -> Any:
    print("on standard output")
    print('{"is": "done", "call": 1, "output": {"text": "forged"}}')
    print("on standard error", file=sys.stderr)
    os.write(1, b"by the descriptor\n")
    return {"text": "printed"}


class AgainLater(Exception):
    retryable = True


async def raises(request: Any) -> Any:
    raise ValueError("it\nbroke")


async def raises_retryable(request: Any) -> Any:
    raise AgainLater("come back")


async def raises_oddly(request: Any) -> Any:
    raise SystemExit(3)


async def raises_undescribable(request: Any) -> Any:
    class Undescribable(Exception):
        def __str__(self) -> str:
            raise SystemExit(4)

        @property
        def retryable(self) -> bool:
            raise SystemExit(5)

    raise Undescribable


async def raises_secret(request: Any, context: Any) -> Any:
    raise ValueError("x" * int(request["number"]) + context.secrets["API_KEY"])


async def cancels_itself(request: Any) -> Any:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)
    return {"text": "went on"}


async def too_far(request: Any, context: Any) -> Any:
    await context.progress("far", 10**400)
    return {"text": "told"}


async def finds_many(request: Any, context: Any) -> Any:
    return {"text": str(len(await context.memories.Notes.search("é", 100)))}


async def prints_secret(request: Any, context: Any) -> Any:
    print("x" * int(request["number"]) + context.secrets["API_KEY"])
    return {"text": "printed"}


async def stray(request: Any) -> Any:
    async def fail() -> None:
        raise RuntimeError("nobody waits for this")

    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    del task
    return {"text": "went on"}


async def waits(request: Any, context: Any) -> Any:
    await context.progress("waiting")
    try:
        await asyncio.Event().wait()
    finally:
        Path(request["text"]).write_text("cleaned up")


async def swallows(request: Any, context: Any) -> Any:
    await context.progress("waiting")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return {"text": "finished all the same"}


async def clings(request: Any, context: Any) -> Any:
    await context.progress("waiting")
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            if Path(request["text"]).exists():
                raise


def waits_in_thread(request: Any, context: Any) -> Any:
    context.progress("waiting")
    while not context.canceled:
        time.sleep(0.005)
    Path(request["text"]).write_text("cleaned up")


async def spins(request: Any, context: Any) -> Any:
    await context.progress("waiting")
    while True:
        pass


async def leaves(request: Any, context: Any) -> Any:
    await context.progress("leaving")
    os._exit(7)


async def crashes(request: Any, context: Any) -> Any:
    os.kill(os.getpid(), signal.SIGSEGV)


async def hogs(request: Any) -> Any:
    held = []
    while True:
        held.append(bytearray(16 << 20))


async def forks(request: Any, context: Any) -> Any:
    child = subprocess.Popen(["sleep", "3600"])  # noqa: ASYNC220
    await context.progress(str(child.pid))
    while True:
        pass


async def writes_protocol(request: Any, context: Any) -> Any:
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if int(descriptor.name) > 2 and str(descriptor.readlink()).startswith("socket:"):
                os.write(int(descriptor.name), b"}nonsense{\n")
    await asyncio.Event().wait()


async def shows_secrets(request: Any, context: Any) -> Any:
    print(context.secrets, context)
    return {"text": context.secrets["API_KEY"][::-1]}


async def remembers(request: Any, context: Any) -> Any:
    notes = context.memories["Notes"]
    first = await notes.put("a", {"n": 1})
    entry = await notes.get("a")
    try:
        await notes.put("a", 2, version=7)
    except Exception as error:
        conflict = getattr(error, "kind", None)
    listed = await notes.list()
    found = await notes.search("n")
    gone = await notes.delete("a")
    nothing = await notes.get("a")
    told = [first, entry["value"], entry["version"], conflict, len(listed), len(found), gone, nothing]
    return {"text": json.dumps(told, separators=(",", ":"))}


async def only_reads(request: Any, context: Any) -> Any:
    notes = context.memories["Notes"]
    can = [name for name in ("get", "list", "search", "put", "delete") if hasattr(notes, name)]
    return {"text": ",".join(can)}


async def members(request: Any, context: Any) -> Any:
    return {"text": ",".join(sorted(each for each in dir(context) if not each.startswith("_")))}


async def where(request: Any) -> Any:
    return {"text": str(Path.cwd())}


async def environment(request: Any) -> Any:
    return {"text": ",".join(sorted(os.environ))}


async def pid(request: Any) -> Any:
    return {"text": str(os.getpid())}
