"""`skillbus provenance`: the trailer for a commit or a pull request, and whether one is of this ledger."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import screen
from .failure import Code, Failure
from .options import ConfigFile, LedgerPath, StateDir, existing_ledger, settings_from
from .work import perform

if TYPE_CHECKING:
    from broker.chain.trailer import Trailer
    from deploy.settings import Settings

_RANGE = re.compile(r"([1-9]\d{0,17})-([1-9]\d{0,17})", re.ASCII)


def provenance(
    episode: Annotated[str | None, typer.Argument(metavar="EPISODE", help="The unit of work.")] = None,
    entries: Annotated[
        str | None, typer.Option("--entries", metavar="FIRST-LAST", help="These entries; else all so far.")
    ] = None,
    verify: Annotated[
        str | None,
        typer.Option("--verify", metavar="TEXT", help="Check each trailer in a text, in @FILE, or in - for stdin."),
    ] = None,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    ledger: LedgerPath = None,
) -> None:
    """Print the trailer that says which log entries a commit came from, or check the trailers of one.

    The whole chain is checked first; exit code 3 if it does not hold, or if a
    trailer is not of this ledger.

    [dim]Examples[/dim]
    git commit -m "Change it" -m "$(skillbus provenance ep1)"
    skillbus provenance ep1
    skillbus provenance ep1 --entries 8-12
    git log -1 --format=%B | skillbus provenance --verify -
    """
    if (episode is None) == (verify is None):
        raise Failure("say which episode to print a trailer of, or --verify TEXT")
    if verify is not None and entries is not None:
        raise Failure("--entries is for a trailer that is printed; one that is checked names its own")
    bounds = (1, None) if entries is None else _bounds(entries)
    text = None if verify is None else _text(verify)
    settings = settings_from(config, state_dir=state_dir, ledger=ledger)
    if text is not None:
        perform(_verify(settings, _trailers(text)))
    elif episode is not None:
        perform(_print(settings, episode, *bounds))


def _bounds(entries: str) -> tuple[int, int]:
    found = _RANGE.fullmatch(entries)
    if found is None or int(found[1]) > int(found[2]):
        raise Failure("--entries wants FIRST-LAST, as 8-12")
    return int(found[1]), int(found[2])


def _text(given: str) -> str:
    if given == "-":
        return sys.stdin.buffer.read().decode(errors="replace")
    if given.startswith("@"):
        return Path(given[1:]).read_bytes().decode(errors="replace")
    return given


def _trailers(text: str) -> "list[Trailer]":
    from broker.chain.trailer import Trailer, TrailerError

    try:
        return Trailer.read(text)
    except TrailerError as error:
        raise Failure(f"--verify: {error}") from None


async def _print(settings: "Settings", episode: str, first: int, last: int | None) -> None:
    from broker.chain.provenance import Provenance
    from broker.chain.trailer import TrailerError

    async with existing_ledger(settings) as ledger:
        found = Provenance(ledger)
        try:
            trailer = await found.trailer(episode, settings.ledger_name, first=first, last=last)
        except TrailerError as error:
            raise Failure(str(error)) from None
        with screen.busy(f"verifying {episode}"):
            faults = (await found.verify(episode)).faults
    for fault in faults:
        screen.note(f"{screen.mark(False)} {screen.legible(fault)}")
    if faults:
        raise Failure(f"{len(faults)} fault(s) in {episode}: this log is not what was written", code=Code.FAULT)
    screen.say(str(trailer))


async def _verify(settings: "Settings", trailers: "list[Trailer]") -> None:
    from broker.chain.provenance import Provenance

    wrong = 0
    async with existing_ledger(settings) as ledger:
        found = Provenance(ledger)
        for trailer in trailers:
            faults = await found.belongs(trailer, settings.ledger_name)
            head = f"{screen.mark(not faults)} {trailer.episode} entries {trailer.first}-{trailer.last}"
            for fault in faults:
                screen.say(f"{head}: {screen.legible(fault)}")
            if not faults:
                screen.say(f"{head}: of this ledger, chain verified")
            wrong += bool(faults)
    if wrong:
        raise Failure(f"{wrong} of {len(trailers)} trailer(s) do not hold in this ledger", code=Code.FAULT)
