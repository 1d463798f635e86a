"""What a skill declares about itself, and what a caller may rely on before calling it."""

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Quantity = Literal["operation", "path", "bytes", "recipients", "results"]
"""What the constraints of a grant can be put on."""

_POINTER = re.compile(r"(/([^/~]|~[01])*)+")


class _Declaration(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Effect(_Declaration):
    """One brokered action a skill may plan: the triple that a grant is compared with.

    `cost` counts calls; it is what one run takes from the budget of (`name`, `scope`).
    """

    name: str = Field(min_length=1)
    scope: str = Field(min_length=1)
    cost: int = Field(default=1, ge=0)


class Risk(_Declaration):
    """Risk metadata, shown in listings and used by a host's policy.

    The defaults are the conservative ones that an unknown third-party skill gets.
    """

    read_only: bool = False
    external_egress: bool = True
    irreversible: bool = True
    sensitivity: str = "unknown"
    idempotent: bool = False


class Requirements(_Declaration):
    """What a host has to grant a skill before its handler runs: words, handles of secrets, and `NAME read|write`."""

    capabilities: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()


class Contract(_Declaration):
    """The contract of a skill: everything about it but its code.

    `id` is the tool's id, the A2A skill id and the MCP tool name. `access` is what a session's grants are
    asked for to see and call the skill (None: no grant is needed); `effects` are the triples that its plan
    may name. `deadline` is the longest that the handler may run, in seconds. `repeatable` says that running
    the effect again after a crash, in the same place, is harmless. `output_mode` is the media type of the
    answer: `application/json` is one data part; `text/plain` is one text part, the only member `text` of an output,
    which begins with `error: ` when it says that there is no answer.

    `measures` says where the payload of a planned effect holds what the constraints of grants are put on: a JSON
    pointer (RFC 6901), or, if it does not begin with a slash, what it is in every call. A path is a text or a list of
    texts, relative to the worktree. `bytes` is a text, which counts as its UTF-8, or a number; `recipients` a text of
    addresses between commas, a list or a number; `results` a list or a number. A constraint on what is not measured
    denies.

    `requirements` are shown and say nothing about where a value comes from: whoever serves the skill has compared them
    with what is granted.
    """

    id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$")
    title: str = Field(min_length=1)
    description: str = Field(min_length=1)
    tags: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    input_schema: dict[str, Any]
    output_schema: dict[str, Any]
    access: Effect | None = None
    effects: tuple[Effect, ...] = ()
    deadline: float = Field(default=10.0, gt=0, le=86_400)
    repeatable: bool = False
    worktree: bool = False
    output_mode: Literal["application/json", "text/plain"] = "application/json"
    risk: Risk = Risk()
    measures: Mapping[Quantity, str] = {}
    requirements: Requirements | None = None

    @field_validator("measures")
    @classmethod
    def _pointers_or_constants(cls, measures: Mapping[Quantity, str]) -> Mapping[Quantity, str]:
        for quantity, where in measures.items():
            if where.startswith("/"):
                if not _POINTER.fullmatch(where):
                    raise ValueError(f"{quantity}: {where!r} is no JSON pointer")
            elif quantity == "path" or (quantity != "operation" and not (where.isascii() and where.isdigit())):
                raise ValueError(f"{quantity}: {where!r} is neither a JSON pointer nor a number that always holds")
            elif not where:
                raise ValueError(f"{quantity} is measured by nothing")
        return measures

    @field_validator("input_schema", "output_schema")
    @classmethod
    def _an_object_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        if schema.get("type") != "object":
            raise ValueError('a schema must have "type": "object"')
        return schema

    @model_validator(mode="after")
    def _effects_need_access(self) -> "Contract":
        if self.effects and self.access is None:
            raise ValueError("a skill with effects must name the access that a grant has to give")
        return self

    @property
    def admits(self) -> tuple[str, ...]:
        """The argument names of the input schema, in declared order."""
        return tuple(self.input_schema.get("properties", {}))
