"""The command `skillbus`: its parts put together, and the one place where it ends."""

import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import typer
from typer.exceptions import TyperException

from . import contract, dead, kb, log, screen, session, task, topology
from .agents import agents
from .call import call
from .card import card
from .config import config
from .demo import demo
from .doctor import doctor
from .ending import end
from .failure import Code, Failure, failure_of
from .ping import ping
from .provenance import provenance
from .replay import replay
from .skills import skills
from .why import why
from .worker import worker

app = typer.Typer(
    name="skillbus",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo)
app.command("worker")(worker)
session.app.command("end")(end)
app.add_typer(session.app, name="session")
app.command("skills")(skills)
app.command("card")(card)
app.command("call")(call)
app.add_typer(task.app, name="task")
app.add_typer(log.app, name="log")
app.command("why")(why)
app.command("replay")(replay)
app.command("provenance")(provenance)
app.add_typer(kb.app, name="kb")
app.add_typer(contract.app, name="contract")
app.add_typer(dead.app, name="dead")
app.add_typer(topology.app, name="topology")
app.command("agents")(agents)
app.command("ping")(ping)
app.command("doctor")(doctor)
app.command("config")(config)


def _show_version(wanted: bool) -> None:
    if wanted:
        from deploy.release import installed_version

        screen.say(f"skillbus {installed_version()}")
        raise typer.Exit


@app.callback()
def skillbus(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """Publish tools as A2A skills on a RabbitMQ queue: granted, budgeted and logged.

    [dim]Begin with[/dim]

    skillbus demo
    skillbus session new ep1 --preset workspace --out ep1.session
    skillbus call calc --arg expr='6 * 7' --session ep1.session

    [dim]Exit codes[/dim]

    0    done
    1    usage, client or protocol error
    2    a worker that can't start
    3    a log that was changed, a replay that ends otherwise; a refusal, with --strict
    4    what could not be looked at, or run again, as a whole
    5    a task that goes on, and was followed no further
    6    a task that had ended before it could be canceled
    130  interrupted, or nobody read the output
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and end the process with its exit code."""
    if not sys.warnoptions:
        # A connection that could not be made leaves an object behind whose end warns of itself.
        warnings.filterwarnings("ignore", category=RuntimeWarning, module="aio_pika")
    _open_streams()
    code = run(sys.argv[1:] if arguments is None else arguments)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _nobody_reads()
    except OSError as error:
        if code == Code.OK:
            _say_failure(str(screen.unwritable(error)))
            code = Code.ERROR
        _drop_output()
    sys.exit(int(code))


def run(arguments: Sequence[str]) -> int:
    """Run the command; its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # not every terminal has every letter
    try:
        ended = app(args=list(arguments), prog_name="skillbus", standalone_mode=False)
    except TyperException as error:
        return _usage(error)
    except Failure as failure:
        _say_failure(str(failure))
        return failure.code
    except BrokenPipeError:
        return _nobody_reads()
    except (KeyboardInterrupt, typer.Abort):
        return Code.INTERRUPTED
    except Exception as error:
        return _unexpected(error)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            return _nobody_reads()
        raise
    return ended if isinstance(ended, int) else Code.OK


def _usage(error: TyperException) -> int:
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else "skillbus"
    from deploy.logs import mask  # what was typed by mistake may be a credential

    text = mask(" ".join(error.format_message().split()))
    if text:  # without a command the help was printed, and there is no text
        _say_failure(f"{text.rstrip('.')}: see `{where} --help`")
    return Code.ERROR


def _unexpected(error: Exception) -> int:
    """One line for what nobody planned for. Its message may hold anything, a secret too, so its kind has to do."""
    failure = failure_of(error)
    if failure is not None:
        _say_failure(str(failure))
        return failure.code
    if os.environ.get("SKILLBUS_LOG_LEVEL", "").lower() == "debug":
        from deploy.logs import mask

        for line in mask("".join(traceback.format_exception(error))).splitlines():
            screen.note(screen.legible(line))
    kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    _say_failure(f"internal: {kind}. SKILLBUS_LOG_LEVEL=debug shows where; please report it")
    return Code.ERROR


def _say_failure(text: str) -> None:
    with suppress(BrokenPipeError):  # the exit code says it too
        screen.note(f"{screen.style('error:', 'red')} {screen.legible(text)}")


def _nobody_reads() -> int:
    _drop_output()
    return Code.INTERRUPTED


def _drop_output() -> None:
    # What is still in the buffer must not be tried again at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_streams() -> None:
    """Open the standard streams that are closed: no file may get their numbers, and what is said there is said in vain.

    What is written to a closed standard output fails, so that nobody takes a lost result for a success.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
