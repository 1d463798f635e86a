"""What the grammar can't say: names are declared, once; clauses are there, once; what is required follows from them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from typing import NamedTuple

from .fault import Extension, Fault, Oddity, Position
from .syntax import (
    BUILT_IN,
    Doc,
    Gives,
    Import,
    Memory,
    Requires,
    Secrets,
    Shape,
    Source,
    Takes,
    Tool,
    Type,
    Uses,
    Word,
)

CAPABILITIES = ("network", "secret_read", "memory_read", "memory_write")
"""The words that are known. Any other is admitted with a warning: a manifest has to grant it."""
MAX_ID = 128
MAX_FAULTS = 100
"""How many faults of one source are told; what comes after them is not looked at closer."""
_SUGGEST_AMONG = 100
_SUGGESTIONS = 3  # a comparison with every name is dear


class Declared(NamedTuple):
    """A name of a module's one namespace, and where it comes from."""

    kind: str
    module: str
    name: str


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a runtime must see granted before the handler; each list sorted."""

    capabilities: tuple[str, ...]
    secrets: tuple[str, ...]
    memory: tuple[tuple[str, str], ...]


@dataclass
class Checked:
    """What was found about one source, by itself; faults and warnings in the order of their lines."""

    source: Source
    names: dict[str, Declared] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    oddities: list[Oddity] = field(default_factory=list)
    extensions: list[Extension] = field(default_factory=list)
    requirements: dict[str, Requirements] = field(default_factory=dict)

    @cached_property
    def types(self) -> dict[str, Type]:
        """The types that the source declares, by name."""
        return {each.name.text: each for each in self.source.declarations if isinstance(each, Type)}


def check(source: Source, library: Mapping[str, Source]) -> Checked:
    """Check one source; its imports are looked up in `library`, whose other sources are not checked themselves."""
    checking = _Checking(source, library)
    checking.run()
    found = checking.found
    found.faults.sort(key=lambda fault: fault.at.line)
    del found.faults[MAX_FAULTS:]
    found.oddities.sort(key=lambda oddity: (oddity.at, oddity.code, oddity.capability))
    found.extensions.sort(key=lambda extension: extension.at)
    return found


class _Checking:
    def __init__(self, source: Source, library: Mapping[str, Source]) -> None:
        self.source = source
        self.library = library
        self.found = Checked(source)
        self._suggestions = 0

    def run(self) -> None:
        self._extend("a documentation line", *self.source.says)
        for declaration in self.source.declarations:
            if isinstance(declaration, Import):
                self._import(declaration)
            else:
                self._declare(declaration.name, type(declaration).__name__.lower(), declaration.at)
        for declaration in self.source.declarations:
            if isinstance(declaration, Type):
                self._type(declaration)
            elif isinstance(declaration, Memory):
                self._extend("a documentation line", *declaration.says)
            elif isinstance(declaration, Tool):
                self._tool(declaration)

    def _declare(self, name: Word, kind: str, at: Position, module: str = "") -> None:
        if name.text in BUILT_IN:
            self._fault("duplicate-name", name.at, f"{name.text} is a built-in type", "take another name")
        elif name.text in self.found.names:
            hint = "types, memories and tools share their names; take another one"
            self._fault("duplicate-name", name.at, f"{name.text} is declared twice", hint)
        else:
            self.found.names[name.text] = Declared(kind, module or self.source.module.text, name.text)

    def _import(self, declaration: Import) -> None:
        self.found.extensions.append(Extension("an import", declaration.at, self.source.file))
        module = declaration.module
        other = self.library.get(module.text)
        if module.text == self.source.module.text:
            self._fault("unknown-module", module.at, "a module does not import from itself", "take the line out")
        elif other is None:
            hint = f"put the file that begins with `module {module.text}` into the same folder"
            self._fault("unknown-module", module.at, f"unknown module {module.text}", hint)
        else:
            theirs = {d.name.text: type(d).__name__.lower() for d in other.declarations if isinstance(d, Type | Memory)}
            for name in declaration.names:
                if name.text in theirs:
                    self._declare(name, theirs[name.text], name.at, module.text)
                else:
                    hint = "types and memories can be imported, from the module that declares them"
                    self._fault("unknown-name", name.at, f"module {module.text} declares no {name.text}", hint)

    def _type(self, declared: Type) -> None:
        self._extend("a documentation line", *declared.says)
        if not declared.fields:
            hint = "write at least one line <name> is <Type> below it"
            self._fault("empty-type", declared.at, f"type {declared.name.text} has no field", hint)
        seen: set[str] = set()
        for each in declared.fields:
            if each.name.text in seen:
                message = f"field {each.name.text} is declared twice"
                self._fault("duplicate-field", each.name.at, message, "take another name")
            seen.add(each.name.text)
            self._extend("a documentation line", *each.says)
            self._shape(each.shape)

    def _shape(self, shape: Shape) -> None:
        name = shape.name
        if name.text in BUILT_IN:
            if name.text != "Text":
                self._extend(f"the type {name.text}", name)
        elif (declared := self.found.names.get(name.text)) is None or declared.kind != "type":
            hint = self._instead(name.text, f"declare type {name.text}")
            self._fault("unknown-type", name.at, f"unknown type {name.text}", hint)
        if shape.optional:
            self._extend("an optional field", shape)
        if shape.lists:
            self._extend("a list", shape)

    def _tool(self, tool: Tool) -> None:
        name = tool.name.text
        if len(f"{self.source.module.text}.{name}") > MAX_ID:
            self._fault("limit", tool.name.at, f"<module>.<Tool> has at most {MAX_ID} characters", "shorten one")
        for kind in (Takes, Gives):
            word = kind.__name__.lower()
            clauses = [clause for clause in tool.clauses if isinstance(clause, kind)]
            if not clauses:
                usage = "takes <name> as <Type>" if kind is Takes else "gives <Type>"
                self._fault(f"missing-{word}", tool.at, f"tool {name} has no {word} clause", f"add: {usage}")
            for clause in clauses[1:]:
                self._fault("duplicate-clause", clause.at, f"{word} appears twice", "keep one of them")
            for clause in clauses:
                self._shape(clause.shape)
        self._extend("a documentation line", *(clause for clause in tool.clauses if isinstance(clause, Doc)))
        self.found.requirements[name] = self._requirements(tool)

    def _requirements(self, tool: Tool) -> Requirements:
        written: dict[str, Position] = {}
        for word in (word for c in tool.clauses if isinstance(c, Requires) for word in c.capabilities):
            if word.text in written:
                message = f"capability {word.text} is listed twice"
                self._fault("duplicate-capability", word.at, message, "keep one of them")
            elif word.text not in CAPABILITIES:
                self._odd("unknown-capability", word.at, word.text)
            written.setdefault(word.text, word.at)
        implied: dict[str, Position] = {}
        secrets: set[str] = set()
        for word in (word for c in tool.clauses if isinstance(c, Secrets) for word in c.handles):
            if word.text in secrets:
                self._fault("duplicate-secret", word.at, f"secret {word.text} is listed twice", "keep one of them")
            secrets.add(word.text)
            implied.setdefault("secret_read", word.at)
        memory: set[tuple[str, str]] = set()
        for clause in (clause for clause in tool.clauses if isinstance(clause, Uses)):
            self._use(clause, memory)
            implied.setdefault(f"memory_{clause.mode}", clause.at)
        for capability, at in implied.items():
            if capability not in written:
                self._odd("implied-capability", at, capability)
        for capability, at in written.items():
            if capability in CAPABILITIES[1:] and capability not in implied:
                self._odd("unused-capability", at, capability)
        return Requirements(tuple(sorted({*written, *implied})), tuple(sorted(secrets)), tuple(sorted(memory)))

    def _use(self, clause: Uses, memory: set[tuple[str, str]]) -> None:
        name = clause.memory.text
        declared = self.found.names.get(name)
        if declared is None or declared.kind != "memory":
            hint = f"declare it: memory {name}"
            self._fault("unknown-memory", clause.memory.at, f"unknown memory {name}", hint)
        if (name, clause.mode) in memory:
            message = f"uses memory {name} {clause.mode} appears twice"
            self._fault("duplicate-clause", clause.at, message, "keep one of them")
        memory.add((name, clause.mode))

    def _instead(self, name: str, otherwise: str) -> str:
        """The type that was perhaps meant."""
        self._suggestions += 1
        if self._suggestions > _SUGGESTIONS or len(self.found.names) > _SUGGEST_AMONG:
            return otherwise
        types = [known for known, declared in self.found.names.items() if declared.kind == "type"]
        close = get_close_matches(name, [*types, *BUILT_IN], 1, 0.7)
        return f"did you mean {close[0]}?" if close else otherwise

    def _extend(self, what: str, *where: Doc | Word | Shape) -> None:
        self.found.extensions += [Extension(what, each.at, self.source.file) for each in where]

    def _fault(self, code: str, at: Position, message: str, hint: str) -> None:
        self.found.faults.append(Fault(code, at, message, hint, self.source.file))

    def _odd(self, code: str, at: Position, capability: str) -> None:
        self.found.oddities.append(Oddity(code, at, capability, self.source.file))


def imports(source: Source) -> Iterator[Import]:
    """The imports of a source, in order."""
    return (declaration for declaration in source.declarations if isinstance(declaration, Import))
