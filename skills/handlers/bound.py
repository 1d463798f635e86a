"""A bound tool as a skill: the input, checked, is the payload of its one effect, and the handler runs it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from .. import canonical
from ..arguments import Arguments, strict
from ..contract import Contract
from ..errors import Refused
from ..plan import Plan, PlannedEffect
from ..skill import Context, Failed, Handler, Outcome, Planner, Skill, Tier
from .call import Call
from .guest import wire
from .inline import Inline
from .pool import Pool
from .shape import fault
from .supply import Supplier, Withheld, nothing
from .tool import Tool


class Runner(Protocol):
    """What runs the calls of one tool."""

    async def run(self, call: Call) -> Outcome:
        """The outcome of one call; canceled, it ends the handler first."""

    async def warm(self) -> None:
        """Have everything ready for the first call."""

    async def close(self) -> None:
        """End in order: nothing of it runs when this returns."""


def runner_of(tool: Tool, environ: Mapping[str, str]) -> Runner:
    """What runs this tool's handler. Nothing of the handler's file is read before the first call, or `warm`."""
    return Pool(tool, environ) if tool.hosted else Inline(tool)


def bound_skill(
    contract: Contract, tool: Tool, runner: Runner, supplier: Supplier = nothing, *, tier: Tier = "live"
) -> Skill:
    """The skill of a bound tool, whose contract declares exactly one effect.

    Raises ValueError for a contract without it.
    """
    return Skill(contract, planner_of(contract, tool), handler_of(tool, runner, supplier), tier=tier)


def planner_of(contract: Contract, tool: Tool) -> Planner:
    """The plan of a tool's calls: its one effect with the input as payload, or a refusal that says what is wrong."""
    if len(contract.effects) != 1:
        raise ValueError(f"the contract of {contract.id} declares {len(contract.effects)} effects, not one")
    effect = contract.effects[0]

    def plan(arguments: Arguments) -> Plan:
        given = arguments.verbatim()
        try:
            wrong = fault(tool.input_schema, wire.decode(canonical.encode(given)))
        except canonical.NotCanonical as error:
            raise Refused(f"the arguments cannot be carried: {error}") from None
        if wrong is not None:
            raise Refused(wrong)
        planned = PlannedEffect("e1", effect.name, effect.scope, effect.cost, given)
        return Plan(effects=(planned,))

    return strict(contract, plan)


def handler_of(tool: Tool, runner: Runner, supplier: Supplier = nothing) -> Handler:
    """The handler of a tool's effect. What can't be supplied fails the call before the tool's own code is reached."""

    async def handle(effect: PlannedEffect, context: Context) -> Outcome:
        try:
            supply = await supplier(tool, context)
            if supply.earlier is not None:
                return supply.earlier
            context = context if supply.reporter is None else replace(context, reporter=supply.reporter)
            call = Call(tool, effect.payload, context, supply)
        except (Withheld, ValueError) as error:
            return Failed(f"the handler was not called: {error}")
        missing = missing_of(tool, supply.secrets, supply.memories)
        if missing:
            return Failed(f"the handler was not called: nobody supplies {', '.join(missing)}")
        return await supply.settle(await runner.run(call))

    return handle


def missing_of(tool: Tool, secrets: Mapping[str, str], memories: Mapping[str, Any]) -> list[str]:
    """What the tool's contract names and no supply holds."""
    return [*(each for each in tool.secrets if each not in secrets), *(m for m in tool.memories if m not in memories)]
