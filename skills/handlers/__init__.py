"""The handlers of declared tools, in Python and JavaScript: the same contract, the same behaviour."""

# ruff: noqa: I001 - the groups are the map

# a tool with its handler bound to it, as a skill
from .tool import Isolation, Language, Mode, Tool
from .bound import Runner, bound_skill, handler_of, planner_of, runner_of

# what a handler is told
from .guest.context import CallContext, Rejected

# what a call is supplied with
from .supply import Memory, Supplier, Supply, Withheld, nothing

# whether a value fits
from .shape import fault

__all__ = [
    "CallContext",
    "Isolation",
    "Language",
    "Memory",
    "Mode",
    "Rejected",
    "Runner",
    "Supplier",
    "Supply",
    "Tool",
    "Withheld",
    "bound_skill",
    "fault",
    "handler_of",
    "nothing",
    "planner_of",
    "runner_of",
]
