"""`skillbus topology`: what has to stand on the message broker, compared with what does, and made."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import screen
from .failure import Code, Failure
from .options import BrokerUrl, ConfigFile, Json, ManagementUrl, Prefix, settings_from
from .work import perform

if TYPE_CHECKING:
    from deploy.settings import Settings
    from deploy.topology import Difference, Plan
    from deploy.topology_broker import TopologyBroker

app = typer.Typer(no_args_is_help=True, help="What has to stand on the message broker.")

_MARKS = {"missing": ("+", "green"), "different": ("~", "yellow"), "extra": ("-", "")}

Agents = Annotated[
    list[str] | None, typer.Option("--agent", help="An agent's name; repeatable. Else the one of the settings.")
]
Policies = Annotated[
    bool, typer.Option("--policies/--no-policies", help="Whether the limits are ours to set, or left to others.")
]


@app.command("plan")
def plan(
    agent: Agents = None,
    policies: Policies = True,
    as_json: Json = False,
    amqp_url: BrokerUrl = None,
    management_url: ManagementUrl = None,
    prefix: Prefix = None,
    config: ConfigFile = None,
) -> None:
    """Show what the broker lacks, has otherwise, or has besides. Changes nothing.

    + is missing, ~ is different, - is there besides and stays. What AMQP
    can't show (bindings, policies) needs the management API. Exit code 0.

    [dim]Examples[/dim]
    skillbus topology plan
    skillbus topology plan --management-url http://rabbitmq:15672 --json
    """
    settings = _settings(config, amqp_url, management_url, prefix)
    perform(_run(settings, agent or [], _plan, policies=policies, as_json=as_json))


@app.command("apply")
def apply(
    agent: Agents = None,
    policies: Policies = True,
    as_json: Json = False,
    amqp_url: BrokerUrl = None,
    management_url: ManagementUrl = None,
    prefix: Prefix = None,
    config: ConfigFile = None,
) -> None:
    """Make what is missing, and set the policies. Deletes nothing; a second time changes nothing.

    A queue with other arguments stays as it is; what to do is said. Without
    the management API the policies are left too, with the commands that set
    them; until they are set, the queues' own ceilings hold.
    Exit code 1 when something has to be done by hand, 4 when the policies
    could not be looked at.

    [dim]Examples[/dim]
    skillbus topology apply --agent tools --agent search
    skillbus topology apply --no-policies
    """
    settings = _settings(config, amqp_url, management_url, prefix)
    raise typer.Exit(perform(_run(settings, agent or [], _apply, policies=policies, as_json=as_json)))


@app.command("check")
def check(
    agent: Agents = None,
    policies: Policies = True,
    as_json: Json = False,
    amqp_url: BrokerUrl = None,
    management_url: ManagementUrl = None,
    prefix: Prefix = None,
    config: ConfigFile = None,
) -> None:
    """Compare, and end with an exit code: for monitoring and before a deployment.

    Exit code 1 when something is missing or different, 4 when not everything
    could be looked at. What is there besides is told and does not count.

    [dim]Examples[/dim]
    skillbus topology check --management-url http://rabbitmq:15672
    """
    settings = _settings(config, amqp_url, management_url, prefix)
    raise typer.Exit(perform(_run(settings, agent or [], _check, policies=policies, as_json=as_json)))


def _settings(config: Path | None, amqp_url: str | None, management_url: str | None, prefix: str | None) -> "Settings":
    settings = settings_from(config, amqp_url=amqp_url, management_url=management_url, prefix=prefix)
    if settings.amqp_url is None:
        raise Failure("no broker, and inside this process everything makes itself: name it with --amqp-url amqp://…")
    return settings


async def _run(
    settings: "Settings", agents: list[str], work: Callable[..., Any], *, policies: bool, as_json: bool
) -> int:
    from deploy.management import ManagementError
    from deploy.topology_broker import TopologyBroker

    from .hearing import silent

    with silent():
        try:
            async with TopologyBroker(settings, agents, policies=policies) as broker:
                code: int = await work(broker, as_json=as_json)
        except ManagementError as error:
            raise Failure(str(error)) from None
    return code


async def _plan(broker: "TopologyBroker", *, as_json: bool) -> int:
    _tell(broker, await broker.plan(), [], as_json=as_json)
    return Code.OK


async def _check(broker: "TopologyBroker", *, as_json: bool) -> int:
    planned = await broker.plan()
    _tell(broker, planned, [], as_json=as_json)
    if planned.drift:
        return Code.ERROR
    return Code.UNSEEN if planned.unseen else Code.OK


async def _apply(broker: "TopologyBroker", *, as_json: bool) -> int:
    from deploy.topology import POLICIES

    before = await broker.plan()
    await broker.apply(before)
    after = await broker.plan()
    left = {each.subject for each in after.drift}
    done = [each for each in before.drift if each.change is not None and each.subject not in left]
    _tell(broker, after, done, as_json=as_json, applied=True)
    if after.drift:
        return Code.ERROR
    return Code.UNSEEN if POLICIES in after.unseen else Code.OK


def _tell(
    broker: "TopologyBroker", planned: "Plan", done: "list[Difference]", *, as_json: bool, applied: bool = False
) -> None:
    from deploy.topology import POLICIES

    by_hand = broker.commands if POLICIES in planned.unseen else ()
    if as_json:
        told: dict[str, Any] = {
            "differences": [_as_json(each) for each in planned.differences],
            "unseen": list(planned.unseen),
            "commands": list(by_hand),
            "drift": len(planned.drift),
        }
        screen.say_json({"applied": [_as_json(each) for each in done], **told} if applied else told)
        return
    for each in done:
        screen.say(f"{screen.style('+', 'green')} {screen.legible(each.subject)}: made")
    for each in planned.differences:
        mark, color = _MARKS[each.kind]
        screen.say(f"{screen.style(mark, color) if color else mark} {screen.legible(f'{each.subject} {each.text}')}")
        if each.fix:
            screen.say(f"  {screen.style('fix:', 'bold')} {screen.legible(each.fix)}")
    if planned.unseen:
        screen.say(f"? not looked at: {', '.join(planned.unseen)}: {screen.legible(broker.problem)}")
    if by_hand:
        screen.say("  set the policies by hand, or leave them out (--no-policies); without, the queues' ceilings hold:")
        for command in by_hand:
            screen.say(f"  {command}")
    screen.say(_sum(planned, done, applied=applied))


def _sum(planned: "Plan", done: "list[Difference]", *, applied: bool) -> str:
    made = f"{len(done)} made; " if done else ""
    if planned.drift:
        left = f"{len(planned.by_hand)} to be done by hand" if applied else f"{len(planned.drift)} not as described"
        return made + left
    seen = "all that could be looked at is as described" if planned.unseen else "all is as described"
    return made + (seen if done or not applied else f"nothing to do: {seen}")


def _as_json(each: "Difference") -> dict[str, Any]:
    return {
        "kind": each.kind.value,
        "subject": each.subject,
        "text": each.text,
        "byApply": each.change is not None,
        "fix": each.fix or None,
        "drift": each.drift,
    }
