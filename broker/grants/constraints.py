"""Constraints: what narrows a grant beside its effect, scope, budget and expiry."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote_to_bytes

from skills.protection import folded

from .facts import Facts
from .glob import matches

MAX_TEXT = 4096
MAX_DIGITS = 18  # of a number

_PATTERNS = ("subject", "skill", "operation", "path")
_LIMITS = ("max-bytes", "max-recipients", "max-results")
_TIMES = ("after", "before")
_RISKS = ("read-only", "reversible", "no-egress")
NAMES = (*_PATTERNS, *_LIMITS, *_TIMES, *_RISKS)
"""Every constraint. `for` is written in place of `before`."""

_SHOWN = 120
_UNITS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
_DURATION = re.compile(r"(?:\d{1,9}[dhms])+|\d{1,9}", re.ASCII)
_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


class ConstraintError(ValueError):
    """A constraint is unknown or can't be read; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Constraints:
    """What else has to hold of a call that a grant allows: all of it.

    `given` is (name, value), in the order of NAMES, each value in its one form. The values of `subject`, `skill`,
    `operation` and `path` are patterns: one of them has to match, and none of those that begin with `!` may.
    """

    given: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str, *, now: int | None = None) -> "Constraints":
        """The constraints in `NAME=VALUE&NAME=VALUE`; in values `%26` is a `&` and `%25` a `%`.

        `now` is what `for` counts from, in Unix seconds. Raises ConstraintError.
        """
        if not text:
            raise ConstraintError("no constraint follows the ?")
        if len(text) > MAX_TEXT:
            raise ConstraintError(f"the constraints take {len(text)} characters; the limit is {MAX_TEXT}")
        pairs = []
        for part in text.split("&"):
            name, equals, value = part.partition("=")
            if not equals and name in NAMES and name not in _RISKS:
                raise ConstraintError(f"{name} needs a value, as {name}=VALUE")
            if _ESCAPE.search(value):
                raise ConstraintError(f"{name}: write a % as %25 and a & as %26")
            try:
                pairs.append((name, unquote_to_bytes(value).decode() if equals else "true"))
            except UnicodeError:
                raise ConstraintError(f"{name}: what is written with % is not UTF-8") from None
        return cls.of(pairs, now=now)

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]], *, now: int | None = None) -> "Constraints":
        """The constraints with these names and values. Raises ConstraintError."""
        found: dict[tuple[str, str], None] = {}
        for name, value in pairs:
            if name == "for":
                if now is None:
                    raise ConstraintError("for: say until when with before=2030-01-31T12:00:00Z")
                name, value = "before", str(now + _seconds(value))
            found[name, _read(name, value)] = None
        for name in (*_LIMITS, *_TIMES, *_RISKS):
            if sum(1 for each, _ in found if each == name) > 1:
                raise ConstraintError(f"{name} is given twice")
        given = tuple(sorted(found, key=lambda pair: NAMES.index(pair[0])))
        made = cls(given)
        if len(str(made)) > MAX_TEXT:
            raise ConstraintError(f"the constraints take more than {MAX_TEXT} characters")
        return made

    @classmethod
    def from_table(cls, table: Mapping[str, Any], *, now: int | None = None) -> "Constraints":
        """The constraints of a TOML or JSON table: a text, a number or true, or a list of texts of patterns."""
        pairs: list[tuple[str, str]] = []
        for name, value in table.items():
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, datetime):
                    each = each.isoformat()
                if isinstance(each, bool):
                    each = "true" if each else "false"
                if not isinstance(each, str | int):
                    raise ConstraintError(f"{name} must be a text, a number or true")
                pairs.append((name, str(each)))
            if value == []:
                raise ConstraintError(f"{name} is an empty list, which allows nothing")
        return cls.of(pairs, now=now)

    def __bool__(self) -> bool:
        return bool(self.given)

    def __str__(self) -> str:
        """The constraints as `parse` reads them."""
        return "&".join(
            name if name in _RISKS else f"{name}={value.replace('%', '%25').replace('&', '%26').replace(' ', '%20')}"
            for name, value in self.given
        )

    def fault(self, facts: Facts | None, now: float) -> str | None:
        """Why they do not let a call pass at `now`; None if they do. What is not known of it does not pass."""
        for name, values in self._grouped().items():
            why = _fault(name, values, facts, now)
            if why is not None:
                text = "&".join(f"{name}={value}" for value in values)
                return f"{_shown(text)}: {why}"
        return None

    def may_hold(self, facts: Facts | None, now: float) -> bool:
        """Whether some call of the skill in `facts` may pass at `now`; a subject that is not known may be the one."""
        for name, values in self._grouped().items():
            known = name == "subject" and facts is not None and facts.subject is not None
            if (_is_fixed(name) or known) and _fault(name, values, facts, now) is not None:
                return False
        return True

    def always_hold(self, facts: Facts | None, now: float) -> bool:
        """Whether every call of the skill in `facts` passes at `now`, whatever it asks for and whoever asks."""
        groups = self._grouped().items()
        return all(_is_fixed(name) and _fault(name, values, facts, now) is None for name, values in groups)

    def _grouped(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, value in self.given:
            found.setdefault(name, []).append(value)
        return found


UNCONSTRAINED = Constraints()
"""Nothing else has to hold."""


# reading values


def _read(name: str, value: str) -> str:
    """A value in its one form. Raises ConstraintError."""
    if name not in NAMES:
        raise ConstraintError(f"there is no constraint {_quoted(name)}; there are {', '.join(NAMES)}, and for")
    if not value.isprintable():
        raise ConstraintError(f"{name}: a character that can't be printed")
    if name in _RISKS:
        if value != "true":
            raise ConstraintError(f"{name} is given or left out: it has no value but true")
        return value
    if name in _LIMITS:
        digits = value.lstrip("0") or value[-1:]
        if not (value.isascii() and value.isdigit()) or len(digits) > MAX_DIGITS:
            raise ConstraintError(
                f"{name} must be a whole number of 0 or more, of at most {MAX_DIGITS} digits, not {_quoted(value)}"
            )
        return digits
    if name in _TIMES:
        return _moment(name, value)
    pattern = value.removeprefix("!")
    if not pattern:
        raise ConstraintError(f"{name} must not be empty")
    if name == "path":
        _check_path_pattern(pattern)
    return value


def _check_path_pattern(pattern: str) -> None:
    segments = pattern.split("/")
    if "\\" in pattern or any(segment in ("", ".", "..") for segment in segments):
        raise ConstraintError(
            f"path {_quoted(pattern)} must be relative, with / between names and no empty one, no . and no .."
        )
    if any("**" in segment and segment != "**" for segment in segments):
        raise ConstraintError(f"path {_quoted(pattern)}: ** stands alone between slashes, as in docs/**")


def _moment(name: str, value: str) -> str:
    try:
        if value.isascii() and value.isdigit():
            moment = datetime.fromtimestamp(int(value), UTC)
        else:
            moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            raise ValueError
        moment = moment.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        raise ConstraintError(f"{name} must be a time like 2030-01-31T12:00:00Z, not {_quoted(value)}") from None
    if moment.microsecond:
        raise ConstraintError(f"{name} must be a whole second")
    return moment.isoformat().replace("+00:00", "Z")


def _seconds(value: str) -> int:
    if not _DURATION.fullmatch(value):
        raise ConstraintError(f"for must be a duration like 90m, 1h30m or 3600, not {_quoted(value)}")
    if value.isdigit():
        return int(value)
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([dhms])", value))


# comparing


def _is_fixed(name: str) -> bool:
    """Whether a constraint is the same for all calls of a skill."""
    return name == "skill" or name in _TIMES or name in _RISKS


def _fault(name: str, values: list[str], facts: Facts | None, now: float) -> str | None:
    if name in _TIMES:
        at = datetime.fromisoformat(values[0]).timestamp()
        if name == "after":
            return None if now >= at else "the time has not come"
        return None if 0 <= now < at else "the time is over"
    if facts is None:
        return "nothing is known of the call"
    if name in _RISKS:
        risk = facts.risk
        held = {"read-only": risk.read_only, "reversible": not risk.irreversible, "no-egress": not risk.external_egress}
        return None if held[name] else f"{facts.skill} is not so by its contract"
    if name in _LIMITS:
        count = getattr(facts, name.removeprefix("max-"))
        if count is None:
            return f"{facts.skill} does not tell how many"
        return None if count <= int(values[0]) else f"the call has {count}"
    if name == "path":
        if facts.paths is None:
            return f"{facts.skill} tells no path that is plain"
        wrong = next((path for path in facts.paths if not _passes(values, path, whole=False)), None)
        return None if wrong is None else f"{_quoted(wrong)} is outside"
    text = {"skill": facts.skill, "subject": facts.subject, "operation": facts.operation}[name]
    if text is None:
        return "the broker vouched for no user" if name == "subject" else f"{facts.skill} tells no {name}"
    return None if _passes(values, text, whole=True) else f"it is {_quoted(text)}"


def _passes(patterns: list[str], text: str, *, whole: bool) -> bool:
    """Whether one of the patterns matches, if there are any, and none does of those that begin with `!`.

    Both see a path letter for letter, and the latter also as the most forgiving file system would.
    """
    allowed = [pattern for pattern in patterns if not pattern.startswith("!")]
    denied = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    if whole:
        passes = not allowed or any(matches(pattern, text) for pattern in allowed)
        return passes and not any(matches(pattern, text) for pattern in denied)
    if allowed and not any(_matches(tuple(pattern.split("/")), text.split("/")) for pattern in allowed):
        return False
    spellings = [list(folded(text)), list(folded(text, streams=False))]
    return not any(
        _matches(tuple(pattern.split("/")), text.split("/"))
        or any(_matches(tuple(folded(pattern)), names) for names in spellings)
        for pattern in denied
    )


def _matches(pattern: tuple[str, ...], names: list[str]) -> bool:
    """Whether a pattern matches a path whole: `**` is any number of names, `*` and `?` stay within one."""
    reached = {0}  # places in the pattern that may follow the names read so far
    names = [name for name in names if name]
    for name in names:
        reached = _skip(pattern, reached)
        reached = {
            place if pattern[place] == "**" else place + 1
            for place in reached
            if place < len(pattern) and (pattern[place] == "**" or matches(pattern[place], name))
        }
    return len(pattern) in _skip(pattern, reached)


def _skip(pattern: tuple[str, ...], reached: set[int]) -> set[int]:
    """The places, and those behind any `**` there, which may stand for no name at all."""
    found = set(reached)
    for place in sorted(reached):
        while place < len(pattern) and pattern[place] == "**":
            place += 1
            found.add(place)
    return found


def _quoted(text: str) -> str:
    return json.dumps(_shown(text), ensure_ascii=not text.isprintable())


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
