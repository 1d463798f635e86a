"""`skillbus config`: the settings in effect, and where each came from."""

from typing import Annotated

import typer

from . import screen
from .options import ConfigFile, Json, settings_from


def config(
    config_file: ConfigFile = None,
    as_json: Json = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="What each setting means, too.")] = False,
) -> None:
    """Show the settings in effect, and where each came from; secrets are masked.

    Defaults come first, then skillbus.toml, then the environment
    (SKILLBUS_*), then a command's own options.

    [dim]Examples[/dim]
    skillbus config
    SKILLBUS_SLOTS=8 skillbus config --verbose
    """
    found = settings_from(config_file).describe()
    if as_json:
        screen.say_json(
            [{"name": s.name, "value": s.value, "origin": s.origin, "description": s.description} for s in found]
        )
    elif verbose:
        screen.say_table(
            ("SETTING", "VALUE", "FROM", "MEANS"), [(s.name, s.value, s.origin, s.description) for s in found]
        )
    else:
        screen.say_table(("SETTING", "FROM", "VALUE"), [(s.name, s.origin, s.value) for s in found])
