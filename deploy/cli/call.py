"""`skillbus call`: one call of one skill."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, aclosing, suppress
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from . import screen
from .arguments import gather
from .credential import find_credential
from .duration import parse_wait
from .envelope import Envelope
from .failure import Code, Failure, failure_of
from .options import (
    JsonOut,
    Quiet,
    Raw,
    ReadSettings,
    SessionFile,
    Strict,
    with_settings,
)
from .reports import Reports
from .work import perform

if TYPE_CHECKING:
    from broker.sessions import Credential
    from bus import Client
    from bus.client.leg import StreamEvent
    from deploy.settings import Settings

LOOK = 1.0
"""Seconds between two looks at whether anybody serves the agent."""

NAMING = 5.0
"""Seconds that an interrupt waits to learn which task it leaves."""

NEWEST = 20
"""Tasks among which that of an interrupted call is looked for."""


@with_settings
def call(
    skill: Annotated[str, typer.Argument(metavar="SKILL", help="The skill's id: `skillbus skills` lists them.")],
    arg: Annotated[
        list[str] | None, typer.Option("--arg", "-a", metavar="NAME=TEXT", help="A text argument; repeatable.")
    ] = None,
    arg_json: Annotated[
        list[str] | None,
        typer.Option("--arg-json", "-j", metavar="NAME=JSON", help="An argument of any kind; repeatable."),
    ] = None,
    whole: Annotated[
        str | None, typer.Option("--json", metavar="OBJECT|@FILE|-", help="All arguments as one JSON object.")
    ] = None,
    timeout: Annotated[
        str, typer.Option("--timeout", help="How long the call may take: a handler that runs longer is ended.")
    ] = "60s",
    message_id: Annotated[
        str | None, typer.Option("--message-id", help="The call's name: sent again under it, a call is not run again.")
    ] = None,
    context: Annotated[
        str | None, typer.Option("--context", help="The A2A contextId, the episode if left out.")
    ] = None,
    root_task: Annotated[
        str | None,
        typer.Option("--root-task", metavar="TASK", help="The task that this call is part of: its cancel ends both."),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Print the task's id as soon as the call is in the ledger, and end.")
    ] = False,
    follow: Annotated[
        bool | None,
        typer.Option(
            "--follow/--no-follow", help="Show on the standard error what the call reports; as it is at a terminal."
        ),
    ] = None,
    json_out: JsonOut = False,
    raw: Raw = False,
    quiet: Quiet = False,
    strict: Strict = False,
    session: SessionFile = None,
    *,
    read_settings: ReadSettings,
) -> None:
    """Call a skill and show what came of it.

    Without an AMQP URL the call runs in this process, on the ledger that
    a worker would use. Exit code 0 when the call was committed, refusals
    and denials included; with --strict 3 on those; 1 when it was not.
    Ctrl-C leaves a call with a worker to run, and says how to follow or
    cancel its task.

    [dim]Examples[/dim]
    skillbus call calc --arg expr='6 * 7' --session ep1.session
    skillbus call ailang-write --json '{"path": "a.txt", "content": "hi"}'
    skillbus call read_file --arg path=a.txt --json-out | jq -r .content
    task=$(skillbus call search --arg query=wool --timeout 1h --detach)
    """
    check_printing(json_out, raw, quiet)
    if detach and (json_out or quiet or strict or follow):
        raise Failure("--detach waits for no result: leave out --json-out, --quiet, --strict and --follow")
    seconds = parse_wait(timeout, option="--timeout")
    message = {
        "messageId": message_id or uuid4().hex,
        "role": "ROLE_USER",
        "parts": [{"data": gather(arg or [], arg_json or [], whole)}],
        "metadata": {"skill_id": skill},
        **({"contextId": context} if context is not None else {}),
    }
    credential = find_credential(session)
    settings = read_settings()
    if detach and settings.amqp_url is None:
        raise Failure("--detach needs a worker: name the broker with --amqp-url; a call in this process ends with it")
    follow = (sys.stderr.isatty() if follow is None else follow) and not quiet and not detach
    response = perform(_call(settings, credential, message, seconds, root_task, detach=detach, follow=follow))
    if detach:
        _say_detached(response, raw=raw)
        return
    print_result(response, json_out=json_out, raw=raw, quiet=quiet, strict=strict)


def check_printing(*chosen: bool) -> None:
    """Raise Failure for more than one way to print a result."""
    if sum(chosen) > 1:
        raise Failure("give one of --json-out, --raw and --quiet")


def print_result(response: Mapping[str, Any], *, json_out: bool, raw: bool, quiet: bool, strict: bool) -> None:
    """Print what came of a call. Raises Failure for a reply that is no result, and with `strict` for a bad one."""
    if raw:
        screen.say_json(response)
        envelope = Envelope.of(response) if strict else None
    else:
        envelope = Envelope.of(response)
        encoded = envelope.encoded
        if json_out:
            screen.say_bytes(encoded + b"\n")
        elif not quiet:
            for line in envelope.lines(cut=screen.is_watched()):
                screen.say(line)
    if strict and envelope is not None and not envelope.went_well:
        skill, outcome, status = (envelope.metadata.get(name) for name in ("tool", "outcome", "status"))
        ended = f"{skill} ended {envelope.state} ({outcome}), and its status is {status}"
        raise Failure(f"--strict: {ended}", code=Code.FAULT)


async def _call(
    settings: "Settings",
    credential: "Credential",
    message: dict[str, Any],
    timeout: float,
    root_task: str | None,
    *,
    detach: bool,
    follow: bool,
) -> dict[str, Any]:
    from bus import BusError, StreamCut, UnsupportedOperation
    from bus.names import ROOT_TASK

    from .reach import reach

    headers = {ROOT_TASK: root_task} if root_task else {}
    at_once = {"returnImmediately": True} if detach else None
    async with reach(settings, credential) as client:
        with ExitStack() as waiting:
            tell = waiting.enter_context(screen.busy(f"waiting for {settings.agent}"))
            if tell is not None:
                waiting.callback(asyncio.create_task(_tell(client, settings.agent, tell)).cancel)
            reports = Reports(shown=follow, begin=waiting.close)
            try:
                if follow:
                    body = {"message": message}
                    with suppress(UnsupportedOperation):  # an agent without streams; it has run nothing
                        events = client.stream(
                            settings.agent, "SendStreamingMessage", body, headers=headers, timeout=timeout
                        )
                        return await take_all(events, reports)
                return await client.send(
                    settings.agent, message, configuration=at_once, headers=headers, timeout=timeout
                )
            except asyncio.CancelledError:
                waiting.close()
                await _say_left(client, settings, message["messageId"], reports.task_id)
                raise
            except BusError as error:
                if isinstance(error, StreamCut) and reports.task_id is not None:
                    raise cut(error.message, reports.task_id, reports.seq) from error
                told = failure_of(error, called=True)
                raise Failure(f"{told} (--message-id {message['messageId']})") from error


async def take_all(events: "AsyncGenerator[StreamEvent, None]", reports: Reports) -> dict[str, Any]:
    """Show the events of a task to its end; what it has come to. Raises as the stream does."""
    try:
        async with aclosing(events):
            async for event in events:
                reports.take(event)
    finally:
        reports.close()
    return reports.response


def cut(why: str, task_id: str, seq: int | None) -> Failure:
    """What to tell of a task that is followed no further than to place `seq`, and goes on for all that is known."""
    place = "" if seq is None else f" --after {seq}"
    return Failure(f"{why.rstrip('.')}; take it up with `skillbus task follow {task_id}{place}`", code=Code.CUT)


async def _say_left(client: "Client", settings: "Settings", message_id: str, task_id: str | None) -> None:
    """Say what becomes of a call that nobody waits for any more. It is not canceled: its effect may have begun."""
    task_id = task_id or await _task_of(client, settings.agent, message_id)
    if task_id is None:
        again = f"send it again with --message-id {message_id}, which never runs twice"
        screen.note(screen.legible(f"interrupted; the call may run all the same. To see what came of it, {again}"))
    elif settings.amqp_url is None:
        screen.note(f"interrupted; the call ends with this process: `skillbus task show {task_id}` says how")
    else:
        follow, cancel = f"`skillbus task follow {task_id}`", f"`skillbus task cancel {task_id}`"
        screen.note(f"interrupted; the task goes on. Follow it with {follow}, end it with {cancel}")


async def _task_of(client: "Client", agent: str, message_id: str) -> str | None:
    """The task that a message has become, if it is among the newest and the agent says so at once."""
    from bus import BusError

    wanted = {"pageSize": NEWEST, "historyLength": 1}
    with suppress(BusError):
        answer = await client.request(agent, "ListTasks", wanted, timeout=NAMING)
        for task in answer.get("tasks", ()):
            if any(each.get("messageId") == message_id for each in task.get("history", ())):
                return str(task["id"])
    return None


def _say_detached(response: Mapping[str, Any], *, raw: bool) -> None:
    if raw:
        screen.say_json(response)
        return
    task = response.get("task")
    if not isinstance(task, dict) or not isinstance(task.get("id"), str):
        raise Failure("the reply is not the task of a Skillbus call: --raw shows what it is")
    name = screen.legible(task["id"])
    screen.say(name)
    screen.note(f"follow it with `skillbus task follow {name}`, end it with `skillbus task cancel {name}`")


async def _tell(client: "Client", agent: str, tell: Callable[[str], None]) -> None:
    """Show whether there is anybody to wait for."""
    while True:
        await asyncio.sleep(LOOK)
        nobody = await client.servers(agent) == 0
        tell(f"waiting: nobody serves {agent} at the moment" if nobody else f"waiting for {agent}")
