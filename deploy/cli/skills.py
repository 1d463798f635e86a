"""`skillbus skills`: what this session sees, and what one skill takes and gives."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import screen
from .credential import find_credential
from .failure import Failure
from .options import (
    Json,
    ReadSettings,
    SessionFile,
    ledger_is_here,
    with_settings,
)
from .work import perform

if TYPE_CHECKING:
    from broker.sessions import Credential
    from deploy.settings import Settings

SHORT = 60
"""Characters of a description in the table."""

SCHEMAS = "urn:skillbus:a2a-extension:skill-schemas:v1"


@with_settings
def skills(
    name: Annotated[str | None, typer.Argument(metavar="SKILL", help="Show this one's contract.")] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Descriptions, arguments, and how to raise a tier, too.")
    ] = False,
    as_json: Json = False,
    session: SessionFile = None,
    *,
    read_settings: ReadSettings,
) -> None:
    """List the skills that the session sees, or show one of them.

    [dim]Examples[/dim]
    skillbus skills --session ep1.session
    skillbus skills ailang-edit
    skillbus skills --json | jq -r '.[].id'
    """
    credential = find_credential(session)
    settings = read_settings()
    seen = perform(_seen(settings, credential))
    if name is not None:
        found = next((skill for skill in seen if skill["id"] == name), None)
        if found is None:
            raise Failure(
                f"no skill {name!r}: it is absent or not granted; `skillbus skills` lists what this session sees"
            )
        if as_json:
            screen.say_json(found)
        else:
            _show(found)
    elif as_json:
        screen.say_json(seen)
    elif verbose:
        for skill in seen:
            _describe(skill)
            screen.say()
    else:
        rows = [(s["id"], _effects(s), _budget(s), str(s.get("tier", "?")), _required(s), _short(s)) for s in seen]
        screen.say_table(("SKILL", "EFFECT", "LEFT", "TIER", "REQUIRED", "DOES"), rows)
    if name is None and not as_json:
        screen.note(f"{len(seen)} skill(s)")


async def _seen(settings: "Settings", credential: "Credential") -> list[dict[str, Any]]:
    from .reach import reach

    async with reach(settings, credential) as client:
        card = await client.request(settings.agent, "GetExtendedAgentCard", {})
    left = await _left(settings, credential)
    extensions = card.get("capabilities", {}).get("extensions", ())
    declared: Mapping[str, Any] = next((e["params"]["skills"] for e in extensions if e.get("uri") == SCHEMAS), {})
    return [
        {**skill, **declared.get(skill["id"], {}), "left": _left_of(declared.get(skill["id"], {}), left)}
        for skill in card["skills"]
    ]


async def _left(settings: "Settings", credential: "Credential") -> dict[tuple[str, str], int] | None:
    """What is left of each budget; None where the ledger of this session is not on this machine."""
    if not ledger_is_here(settings):
        return None
    from broker.grants.grant import seeded_budget
    from deploy.house import open_ledger

    async with await open_ledger(settings) as ledger:
        session = await ledger.session(credential.id)
        if session is None:
            return None
        spent = await ledger.spent(session.episode)
    left: dict[tuple[str, str], int] = {}
    for grant in session.grants:
        key = grant.effect, grant.scope
        left[key] = max(left.get(key, 0), seeded_budget(grant.budget, spent.get(key, 0)))
    return left


def _left_of(declared: Mapping[str, Any], left: dict[tuple[str, str], int] | None) -> int | None:
    """How often a skill may still run; None when that is not known or not bounded."""
    budgets = [left.get((e["name"], e["scope"]), 0) for e in declared.get("effects", ())] if left is not None else []
    return max(budgets, default=None)


def _effects(skill: Mapping[str, Any]) -> str:
    return ", ".join(f"{effect['name']}={effect['scope']}" for effect in skill.get("effects", ())) or "-"


def _budget(skill: Mapping[str, Any]) -> str:
    return "-" if not skill.get("effects") else "?" if skill["left"] is None else str(skill["left"])


def _describe(skill: Mapping[str, Any]) -> None:
    screen.say(f"{screen.style(screen.legible(skill['id']), 'bold')}  {screen.legible(str(skill.get('name', '')))}")
    screen.say(f"  {screen.legible(str(skill.get('description', '')))}")
    left = _budget(skill)
    screen.say(f"  effect     {_effects(skill)}" + ("" if left in "-?" else f", {left} left"))
    screen.say(f"  arguments  {screen.legible(_arguments(skill))}")
    screen.say(f"  tier       {screen.legible(_tier(skill))}")


def _arguments(skill: Mapping[str, Any]) -> str:
    schema = skill.get("input", {})
    required = schema.get("required", ())
    return ", ".join(name if name in required else f"[{name}]" for name in schema.get("properties", {})) or "none"


def _required(skill: Mapping[str, Any]) -> str:
    return ", ".join(skill.get("input", {}).get("required", ())) or "-"


def _short(skill: Mapping[str, Any]) -> str:
    """The beginning of the description, as much of it as fits in a table."""
    text = " ".join(str(skill.get("description", "")).split())
    return text if len(text) <= SHORT else text[:SHORT].rsplit(" ", 1)[0].rstrip(" ,;:(") + " …"


def _tier(skill: Mapping[str, Any]) -> str:
    """The tier, and how the worker's operator raises it."""
    raising = skill.get("raiseTier")
    return f"{skill.get('tier', '?')}" + (f"; to raise it, {raising}" if raising else "")


def _show(skill: Mapping[str, Any]) -> None:
    import json

    _describe(skill)
    risk = skill.get("risk", {})
    screen.say("  risk       " + ", ".join(f"{name} {json.dumps(value)}" for name, value in risk.items()))
    screen.say(f"  measures   {screen.legible(', '.join(skill.get('measures', ())) or 'nothing')}")
    if required := [word for words in skill.get("requirements", {}).values() for word in words]:
        screen.say(f"  requires   {screen.legible(', '.join(map(str, required)))}")
    screen.say(f"  deadline   at most {skill.get('deadlineSeconds', '?')} s")
    for example in skill.get("examples", ()):
        screen.say(f"  example    {screen.legible(str(example))}")
    for which in ("input", "output"):
        text = json.dumps(skill.get(which, {}), ensure_ascii=False, indent=2)
        screen.say(f"\n{which} schema")
        screen.say(screen.legible(text, lines=True))
