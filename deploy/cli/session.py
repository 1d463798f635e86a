"""`skillbus session`: credentials made, listed and revoked."""

import json
import os
import re
import sys
import time
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import screen
from .duration import parse_duration, write_duration
from .failure import Failure
from .options import (
    ConfigFile,
    Json,
    LedgerPath,
    Packs,
    StateDir,
    ToolsDirs,
    WorkspacesDir,
    existing_ledger,
    settings_from,
)
from .work import perform

if TYPE_CHECKING:
    from broker.grants.grant import Grant
    from broker.ledger.ledger import Ledger
    from broker.sessions import Session
    from deploy.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Sessions: who may call what, how often, until when.")

DEFAULT_BUDGET = 50
MAX_BUDGET = 10**18 - 1
SHORT_ID = 12
SHORTEST = 2  # seconds of a session in which its grants hold at all

_PREFIX = re.compile(r"[0-9a-f]{8,64}")


@app.command("new")
def new(
    episode: Annotated[
        str, typer.Argument(metavar="EPISODE", help="The unit of work: its name is a-z, 0-9 and -, at most 64.")
    ],
    grant: Annotated[
        list[str] | None,
        typer.Option(
            "--grant",
            "-g",
            metavar="EFFECT=SCOPE:BUDGET[?CONSTRAINTS]",
            help="Leave for BUDGET calls of an effect; repeatable. Constraints narrow it: path=docs/**&max-bytes=4096.",
        ),
    ] = None,
    grants_file: Annotated[
        Path | None, typer.Option("--grants", metavar="FILE", help="Grants from a TOML or JSON file, or - for stdin.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option("--preset", help="A named set of grants: workspace, host-tools or se-tools.")
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option("--budget", min=0, max=MAX_BUDGET, help="The budget of each grant of the preset; else 50."),
    ] = None,
    ttl: Annotated[str, typer.Option("--ttl", help="How long the session lives: 1h, 90m, 3600 (seconds).")] = "1h",
    repo: Annotated[Path | None, typer.Option("--repo", help="Make the worktree from this git repository.")] = None,
    branch: Annotated[str | None, typer.Option("--branch", help="Its new branch; else skillbus/EPISODE.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the credential to this new file, mode 0600.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Mint nothing if a grant is for what can't be called here.")
    ] = False,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    ledger: LedgerPath = None,
    workspaces: WorkspacesDir = None,
    pack: Packs = None,
    tools: ToolsDirs = None,
) -> None:
    """Make an episode's worktree and mint a session for it.

    The credential is shown once, alone on the standard output; with --out
    it goes into a file instead. Sessions of one episode share its worktree,
    its log, and what it has spent. A grant that no skill which is loaded here
    needs, that the host's policy denies, or whose times never come, is warned of.

    [dim]Examples[/dim]
    skillbus session new ep1 --preset workspace --budget 10 --out ep1.session
    skillbus session new ep2 --preset workspace --repo ~/src/app --ttl 8h
    skillbus session new ep1 --grant Workspace.Read=worktree:100 | pass insert -e ep1
    skillbus session new ep3 --grant 'Workspace.Write=worktree:9?path=docs/**&operation=create'
    """
    wanted = _grants(grant or [], grants_file, preset, budget)
    seconds = int(parse_duration(ttl, option="--ttl"))
    if seconds < SHORTEST:
        raise Failure(f"--ttl must be at least {SHORTEST}s: a grant ends one second before its session")
    settings = settings_from(
        config, state_dir=state_dir, ledger=ledger, workspaces=workspaces, packs=pack, tools_dirs=tools
    )
    doubts = _doubts(settings, wanted, seconds)
    if strict and doubts:
        raise Failure(f"{'; '.join(doubts)}; nothing was minted")
    perform(_new(settings, episode, wanted, seconds, repo, branch, out))
    for doubt in doubts:
        screen.warn(screen.legible(doubt))


@app.command("list")
def list_(
    episode: Annotated[str | None, typer.Option("--episode", "-e", help="Only the sessions of this episode.")] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Expired and revoked ones too.")] = False,
    as_json: Json = False,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    ledger: LedgerPath = None,
) -> None:
    """List the sessions that are alive, newest first.

    [dim]Examples[/dim]
    skillbus session list
    skillbus session list --all --episode ep1 --json
    """
    perform(_list(settings_from(config, state_dir=state_dir, ledger=ledger), episode, everything, as_json=as_json))


@app.command("revoke")
def revoke(
    session_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="The credential's id, or its first 8 or more digits.")
    ] = None,
    episode: Annotated[str | None, typer.Option("--episode", "-e", help="Every session of this episode.")] = None,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    ledger: LedgerPath = None,
) -> None:
    """End a session, or all of an episode, at once and for good.

    [dim]Examples[/dim]
    skillbus session revoke 3f2a9c41
    skillbus session revoke --episode ep1
    """
    if (session_id is None) == (episode is None):
        raise Failure("say which session to revoke: its ID, or --episode EPISODE")
    if session_id is not None and not _PREFIX.fullmatch(session_id):
        raise Failure("a session's ID is 64 hexadecimal digits, of which the first 8 or more will do")
    perform(_revoke(settings_from(config, state_dir=state_dir, ledger=ledger), session_id, episode))


def _grants(texts: list[str], file: Path | None, preset: str | None, budget: int | None) -> "list[Grant]":
    from broker.grants.grant import PRESETS, Grant, GrantError, grants_from_table, parse_grant

    never = 1 << 62  # minting shortens it to the session's own end
    now = int(time.time())
    try:
        grants = [parse_grant(text, expires_at=never, now=now) for text in texts]
    except GrantError as error:
        raise Failure(str(error)) from None
    if file is not None:
        try:
            grants += grants_from_table(_document(file), expires_at=never, now=now)
        except GrantError as error:
            raise Failure(f"{file}: {error}") from None
    if preset is not None:
        if preset not in PRESETS:
            raise Failure(f"no preset {preset!r}: there are {', '.join(sorted(PRESETS))}")
        grants += [
            Grant(effect, scope, DEFAULT_BUDGET if budget is None else budget, never)
            for effect, scope in PRESETS[preset]
        ]
    elif budget is not None:
        raise Failure("--budget is for a --preset: a --grant carries its own, as in Workspace.Read=worktree:50")
    if not grants:
        raise Failure("no grants: give --grant EFFECT=SCOPE:BUDGET, --grants FILE or --preset workspace")
    return grants


def _document(file: Path) -> dict[str, Any]:
    """The table in a TOML file, or a JSON one: they are told apart by their first character."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        found = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except OSError as error:
        raise Failure(f"{file} can't be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise Failure(f"{file} is neither TOML nor JSON") from None
    return found if isinstance(found, dict) else {}


def _doubts(settings: "Settings", grants: "list[Grant]", ttl: int) -> list[str]:
    """What is to be said of the grants by which nothing can be called on this host."""
    from broker.grants.prospects import futility
    from skills import Catalog, PackContext

    context = PackContext(settings.tools, dict(os.environ), state_dir=settings.state_dir)
    catalog = Catalog.load(context, only=settings.only_packs, named=settings.packs, folders=settings.tools_dirs)
    contracts = [skill.contract for skill in catalog]
    now = int(time.time())
    lifetime = (now, now + ttl - 1)
    found = [(grant, futility(grant, contracts, settings.policy, lifetime=lifetime)) for grant in grants]
    return [f"the grant {grant} {why}" for grant, why in found if why is not None]


async def _new(
    settings: "Settings",
    episode: str,
    grants: "list[Grant]",
    ttl: int,
    repo: Path | None,
    branch: str | None,
    out: Path | None,
) -> None:
    from broker.sessions import mint
    from deploy.house import open_ledger, open_worktrees

    from .opening import Opening

    credential, session = mint(episode, grants, ttl=ttl)
    opening = Opening(open_worktrees(settings), session, repo=repo, branch=branch)
    await opening.check(out)
    async with await open_ledger(settings) as ledger:
        with screen.busy(f"making the worktree of {episode}"):
            path = await opening.carry_out(ledger, credential, out)
        spent = await ledger.spent(episode)
        try:
            if out is None:
                screen.say(credential.reveal())
        except (OSError, Failure) as error:
            await ledger.revoke(now=int(time.time()), session_id=session.id)
            if isinstance(error, Failure):
                raise Failure(f"the session was revoked, for its credential was not told: {error}") from None
            raise
    until = _moment(session.expires_at)
    screen.note(f"session for episode {episode}: {len(grants)} grant(s), expires {until} (in {write_duration(ttl)})")
    for grant in session.grants:
        used = spent.get((grant.effect, grant.scope), 0)
        left = f", {max(grant.budget - used, 0)} left: the episode has spent {used}" if used else ""
        screen.note(f"  {screen.legible(str(grant))}{left}")
    screen.note(f"worktree {path}")
    screen.note(f"credential id {credential.id}" + ("" if out is None else f", credential written to {out}"))


async def _list(settings: "Settings", episode: str | None, everything: bool, *, as_json: bool) -> None:
    now = time.time()
    async with existing_ledger(settings) as ledger:
        found = await ledger.list_sessions(episode=episode)
    sessions = [session for session in found if everything or session.is_alive(now)]
    if as_json:
        screen.say_json([_as_json(session, now) for session in sessions])
    elif sessions:
        screen.say_table(
            ("ID", "EPISODE", "STATE", "EXPIRES", "GRANTS"),
            [
                (s.id[:SHORT_ID], s.episode, _state(s, now), _moment(s.expires_at), " ".join(map(str, s.grants)))
                for s in sessions
            ],
        )
    else:
        more = f"; --all shows {len(found)} more" if found else ""
        screen.note(f"no session is alive{more}")


async def _revoke(settings: "Settings", session_id: str | None, episode: str | None) -> None:
    async with existing_ledger(settings) as ledger:
        if session_id is not None:
            session_id = await _whole(ledger, session_id)
        ended = await ledger.revoke(now=int(time.time()), session_id=session_id, episode=episode)
    if not ended:
        which = f"session credential {session_id}" if session_id else f"session credential of episode {episode!r}"
        raise Failure(
            f"refusing: no {which} in {settings.ledger_name} "
            "(already revoked, or minted in another store); nothing was revoked"
        )
    for name in ended:
        screen.say(f"revoked {name}")


async def _whole(ledger: "Ledger", prefix: str) -> str:
    """The one id that begins with `prefix`; the prefix itself when there is none."""
    from broker.sessions import Credential

    ids = [session.id for session in await ledger.list_sessions()]
    found = [name for name in ids if name.startswith(prefix)]
    if len(found) > 1:
        raise Failure(f"{len(found)} sessions begin with {prefix}: give more digits; nothing was revoked")
    if not found and len(prefix) == 64 and (owner := Credential(prefix).id) in ids:
        raise Failure(
            "this is a session's credential and not its id, and whoever can read this command line can use it: "
            f"end it with `skillbus session revoke {owner}`; nothing was revoked"
        )
    return found[0] if found else prefix


def _moment(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(seconds)


def _state(session: "Session", now: float) -> str:
    if session.revoked_at is not None:
        return "revoked"
    return "live" if session.is_alive(now) else "expired"


def _as_json(session: "Session", now: float) -> dict[str, Any]:
    return {
        "credentialId": session.id,
        "episode": session.episode,
        "live": session.is_alive(now),
        "state": _state(session, now),
        "createdAt": session.created_at,
        "expiresAt": session.expires_at,
        "revokedAt": session.revoked_at,
        "grants": [
            {
                "effect": g.effect,
                "scope": g.scope,
                "budget": g.budget,
                "expiresAt": g.expires_at,
                **({"constraints": str(g.constraints)} if g.constraints else {}),
            }
            for g in session.grants
        ],
    }
