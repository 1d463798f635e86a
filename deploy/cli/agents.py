"""`skillbus agents`: who is on the broker, and how they do."""

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import screen
from .duration import parse_wait, write_duration
from .failure import Failure
from .options import BrokerUrl, ConfigFile, Json, Prefix, settings_from
from .ping import broker_of
from .work import perform

if TYPE_CHECKING:
    from bus.discovery.vitals import Heartbeat
    from deploy.settings import Settings

LOOK = 1.0
"""Seconds between two looks at who has fallen silent."""


def agents(
    name: Annotated[str | None, typer.Argument(metavar="AGENT", help="The workers of this one alone.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show heartbeats as they come, until Ctrl-C.")] = False,
    wait: Annotated[str, typer.Option("--wait", help="How long to wait for answers.")] = "2s",
    as_json: Json = False,
    amqp_url: BrokerUrl = None,
    prefix: Prefix = None,
    config: ConfigFile = None,
) -> None:
    """List the agents on the broker with their workers: asked now, not remembered.

    --watch shows each heartbeat instead, and who misses three of them.

    [dim]Examples[/dim]
    skillbus agents
    skillbus agents tools --json | jq -r '.[].instance'
    skillbus agents --watch
    """
    seconds = parse_wait(wait, option="--wait")
    settings = settings_from(config, amqp_url=amqp_url, prefix=prefix)
    broker = broker_of(settings)
    if watch:
        perform(_watch(settings, broker, name, as_json=as_json))
        return
    found, malformed = perform(_list(settings, broker, name, seconds))
    if malformed:
        screen.warn(f"{malformed} answer(s) could not be read: another release?")
    if as_json:
        screen.say_json(found)
        return
    rows = [
        (
            each["agent"],
            each["instance"],
            each["state"],
            f"{each['running']}/{each['slots']}",
            str(each.get("skills", "-")),
            write_duration(each["uptimeSeconds"]),
            each.get("version") or "-",
        )
        for each in found
    ]
    screen.say_table(("AGENT", "INSTANCE", "STATE", "RUNNING", "SKILLS", "UP", "VERSION"), rows)
    screen.note(f"{len(found)} worker(s) of {len({each['agent'] for each in found})} agent(s)")


async def _list(settings: "Settings", broker: str, agent: str | None, wait: float) -> tuple[list[dict[str, Any]], int]:
    from bus.discovery.control import ask
    from bus.discovery.vitals import Info, Stats

    from .hearing import silent

    with silent():
        infos, stats = await asyncio.gather(
            ask(broker, Info, agent=agent, prefix=settings.prefix, most=wait),
            ask(broker, Stats, agent=agent, prefix=settings.prefix, most=wait),
        )
    about = {(answer.agent, answer.instance): answer.body.as_json() for answer in infos}
    found = {
        (each.agent, each.instance): {
            "agent": each.agent,
            "instance": each.instance,
            **about.get((each.agent, each.instance), {}),
            **each.body.as_json(),
        }
        for each in stats
    }
    return [found[key] for key in sorted(found)], max(infos.malformed, stats.malformed)


async def _watch(settings: "Settings", broker: str, agent: str | None, *, as_json: bool) -> None:
    import bus
    from bus.discovery.heartbeats import watch

    from .hearing import silent

    with silent():
        async with await watch(broker, prefix=settings.prefix, patience=bus.Patience(connect=5.0)) as heard:
            while True:
                screen.check_reader()
                try:
                    beat = await asyncio.wait_for(anext(heard), LOOK)
                except TimeoutError:
                    pass
                except StopAsyncIteration:
                    raise Failure("the broker is not there any more") from None
                else:
                    if agent in (None, beat.agent):
                        _show(beat, silent=False, as_json=as_json)
                for dead in heard.registry.forget_dead():
                    if agent in (None, dead.agent):
                        _show(dead, silent=True, as_json=as_json)


def _show(beat: "Heartbeat", *, silent: bool, as_json: bool) -> None:
    if as_json:
        screen.say_json({**beat.as_json(), "silent": silent}, line=True)
        return
    clock = datetime.now().astimezone().strftime("%H:%M:%S")
    name = screen.legible(f"{beat.agent}/{beat.instance}")
    if silent:
        text = screen.style(f"missed 3 heartbeats, one each {beat.interval_seconds:g} s", "red")
    elif beat.leaving:
        text = "says goodbye"
    else:
        text = f"{beat.state}, {beat.running} of {beat.slots} slots in use, version {screen.legible(beat.version)}"
    screen.say(f"{clock}  {name}  {text}")
