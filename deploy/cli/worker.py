"""`skillbus worker`: the process that takes calls from the queue."""

import logging
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import screen
from .failure import Code, Failure
from .options import (
    AgentName,
    BrokerUrl,
    ConfigFile,
    LedgerPath,
    Packs,
    Prefix,
    StateDir,
    ToolsDirs,
    WorkspacesDir,
    settings_from,
    warn_of_state_dir,
)
from .work import perform

if TYPE_CHECKING:
    from deploy.house import House
    from deploy.settings import Settings

_log = logging.getLogger(__name__)


def worker(
    amqp_url: BrokerUrl = None,
    private_rabbitmq: Annotated[
        bool,
        typer.Option("--private-rabbitmq", help="Start a RabbitMQ node that ends with this process; print its URL."),
    ] = False,
    declare: Annotated[
        bool | None,
        typer.Option(
            "--declare/--no-declare", help="Make what is missing on the broker, or only look for it; else look."
        ),
    ] = None,
    agent: AgentName = None,
    prefix: Prefix = None,
    instance: Annotated[str | None, typer.Option("--instance", help="What this process calls itself.")] = None,
    slots: Annotated[int | None, typer.Option("--slots", help="Calls in hand at a time; else 64.")] = None,
    grace: Annotated[
        float | None, typer.Option("--grace", metavar="SECONDS", help="What running calls get at a stop; else 30.")
    ] = None,
    ready_fd: Annotated[
        int | None,
        typer.Option("--ready-fd", metavar="N", help="Write `ready` to this file descriptor when calls are taken."),
    ] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option("--ready-file", metavar="PATH", help="A file that is there while calls are taken, and touched."),
    ] = None,
    pack: Packs = None,
    tools: ToolsDirs = None,
    state_dir: StateDir = None,
    ledger: LedgerPath = None,
    workspaces: WorkspacesDir = None,
    config: ConfigFile = None,
    log_format: Annotated[str | None, typer.Option("--log-format", help="human or json; else human.")] = None,
    log_level: Annotated[
        str | None, typer.Option("--log-level", help="debug, info, warning or error; else info.")
    ] = None,
) -> None:
    """Serve an agent's skills from its queue, until SIGTERM or Ctrl-C.

    The first signal stops it in order: no more calls are taken, running ones
    end and are answered within the grace. The second stops it at once. Any
    number of workers may serve one agent on one ledger.
    It only looks for what it needs on the broker: `skillbus topology apply`
    makes that, or --declare, or --private-rabbitmq by itself.
    Exit code 2 if it can't start.

    [dim]Examples[/dim]
    skillbus topology apply; skillbus worker
    skillbus worker --amqp-url amqp://user:password@rabbitmq/ --slots 16
    skillbus worker --private-rabbitmq --pack mytools.skills:pack
    """
    try:
        settings = settings_from(
            config, amqp_url=amqp_url, declare=declare, agent=agent, prefix=prefix, instance=instance, slots=slots,
            grace_seconds=grace, packs=pack, tools_dirs=tools, state_dir=state_dir, ledger=ledger,
            workspaces=workspaces, log_format=log_format, log_level=log_level,
        )  # fmt: skip
        _check(settings, private_rabbitmq=private_rabbitmq, ready_fd=ready_fd, ready_file=ready_file)
        warn_of_state_dir(settings)
        _serve(settings, private_rabbitmq=private_rabbitmq, ready_fd=ready_fd, ready_file=ready_file)
    except Failure as failure:
        raise Failure(f"the worker can't start: {failure}", code=Code.NO_START) from failure


def _check(settings: "Settings", *, private_rabbitmq: bool, ready_fd: int | None, ready_file: Path | None) -> None:
    if private_rabbitmq == (settings.amqp_url is not None):
        raise Failure(
            "there is a broker's URL already: leave out --private-rabbitmq, or the URL (--amqp-url, SKILLBUS_AMQP_URL)"
            if private_rabbitmq
            else "no broker: name it with --amqp-url amqp://…, or start one of its own with --private-rabbitmq"
        )
    if ready_fd is not None:
        try:
            os.fstat(ready_fd)
        except (OSError, OverflowError):
            raise Failure(f"--ready-fd {ready_fd} is not open") from None
    if ready_file is not None:
        try:
            ready_file.unlink(missing_ok=True)  # one that was killed has left it
            ready_file.touch()
            ready_file.unlink()
        except OSError as error:
            raise Failure(f"--ready-file {ready_file} can't be made: {error.strerror}") from None


def _serve(settings: "Settings", *, private_rabbitmq: bool, ready_fd: int | None, ready_file: Path | None) -> None:
    from deploy import logs
    from deploy.rabbitmq import NodeError, PrivateNode
    from deploy.worker import Worker

    logs.configure(settings.log_format, settings.log_level)
    with ExitStack() as resources:
        if private_rabbitmq:
            _log.info("starting a private RabbitMQ node, which takes about ten seconds")
            try:
                url = resources.enter_context(PrivateNode()).url
            except NodeError as error:
                raise Failure(str(error)) from None
            screen.say(url)
            sys.stdout.flush()
        elif settings.amqp_url is not None:
            url = settings.amqp_url.get_secret_value()

        async def run() -> None:
            worker = Worker(settings, url, declare=private_rabbitmq or settings.declare, ready_file=ready_file)
            if not await worker.run(lambda house: _ready(house, ready_fd)):
                # A handler that does not let itself be cancelled may sit in a thread, which would be waited for.
                resources.close()
                logging.shutdown()
                os._exit(Code.INTERRUPTED)

        perform(run())


def _ready(house: "House", ready_fd: int | None) -> None:
    settings = house.settings
    if not len(house.catalog):
        _log.warning("there is no skill to serve: no pack could be loaded")
    served = {"agent": settings.agent, "prefix": settings.prefix, "instance": house.instance}
    _log.info("ready", extra={**served, "skills": len(house.catalog), "slots": settings.slots, "pid": os.getpid()})
    if ready_fd is not None:
        os.write(ready_fd, b"ready\n")
        if ready_fd > 2:  # the standard streams stay open
            os.close(ready_fd)
