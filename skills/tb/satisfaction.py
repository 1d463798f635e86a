"""Whether a manifest satisfies what a contract requires. Asked before any handler is loaded."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .air import Air, AirTool
from .binding import Binding, Manifest
from .provider import Provider
from .store import MemoryGrant


@dataclass(frozen=True, slots=True)
class Bound:
    """A tool that may run: its contract, its binding, and of what is granted exactly what the contract asks for."""

    tool: AirTool
    binding: Binding
    capabilities: frozenset[str]
    secrets: Mapping[str, Provider]
    memories: Mapping[str, MemoryGrant]


@dataclass(frozen=True, slots=True)
class Refused:
    """A tool that may not; `missing` says why, in the order in which it is to be told. `bound`: there is a binding."""

    tool_id: str
    missing: tuple[str, ...]
    bound: bool = True

    def __str__(self) -> str:
        return self.missing[0]


def satisfy(air: Air, manifest: Manifest, tool_id: str) -> Bound | Refused:
    """What the manifest makes of one tool of a contract."""
    tool = air.tool(tool_id)
    if tool is None:
        return Refused(tool_id, (f"unknown tool {tool_id}",), bound=tool_id in manifest.tools)
    binding = manifest.tools.get(tool_id)
    if binding is None:
        return Refused(tool_id, (f"tool {tool_id} has no handler binding in the manifest",), bound=False)
    missing = tuple(f"tool {tool_id} is refused: {what}" for what in _missing(tool, binding))
    if missing:
        return Refused(tool_id, missing)
    required = tool.requirements
    memories: dict[str, MemoryGrant] = {}
    for name in {name for name, _ in required.memory}:
        granted = binding.memories[name]
        modes = frozenset(mode for mode in granted.modes if (name, mode) in required.memory)
        memories[name] = MemoryGrant(modes, granted.store, granted.scope)
    return Bound(
        tool=tool,
        binding=binding,
        capabilities=frozenset(required.capabilities),
        secrets={handle: binding.secrets[handle] for handle in required.secrets},
        memories=dict(sorted(memories.items())),
    )


def _missing(tool: AirTool, binding: Binding) -> Iterator[str]:
    required = tool.requirements
    ungranted = [capability for capability in required.capabilities if capability not in binding.grants]
    if ungranted:
        yield f"the manifest does not grant {', '.join(ungranted)}"
    for handle in required.secrets:
        if handle not in binding.secrets:
            yield f"the manifest binds no source for secret {handle}"
    for name, mode in required.memory:
        granted = binding.memories.get(name)
        if granted is None or mode not in granted.modes:
            yield f"the manifest grants no memory access {name} {mode}"
    stores = {binding.memories[name].store for name, _ in required.memory if name in binding.memories}
    if len(stores) > 1:
        yield "its memories must be kept in one store, or a call could change half of them"
