"""The manifest as it is written: its keys, what each admits, and what to say of what it does not."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    model_validator,
)

from ..contract import Risk
from .binding import Binding, Isolation
from .handler import USAGE, HandlerName, Language
from .provider import Provider, provider
from .store import MemoryGrant, Mode, Scope, Store

_WANTED = {
    r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*\.[A-Z][A-Za-z0-9]*$": "a tool is named <module>.<Tool>, in quotes",
    r"^[a-z][a-z0-9_]*$": "a capability is a word in small letters, as network",
    r"^[A-Z][A-Z0-9_]*$": "a secret's handle is a word in capitals, as API_KEY",
    r"^[A-Z][A-Za-z0-9]*$": "a memory is named as the contract names it, as ProjectKnowledge",
    r"^[A-Za-z][A-Za-z0-9_.-]*$": "letters, digits, `_`, `-` and `.`, a letter first",
}
_TOOL, _CAPABILITY, _HANDLE, _MEMORY, _WORD = _WANTED

ToolId = Annotated[str, StringConstraints(pattern=_TOOL, max_length=128)]
Capability = Annotated[str, StringConstraints(pattern=_CAPABILITY, max_length=64)]
Handle = Annotated[str, StringConstraints(pattern=_HANDLE, max_length=64)]
MemoryName = Annotated[str, StringConstraints(pattern=_MEMORY, max_length=64)]
Word = Annotated[str, StringConstraints(pattern=_WORD, max_length=128)]


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("a text that is shown holds no control character and none that turns the reading direction")
    return text


def _folder(info: ValidationInfo) -> Path:
    folder = (info.context or {}).get("folder", Path())
    return Path(folder)


def _store(given: Any, info: ValidationInfo) -> Store:
    if isinstance(given, Store):
        return given
    return Store.read(given if isinstance(given, str) else "", _folder(info))


def _provider(given: Any, info: ValidationInfo) -> Provider:
    return provider(given, _folder(info))


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True)


class RiskTable(_Part):
    """`[tools."…".risk]`: what is not said is taken for the worst."""

    read_only: bool = False
    external_egress: bool = True
    irreversible: bool = True
    sensitivity: Annotated[str, StringConstraints(min_length=1, max_length=64), AfterValidator(_printable)] = "unknown"
    idempotent: bool = False


class MemoryTable(_Part):
    """`[memories.NAME]`."""

    modes: Annotated[list[Mode], Field(min_length=1)]
    store: Annotated[Store, BeforeValidator(_store)] = Store("worker")
    scope: Scope = "episode"

    def grant(self) -> MemoryGrant:
        return MemoryGrant(frozenset(self.modes), self.store, self.scope)


Secrets = dict[Handle, Annotated[Provider, BeforeValidator(_provider)]]
Memories = dict[MemoryName, MemoryTable]


class ToolTable(_Part):
    """`[tools."<module>.<Tool>"]`."""

    python: str | None = None
    javascript: str | None = None
    grants: list[Capability] = []
    secrets: Secrets = {}
    memories: Memories = {}
    effect: Word | None = None
    scope: Word = "tool"
    deadline: Annotated[float, Field(gt=0, le=86_400)] = 10.0
    concurrency: Annotated[int, Field(ge=1, le=1000)] = 4
    isolation: Isolation | None = None
    repeatable: bool = False
    worktree: bool = False
    title: Annotated[str, StringConstraints(max_length=128), AfterValidator(_printable)] = ""
    risk: RiskTable = RiskTable()

    @model_validator(mode="after")
    def _one_handler(self, info: ValidationInfo) -> "ToolTable":
        if (self.python is None) == (self.javascript is None):
            raise ValueError(f"name one handler: python = {USAGE['python']}, or javascript = {USAGE['javascript']}")
        if self.javascript is not None and self.isolation == "none":
            raise ValueError('isolation: a JavaScript handler runs in a process of its own; write "process"')
        try:
            self.handler(_folder(info))
        except ValueError as error:
            raise ValueError(f"{'javascript' if self.python is None else 'python'}: {error}") from None
        return self

    def handler(self, folder: Path) -> HandlerName:
        language: Language = "javascript" if self.python is None else "python"
        return HandlerName.read(language, (self.python if self.python is not None else self.javascript) or "", folder)

    def binding(self, tool_id: str, folder: Path, secrets: Secrets, memories: Memories) -> Binding:
        return Binding(
            handler=self.handler(folder),
            effect=self.effect or tool_id,
            scope=self.scope,
            grants=frozenset(self.grants),
            secrets={**secrets, **self.secrets},
            memories={name: table.grant() for name, table in {**memories, **self.memories}.items()},
            deadline=self.deadline,
            concurrency=self.concurrency,
            isolation=self.isolation or ("none" if self.javascript is None else "process"),
            repeatable=self.repeatable,
            worktree=self.worktree,
            title=self.title,
            risk=Risk(**self.risk.model_dump()),
        )


class Document(_Part):
    """A whole manifest. `secrets` and `memories` are for every tool in it that asks for one by its name."""

    tools: dict[ToolId, ToolTable] = {}
    secrets: Secrets = {}
    memories: Memories = {}

    def bindings(self, folder: Path) -> dict[str, Binding]:
        return {
            tool_id: table.binding(tool_id, folder, self.secrets, self.memories)
            for tool_id, table in self.tools.items()
        }


class ShortBinding(_Part):
    language: Language
    handler: str

    @model_validator(mode="after")
    def _readable(self, info: ValidationInfo) -> "ShortBinding":
        self.named(_folder(info))
        return self

    def named(self, folder: Path) -> HandlerName:
        """The handler; a script may be named as modules are, without `./` and with a colon."""
        text = self.handler
        if self.language == "javascript" and not text.startswith("./"):
            text = "./" + text.replace(":", "#")
        return HandlerName.read(self.language, text, folder)


class Grants(_Part):
    capabilities: list[Capability] = []
    secrets: dict[Handle, Any] = {}
    memory: dict[MemoryName, list[Mode]] = {}


class ShortDocument(_Part):
    """`{"bindings": …, "grants": …}`: the same grants for every tool. A secret without a known source has none."""

    bindings_: dict[ToolId, ShortBinding] = Field(default={}, alias="bindings")
    grants: Grants = Grants()

    def bindings(self, folder: Path) -> dict[str, Binding]:
        secrets = {handle: found for handle, given in self.grants.secrets.items() if (found := _known(given, folder))}
        return {
            tool_id: Binding(
                handler=each.named(folder),
                effect=tool_id,
                grants=frozenset(self.grants.capabilities),
                secrets=secrets,
                memories={name: MemoryGrant(frozenset(modes)) for name, modes in self.grants.memory.items()},
                isolation="process" if each.language == "javascript" else "none",
            )
            for tool_id, each in self.bindings_.items()
        }


def _known(given: Any, folder: Path) -> Provider | None:
    try:
        return provider(given, folder)
    except ValueError:
        return None


def told(model: type[BaseModel], error: Mapping[str, Any]) -> str:
    """A fault as `key: what is wrong; what would be right`, without the value."""
    where = [part for part in error["loc"] if part != "[key]" and not str(part).startswith("function-")]
    at = key(where)
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return f"{at}: unknown key; known here: {', '.join(known_keys(model, where[:-1]))}"
    if kind == "value_error":
        return f"{at}: {context['error']}"
    if kind == "string_pattern_mismatch":
        return f"{at}: {_WANTED[context['pattern']]}"
    if kind == "missing":
        return f"{at}: is missing; " + ('write modes = ["read"]' if where[-1] == "modes" else "it is required")
    return f"{at}: {error['msg'][0].lower()}{error['msg'][1:]}"


def known_keys(model: type[BaseModel], where: Sequence[Any]) -> list[str]:
    """The keys of the table that a way leads to."""
    tables: Mapping[tuple[str, int], type[BaseModel]] = {
        ("tools", 2): ToolTable,
        ("risk", 3): RiskTable,
        ("memories", 2): MemoryTable,
        ("memories", 4): MemoryTable,
        ("bindings", 2): ShortBinding,
        ("grants", 1): Grants,
    }
    names = [str(part) for part in where]
    table = next((tables[name, len(names)] for name in reversed(names) if (name, len(names)) in tables), model)
    return [field.alias or name for name, field in table.model_fields.items()]


def key(where: Sequence[Any]) -> str:
    """A way through a TOML document as it is written there."""
    return ".".join(f'"{part}"' if "." in str(part) else str(part) for part in where) or "the manifest"
