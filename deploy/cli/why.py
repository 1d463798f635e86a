"""`skillbus why`: from a result back to its cause, every link checked."""

import json
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from . import screen
from .failure import Code, Failure
from .options import ConfigFile, Json, LedgerPath, StateDir, existing_ledger, settings_from
from .work import perform

if TYPE_CHECKING:
    from broker.chain.links import Walk
    from broker.ledger.operations import Receipt
    from deploy.settings import Settings

MAX_DIGITS = 18
"""Of an entry's number; a ledger counts no further."""

# An entry by its number; 32 digits alone are a task's id, and 64 behind sha256: the name of an object.
_ENTRY = re.compile(r"(?!sha256:[0-9a-f]{64}$)(?!\d{32}$)(?:[^:]*:)?(\d+)")


def why(
    target: Annotated[
        str,
        typer.Argument(
            help="EPISODE:INDEX, EPISODE:head, sha256:…, a task id, an invocation id, or - for a result on stdin."
        ),
    ],
    episode: Annotated[
        str | None, typer.Option("--episode", "-e", help="The episode of a bare index, or of head.")
    ] = None,
    as_json: Json = False,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    ledger: LedgerPath = None,
) -> None:
    """Walk a call from its log entry back to what was asked, and check each of the 7 links by its hash.

    Exit code 3 if a link is broken, 1 if nothing answers to TARGET.

    [dim]Examples[/dim]
    skillbus why ep1:head
    skillbus why sha256:a70447b8…
    skillbus call calc --arg expr=6*7 --raw | skillbus why -
    """
    handle, task = _handle(sys.stdin.buffer.read()) if target == "-" else (target, None)
    settings = settings_from(config, state_dir=state_dir, ledger=ledger)
    perform(_why(settings, handle, episode, task, as_json=as_json))


async def _why(
    settings: "Settings", target: str, episode: str | None, task: dict[str, Any] | None, *, as_json: bool
) -> None:
    from broker.chain.provenance import Provenance

    index = _ENTRY.fullmatch(target)
    if index is not None and len(index[1]) > MAX_DIGITS:
        raise Failure(f"no episode has an entry whose number has {len(index[1])} digits")
    async with existing_ledger(settings) as ledger:
        walk = await Provenance(ledger).why(target, episode=episode)
        receipt = await ledger.receipt(walk.entry.task_id) if task is not None else None
    if task is not None and (receipt is None or not _is_told(task, receipt)):
        raise Failure("the result on the standard input is not what the log holds", code=Code.FAULT)
    broken = [link.name for link in walk.links if link.fault is not None]
    if as_json:
        screen.say_json(_as_json(walk))
    else:
        entry = walk.entry
        screen.say(screen.legible(f"#{entry.index} {entry.episode} {entry.skill} {entry.state} ({entry.outcome})"))
        width = max(len(link.name) for link in walk.links)
        for link in walk.links:
            fault = "" if link.fault is None else f": {link.fault}"
            text = f"{link.name.ljust(width)}  {link.detail}{fault}"
            screen.say(f"{screen.mark(link.fault is None)} {screen.legible(text)}")
        if not broken:
            screen.say(f"all {len(walk.links)} link(s) verified")
    if broken:
        raise Failure(f"{len(broken)} of {len(walk.links)} link(s) broken: {', '.join(broken)}", code=Code.FAULT)


def _as_json(walk: "Walk") -> dict[str, Any]:
    entry = walk.entry
    return {
        "episode": entry.episode,
        "index": entry.index,
        "hash": entry.hash,
        "taskId": entry.task_id,
        "skill": entry.skill,
        "state": entry.state,
        "outcome": entry.outcome,
        "verified": walk.holds,
        "links": [{"name": link.name, "detail": link.detail, "fault": link.fault} for link in walk.links],
    }


def _is_told(task: dict[str, Any], receipt: "Receipt") -> bool:
    """Whether a task is what the agent answers for this call, word for word."""
    from broker.answers import finished

    told = json.loads(orjson.dumps(finished(receipt)))
    return all(task.get(name) == value for name, value in told.items())


def _handle(result: bytes) -> tuple[str, dict[str, Any] | None]:
    """What names the call whose result this is, `skillbus call` with --raw or with --json-out; and the task in it."""
    try:
        value = json.loads(result)
    except (ValueError, RecursionError):
        raise Failure("the standard input is no JSON: pipe `skillbus call … --raw` or `… --json-out` into it") from None
    task = value.get("task", value) if isinstance(value, dict) else None
    if isinstance(task, dict) and isinstance(task.get("artifacts"), list):
        for artifact in task["artifacts"]:
            metadata = artifact.get("metadata") if isinstance(artifact, dict) else None
            named = metadata.get("invocation") if isinstance(metadata, dict) else None
            if isinstance(named, str):
                return named, task
    if isinstance(value, dict) and isinstance(value.get("world"), dict):
        return _output_ref(result), None
    raise Failure("the JSON on the standard input is no call's result: use --raw or --json-out, unchanged")


def _output_ref(output: bytes) -> str:
    from skills import canonical

    try:
        # Another tool may have laid the object out anew; its canonical form is what was hashed.
        return canonical.ref(canonical.encode(canonical.parse(output)))
    except canonical.NotCanonical as error:
        raise Failure(f"the JSON on the standard input is no call's result: {error}") from None
