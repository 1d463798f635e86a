"""The sources of one folder, by the modules that they are, and their AIR."""

from collections.abc import Iterable, Iterator
from functools import cached_property

from .air import Air, build
from .checker import Checked, check, imports
from .fault import Fault, NotAContract
from .syntax import Import, Source


class Library:
    """Sources that may import from each other. Of two that are one module the first counts.

    `faults` holds what is wrong with them all: a source with faults, or that imports from one, has no AIR.
    """

    def __init__(self, sources: Iterable[Source], faults: Iterable[Fault] = ()) -> None:
        self._faults = list(faults)
        self._sources: dict[str, Source] = {}
        self._checked: dict[str, Checked] = {}
        for source in sources:
            first = self._sources.setdefault(source.module.text, source)
            if first is not source:
                message = f"module {source.module.text} is declared twice"
                hint = f"{first.file} is that module; name this one otherwise"
                self._faults.append(Fault("duplicate-module", source.module.at, message, hint, source.file))

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    @property
    def sources(self) -> tuple[Source, ...]:
        return tuple(self._sources.values())

    def checked(self, module: str) -> Checked:
        """What was found about one module by itself. Raises KeyError."""
        if module not in self._checked:
            self._checked[module] = check(self._sources[module], self._sources)
        return self._checked[module]

    def air(self, module: str) -> Air:
        """The AIR of a module. Raises NotAContract where it, or one that it needs, has faults; KeyError."""
        checked = self.checked(module)
        if checked.faults:
            raise NotAContract(checked.faults)
        needed: dict[str, Checked] = {}
        left = list(imports(checked.source))
        while left:
            each = left.pop()
            name = each.module.text
            if name not in needed and name != module:
                needed[name] = self.checked(name)
                if needed[name].faults:
                    raise NotAContract([self._broken(checked.source, each)])
                left += imports(needed[name].source)
        return build(checked, needed)

    @cached_property
    def faults(self) -> tuple[Fault, ...]:
        """Every fault of every source, by file and line."""
        found = [*self._faults, *(fault for module in self for fault in self.checked(module).faults)]
        return tuple(sorted(found, key=lambda fault: (fault.file, fault.at)))

    def _broken(self, source: Source, through: Import) -> Fault:
        own = next((each for each in imports(source) if each.module.text == through.module.text), None)
        at = (own or next(imports(source))).module.at
        message = f"module {through.module.text} has faults"
        return Fault("broken-module", at, message, "mend them first", source.file)
