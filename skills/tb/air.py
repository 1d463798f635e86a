"""AIR, the neutral form of a contract: what a host in any language reads instead of the source."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .. import canonical
from .checker import Checked, Requirements
from .fault import Extension, Oddity, Position
from .schema import Name, closed, described, of_shape, of_type, references, wrapped
from .syntax import BUILT_IN, Doc, Gives, Memory, Shape, Source, Takes, Tool, Type, Uses

VERSION = "skillbus/air/v1"
RESULT = "result"
"""The member of an output object that holds what is given, where that is no declared type."""


@dataclass(frozen=True)
class AirTool:
    """One tool: what it takes, gives and requires.

    `takes` is the parameter's name and type. Where a declared type is taken, the input is its object; a built-in type
    or a list stands in an object under the parameter's name, and one that is given under `result`: then `input_member`
    and `output_member` name it.

    `memory_modules` names the module that declares each memory: one that is imported is the other module's own.
    """

    id: str
    name: str
    takes: tuple[str, str]
    gives: str
    requirements: Requirements
    description: str
    at: Position
    input_member: str | None
    output_member: str | None
    takes_schema: Mapping[str, Any] = field(repr=False)
    gives_schema: Mapping[str, Any] = field(repr=False)
    schemas: Mapping[str, Any] = field(repr=False)
    memory_modules: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def input(self) -> dict[str, Any]:
        """The schema of the input object, with every type that it needs under `$defs`."""
        return closed(self.takes_schema, self.schemas)

    @cached_property
    def output(self) -> dict[str, Any]:
        """The schema of the output object, with every type that it needs under `$defs`."""
        return closed(self.gives_schema, self.schemas)

    @cached_property
    def address(self) -> str:
        """The content address of this tool's contract alone, with every type that it needs."""
        described = {"description": self.description, "input": self.input, "output": self.output}
        return canonical.ref(canonical.encode({"air": VERSION, "tool": self.as_json(), **described}))

    def as_json(self) -> dict[str, Any]:
        """The tool as it stands in the AIR's `tools`."""
        required = self.requirements
        return {
            "name": self.name,
            "id": self.id,
            "takes": {"name": self.takes[0], "type": self.takes[1]},
            "gives": self.gives,
            "requirements": {
                "capabilities": list(required.capabilities),
                "secrets": list(required.secrets),
                "memory": [{"name": name, "mode": mode, **self._origin(name)} for name, mode in required.memory],
            },
        }

    def _origin(self, memory: str) -> dict[str, str]:
        module = self.memory_modules.get(memory)
        return {} if module is None or self.id == f"{module}.{self.name}" else {"module": module}


@dataclass(frozen=True)
class Air:
    """The neutral form of one module.

    `schemas` holds every type that the module declares, and those that it needs of others, as `module.Name`.
    """

    source: Source = field(repr=False)
    schemas: Mapping[str, Any] = field(repr=False)
    tools: tuple[AirTool, ...]
    oddities: tuple[Oddity, ...] = ()
    extensions: tuple[Extension, ...] = ()

    @property
    def module(self) -> str:
        return self.source.module.text

    def tool(self, tool_id: str) -> AirTool | None:
        return next((tool for tool in self.tools if tool.id == tool_id), None)

    def core(self) -> dict[str, Any]:
        """What the page itself knows: module, types, memories and tools by their names."""
        declared = self.source.declarations
        types = [each for each in declared if isinstance(each, Type)]
        return {
            "module": self.module,
            "types": {each.name.text: {f.name.text: f.shape.text for f in each.fields} for each in types},
            "memories": sorted(each.name.text for each in declared if isinstance(each, Memory)),
            "tools": [tool.as_json() for tool in self.tools],
        }

    def meaning(self) -> dict[str, Any]:
        """Everything but where it stands: what the address is the address of."""
        return {
            "air": VERSION,
            **self.core(),
            "says": self._says(),
            "schemas": dict(self.schemas),
            "interfaces": {
                tool.id: {"input": dict(tool.takes_schema), "output": dict(tool.gives_schema)} for tool in self.tools
            },
        }

    @cached_property
    def address(self) -> str:
        """The content address of the module's meaning; layout, positions and the file's name do not change it."""
        return canonical.ref(canonical.encode(self.meaning()))

    def as_json(self) -> dict[str, Any]:
        """The whole AIR, as `air.schema.json` describes it."""
        return {
            **self.meaning(),
            "positions": self._positions(),
            "source": {
                "file": self.source.file,
                "warnings": [oddity.as_json() for oddity in self.oddities],
                "extensions": [{"what": e.what, "line": e.at.line, "column": e.at.column} for e in self.extensions],
            },
            "address": self.address,
        }

    def _says(self) -> dict[str, str]:
        """The documentation, by what it is about: "" is the module."""
        says = {"": described(self.source.says)}
        for each in self.source.declarations:
            if isinstance(each, Type | Memory):
                says[each.name.text] = described(each.says)
            elif isinstance(each, Tool):
                says[each.name.text] = _description(each)
        return {name: text for name, text in says.items() if text}

    def _positions(self) -> dict[str, list[int]]:
        """Line and column of the module (""), of each declaration, and of each field and clause by its way there."""
        places = {"": self.source.module.at}
        for each in self.source.declarations:
            if isinstance(each, Type | Memory | Tool):
                places[each.name.text] = each.at
            if isinstance(each, Type):
                places |= {f"{each.name.text}.{item.name.text}": item.name.at for item in each.fields}
            elif isinstance(each, Tool):
                takes, gives = _ends(each)
                places |= {f"{each.name.text}.takes": takes.at, f"{each.name.text}.gives": gives.at}
        return {name: [at.line, at.column] for name, at in places.items()}


def build(checked: Checked, needed: Mapping[str, Checked]) -> Air:
    """The AIR of a source without faults; `needed` holds the modules that it imports from, however indirectly."""
    source = checked.source
    name = _named(checked, source.module.text)
    declared = [each for each in source.declarations if isinstance(each, Tool)]
    schemas = _schemas(checked, needed, declared)
    return Air(
        source,
        schemas,
        tuple(_tool(each, checked, name, schemas) for each in declared),
        tuple(checked.oddities),
        tuple(checked.extensions),
    )


def _tool(declared: Tool, checked: Checked, name: Name, schemas: Mapping[str, Any]) -> AirTool:
    takes, gives = _ends(declared)
    return AirTool(
        id=f"{checked.source.module.text}.{declared.name.text}",
        name=declared.name.text,
        takes=(takes.name.text, takes.shape.text),
        gives=gives.shape.text,
        requirements=checked.requirements[declared.name.text],
        description=_description(declared),
        at=declared.at,
        input_member=takes.name.text if _is_bare(takes.shape) else None,
        output_member=RESULT if _is_bare(gives.shape) else None,
        takes_schema=_object(takes.shape, takes.name.text, name),
        gives_schema=_object(gives.shape, RESULT, name),
        schemas=schemas,
        memory_modules={
            clause.memory.text: checked.names[clause.memory.text].module
            for clause in declared.clauses
            if isinstance(clause, Uses)
        },
    )


def _ends(tool: Tool) -> tuple[Takes, Gives]:
    (takes,) = (clause for clause in tool.clauses if isinstance(clause, Takes))
    (gives,) = (clause for clause in tool.clauses if isinstance(clause, Gives))
    return takes, gives


def _description(tool: Tool) -> str:
    return described(tuple(clause for clause in tool.clauses if isinstance(clause, Doc)))


def _is_bare(shape: Shape) -> bool:
    return shape.lists > 0 or shape.name.text in BUILT_IN


def _object(shape: Shape, member: str, name: Name) -> dict[str, Any]:
    schema = of_shape(shape, name)
    return wrapped(schema, member) if _is_bare(shape) else schema


def _named(checked: Checked, home: str) -> Name:
    """What keys the types have that one module's names mean, in the AIR of the module `home`."""

    def name(text: str) -> str:
        declared = checked.names[text]
        return declared.name if declared.module == home else f"{declared.module}.{declared.name}"

    return name


def _schemas(checked: Checked, needed: Mapping[str, Checked], tools: list[Tool]) -> dict[str, Any]:
    """The schemas of the module's own types, and of each that they and its tools need of other modules."""
    home = checked.source.module.text
    modules = {**needed, home: checked}
    name = _named(checked, home)
    left = list(checked.types)
    left += [name(end.shape.name.text) for tool in tools for end in _ends(tool) if end.shape.name.text not in BUILT_IN]
    schemas: dict[str, Any] = {}
    while left:
        key = left.pop()
        if key not in schemas:
            module, _, type_name = key.rpartition(".")
            schemas[key] = of_type(modules[module or home].types[type_name], _named(modules[module or home], home))
            left += references(schemas[key])
    return dict(sorted(schemas.items()))
