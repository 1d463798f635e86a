"""What can be done: contracts, strict arguments, plans, handlers, and the packs that bring them."""

# ruff: noqa: I001 - the groups are the map

# what a skill is
from .contract import Contract, Effect, Quantity, Risk
from .annotations import mcp_annotations
from .mcp_tool import mcp_tool
from .plan import Plan, PlanLawError, PlannedEffect, admit_finish, admit_plan
from .skill import (
    Context,
    Done,
    EffectResult,
    EffectStatus,
    Failed,
    Finisher,
    Handler,
    Outcome,
    Planner,
    Reporter,
    Skill,
    Tier,
)

# which skills there are
from .catalog import Catalog
from .pack import Pack, PackContext, PackFactory, Problem

# what a plan checks, and how everything is encoded
from .arguments import Arguments, check_path, legible, strict
from .canonical import NotCanonical

# where a handler works
from .directory import Directory
from .location import Entry, Kind, Location
from .protection import DENY_WRITE, Protection

# what goes wrong
from .errors import Closed, Escape, Protected, Refused, SkillError

__all__ = [
    "DENY_WRITE",
    "Arguments",
    "Catalog",
    "Closed",
    "Context",
    "Contract",
    "Directory",
    "Done",
    "Effect",
    "EffectResult",
    "EffectStatus",
    "Entry",
    "Escape",
    "Failed",
    "Finisher",
    "Handler",
    "Kind",
    "Location",
    "NotCanonical",
    "Outcome",
    "Pack",
    "PackContext",
    "PackFactory",
    "Plan",
    "PlanLawError",
    "PlannedEffect",
    "Planner",
    "Problem",
    "Protected",
    "Protection",
    "Quantity",
    "Refused",
    "Reporter",
    "Risk",
    "Skill",
    "SkillError",
    "Tier",
    "admit_finish",
    "admit_plan",
    "check_path",
    "legible",
    "mcp_annotations",
    "mcp_tool",
    "strict",
]
