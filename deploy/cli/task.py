"""`skillbus task`: the tasks that calls have become: list, look at, follow and cancel them."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import screen
from .call import check_printing, cut, print_result, take_all
from .credential import find_credential
from .duration import parse_wait, write_duration
from .envelope import SHOWN
from .failure import Code, Failure
from .options import (
    Json,
    JsonOut,
    Quiet,
    Raw,
    ReadSettings,
    SessionFile,
    Strict,
    with_settings,
)
from .reports import Reports, text_of
from .work import perform

if TYPE_CHECKING:
    from broker.sessions import Credential
    from bus import Client
    from bus.client.leg import StreamEvent
    from deploy.settings import Settings

app = typer.Typer(no_args_is_help=True, help="The tasks of calls: what runs, what came of it, and how to end it.")

PAGE = 50
"""Tasks that are asked for at once."""

WAIT = 60.0
"""Seconds in which a question about tasks is answered."""

STATES = ("working", "completed", "rejected", "failed", "canceled")

TaskId = Annotated[str, typer.Argument(metavar="ID", help="The task's id: `skillbus task list` shows it.")]


@app.command("list")
@with_settings
def list_tasks(
    status: Annotated[
        str | None, typer.Option("--status", metavar="STATE", help=f"Those in this state alone: {', '.join(STATES)}.")
    ] = None,
    context: Annotated[str | None, typer.Option("--context", metavar="ID", help="Those of this contextId.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many of the newest.")] = 20,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    as_json: Json = False,
    session: SessionFile = None,
    *,
    read_settings: ReadSettings,
) -> None:
    """List the tasks of the session's episode, those that changed last first.

    [dim]Examples[/dim]
    skillbus task list --session ep1.session
    skillbus task list --status working --all
    skillbus task list --json | jq -r '.[].id'
    """
    credential = find_credential(session)
    settings = read_settings()
    wanted = {"status": _state(status)} if status is not None else {}
    wanted |= {"contextId": context} if context is not None else {}
    tasks, total = perform(_list(settings, credential, wanted, None if everything else limit))
    if as_json:
        screen.say_json(tasks)
        return
    now = time.time()
    asked = [(task, *_asked(task)) for task in tasks]
    rows = [(t["id"], _state_of(t), skill or "-", _ago(t, now), message or "-") for t, skill, message, _ in asked]
    if rows:
        screen.say_table(("TASK", "STATE", "SKILL", "CHANGED", "MESSAGE"), rows)
    more = f" of {total}; --all lists every one" if total > len(tasks) else ""
    screen.note(f"{len(tasks)} task(s){more}")


@app.command("show")
@with_settings
def show(
    task_id: TaskId,
    as_json: Json = False,
    session: SessionFile = None,
    *,
    read_settings: ReadSettings,
) -> None:
    """Show a task as it is: its state, what was asked, and what came of it.

    [dim]Examples[/dim]
    skillbus task show 0e5c7a52-5f0c-5c3e-a9d1-6a7f4d5b8c90
    skillbus task show $task --json | jq -r .status.state
    """
    credential = find_credential(session)
    settings = read_settings()
    task = perform(_show(settings, credential, task_id))
    if as_json:
        screen.say_json(task)
        return
    status, metadata = task["status"], task.get("metadata") or {}
    skill, message_id, arguments = _asked(task)
    text = json.dumps(arguments, ensure_ascii=False) if arguments is not None else ""
    said = {
        "task": task["id"],
        "state": _state_of(task),
        "since": status.get("timestamp"),
        "context": task.get("contextId"),
        "skill": skill,
        "message": message_id,
        "arguments": f"{text[:SHOWN]} …" if screen.is_watched() and len(text) > SHOWN else text,
        "deadline": metadata.get("deadline"),
        "part of": metadata.get("rootTask"),
    }
    for name, value in said.items():
        if value:
            screen.say(f"{name.ljust(9)}  {screen.legible(str(value))}")
    if task.get("artifacts") and _state_of(task) in STATES[1:]:
        screen.say()
        print_result({"task": task}, json_out=False, raw=False, quiet=False, strict=False)
    elif reason := text_of(status.get("message")):
        screen.say(f"  {screen.legible(reason)}")


@app.command("follow")
@with_settings
def follow(
    task_id: TaskId,
    after: Annotated[
        int | None,
        typer.Option("--after", metavar="N", min=0, help="Begin after this place in its log; 0 is its beginning."),
    ] = None,
    timeout: Annotated[str, typer.Option("--timeout", help="How long to follow; the task goes on.")] = "1h",
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as a JSON object on a line.")] = False,
    json_out: JsonOut = False,
    raw: Raw = False,
    quiet: Quiet = False,
    strict: Strict = False,
    session: SessionFile = None,
    *,
    read_settings: ReadSettings,
) -> None:
    """Follow a task to its end: its reports on the standard error, then its result as `skillbus call` prints it.

    Exit code 5 when it could be followed no further and goes on: the error
    says how to take it up where it was. Ctrl-C ends nothing but this.

    [dim]Examples[/dim]
    skillbus task follow 0e5c7a52-5f0c-5c3e-a9d1-6a7f4d5b8c90
    skillbus task follow $task --after 17 --json-out
    skillbus task follow $task --after 0 --json | jq -c .statusUpdate
    """
    check_printing(json_out, raw, quiet)
    if as_json and (json_out or raw or quiet):
        raise Failure("--json prints every event: leave out --json-out, --raw and --quiet")
    seconds = parse_wait(timeout, option="--timeout")
    credential = find_credential(session)
    settings = read_settings()
    reports = Reports(shown=not (quiet or as_json))
    response = perform(_follow(settings, credential, task_id, after, seconds, reports, as_json=as_json))
    if strict or not as_json:
        print_result(response, json_out=json_out, raw=raw, quiet=quiet or as_json, strict=strict)


@app.command("cancel")
@with_settings
def cancel(
    task_id: TaskId,
    timeout: Annotated[str, typer.Option("--timeout", help="How long to wait until it has ended.")] = "60s",
    as_json: Json = False,
    session: SessionFile = None,
    *,
    read_settings: ReadSettings,
) -> None:
    """Cancel a task, and the tasks that are part of it; wait until it has ended.

    It may be said again. Exit code 6 when the task had ended otherwise, or
    came to its end first.

    [dim]Examples[/dim]
    skillbus task cancel 0e5c7a52-5f0c-5c3e-a9d1-6a7f4d5b8c90
    skillbus task list --status working --all --json | jq -r '.[].id' | xargs -n1 skillbus task cancel
    """
    seconds = parse_wait(timeout, option="--timeout")
    credential = find_credential(session)
    settings = read_settings()
    task = perform(_cancel(settings, credential, task_id, seconds))
    if as_json:
        screen.say_json(task)
        return
    screen.say(screen.legible(f"canceled {task['id']}"))
    if reason := text_of(task["status"].get("message")):
        screen.note(screen.legible(reason))


async def _list(
    settings: "Settings", credential: "Credential", wanted: Mapping[str, str], limit: int | None
) -> tuple[list[dict[str, Any]], int]:
    """The tasks, at most `limit`, and how many there are."""
    from bus import InvalidAgentResponse

    from .reach import reach

    tasks: list[dict[str, Any]] = []
    size, token, history = PAGE, "", 1
    async with reach(settings, credential) as client:
        while True:
            left = size if limit is None else min(size, limit - len(tasks))
            body = {**wanted, "pageSize": left, "historyLength": history, **({"pageToken": token} if token else {})}
            try:
                page = await client.request(settings.agent, "ListTasks", body, timeout=WAIT)
            except InvalidAgentResponse:
                if not history:
                    raise
                # What was asked stands in the history, and is too much for one message.
                size, history = max(left // 2, 1), int(left > 1)
                continue
            tasks += page["tasks"]
            token, history = page.get("nextPageToken", ""), 1
            if not token or (limit is not None and len(tasks) >= limit):
                return tasks, page["totalSize"]


async def _show(settings: "Settings", credential: "Credential", task_id: str) -> dict[str, Any]:
    from .reach import reach

    async with reach(settings, credential) as client:
        return await _get(client, settings.agent, task_id, history=1)


async def _get(client: "Client", agent: str, task_id: str, *, history: int = 0) -> dict[str, Any]:
    from bus import InvalidAgentResponse, TaskNotFound

    while True:
        try:
            return await client.request(agent, "GetTask", {"id": task_id, "historyLength": history}, timeout=WAIT)
        except TaskNotFound as error:
            raise _absent(task_id) from error
        except InvalidAgentResponse:
            if not history:
                raise
            history = 0  # question and result together are too much for one message


async def _follow(
    settings: "Settings",
    credential: "Credential",
    task_id: str,
    after: int | None,
    timeout: float,
    reports: Reports,
    *,
    as_json: bool,
) -> dict[str, Any]:
    from bus import DeadlineExceeded, StreamCut, TaskNotFound, UnsupportedOperation
    from bus.names import AFTER, SUBSCRIBE

    from .reach import reach

    reports.seq = after
    async with reach(settings, credential) as client:
        headers = {AFTER: str(after)} if after is not None else {}
        events = client.stream(settings.agent, SUBSCRIBE, {"id": task_id}, headers=headers, timeout=timeout)
        try:
            return await take_all(_said(events) if as_json else events, reports)
        except UnsupportedOperation:  # it has ended, and there is nothing left to follow
            task = await _get(client, settings.agent, task_id)
            if _state_of(task) not in STATES[1:]:
                raise
            if as_json:
                _print_event({"task": task}, None)
            return {"task": task}
        except TaskNotFound as error:
            raise _absent(task_id) from error
        except StreamCut as error:
            raise cut(error.message, task_id, reports.seq) from error
        except DeadlineExceeded as error:
            if reports.task_id is None:
                raise  # nobody has said that there is such a task
            raise cut("--timeout is over and the task goes on", task_id, reports.seq) from error
        except asyncio.CancelledError:
            place = "" if reports.seq is None else f" --after {reports.seq}"
            again = f"`skillbus task follow {task_id}{place}` takes it up, `skillbus task cancel {task_id}` ends it"
            screen.note(screen.legible(f"interrupted; the task goes on: {again}"))
            raise


async def _said(events: "AsyncGenerator[StreamEvent, None]") -> "AsyncGenerator[StreamEvent, None]":
    """The same events, each printed as it passes."""
    async with aclosing(events):
        async for event in events:
            _print_event(event.body, event.task_seq, final=event.final, gap=event.gap)
            yield event


def _print_event(body: Mapping[str, Any], seq: int | None, *, final: bool = True, gap: bool = False) -> None:
    screen.say_json({"seq": seq, "final": final, "gap": gap, **body}, line=True)


async def _cancel(settings: "Settings", credential: "Credential", task_id: str, timeout: float) -> dict[str, Any]:
    from bus import DeadlineExceeded, TaskNotCancelable, TaskNotFound

    from .reach import reach

    async with reach(settings, credential) as client:
        with screen.busy(f"canceling {task_id}"):
            try:
                return await client.request(settings.agent, "CancelTask", {"id": task_id}, timeout=timeout)
            except TaskNotFound as error:
                raise _absent(task_id) from error
            except TaskNotCancelable as error:
                shown = f"`skillbus task show {task_id}` shows what came of it"
                raise Failure(f"{error.reason}: {error.message.rstrip('.')}; {shown}", code=Code.TOO_LATE) from error
            except DeadlineExceeded as error:
                again = "say it again to wait on, or with a longer --timeout"
                raise Failure(f"{error.reason}: {error.message.rstrip('.')}; {again}") from error


def _absent(task_id: str) -> Failure:
    return Failure(f"no task {task_id!r} in the episode of this session: `skillbus task list` shows those it sees")


def _state(text: str) -> str:
    """The state's name in A2A."""
    state = text.lower().removeprefix("task_state_")
    if state not in STATES:
        raise Failure(f"--status {text!r} is none of {', '.join(STATES)}")
    return f"TASK_STATE_{state.upper()}"


def _state_of(task: Mapping[str, Any]) -> str:
    return str(task["status"]["state"]).removeprefix("TASK_STATE_").lower()


def _asked(task: Mapping[str, Any]) -> tuple[str | None, str | None, Any]:
    """The skill, the message id and the arguments that the task began with; None for what is not told."""
    question: Mapping[str, Any] = (task.get("history") or [{}])[0]
    metadata = question.get("metadata") or task.get("metadata") or {}
    arguments = next((part["data"] for part in question.get("parts") or () if "data" in part), None)
    return metadata.get("skill_id") or metadata.get("tool"), question.get("messageId"), arguments


def _ago(task: Mapping[str, Any], now: float) -> str:
    at = task["status"].get("timestamp")
    return "-" if at is None else f"{write_duration(max(now - datetime.fromisoformat(at).timestamp(), 0.0))} ago"
