"""From a contract and its binding to what is published: the one source of card, MCP schema and listing."""

import re
from collections.abc import Mapping
from typing import Any

from ..contract import Contract, Effect, Requirements
from ..errors import SkillError
from .air import AirTool
from .satisfaction import Bound
from .schema import ROOT, endless

RESERVED = "world"
"""The member that every output object gets besides its own."""
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z][a-z]*|[0-9]+")


class Unpublishable(SkillError):
    """A contract that is right, and that no skill can keep; the message says why, and what to change."""


def check_published(tool: AirTool) -> None:
    """Raise Unpublishable where no value fits the types, or where an output has the reserved member."""
    without_end = endless(tool.schemas)
    for what, schema in (("takes", tool.takes_schema), ("gives", tool.gives_schema)):
        name = _declared(schema)
        if name in without_end:
            raise Unpublishable(
                f"tool {tool.id} {what} {name}, which needs another of its kind without end; make a field optional"
            )
    gives = tool.schemas[name] if (name := _declared(tool.gives_schema)) else tool.gives_schema
    if RESERVED in gives["properties"]:
        raise Unpublishable(f"tool {tool.id} gives a field `{RESERVED}`, which is taken; name it otherwise")


def _declared(schema: Mapping[str, Any]) -> str:
    """The key of the declared type that a schema refers to; empty if it says itself what it is."""
    return str(schema.get("$ref", "")).removeprefix(ROOT)


def contract_of(bound: Bound) -> Contract:
    """The contract that is published. Its one effect is named as the binding says. Raises Unpublishable."""
    tool, binding = bound.tool, bound.binding
    check_published(tool)
    required = tool.requirements
    return Contract(
        id=tool.id,
        title=binding.title or title_of(tool),
        description=tool.description or f"Takes {tool.takes[1]}, gives {tool.gives}.",
        tags=("contract", *required.capabilities),
        input_schema=tool.input,
        output_schema=tool.output,
        access=Effect(name=binding.effect, scope=binding.scope, cost=0),
        effects=(Effect(name=binding.effect, scope=binding.scope),),
        deadline=binding.deadline,
        repeatable=binding.repeatable,
        worktree=binding.worktree,
        risk=binding.risk,
        requirements=Requirements(
            capabilities=required.capabilities,
            secrets=required.secrets,
            memory=tuple(f"{_whole_name(tool, name)} {mode}" for name, mode in required.memory),
        ),
    )


def _whole_name(tool: AirTool, memory: str) -> str:
    """What a memory is called, with its module where that is another one: it is another memory then."""
    module = tool.memory_modules.get(memory)
    return memory if module is None or tool.id == f"{module}.{tool.name}" else f"{module}.{memory}"


def title_of(tool: AirTool) -> str:
    """The words of a tool's name: `SearchDatasets` is `Search datasets`."""
    first, *others = _WORDS.findall(tool.name)
    return " ".join([first, *(word if word.isupper() and len(word) > 1 else word.lower() for word in others)])
