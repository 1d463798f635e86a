"""The policies that an AILANG binary runs under, as the text of their files."""

import hashlib
import json
import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

BASE = frozenset({"FS", "IO"})
TIMEOUT_MS = 8_000
FS_BUDGET = 1_000

_TREES = (".github", ".pi", ".claude", ".ailang")
_FILES = (
    ".[gG][iI][tT][mM][oO][dD][uU][lL][eE][sſS]",
    ".[gG][iI][tT][aA][tT][tT][rR][iI][bB][uU][tT][eE][sſS]",
)
_HOST_LIMITS = (
    "max_source_bytes = 1048576",
    "max_module_graph_bytes = 16777216",
    "max_output_bytes = 8388608",
    "max_fs_transfer_bytes = 8388608",
)


class PolicyError(ValueError):
    """No policy can be written for this worktree; the message says why."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy for runs with the capabilities `caps` in the worktree `root`."""

    root: str
    caps: frozenset[str] = BASE
    net_allow: tuple[str, ...] = ()
    net_allow_http: bool = False

    @property
    def is_base(self) -> bool:
        return self.caps == BASE

    @property
    def security_mode(self) -> str:
        """Reading the environment needs more trust than the rest."""
        return "trusted_host" if "Env" in self.caps else "restricted"

    @property
    def admitted(self) -> tuple[str, ...]:
        """The capabilities that the file names: FS is always there, at budget 0 where nobody asked for it."""
        return tuple(sorted(self.caps | {"FS"}))

    @property
    def name(self) -> str:
        """What is put behind the episode's name to name the file."""
        return ".toml" if self.is_base else f".run-{'.'.join(sorted(self.caps))}.toml"

    @property
    def text(self) -> str:
        """The file. Raises PolicyError for a root that cannot be written as it is."""
        _check_root(self.root)
        env, net = "Env" in self.caps, "Net" in self.caps
        deny = ([".git/**"] if env else []) + deny_write()
        lines = [
            f'security_mode = "{self.security_mode}"',
            f"allowed_caps = {_array(['IO', 'FS'] if self.is_base else self.admitted)}",
            f'fs_sandbox = "{self.root}"',
            f"timeout_ms = {TIMEOUT_MS}",
            f"fs_deny_write = {_array(deny)}",
            'entry = "main"',
            *([f"net_allow = {_array(self.net_allow)}"] if net else []),
            *(["net_allow_http = true"] if net and self.net_allow_http else []),
            *(_HOST_LIMITS if env else ()),
            "",
            "[budgets]",
            f"FS = {FS_BUDGET if 'FS' in self.caps else 0}",
        ]
        return "\n".join(lines) + "\n"

    @property
    def digest(self) -> str:
        """The SHA-256 of the file's bytes, in hex."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def deny_write() -> list[str]:
    """What no tool of the lane writes: each folder in every spelling, lower case first, and two files as patterns."""
    spellings = ("".join(letters) for name in _TREES for letters in product(*map(_cases, name)))
    return [f"{name}/**" for name in spellings] + list(_FILES)


def _cases(letter: str) -> str:
    return letter if letter == letter.upper() else letter + letter.upper()


def _check_root(root: str) -> None:
    clean = root.startswith("/") and root == posixpath.normpath(root) and not root.startswith("//")
    if not clean or not root.isprintable() or any(char in '"\\\ufffd' for char in root):
        raise PolicyError("the worktree's path cannot stand in a policy: it must be absolute, clean and printable")


def _array(items: Iterable[str]) -> str:
    return f"[{', '.join(json.dumps(item, ensure_ascii=False) for item in items)}]"
