"""`skillbus card`: the agent card that this session sees, checked against the keys that are trusted."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import screen
from .credential import find_credential
from .failure import Code, Failure
from .options import (
    ReadSettings,
    SessionFile,
    with_settings,
)
from .work import perform

if TYPE_CHECKING:
    from broker.sessions import Credential
    from deploy.settings import Settings

MAX_FILE = 1 << 20


@with_settings
def card(
    verify: Annotated[bool, typer.Option("--verify", help="Check the card's signature first.")] = False,
    keys: Annotated[
        Path | None,
        typer.Option("--keys", metavar="FILE", help="The trusted keys, a JWK set; else this machine's signing key."),
    ] = None,
    jwks: Annotated[
        bool, typer.Option("--jwks", help="Print the public half of this machine's signing key as a JWK set.")
    ] = False,
    session: SessionFile = None,
    *,
    read_settings: ReadSettings,
) -> None:
    """Print the agent card as this session sees it.

    The worker signs it (A2A 1.0, section 8.4). --verify checks that it is
    as it was signed; exit code 3, and no card, if it is not.

    [dim]Examples[/dim]
    skillbus card --session ep1.session | jq .skills
    skillbus card --jwks > keys.json        # where the worker runs
    skillbus card --verify --keys keys.json # where the caller is
    """
    if jwks and (verify or keys is not None):
        raise Failure("--jwks prints keys and --verify uses them: give one of them")
    if keys is not None and not verify:
        raise Failure("--keys is for --verify")
    credential = None if jwks else find_credential(session)
    settings = read_settings()
    if credential is None:
        screen.say_json(_own_keys(settings))
        return
    trusted = None if not verify else _own_keys(settings) if keys is None else _read(keys)
    found = perform(_card(settings, credential))
    if trusted is not None:
        kid = _verified(found, trusted)
        screen.note(f"{screen.mark(True)} signed by {screen.legible(kid)}")
    screen.say_json(found)


async def _card(settings: "Settings", credential: "Credential") -> dict[str, Any]:
    from .reach import reach

    async with reach(settings, credential) as client:
        return await client.request(settings.agent, "GetExtendedAgentCard", {})


def _own_keys(settings: "Settings") -> dict[str, Any]:
    from broker.agent.card import jwks
    from broker.agent.signing import SigningKey, SigningKeyError

    try:
        return jwks(SigningKey.load(settings.signing_key))
    except SigningKeyError as error:
        raise Failure(
            f"{error}; the first worker to start makes it, and --keys names the public half of another"
        ) from None


def _read(path: Path) -> dict[str, Any]:
    import orjson

    with path.open("rb") as file:
        text = file.read(MAX_FILE + 1)
    try:
        found = orjson.loads(text) if len(text) <= MAX_FILE else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Failure(f"--keys {path} is no JWK set: `skillbus card --jwks` prints one")
    return found


def _verified(found: dict[str, Any], trusted: dict[str, Any]) -> str:
    from broker.agent.card import BadSignature, verify

    try:
        return verify(found, trusted)
    except BadSignature as error:
        raise Failure(str(error), code=Code.FAULT) from None
