"""The AILANG tools that are served natively: ailang-read, ailang-write, ailang-edit."""

from collections.abc import Iterable

from ..catalog import PackContext
from ..skill import Skill
from .edit import ailang_edit
from .read import ailang_read
from .write import ailang_write


def pack(_: PackContext) -> Iterable[Skill]:
    """The pack `ailang`."""
    return ailang_read(), ailang_write(), ailang_edit()


__all__ = ["ailang_edit", "ailang_read", "ailang_write", "pack"]
