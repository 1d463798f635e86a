"""The options that several commands share, and the settings and the ledger they lead to."""

import inspect
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import wraps
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import screen
from .failure import Failure

if TYPE_CHECKING:
    from broker.ledger.ledger import Ledger
    from deploy.settings import Settings

_WHERE = "Settings (see `skillbus config`)"

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
JsonOut = Annotated[bool, typer.Option("--json-out", help="Print the output object's exact bytes, checked.")]
Raw = Annotated[bool, typer.Option("--raw", help="Print the whole A2A response as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit 3 on a refusal, a denial, a failure or an error.")]
SessionFile = Annotated[
    str | None,
    typer.Option(
        "--session",
        "-s",
        metavar="FILE",
        help="The file of the credential; else what $SKILLBUS_SESSION or $WORLD_SESSION holds or names.",
    ),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="The configuration file; else ./skillbus.toml.", rich_help_panel=_WHERE)
]
AmqpUrl = Annotated[
    str | None,
    typer.Option(
        "--amqp-url", metavar="URL", help="The message broker; without one, in this process.", rich_help_panel=_WHERE
    ),
]
BrokerUrl = Annotated[
    str | None,
    typer.Option(
        "--amqp-url",
        metavar="URL",
        help="The message broker, as amqp://user:password@host/vhost.",
        rich_help_panel=_WHERE,
    ),
]
ManagementUrl = Annotated[
    str | None,
    typer.Option(
        "--management-url",
        metavar="URL",
        help="The broker's management API, as http://host:15672; it takes the credentials of --amqp-url.",
        rich_help_panel=_WHERE,
    ),
]
AgentName = Annotated[str | None, typer.Option("--agent", help="The agent's name.", rich_help_panel=_WHERE)]
Prefix = Annotated[
    str | None, typer.Option("--prefix", help="First part of all names on the broker.", rich_help_panel=_WHERE)
]
StateDir = Annotated[
    Path | None, typer.Option("--state-dir", help="The folder of the ledger and worktrees.", rich_help_panel=_WHERE)
]
LedgerPath = Annotated[
    str | None, typer.Option("--ledger", metavar="PATH", help="The ledger itself.", rich_help_panel=_WHERE)
]
WorkspacesDir = Annotated[
    Path | None, typer.Option("--workspaces", help="The folder of the worktrees.", rich_help_panel=_WHERE)
]
Packs = Annotated[
    list[str] | None,
    typer.Option("--pack", metavar="MODULE:ATTR", help="One more pack of skills; repeatable.", rich_help_panel=_WHERE),
]

ToolsDirs = Annotated[
    list[Path] | None,
    typer.Option("--tools", metavar="DIR", help="One more folder of bound tools; repeatable.", rich_help_panel=_WHERE),
]


def settings_from(config: Path | None, **flags: Any) -> "Settings":
    """The settings in effect; a flag that is None, or an empty list, was not given. Raises Failure."""
    from deploy.settings import Settings, SettingsError

    try:
        return Settings(config, **{name: value for name, value in flags.items() if value not in (None, [])})
    except SettingsError as error:
        raise Failure("; ".join(error.lines)) from None


ReadSettings = Callable[[], "Settings"]
"""The settings of a command that is `with_settings`. Raises Failure."""

_SHARED: dict[str, tuple[str, Any]] = {
    "amqp_url": ("amqp_url", AmqpUrl),
    "agent": ("agent", AgentName),
    "prefix": ("prefix", Prefix),
    "config": ("config", ConfigFile),
    "state_dir": ("state_dir", StateDir),
    "ledger": ("ledger", LedgerPath),
    "workspaces": ("workspaces", WorkspacesDir),
    "pack": ("packs", Packs),
    "tools": ("tools_dirs", ToolsDirs),
}
"""By parameter: the setting that it gives, and its option."""


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that calls an agent the options for it, and their settings as `read_settings`."""
    signature = inspect.signature(command)
    own = [each for each in signature.parameters.values() if each.name != "read_settings"]
    shared = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=a) for name, (_, a) in _SHARED.items()]

    @wraps(command)
    def run(**given: Any) -> None:
        flags = {setting: given.pop(name) for name, (setting, _) in _SHARED.items()}
        config = flags.pop("config")
        command(**given, read_settings=lambda: settings_from(config, **flags))

    run.__signature__ = signature.replace(parameters=[*own, *shared])  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in (*own, *shared)}
    return run


def expanded(path: Path) -> Path:
    """A path that was given, with a user's home in place of its `~`. Raises Failure."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise Failure(f"{path} begins with the home of a user who is not known here") from None


def ledger_is_here(settings: "Settings") -> bool:
    """Whether the file of the ledger exists."""
    return Path(settings.ledger).is_file()


def check_ledger(settings: "Settings") -> None:
    """Raise Failure for a ledger that nobody has begun: what only reads one must not make it."""
    if not ledger_is_here(settings):
        raise Failure(
            f"there is no ledger {settings.ledger_name} yet: `skillbus session new EPISODE` makes it; "
            "if yours is elsewhere, name it with --state-dir or --ledger"
        )


@asynccontextmanager
async def existing_ledger(settings: "Settings") -> AsyncIterator["Ledger"]:
    """The ledger of the settings, opened, if there is one. Raises Failure, LedgerError."""
    check_ledger(settings)
    from deploy.house import open_ledger

    async with await open_ledger(settings) as ledger:
        yield ledger


def warn_of_state_dir(settings: "Settings") -> None:
    """Say it when other users can look into the state."""
    try:
        mode = settings.state_dir.stat().st_mode
    except OSError:
        return
    if mode & 0o077 and settings.state_dir.stat().st_uid == os.getuid():
        screen.warn(f"{settings.state_dir} is open to others (mode {mode & 0o777:04o}): chmod 700 {settings.state_dir}")
