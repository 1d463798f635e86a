"""Where the code of a tool stands. Named here, loaded by whoever runs it."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .provider import confined

Language = Literal["python", "javascript"]

_MODULE = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)", re.ASCII)
_PYTHON_FILE = re.compile(r"(\./[^:\0]+\.py):([A-Za-z_]\w*)", re.ASCII)
_SCRIPT = re.compile(r"(\./[^#\0]+\.(?:mjs|js|cjs))#([A-Za-z_$][\w$]*)", re.ASCII)
USAGE = {
    "python": '"module:function" or "./file.py:function"',
    "javascript": '"./file.mjs#function"',
}


@dataclass(frozen=True, slots=True)
class HandlerName:
    """A function of a Python module, or of a file: one of `module` and `file` is set, `file` is absolute.

    `text` is what the manifest says.
    """

    language: Language
    function: str
    text: str
    module: str | None = None
    file: Path | None = None

    @classmethod
    def read(cls, language: Language, text: str, folder: Path) -> "HandlerName":
        """Raises ValueError, with what would be right."""
        found = (_PYTHON_FILE if language == "python" else _SCRIPT).fullmatch(text)
        if found:
            return cls(language, found[2], text, file=confined(found[1], folder))
        named = _MODULE.fullmatch(text) if language == "python" else None
        if named:
            _check_links(named[1], folder)
            return cls(language, named[2], text, module=named[1])
        raise ValueError(f"names no handler; write {USAGE[language]}")


def _check_links(module: str, folder: Path) -> None:
    """Raise ValueError for a module of the folder that a link leads out of it; any other is an installed one."""
    path = module.replace(".", "/")
    for each in (f"{path}.py", f"{path}/__init__.py"):
        if os.path.lexists(folder / each):
            confined(each, folder)
