"""The time now, as a skill."""

from datetime import datetime
from zoneinfo import ZoneInfo

from skills import Context, Contract, Done, Effect, PackContext, Plan, PlannedEffect, Skill

READ = Effect(name="Clock.Read", scope="clock")
CONTRACT = Contract(
    id="time_now",
    title="Tell the time",
    description="The time now in a zone such as Europe/Berlin, UTC unless you name one. Costs one Clock.Read call.",
    input_schema={"type": "object", "properties": {"zone": {"type": "string"}}},
    output_schema={"type": "object", "properties": {"ok": {"type": "boolean"}, "now": {"type": "string"}}},
    access=Effect(name="Clock.Read", scope="clock", cost=0),
    effects=(READ,),
    repeatable=True,
)


def plan(arguments: object) -> Plan:
    zone = arguments.get("zone", "UTC") if isinstance(arguments, dict) else None
    if not isinstance(zone, str):
        return Plan.refuse("zone is a text such as Europe/Berlin")
    return Plan.one(READ.name, {"zone": zone}, scope=READ.scope)


async def read(effect: PlannedEffect, context: Context) -> Done:
    try:
        now = datetime.now(ZoneInfo(effect.payload["zone"]))
    except (KeyError, ValueError, OSError):
        return Done({"ok": False, "error": "there is no such time zone here"})
    return Done({"ok": True, "now": now.isoformat(timespec="seconds")})


def pack(context: PackContext) -> list[Skill]:
    return [Skill(CONTRACT, plan, read)]
