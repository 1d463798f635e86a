"""The host tools: calc, list_files, read_file, write_file."""

from collections.abc import Iterable

from ..catalog import PackContext
from ..skill import Skill
from .calc import calc
from .list_files import list_files
from .read_file import read_file
from .settings import FileSettings
from .write_file import write_file


def pack(context: PackContext) -> Iterable[Skill]:
    """The pack `host`, each tool in the tier that the operator chose."""
    files = FileSettings.resolve(context.config, context.environ)
    return calc(), list_files(files), read_file(files), write_file(files)


__all__ = ["FileSettings", "calc", "list_files", "pack", "read_file", "write_file"]
