"""`skillbus log`: the entries as they come, and whether their chains hold."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import screen
from .duration import parse_duration
from .failure import Code, Failure
from .options import ConfigFile, Json, LedgerPath, StateDir, existing_ledger, settings_from
from .work import perform

if TYPE_CHECKING:
    from broker.ledger.ledger import Ledger, LogEntry
    from deploy.settings import Settings

app = typer.Typer(no_args_is_help=True, help="The log of calls: read it, and check what it says.")

OVERLAP = 256
"""Entries that `--follow` looks back over: those of another worker may appear a little late."""


@app.command("tail")
def tail(
    episode: Annotated[str | None, typer.Option("--episode", "-e", help="Only this episode's entries.")] = None,
    count: Annotated[int, typer.Option("--lines", "-n", min=0, max=10**9, help="How many of the newest entries.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new entries until Ctrl-C.")] = False,
    interval: Annotated[str, typer.Option("--interval", help="How often to look for new ones.")] = "1s",
    as_json: Json = False,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    ledger: LedgerPath = None,
) -> None:
    """Show the newest log entries, oldest first, one line a call.

    [dim]Examples[/dim]
    skillbus log tail -n 5
    skillbus log tail --episode ep1 --follow
    skillbus log tail --json | jq .outcome
    """
    pause = parse_duration(interval, option="--interval")
    if pause < 0.05:
        raise Failure("--interval is at least 50ms")
    settings = settings_from(config, state_dir=state_dir, ledger=ledger)
    perform(_tail(settings, episode, count, pause if follow else None, as_json=as_json))


@app.command("verify")
def verify(
    episodes: Annotated[
        list[str] | None, typer.Argument(metavar="EPISODE", help="All of them if none is named.")
    ] = None,
    as_json: Json = False,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    ledger: LedgerPath = None,
) -> None:
    """Check whole chains: every entry, every object, every debit. Exit code 3 if anything was changed.

    [dim]Examples[/dim]
    skillbus log verify
    skillbus log verify ep1 ep2 --json
    """
    perform(_verify(settings_from(config, state_dir=state_dir, ledger=ledger), episodes or [], as_json=as_json))


async def _tail(settings: "Settings", episode: str | None, count: int, pause: float | None, *, as_json: bool) -> None:
    import asyncio

    async with existing_ledger(settings) as ledger:
        if episode is not None and await ledger.world(episode) is None:
            raise Failure(f"no episode {episode!r} in {settings.ledger_name}: `skillbus session list --all` names them")
        shown: dict[str, int] = {}
        recent = await ledger.entries(episode=episode, last=max(count, OVERLAP if pause else 1))
        await _show(ledger, recent[len(recent) - min(count, len(recent)) :], as_json=as_json)
        for entry in recent:
            shown[entry.episode] = max(entry.index, shown.get(entry.episode, 0))
        while pause is not None:
            sys.stdout.flush()
            screen.check_reader()
            await asyncio.sleep(pause)
            await _show(ledger, await _unseen(ledger, episode, shown), as_json=as_json)


async def _unseen(ledger: "Ledger", episode: str | None, shown: dict[str, int]) -> list["LogEntry"]:
    """The entries past those in `shown`, which is brought up to date."""
    window = OVERLAP
    while True:
        recent = await ledger.entries(episode=episode, last=window)
        new = [entry for entry in recent if entry.index > shown.get(entry.episode, 0)]
        if len(recent) < window or recent[0] not in new:
            break
        window *= 2
    for entry in new:
        shown[entry.episode] = max(entry.index, shown.get(entry.episode, 0))
    return new


async def _show(ledger: "Ledger", entries: list["LogEntry"], *, as_json: bool) -> None:
    from .logline import read_lines

    for line in await read_lines(ledger, entries):
        if as_json:
            screen.say_json(line.as_json(), line=True)
        else:
            screen.say(str(line))


async def _verify(settings: "Settings", episodes: list[str], *, as_json: bool) -> None:
    from broker.chain.provenance import Provenance

    async with existing_ledger(settings) as ledger:
        provenance = Provenance(ledger)
        named = episodes or sorted({session.episode for session in await ledger.list_sessions()})
        if not named:
            raise Failure(f"no episode in {settings.ledger_name} yet: `skillbus session new EPISODE` begins one")
        with screen.busy(f"verifying {len(named)} episode(s)"):
            verdicts = [await provenance.verify(episode) for episode in named]
    faults = sum(len(verdict.faults) for verdict in verdicts)
    if as_json:
        found: list[dict[str, Any]] = [
            {"episode": v.episode, "entries": v.entries, "verified": not v.faults, "faults": list(v.faults)}
            for v in verdicts
        ]
        screen.say_json(found)
    else:
        for verdict in verdicts:
            where = f"{verdict.episode}: " if len(verdicts) > 1 else ""
            for fault in verdict.faults:
                screen.note(f"{screen.mark(False)} {verdict.episode}: {screen.legible(fault)}")
            if not verdict.faults:
                screen.say(f"{where}chain verified: {verdict.entries} entries")
    if faults:
        broken = [verdict.episode for verdict in verdicts if verdict.faults]
        raise Failure(f"{faults} fault(s) in {', '.join(broken)}: this log is not what was written", code=Code.FAULT)
