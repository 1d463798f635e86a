"""A folder of contracts and its manifest, as they are on disk."""

import errno
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from .air import Air, AirTool
from .binding import Manifest
from .checker import imports
from .compiler import parse
from .fault import Fault, NotAContract, Position
from .library import Library
from .manifest import MANIFEST, ManifestError, read_manifest
from .publication import Unpublishable, check_published
from .satisfaction import Bound, Refused, satisfy
from .syntax import MAX_SOURCE, Source

MAX_FILES = 1000
"""Contracts in one folder."""
_SKIPPED = ("node_modules", "__pycache__")


@dataclass(frozen=True, slots=True)
class Standing:
    """How one declared tool stands: what the manifest makes of it, and why it can't be published, if so."""

    tool: AirTool
    outcome: Bound | Refused
    problems: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """`bound`, `unbound`, or `refused`: bound, and not with all that it requires or that publishing asks for."""
        if isinstance(self.outcome, Bound):
            return "refused" if self.problems else "bound"
        return "refused" if self.outcome.bound else "unbound"

    @property
    def reasons(self) -> tuple[str, ...]:
        return self.problems if isinstance(self.outcome, Bound) else (*self.outcome.missing, *self.problems)


class Folder:
    """The contracts below a folder (`*.tb`), and the manifest in it, if there is one.

    Nothing is raised for what stands in the files: `faults` are the contracts', `problems` the manifest's.
    """

    def __init__(self, path: Path, library: Library, manifest: Manifest | None, problems: Iterable[str] = ()) -> None:
        self.path = path
        self.library = library
        self.manifest = manifest
        self._problems = tuple(problems)

    @classmethod
    def read(cls, path: Path) -> "Folder":
        """Raises OSError where the folder or a file in it can't be read."""
        sources, faults = _parsed(path, _contracts(path))
        return cls(path, Library(sources, faults), *_manifest(path))

    @classmethod
    def around(cls, file: Path) -> tuple["Folder", Source]:
        """One contract, with the folder that its imports and its manifest are looked for in: its own, or the next one
        above that holds a manifest. Raises NotAContract for the file itself, OSError."""
        home = next((each for each in file.absolute().parents if (each / MANIFEST).is_file()), file.absolute().parent)
        name = str(file.absolute().relative_to(home))
        source = parse(read_contract(file), file=name)
        others: list[Source] = []
        if any(True for _ in imports(source)):
            others, _ = _parsed(home, (each for each in _contracts(home) if each != file.absolute()))
        return cls(home, Library([source, *others]), *_manifest(home)), source

    @property
    def faults(self) -> tuple[Fault, ...]:
        return self.library.faults

    @cached_property
    def airs(self) -> tuple[Air, ...]:
        """The AIR of every module that has one."""
        found = []
        for module in self.library:
            try:
                found.append(self.library.air(module))
            except NotAContract:
                continue  # its faults are told, or those of the module that it needs
        return tuple(found)

    @cached_property
    def standings(self) -> tuple[Standing, ...]:
        """Every tool that is declared, in the order of the files; all are unbound without a manifest."""
        manifest = self.manifest or Manifest({}, self.path)
        return tuple(_standing(air, tool, manifest) for air in self.airs for tool in air.tools)

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with the manifest itself: what can't be read, and bindings of tools that nobody declares."""
        declared = {standing.tool.id for standing in self.standings}
        stray = [] if self.manifest is None or self.faults else sorted(self.manifest.tools.keys() - declared)
        return (
            *self._problems,
            *(f'{MANIFEST}: tools."{each}": no contract here declares this tool' for each in stray),
        )


def _standing(air: Air, tool: AirTool, manifest: Manifest) -> Standing:
    outcome = satisfy(air, manifest, tool.id)
    problems = []
    try:
        check_published(tool)
    except Unpublishable as error:
        problems.append(str(error))
    if isinstance(outcome, Bound) and (file := outcome.binding.handler.file) is not None and not file.is_file():
        problems.append(f"tool {tool.id}: the handler's file {outcome.binding.handler.text} is not there")
    return Standing(tool, outcome, tuple(problems))


def _manifest(folder: Path) -> tuple[Manifest | None, tuple[str, ...]]:
    try:
        return read_manifest(folder / MANIFEST), ()
    except FileNotFoundError:
        return None, ()
    except ManifestError as error:
        return None, error.problems


def _parsed(folder: Path, files: Iterable[Path]) -> tuple[list[Source], list[Fault]]:
    sources: list[Source] = []
    faults: list[Fault] = []
    for index, file in enumerate(files):
        name = str(file.relative_to(folder))
        if index == MAX_FILES:
            faults.append(Fault("limit", Position(1, 1), f"a folder has at most {MAX_FILES} contracts", file=name))
            break
        try:
            sources.append(parse(read_contract(file), file=name))
        except NotAContract as error:
            faults += error.faults
    return sources, faults


def read_contract(file: Path) -> bytes:
    """What stands in a file, or as much as tells that it is too long. Raises OSError."""
    if file.is_dir():
        raise OSError(errno.EISDIR, "Is a folder; name the contracts in it (*.tb)", str(file))
    if file.exists() and not file.is_file():
        raise OSError(errno.EINVAL, "Not a regular file", str(file))
    with file.open("rb") as opened:
        return opened.read(MAX_SOURCE + 1)


def _contracts(folder: Path) -> Iterator[Path]:
    """The contracts below a folder, in the order of their names; hidden folders and links to folders are left out."""

    def failed(error: OSError) -> None:
        raise error

    for home, folders, names in os.walk(folder, onerror=failed):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED)
        for name in sorted(names):
            if name.endswith(".tb") and not name.startswith(".") and (file := Path(home, name)).is_file():
                yield file
