"""`skillbus call`: one call of one skill."""

import asyncio
from collections.abc import Callable
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
    AgentName,
    AmqpUrl,
    ConfigFile,
    LedgerPath,
    Packs,
    Prefix,
    SessionFile,
    StateDir,
    ToolsDirs,
    WorkspacesDir,
    settings_from,
)
from .work import perform

if TYPE_CHECKING:
    from broker.sessions import Credential
    from bus import Client
    from deploy.settings import Settings

LOOK = 1.0
"""Seconds between two looks at whether anybody serves the agent."""


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
    json_out: Annotated[
        bool, typer.Option("--json-out", help="Print the output object's exact bytes, checked.")
    ] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Print the whole A2A response as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 3 on a refusal, a denial, a failure or an error.")
    ] = False,
    session: SessionFile = None,
    amqp_url: AmqpUrl = None,
    agent: AgentName = None,
    prefix: Prefix = None,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    ledger: LedgerPath = None,
    workspaces: WorkspacesDir = None,
    pack: Packs = None,
    tools: ToolsDirs = None,
) -> None:
    """Call a skill and show what came of it.

    Without an AMQP URL the call runs in this process, on the ledger that
    a worker would use. Exit code 0 when the call was committed, refusals
    and denials included; with --strict 3 on those; 1 when it was not.

    [dim]Examples[/dim]
    skillbus call calc --arg expr='6 * 7' --session ep1.session
    skillbus call ailang-write --json '{"path": "a.txt", "content": "hi"}'
    skillbus call read_file --arg path=a.txt --json-out | jq -r .content
    """
    if json_out + raw + quiet > 1:
        raise Failure("give one of --json-out, --raw and --quiet")
    seconds = parse_wait(timeout, option="--timeout")
    message = {
        "messageId": message_id or uuid4().hex,
        "role": "ROLE_USER",
        "parts": [{"data": gather(arg or [], arg_json or [], whole)}],
        "metadata": {"skill_id": skill},
        **({"contextId": context} if context is not None else {}),
    }
    credential = find_credential(session)
    settings = settings_from(
        config, amqp_url=amqp_url, agent=agent, prefix=prefix,
        state_dir=state_dir, ledger=ledger, workspaces=workspaces, packs=pack, tools_dirs=tools,
    )  # fmt: skip
    response = perform(_call(settings, credential, message, seconds, root_task))
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
        outcome, status = (envelope.metadata.get(name) for name in ("outcome", "status"))
        ended = f"{skill} ended {envelope.state} ({outcome}), and its status is {status}"
        raise Failure(f"--strict: {ended}", code=Code.FAULT)


async def _call(
    settings: "Settings", credential: "Credential", message: dict[str, Any], timeout: float, root_task: str | None
) -> dict[str, Any]:
    from bus import BusError
    from bus.names import ROOT_TASK

    from .reach import reach

    async with reach(settings, credential) as client:
        try:
            with screen.busy(f"waiting for {settings.agent}") as tell:
                telling = asyncio.create_task(_tell(client, settings.agent, tell)) if tell is not None else None
                try:
                    headers = {ROOT_TASK: root_task} if root_task else {}
                    return await client.send(settings.agent, message, headers=headers, timeout=timeout)
                finally:
                    if telling is not None:
                        telling.cancel()
        except BusError as error:
            told = failure_of(error, called=True)
            raise Failure(f"{told} (--message-id {message['messageId']})") from error


async def _tell(client: "Client", agent: str, tell: Callable[[str], None]) -> None:
    """Show whether there is anybody to wait for."""
    while True:
        await asyncio.sleep(LOOK)
        nobody = await client.servers(agent) == 0
        tell(f"waiting: nobody serves {agent} at the moment" if nobody else f"waiting for {agent}")
