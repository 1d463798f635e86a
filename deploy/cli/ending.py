"""`skillbus session end`: an episode's sessions ended, and its worktree removed without losing work."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from . import screen
from .failure import Failure
from .options import ConfigFile, LedgerPath, StateDir, WorkspacesDir, existing_ledger, settings_from
from .work import perform

if TYPE_CHECKING:
    from broker.worktrees.worktrees import Removed
    from deploy.settings import Settings


def end(
    episode: Annotated[str, typer.Argument(metavar="EPISODE", help="The unit of work that is over.")],
    keep: Annotated[bool, typer.Option("--keep-worktree", help="Leave the worktree where it is.")] = False,
    discard: Annotated[
        bool, typer.Option("--discard", help="Remove the worktree with whatever is not committed in it.")
    ] = False,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    ledger: LedgerPath = None,
    workspaces: WorkspacesDir = None,
) -> None:
    """Revoke every session of an episode, then remove its worktree.

    A call that runs is waited for. A worktree with anything in it that no
    branch holds stays, and the exit code is 1: commit it, or say --discard.
    Its branch, and the episode's log, always stay.

    [dim]Examples[/dim]
    skillbus session end ep1
    skillbus session end ep1 --keep-worktree
    """
    if keep and discard:
        raise Failure("--keep-worktree and --discard are two things: say one")
    perform(
        _end(settings_from(config, state_dir=state_dir, ledger=ledger, workspaces=workspaces), episode, keep, discard)
    )


async def _end(settings: "Settings", episode: str, keep: bool, discard: bool) -> None:
    from broker.worktrees.worktrees import Uncommitted
    from deploy.house import open_worktrees

    from .opening import turn

    worktrees = open_worktrees(settings)
    path = worktrees.path(episode)
    async with existing_ledger(settings) as ledger, turn(worktrees.root, episode):
        there = path.is_dir() or path.is_symlink()
        if await ledger.world(episode) is None and not there:
            raise Failure(f"no episode {episode!r} in {settings.ledger_name}: `skillbus session list --all` names them")
        for name in await ledger.revoke(now=int(time.time()), episode=episode):
            screen.say(f"revoked {name}")
        if keep or not there:
            screen.note(f"worktree {path} stays" if there else f"the episode {episode} has no worktree here")
            return
        try:
            with screen.busy(f"removing the worktree of {episode}"):
                removed = await worktrees.remove(episode, discard=discard)
        except Uncommitted as error:
            raise Failure(
                f"{error}; the worktree stays, its sessions are revoked: commit it there, or say --discard"
            ) from None
        unended = await ledger.open_calls(episode)
    _tell(removed)
    if unended:
        screen.warn(f"{unended} call(s) of {episode} have no outcome yet: a worker ends them")


def _tell(removed: "Removed") -> None:
    screen.say(screen.legible(f"removed {removed.path}"))
    if removed.ignored:
        screen.note(f"with {removed.ignored} file(s) that git was told to ignore")
    if removed.branch is not None and removed.repository is not None:
        screen.note(screen.legible(f"branch {removed.branch} stays in {removed.repository}"))
