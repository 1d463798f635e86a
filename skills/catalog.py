"""The skills of this host: packs are loaded whole or not at all."""

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from itertools import islice
from pathlib import Path
from typing import Any

from . import canonical
from .contract import Contract
from .pack import Pack, PackContext, Problem, brought_by, distribution_of
from .skill import Skill

GROUP = "skillbus.packs"
MAX_SKILLS = 10_000  # of one pack; an iterable may have no end

log = logging.getLogger(__name__)


class Catalog:
    """Skills by id, in the byte order of their ids.

    `packs` were taken; `problems` tells of each that was not, and of what packs report. An id belongs to the pack that
    came first.
    """

    def __init__(self) -> None:
        self._skills: dict[str, Skill] = {}
        self._packs: list[Pack] = []
        self._problems: list[Problem] = []
        self._ends: list[Callable[[], Awaitable[None]]] = []

    @classmethod
    def load(
        cls,
        context: PackContext,
        *,
        installed: bool = True,
        only: Collection[str] | None = None,
        named: Iterable[str] = (),
        folders: Iterable[Path] = (),
    ) -> "Catalog":
        """The skills of all packs that are `installed`, then of those `named` as `module:attribute`, then of `folders`.

        Installed packs register under the entry point group `skillbus.packs`; `only` leaves just those with these
        names. This distribution's packs come first, so that no other takes their ids; the others by their names. A
        folder holds contracts of tools, their handlers, and the manifest that binds them: see `skills.handlers`.
        """
        catalog = cls()
        points = sorted(entry_points(group=GROUP), key=_rank) if installed else []
        if installed and only is not None:
            for name in sorted({*only} - {point.name for point in points}):
                catalog._leave_out(name, f"no pack of the group {GROUP} has this name", "")
            points = [point for point in points if point.name in only]
        points += [EntryPoint(name, name, GROUP) for name in named]
        context = replace(context, report=catalog._report, at_end=catalog._ends.append)
        loaded: set[str] = set()
        for point in points:
            if point.value not in loaded:
                loaded.add(point.value)
                catalog._load(point, context)
        for folder in dict.fromkeys(folders):
            catalog._load_folder(folder, context)
        return catalog

    def add(self, name: str, skills: Iterable[Skill], *, source: str = "code", distribution: str = "") -> bool:
        """Take a pack, whole; False, and one more problem, if it can't be taken."""
        try:
            members = tuple(islice(skills, MAX_SKILLS + 1))
        except BaseException as error:
            _pass_on(error)
            return self._leave_out(name, _text(error), distribution)
        reason = f"it holds more than {MAX_SKILLS} skills" if len(members) > MAX_SKILLS else self._refusal(members)
        if reason is not None:
            return self._leave_out(name, reason, distribution)
        pack = Pack(name, source, members, distribution)
        self._packs.append(pack)
        self._skills = dict(
            sorted(
                (*self._skills.items(), *((skill.id, skill) for skill in pack.skills)),
                key=lambda item: item[0].encode(),
            )
        )
        return True

    async def close(self) -> None:
        """End what the packs have started; no call is running any more."""
        ends, self._ends[:] = tuple(self._ends), ()
        for failed in await asyncio.gather(*(end() for end in ends), return_exceptions=True):
            if failed is not None:
                log.error("a pack did not end in order: %r", failed)

    @property
    def packs(self) -> tuple[Pack, ...]:
        return tuple(self._packs)

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(self._problems)

    def get(self, skill_id: str) -> Skill | None:
        return self._skills.get(skill_id)

    def __contains__(self, skill_id: object) -> bool:
        return skill_id in self._skills

    def __iter__(self) -> Iterator[Skill]:
        return iter(self._skills.values())

    def __len__(self) -> int:
        return len(self._skills)

    def _load(self, point: EntryPoint, context: PackContext) -> None:
        module, _, attribute = point.value.partition(":")
        distribution = distribution_of(point)
        try:
            factory: Any = importlib.import_module(module)
            for name in attribute.split("."):
                factory = getattr(factory, name)
            if not callable(factory):
                raise TypeError(f"{attribute} is a {type(factory).__name__}, not a function that makes skills")
            skills = factory(context)
            if not isinstance(skills, Iterable):
                raise TypeError(f"{attribute} gives {type(skills).__name__}, not skills")
        except BaseException as error:
            _pass_on(error)
            self._leave_out(point.name, _text(error), distribution)
        else:
            self.add(point.name, skills, source=point.value, distribution=distribution)

    def _load_folder(self, folder: Path, context: PackContext) -> None:
        from .handlers.pack import folder_pack  # the language of contracts is loaded where there are some

        try:
            skills = tuple(folder_pack(folder, context))
        except OSError as error:
            self._leave_out(str(folder), f"it can't be read: {error.strerror}", "")
        except Exception as error:
            self._leave_out(str(folder), _text(error), "")
        else:
            self.add(folder.name, skills, source=str(folder))

    def _refusal(self, members: tuple[Any, ...]) -> str | None:
        ids: set[str] = set()
        for skill in members:
            if not isinstance(skill, Skill):
                return f"it holds {type(skill).__name__}, which is not a Skill"
            if (fault := _fault(skill)) is not None:
                return fault
            if skill.id in ids:
                return f"it holds two skills with the id {skill.id!r}"
            ids.add(skill.id)
            for other in self._packs:
                if any(skill.id == taken.id for taken in other.skills):
                    return f"the id {skill.id!r} is taken by the pack {other.name!r}{brought_by(other.distribution)}"
        return None

    def _leave_out(self, name: str, reason: str, distribution: str) -> bool:
        self._report(Problem(name, reason, distribution=distribution))
        return False

    def _report(self, problem: Problem) -> None:
        self._problems.append(problem)
        log.warning("%s", problem)


def _rank(point: EntryPoint) -> tuple[bool, str, str]:
    ours = point.value.partition(":")[0].partition(".")[0] == __package__
    return not ours, point.name, point.value


def _fault(skill: Any) -> str | None:
    """Why a skill can't be served, whatever is called; None if nothing is wrong with it."""
    if not isinstance(skill.contract, Contract):
        return f"it holds a skill whose contract is a {type(skill.contract).__name__}"
    try:
        canonical.encode(skill.contract.model_dump(mode="json"))
    except (ValueError, TypeError, RecursionError) as error:
        return f"the contract of the skill {skill.id!r} can't be written down ({type(error).__name__})"
    if not callable(skill.plan):
        return f"the skill {skill.id!r} has no plan that can be called"
    if skill.contract.effects and skill.handler is None:
        return f"the skill {skill.id!r} has effects and no handler"
    for name, phase in (("handler", skill.handler), ("finish", skill.finish)):
        if phase is not None and not callable(phase):
            return f"the {name} of the skill {skill.id!r} can't be called"
    return None


def _pass_on(error: BaseException) -> None:
    """Raise what the one at the keyboard means for the whole process; a pack may raise anything else."""
    if isinstance(error, KeyboardInterrupt):
        raise error


def _text(error: BaseException) -> str:
    try:
        text = " ".join(str(error).split())
    except Exception:  # it is a stranger's class
        text = "(an error without a text)"
    return f"{type(error).__name__}: {text}"
