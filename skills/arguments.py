"""Strict arguments: nothing unknown is ignored, nothing is coerced, and every refusal has its one text."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import canonical
from .contract import Contract
from .errors import Refused
from .plan import MAX_PAYLOAD, Plan


class Repeated(dict[str, Any]):
    """An object whose text has members more than once: the first of a name counts, `others` are the rest."""

    def __init__(self, members: Mapping[str, Any], others: Sequence[tuple[str, Any]]) -> None:
        super().__init__(members)
        self.others = tuple(others)


class Arguments:
    """The arguments of one call of `tool`, which admits only the keys `admits`.

    Made and read in the order of a tool's own checks: the first check that fails raises Refused with its text.
    """

    def __init__(self, tool: str, admits: Sequence[str], given: Any) -> None:
        if not isinstance(given, Mapping):
            raise Refused("arguments must be a JSON object")
        for key in given:
            if key not in admits:
                raise Refused(f'unknown argument "{legible(key)}"; {tool} admits only: {", ".join(admits)}')
        self._given = given

    def __contains__(self, name: object) -> bool:
        return name in self._given

    def __getitem__(self, name: str) -> Any:
        """The value as it was given; raises KeyError."""
        return self._given[name]

    def every(self, name: str) -> list[Any]:
        """All values that the text gave the argument: more than one only where it names it more than once."""
        others = self._given.others if isinstance(self._given, Repeated) else ()
        found = [self._given[name]] if name in self._given else []
        return found + [value for other, value in others if other == name]

    def verbatim(self) -> dict[str, Any]:
        """The arguments as they were given, in their order."""
        return dict(self._given)

    def text(self, name: str) -> str:
        """A required string."""
        if name not in self._given:
            raise Refused(f'missing required argument "{name}"')
        return self._string(name)

    def optional_text(self, name: str) -> str | None:
        """A string or None where it is left out; null is not left out."""
        return self._string(name) if name in self._given else None

    def _string(self, name: str) -> str:
        value = self._given[name]
        if not isinstance(value, str):
            raise Refused(f'argument "{name}" must be a string')
        return value


def strict(contract: Contract, plan: Callable[[Arguments], Plan]) -> Callable[[Any], Plan]:
    """The planner of a tool that takes strict arguments: what `plan` refuses becomes a refusal plan."""

    def planner(given: Any) -> Plan:
        try:
            planned = plan(Arguments(contract.id, contract.admits, given))
            for effect in planned.effects:
                _check_payload(effect.payload)
        except Refused as refused:
            return Plan.refuse(str(refused))
        return planned

    return planner


def _check_payload(payload: Mapping[str, Any]) -> None:
    try:
        size = len(canonical.encode(payload))
    except canonical.NotCanonical as error:
        raise Refused(f"the arguments cannot be carried: {error}") from None
    if size > MAX_PAYLOAD:
        raise Refused(f"the arguments take {size} bytes; the limit is {MAX_PAYLOAD}")


def check_path(path: str) -> None:
    """Raise Refused unless `path` is relative, not empty, without a `..` segment or a leading `-`."""
    if path in ("", "..") or path.startswith(("/", "-", "../")) or path.endswith("/..") or "/../" in path:
        rule = 'it must be relative and non-empty, with no ".." segment and no leading "-"'
        raise Refused(f'path "{legible(path)}" refused: {rule}')


def legible(text: str) -> str:
    """The text with lone surrogates spelled out (`\\ud800`), so that it can be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text
