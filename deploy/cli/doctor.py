"""`skillbus doctor`: what is wrong here, and how to mend it."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from . import screen
from .failure import Code, Failure
from .options import (
    AgentName,
    AmqpUrl,
    ConfigFile,
    Json,
    LedgerPath,
    ManagementUrl,
    Packs,
    Prefix,
    StateDir,
    ToolsDirs,
    WorkspacesDir,
    settings_from,
)
from .work import perform

if TYPE_CHECKING:
    from deploy.doctor import Finding
    from deploy.settings import Settings

_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "failed": ("✗", "red")}


def doctor(
    as_json: Json = False,
    amqp_url: AmqpUrl = None,
    management_url: ManagementUrl = None,
    agent: AgentName = None,
    prefix: Prefix = None,
    state_dir: StateDir = None,
    ledger: LedgerPath = None,
    workspaces: WorkspacesDir = None,
    pack: Packs = None,
    tools: ToolsDirs = None,
    config: ConfigFile = None,
) -> None:
    """Check settings, ledger, worktrees, packs and the message broker, and say how to mend what is wrong.

    It changes nothing. ✓ is well, ! may be as you want it, ✗ is wrong;
    exit code 1 if anything is. Each check is given up after ten seconds.

    [dim]Examples[/dim]
    skillbus doctor
    skillbus doctor --amqp-url amqp://user:password@rabbitmq/ --json
    """
    try:
        settings = settings_from(
            config, amqp_url=amqp_url, management_url=management_url, agent=agent, prefix=prefix,
            state_dir=state_dir, ledger=ledger, workspaces=workspaces, packs=pack, tools_dirs=tools,
        )  # fmt: skip
    except Failure as failure:
        from deploy.doctor import failed

        _tell([failed("settings", str(failure), "see `skillbus config` and docs/configuration.md")], as_json=as_json)
        raise typer.Exit(Code.ERROR) from None
    if perform(_examine(settings, as_json=as_json)):
        raise typer.Exit(Code.ERROR)


async def _examine(settings: "Settings", *, as_json: bool) -> int:
    """How many checks failed."""
    from deploy.broker_checks import BrokerChecks
    from deploy.doctor import checks, run

    from .hearing import silent

    found: list[Finding] = []
    stuck = False
    broker = BrokerChecks(settings)
    with silent():
        for check in (*checks(settings), *broker.checks()):
            findings, given_up = await run(check)
            stuck = stuck or given_up
            found += findings
            if not as_json:
                _show(findings)
        await broker.close()
    count = _tell(found, as_json=as_json, shown=True)
    if stuck:
        # A thread that hangs in the system would be waited for.
        sys.stdout.flush()
        os._exit(Code.ERROR)
    return count


def _tell(found: "list[Finding]", *, as_json: bool, shown: bool = False) -> int:
    """Say what was found, and how many checks failed."""
    count = len({finding.check for finding in found if finding.level == "failed"})
    if as_json:
        told = [{"check": f.check, "level": f.level.value, "text": f.text, "fix": f.fix or None} for f in found]
        screen.say_json({"checks": told, "failed": count})
        return count
    if not shown:
        _show(found)
    screen.say(f"{count} check(s) failed" if count else "no check failed")
    return count


def _show(findings: "Sequence[Finding]") -> None:
    for finding in findings:
        mark, color = _MARKS[finding.level]
        screen.say(f"{screen.style(mark, color)} {finding.check.ljust(12)}  {screen.legible(finding.text)}")
        if finding.fix:
            screen.say(f"  {screen.style('fix:', 'bold')} {screen.legible(finding.fix)}")
