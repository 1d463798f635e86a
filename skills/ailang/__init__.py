"""The eight AILANG tools, served natively, by a configured AILANG binary, or with a word on what is missing."""

from collections.abc import Iterable
from dataclasses import replace

from ..pack import PackContext
from ..skill import Handler, Skill, Tier
from . import adapter, files, stub
from .binary import Binary, BinaryError
from .builtins_search import builtins_search
from .check import ailang_check
from .cli import ailang_cli
from .corpus import Corpus
from .edit import ailang_edit
from .examples import examples
from .examples_search import examples_search
from .read import ailang_read
from .run import ailang_run
from .sandbox import Sandboxes
from .settings import AilangSettings, AilangSettingsError
from .write import ailang_write


def pack(context: PackContext) -> Iterable[Skill]:
    """The pack `ailang`. Raises AilangSettingsError, and BinaryError for a binary that can't be pinned."""
    settings = AilangSettings.resolve(context.config, context.environ, context.state_dir)
    if settings.binary is None:
        corpus = None if settings.examples is None else Corpus(settings.examples)
        return _skills(files.handle, stub.handle, stub.handle, examples(corpus), "stub", "live" if corpus else "stub")
    sandboxes = Sandboxes(Binary.open(settings.binary, pinned=settings.pinned), settings)
    tool = adapter.policy_tool(sandboxes)
    native = files.handle if settings.files == "native" else tool
    searching: Tier = "stub" if settings.examples is None else "live"
    return _skills(native, tool, adapter.run(sandboxes), tool, "live", searching)


def _skills(
    on_files: Handler, tool: Handler, run: Handler, on_examples: Handler, tier: Tier, searching: Tier
) -> tuple[Skill, ...]:
    skills = (
        ailang_read(on_files),
        ailang_write(on_files),
        ailang_edit(on_files),
        ailang_check(tool, tier),
        ailang_run(run, tier),
        builtins_search(tool, tier),
        examples_search(on_examples, searching),
        ailang_cli(on_examples, tier),
    )
    return tuple(replace(skill, raise_tier=_raising(skill)) for skill in skills)


def _raising(skill: Skill) -> str:
    """What an operator does about a tool that only says what is missing."""
    if skill.tier != "stub":
        return ""
    return stub.SET_CORPUS if skill.id == "examples-search" else stub.SET_BINARY


__all__ = [
    "AilangSettings",
    "AilangSettingsError",
    "Binary",
    "BinaryError",
    "ailang_check",
    "ailang_cli",
    "ailang_edit",
    "ailang_read",
    "ailang_run",
    "ailang_write",
    "builtins_search",
    "examples_search",
    "pack",
]
