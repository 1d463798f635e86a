"""`skillbus dead`: the requests that no worker answered, as the workers have parked them."""

import base64
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import screen
from .duration import parse_wait, write_duration
from .failure import Failure
from .options import BrokerUrl, ConfigFile, Json, Prefix, settings_from
from .work import perform

if TYPE_CHECKING:
    from broker.sessions import Credential
    from bus.dead.letter import Letter
    from bus.dead.parked import Parked
    from deploy.settings import Settings

app = typer.Typer(no_args_is_help=True, help="The dead letters: requests that no worker answered.")

LEAST_ID = 4
"""Digits of an id that name a letter."""

LetterId = Annotated[str | None, typer.Argument(metavar="ID", help="The letter's id, or its first digits.")]


@app.command("list")
def list_letters(
    as_json: Json = False, amqp_url: BrokerUrl = None, prefix: Prefix = None, config: ConfigFile = None
) -> None:
    """List the parked letters, oldest first. They stay where they are.

    [dim]Examples[/dim]
    skillbus dead list
    skillbus dead list --json | jq -r '.[].messageId'
    """
    perform(_list(_settings(config, amqp_url, prefix), as_json=as_json))


@app.command("show")
def show(
    letter_id: Annotated[str, typer.Argument(metavar="ID", help="The letter's id, or its first digits.")],
    as_json: Json = False,
    amqp_url: BrokerUrl = None,
    prefix: Prefix = None,
    config: ConfigFile = None,
) -> None:
    """Show one letter with its headers and its body. It stays where it is.

    [dim]Examples[/dim]
    skillbus dead show 1441a9a1
    skillbus dead show 1441a9a1 --json | jq -r .body
    """
    perform(_show(_settings(config, amqp_url, prefix), letter_id, as_json=as_json))


@app.command("requeue")
def requeue(
    letter_id: LetterId = None,
    everything: Annotated[bool, typer.Option("--all", help="Every letter that can be sent again.")] = False,
    deadline: Annotated[str, typer.Option("--deadline", help="How long it has to be answered.")] = "5m",
    session: Annotated[
        str | None, typer.Option("--session", "-s", metavar="FILE", help="Sign it anew as the session that sent it.")
    ] = None,
    as_json: Json = False,
    amqp_url: BrokerUrl = None,
    prefix: Prefix = None,
    config: ConfigFile = None,
) -> None:
    """Send a letter's request to its agent once more, under its old message id.

    The answer goes to the first caller, if it still listens. A call of a
    skill never runs twice: what was committed already is only answered again.
    Another agent may run it twice, unless it knows message ids again.
    A request that was signed by a session needs a new signature, since none
    is kept: let its caller send it again, or give the file of the same session.

    [dim]Examples[/dim]
    skillbus dead requeue 1441a9a1 --session ep1.session
    skillbus dead requeue --all --deadline 1h
    """
    seconds = parse_wait(deadline, option="--deadline")
    _check_choice(letter_id, everything)
    credential = None
    if session is not None:
        if everything:
            raise Failure("--session signs one letter: name its ID, since letters may be of several sessions")
        from .credential import find_credential

        credential = find_credential(session)
    settings = _settings(config, amqp_url, prefix)
    perform(_requeue(settings, letter_id, seconds, credential, as_json=as_json))


@app.command("drop")
def drop(
    letter_id: LetterId = None,
    everything: Annotated[bool, typer.Option("--all", help="Every letter.")] = False,
    as_json: Json = False,
    amqp_url: BrokerUrl = None,
    prefix: Prefix = None,
    config: ConfigFile = None,
) -> None:
    """Throw a letter away, for good.

    [dim]Examples[/dim]
    skillbus dead drop 1441a9a1
    skillbus dead drop --all
    """
    _check_choice(letter_id, everything)
    perform(_drop(_settings(config, amqp_url, prefix), letter_id, as_json=as_json))


def _check_choice(letter_id: str | None, everything: bool) -> None:
    if (letter_id is None) is not everything:
        raise Failure("name one letter by its ID, or all of them by --all: `skillbus dead list` shows them")


def _settings(config: Path | None, amqp_url: str | None, prefix: str | None) -> "Settings":
    settings = settings_from(config, amqp_url=amqp_url, prefix=prefix)
    if settings.amqp_url is None:
        raise Failure("no broker, so there are no dead letters: name it with --amqp-url amqp://…")
    return settings


@asynccontextmanager
async def _parked(settings: "Settings") -> AsyncIterator["Parked"]:
    from bus.dead.parked import parked_letters

    from .hearing import silent

    url = settings.amqp_url.get_secret_value() if settings.amqp_url is not None else ""
    with silent():
        async with parked_letters(url, prefix=settings.prefix) as parked:
            yield parked


async def _list(settings: "Settings", *, as_json: bool) -> None:
    async with _parked(settings) as parked:
        letters = await parked.read()
        more = await parked.count()
    if as_json:
        screen.say_json([_as_json(letter) for letter in letters])
        return
    now = time.time()
    if letters:
        rows = [
            (e.id, _ago(e.died, now), e.reason, e.agent, e.properties.message_id or "-", e.answered) for e in letters
        ]
        screen.say_table(("ID", "DIED", "REASON", "AGENT", "MESSAGE", "ANSWERED"), rows)
    screen.note(f"{len(letters)} letter(s)" + (f", and {more} more behind them" if more else ""))


async def _show(settings: "Settings", letter_id: str, *, as_json: bool) -> None:
    async with _parked(settings) as parked:
        letter = await _one(parked, letter_id)
    told = _as_json(letter)
    if as_json:
        screen.say_json(told)
        return
    body, headers = told.pop("body", None), told.pop("headers")
    for name in ("diedAt", "parkedAt"):
        if told[name] is not None:
            told[name] = datetime.fromtimestamp(told[name], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    width = max(map(len, (*told, *headers)), default=0)
    for name, value in {**told, **headers}.items():
        if value is not None:
            screen.say(f"{name.ljust(width)}  {screen.legible(str(value))}")
    screen.say()
    screen.say(screen.legible(body, lines=True) if body is not None else "(the body is no text: see --json)")


async def _requeue(
    settings: "Settings", letter_id: str | None, seconds: float, credential: "Credential | None", *, as_json: bool
) -> None:
    from bus import BusError

    authorize = None if credential is None else credential.authorize
    sent: list[str] = []
    left: dict[str, str] = {}
    async with _parked(settings) as parked:
        async for letter in _chosen(parked, letter_id):
            try:
                await parked.requeue(letter, seconds=seconds, authorize=authorize)
            except BusError as error:
                left[letter.id] = _why_not(letter, error)
            else:
                sent.append(letter.id)
    if as_json:
        screen.say_json({"requeued": sent, "left": left})
    else:
        for each in sent:
            screen.say(f"requeued {each}")
        for each, reason in left.items() if letter_id is None else ():
            screen.note(f"left {each}: {screen.legible(reason)}")
    if left:
        reason = next(iter(left.values()))
        raise Failure(reason if letter_id is not None else f"{len(left)} letter(s) could not be sent again")


async def _drop(settings: "Settings", letter_id: str | None, *, as_json: bool) -> None:
    dropped = []
    async with _parked(settings) as parked:
        async for letter in _chosen(parked, letter_id):
            parked.drop(letter)
            dropped.append(letter.id)
    if as_json:
        screen.say_json({"dropped": dropped})
    elif letter_id is None:
        screen.say(f"dropped {len(dropped)} letter(s)")
    else:
        screen.say(f"dropped {dropped[0]}")


async def _chosen(parked: "Parked", letter_id: str | None) -> AsyncIterator["Letter"]:
    """The named letter, or all that are there now; one that is sent and dies again is not among them."""
    if letter_id is not None:
        yield await _one(parked, letter_id)
        return
    left = await parked.count()
    while left > 0 and (letters := await parked.read()):
        left -= len(letters)
        for letter in letters:
            yield letter


async def _one(parked: "Parked", letter_id: str) -> "Letter":
    if len(letter_id) < LEAST_ID:
        raise Failure(f"give at least {LEAST_ID} digits of the letter's id")
    found = await parked.find(letter_id)
    if len(found) > 1:
        raise Failure(f"{len(found)} letters begin with {letter_id}: give more digits")
    if not found:
        raise Failure(f"no letter {letter_id!r} is parked, or somebody else has it in hand: see `skillbus dead list`")
    return found[0]


def _why_not(letter: "Letter", error: Exception) -> str:
    from bus import InvalidRequest, Rejected, Unroutable

    if isinstance(error, InvalidRequest) and letter.authorized and "signed" in str(error):
        message = letter.properties.message_id
        return (
            f"{error}: let its caller send message {message} again under the same id, which never runs twice; "
            "or sign it anew with --session FILE of the same session"
        )
    if isinstance(error, Unroutable):
        return f"nobody serves the agent {letter.agent!r}: start a worker for it; the letter stays"
    if isinstance(error, Rejected):
        return f"the queue of the agent {letter.agent!r} is full: try again later; the letter stays"
    return f"it can't be sent again: {error}"


def _as_json(letter: "Letter") -> dict[str, Any]:
    p = letter.properties
    try:
        body: dict[str, Any] = {"body": letter.body.decode()}
    except UnicodeDecodeError:
        body = {"bodyBase64": base64.b64encode(letter.body).decode()}
    return {
        "id": letter.id,
        "reason": letter.reason,
        "answered": letter.answered,
        "agent": letter.agent,
        "queue": letter.queue,
        "exchange": letter.exchange,
        "diedAt": letter.died,
        "parkedAt": letter.parked,
        "operation": p.type,
        "messageId": p.message_id,
        "correlationId": p.correlation_id,
        "replyTo": p.reply_to,
        "user": p.user_id,
        "appId": p.app_id,
        "contentType": p.content_type,
        "expiration": p.expiration,
        "signed": letter.authorized,
        "flaw": p.flaw,
        "headers": dict(p.headers),
        **body,
    }


def _ago(moment: float | None, now: float) -> str:
    return "-" if moment is None else f"{write_duration(max(now - moment, 0.0))} ago"
