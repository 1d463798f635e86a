"""How the program of a host is started: which program, with which arguments, in which environment."""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from .tool import MIB, Tool

GUEST = Path(__file__).parent / "guest"
PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
"""The variables of its worker that a host gets; no other, as any may hold a secret."""

BASE = {"javascript": 256 * MIB, "python": 64 * MIB}
"""What the language itself takes, besides what the tool may."""


class NoProgram(Exception):
    """What runs the language is not on this machine."""


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a host."""
    passed = {name: environ[name] for name in PASSED if name in environ}
    return {"PATH": os.defpath, "LANG": "C.UTF-8", **passed}


def source_of(tool: Tool) -> str:
    """Where the handler's code is: a file, or the name of a module."""
    source = tool.module if tool.file is None else str(tool.file)
    if source is None:
        raise ValueError(f"{tool.id} has neither a file nor a module")
    return source


def line_limit(tool: Tool) -> int:
    """The bytes of the longest line that a host of this tool sends: escaped, a text takes up to three times as much."""
    return 3 * tool.output_bytes + (4 << 10)


def command(tool: Tool, descriptor: int, environ: Mapping[str, str]) -> list[str]:
    """The argument list that starts a host of this tool, which speaks over the descriptor. Raises NoProgram."""
    folder = str(tool.folder)
    limit = str(line_limit(tool))
    launch = [sys.executable, "-I", "-S", str(GUEST / "launch.py"), str(os.getpid())]
    launch.append(str(tool.memory + BASE[tool.language]))
    if tool.language == "python":
        python = [sys.executable, "-I", "-u", str(GUEST / "boot.py")]
        return [*launch, *python, str(descriptor), folder, source_of(tool), tool.function, tool.takes, limit]
    node = shutil.which("node", path=environment(environ)["PATH"])
    if node is None:
        raise NoProgram("there is no `node` on the PATH; install Node 20 or newer")
    heap = f"--max-old-space-size={max(tool.memory // MIB, 16)}"
    return [
        *launch,
        node,
        heap,
        str(GUEST / "host.mjs"),
        str(descriptor),
        folder,
        source_of(tool),
        tool.function,
        limit,
    ]
