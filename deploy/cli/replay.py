"""`skillbus replay`: the pure phases of calls, run again from the log and compared byte for byte."""

import os
import re
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import screen
from .failure import Code, Failure
from .hearing import silent
from .options import ConfigFile, Json, LedgerPath, Packs, StateDir, ToolsDirs, existing_ledger, settings_from
from .work import perform

if TYPE_CHECKING:
    from broker.chain.replay import Replayed
    from deploy.settings import Settings

# What `why` reads as a call; everything else is the name of an episode.
_CALL = re.compile(r".*:.*|\d+|head|[0-9a-f]{32}", re.DOTALL)


def replay(
    target: Annotated[
        str | None,
        typer.Argument(help="An episode, or one call: EPISODE:INDEX, sha256:…, a task id, an invocation id."),
    ] = None,
    episode: Annotated[
        str | None, typer.Option("--episode", "-e", help="The episode; with a bare index or head, that call of it.")
    ] = None,
    as_json: Json = False,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    ledger: LedgerPath = None,
    pack: Packs = None,
    tools: ToolsDirs = None,
) -> None:
    """Run the pure phases of calls again and require what the log holds, byte for byte.

    Plan, decision and finish run again; a handler never does: its recorded
    output takes its place. Nothing is written. Exit code 3 if anything comes
    out otherwise, 4 if something could not be run again: its skill is not
    loaded, or has another contract.

    [dim]Examples[/dim]
    skillbus replay ep1
    skillbus replay ep1:3 --json
    skillbus replay head --episode ep1
    """
    if target is None and episode is None:
        raise Failure("say what to run again: an episode, or a call as EPISODE:INDEX")
    one = target is not None and _CALL.fullmatch(target) is not None
    if target is not None and not one:
        if episode not in (None, target):
            raise Failure(f"{target} and --episode {episode} are two episodes: name one")
        episode, target = target, None
    settings = settings_from(config, state_dir=state_dir, ledger=ledger, packs=pack, tools_dirs=tools)
    perform(_replay(settings, target, episode, as_json=as_json))


async def _replay(settings: "Settings", target: str | None, episode: str | None, *, as_json: bool) -> None:
    from broker.chain.provenance import Provenance
    from broker.chain.replay import Replay
    from skills import Catalog, PackContext

    context = PackContext(settings.tools, dict(os.environ), state_dir=settings.state_dir)
    faults: tuple[str, ...] = ()
    counts: Counter[str] = Counter()
    shown: list[dict[str, Any]] = []
    with silent():
        catalog = Catalog.load(context, only=settings.only_packs, named=settings.packs, folders=settings.tools_dirs)
        for problem in catalog.problems:
            screen.warn(str(problem))
        async with AsyncExitStack() as ends:
            ends.push_async_callback(catalog.close)
            ledger = await ends.enter_async_context(existing_ledger(settings))
            again = Replay(ledger, catalog)
            if target is not None:
                calls = [await again.call(target, episode=episode)]
            else:
                name = str(episode)
                with screen.busy(f"replaying {name}"):
                    faults = (await Provenance(ledger).verify(name)).faults
                    calls = [call async for call in again.episode(name)]
    for call in calls:
        counts[_verdict(call)] += 1
        if as_json:
            shown.append(_as_json(call))
        else:
            _show(call)
    if as_json:
        screen.say_json({"calls": shown, "faults": list(faults), **{name: counts[name] for name in _MARKS}})
    else:
        for fault in faults:
            screen.say(f"{screen.mark(False)} {screen.legible(fault)}")
        told = ", ".join(f"{counts[name]} {name}" for name in _MARKS if counts[name] or name == "equal")
        screen.say(f"{len(calls)} call(s) run again: {told}")
    if counts["different"] or faults:
        what = [f"{counts['different']} call(s) came out otherwise"] if counts["different"] else []
        what += [f"{len(faults)} fault(s) in the log"] if faults else []
        raise Failure(" and ".join(what), code=Code.FAULT)
    if counts["not run"]:
        raise Failure(
            f"{counts['not run']} call(s) could not be run again: load the skills that they ran by (--pack, --tools), "
            "or use the release of then",
            code=Code.UNSEEN,
        )


_MARKS = {"equal": "✓", "different": "✗", "not run": "!"}


def _verdict(call: "Replayed") -> str:
    if call.missing is not None:
        return "not run"
    return "equal" if call.equal else "different"


def _show(call: "Replayed") -> None:
    entry, verdict = call.entry, _verdict(call)
    mark = screen.style("!", "yellow") if call.missing is not None else screen.mark(call.equal)
    head = f"{mark} #{entry.index} {screen.legible(f'{entry.episode} {entry.skill} {entry.outcome}')}"
    if call.missing is not None:
        screen.say(f"{head}: not run again: {screen.legible(call.missing)}")
    elif call.differences:
        for difference in call.differences:
            screen.say(f"{head}: {difference.stage}: {screen.legible(difference.what)}")
    else:
        untold = f"; not compared: {'; '.join(call.untold)}" if call.untold else ""
        screen.say(f"{head}: {verdict}{screen.legible(untold)}")


def _as_json(call: "Replayed") -> dict[str, Any]:
    entry = call.entry
    return {
        "episode": entry.episode,
        "index": entry.index,
        "hash": entry.hash,
        "taskId": entry.task_id,
        "skill": entry.skill,
        "outcome": entry.outcome,
        "equal": call.equal,
        "differences": [{"stage": each.stage, "what": each.what} for each in call.differences],
        "missing": call.missing,
        "notCompared": list(call.untold),
    }
