"""`skillbus ping`: whether a worker answers and takes calls; a probe for whatever watches over workers."""

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import screen
from .duration import parse_wait
from .failure import Failure
from .options import BrokerUrl, ConfigFile, Json, Prefix, settings_from
from .work import perform

if TYPE_CHECKING:
    from bus.discovery.control import Answer, Answers
    from bus.discovery.vitals import Pong
    from deploy.settings import Settings

_OWN_END = re.compile(r"-[0-9a-f]{8}")


def ping(
    who: Annotated[
        str | None, typer.Argument(metavar="AGENT[/INSTANCE]", help="Else the agent of the settings, any worker.")
    ] = None,
    wait: Annotated[str, typer.Option("--wait", help="How long to wait for answers.")] = "2s",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    as_json: Json = False,
    amqp_url: BrokerUrl = None,
    prefix: Prefix = None,
    config: ConfigFile = None,
) -> None:
    """Ask workers whether they take calls.

    Exit code 0 if one that answers does, 1 if none does or none answers.
    INSTANCE is the name in the worker's settings, or the whole one that
    `skillbus agents` lists.

    [dim]Examples[/dim]
    skillbus ping
    skillbus ping skillbus/worker-1 --quiet --wait 5s
    skillbus ping --json | jq '.[] | select(.ready)'
    """
    if quiet and as_json:
        raise Failure("give one of --json and --quiet")
    seconds = parse_wait(wait, option="--wait")
    settings = settings_from(config, amqp_url=amqp_url, prefix=prefix)
    agent, _, instance = (who or settings.agent).partition("/")
    answers = perform(_ask(settings, agent, seconds))
    if answers.malformed:
        screen.warn(f"{answers.malformed} answer(s) could not be read: another release?")
    found = [answer for answer in answers if not instance or _is(answer.instance, instance)]
    found.sort(key=lambda answer: answer.instance)
    if as_json:
        screen.say_json([_as_json(answer) for answer in found])
    if not found:
        raise Failure(
            f"no worker {instance} of the agent {agent} answers" if instance else f"no worker of {agent} answers"
        )
    for answer in [] if quiet or as_json else found:
        screen.say(_line(answer))
    if not any(answer.body.ready for answer in found):
        states = ", ".join(sorted({str(answer.body.state) for answer in found}))
        raise Failure(f"{len(found)} worker(s) of {agent} answer, and none takes calls: {states}")


async def _ask(settings: "Settings", agent: str, wait: float) -> "Answers[Pong]":
    from bus.discovery.control import ask
    from bus.discovery.vitals import Pong

    from .hearing import silent

    with silent():
        return await ask(broker_of(settings), Pong, agent=agent, prefix=settings.prefix, most=wait)


def broker_of(settings: "Settings") -> str:
    """The URL of the broker. Raises Failure where there is none: then there are no workers either."""
    if settings.amqp_url is None:
        raise Failure("no broker: name it with --amqp-url amqp://… or SKILLBUS_AMQP_URL; workers are found there")
    return settings.amqp_url.get_secret_value()


def _is(instance: str, named: str) -> bool:
    """Whether an instance is the one that is named, or its process: each adds an end of its own to the name."""
    return instance == named or (
        instance.startswith(named) and _OWN_END.fullmatch(instance.removeprefix(named)) is not None
    )


def _as_json(answer: "Answer[Pong]") -> dict[str, Any]:
    said = answer.body
    named = {"agent": answer.agent, "instance": answer.instance, "ready": said.ready}
    return {**named, **said.as_json(), "afterSeconds": answer.after_seconds}


def _line(answer: "Answer[Pong]") -> str:
    said = answer.body
    name = screen.legible(f"{answer.agent}/{answer.instance}")
    after = f"{answer.after_seconds * 1000:.0f} ms"
    return f"{screen.mark(said.ready)} {name}  {said.state}, {said.running} of {said.slots} slots in use, {after}"
