"""`skillbus demo`: the main job, shown and checked."""

import shutil
from typing import TYPE_CHECKING

from . import screen
from .failure import Failure
from .hearing import silent
from .options import AmqpUrl, ConfigFile, Prefix, settings_from
from .work import perform

if TYPE_CHECKING:
    from deploy.demo import Step

_COLUMNS = (42, 24, 24)


def demo(amqp_url: AmqpUrl = None, prefix: Prefix = None, config: ConfigFile = None) -> None:
    """Show the main job on a real worktree, each call checked against what it must do.

    Everything happens in a temporary folder. Without an AMQP URL the bus is
    inside this process; with one, the same runs over RabbitMQ, under names of
    its own that are removed at the end.
    Exit code 0 only if each call went as it must.

    [dim]Examples[/dim]
    skillbus demo
    skillbus demo --amqp-url amqp://guest:guest@localhost/
    """
    if shutil.which("git") is None:
        raise Failure("git is not installed, and the demo works on a git worktree: install it")
    settings = settings_from(config, amqp_url=amqp_url, prefix=prefix)
    from deploy.demo import show

    where = "in this process" if settings.amqp_url is None else "over RabbitMQ"
    screen.say(screen.style(f"The main job, {where}: call, envelope, budget, log entry", "bold"))
    with silent():
        faults = perform(show(settings, _report))
    if faults:
        raise Failure(f"{len(faults)} thing(s) did not go as they must, see above; the first: {faults[0]}")


def _report(step: "Step") -> None:
    if not step.what:
        screen.say(screen.style(step.status, "red" if step.faults else "green"))
    else:
        entry = "" if step.entry is None else f"#{step.entry}"
        cells = [text.ljust(width) for text, width in zip((step.what, step.status, step.budget), _COLUMNS, strict=True)]
        screen.say(f"{screen.mark(not step.faults)} {screen.legible(' '.join(cells) + ' ' + entry).rstrip()}")
    for fault in step.faults:
        screen.note(f"  {screen.style('not as it must be:', 'red')} {screen.legible(fault)}")
