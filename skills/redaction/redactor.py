"""Takes the values of secrets out of whatever a handler says, also where they stand encoded.

Each form of each value is looked for by `str.find`, whose time grows with the length of the text alone, whatever both
hold; there is no pattern that a text could make slow.
"""

import bisect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .. import canonical
from ..skill import Done, Failed, Outcome
from .forms import WRAPPED, base64_forms, hex_forms, parts_of, plain_forms
from .secret import Secret

MASKS = ("[secret]", "{secret}", "***", "•••", "█")

_BREAK = re.compile(r"(?:\\[rn]|[\r\n])(?:\\[rn]|\s)*")
_LEAD = 8
_BASE64 = re.compile(r"[A-Za-z0-9+/_=-]")


class Redactor:
    """Redacts the values of some secrets.

    `mask` stands where one stood. It is the first of MASKS that can't be confused with a value.
    """

    def __init__(self, secrets: Iterable[Secret]) -> None:
        encoded: set[str] = set()
        plain: set[str] = set()
        for secret in secrets:
            for part in parts_of(secret.reveal()):
                plain |= plain_forms(part)
                encoded |= base64_forms(part) | hex_forms(part)
        encoded -= plain
        self._encoded = sorted(encoded)
        self._plain = sorted(plain)
        self._wrapped = [form for form in self._encoded if len(form) > WRAPPED]
        self._forms = [*self._plain, *self._encoded]
        self.mask = next((mask for mask in MASKS if self._is_apart(mask)), MASKS[-1])

    def __repr__(self) -> str:
        return f"Redactor({len(self._forms)} forms)"

    def text(self, text: str) -> str:
        """The text with the mask in place of each value."""
        spans = self._spans(text)
        if not spans:
            return text
        out: list[str] = []
        end = 0
        for start, stop in spans:
            out += text[end:start], self.mask
            end = stop
        return "".join((*out, text[end:]))

    def json(self, value: Any) -> Any:
        """A JSON value with the mask in place of each value of a secret, in keys and in numbers as well.

        Members whose keys become the same are told apart by a number.
        """
        if not self._forms:
            return value
        if isinstance(value, str):
            return self.text(value)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, Mapping):
            return self._object(value)
        if isinstance(value, (list, tuple)):
            return [self.json(inner) for inner in value]
        return value if (text := self.text(str(value))) == str(value) else text

    def holds(self, text: str) -> bool:
        """Whether a value stands in the text, in any form."""
        return bool(self._spans(text))

    def after(self, before: str, text: str) -> tuple[str, str]:
        """The text without what ends in it of a value that began at the end of `before`, and what to give for the next.

        For texts that are told one by one, each at once.
        """
        lead = before[self.open_end(before) :]
        end = max((stop for start, stop in self._spans(lead + text) if start < len(lead)), default=0) - len(lead)
        told = self.text(text) if end <= 0 else self.mask + self.text(text[end:])
        return told, lead + text if self.open_end(lead + text) < len(lead) else text

    def stream(self) -> "Stream":
        """Redacts a text that comes in pieces."""
        return Stream(self)

    def outcome(self, outcome: Outcome) -> Outcome:
        """What a handler answered, redacted. An answer that holds a value all the same becomes a failure."""
        if isinstance(outcome, Failed):
            return Failed(self.text(outcome.reason), outcome.retryable)
        if not self._forms:
            return outcome
        try:
            output = self.json(outcome.output)
            encoded = canonical.encode(output).decode()
        except canonical.NotCanonical as error:
            return Failed(f"the output can't be carried: {self.text(str(error))}")
        except RecursionError:
            return Failed("the output can't be carried: it is nested too deeply")
        if self.holds(encoded):
            return Failed("the output holds the value of a secret in a way that can't be taken out")
        return Done(output)

    def settled(self, text: str) -> int:
        """How many characters of a text that goes on can be told: behind them a value may have begun."""
        cut = self.open_end(text)
        for start, stop in self._spans(text):
            # a value that has ended may be the beginning of a longer one, or of one that overlaps it
            if start < cut < stop:
                cut = start
        return cut

    def open_end(self, text: str) -> int:
        """Where in the text something begins that more text could make a value; its length if nothing does."""
        earliest = min((_open_end(form, text) for form in self._forms), default=len(text))
        if self._wrapped and _BREAK.search(text):
            joined, back = _joined(text)
            for form in self._wrapped:
                at = _open_end(form, joined)
                if at < len(joined):
                    earliest = min(earliest, back(at))
        return earliest

    def _object(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        redacted: dict[str, Any] = {}
        numbers: dict[str, int] = {}
        for key, inner in value.items():
            wanted = name = self.text(str(key))
            while name in redacted:
                numbers[wanted] = numbers.get(wanted, 1) + 1
                name = f"{wanted} {numbers[wanted]}"
            redacted[name] = self.json(inner)
        return redacted

    def _spans(self, text: str) -> list[tuple[int, int]]:
        found = [span for form in self._plain for span in _occurrences(form, text)]
        for form in self._encoded:
            found += (_widened(span, text) for span in _occurrences(form, text))
        if self._wrapped and _BREAK.search(text):
            joined, back = _joined(text)
            for form in self._wrapped:
                found += ((back(start), back(stop - 1) + 1) for start, stop in _occurrences(form, joined))
        if not found:
            return []
        found.sort()
        merged = [found[0]]
        for start, stop in found[1:]:
            if start <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(stop, merged[-1][1])
            else:
                merged.append((start, stop))
        return merged

    def _is_apart(self, mask: str) -> bool:
        return not any(mask[0] in form or mask[-1] in form or form in mask for form in self._forms)


class Stream:
    """Redacts a text that comes in pieces, wherever it was cut.

    What might be the beginning of a value is held back until it is known whether it is one.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""

    def feed(self, piece: str) -> str:
        """What can be told of the text by now."""
        text = self._held + piece
        cut = self._redactor.settled(text)
        told, self._held = text[:cut], text[cut:]
        return self._redactor.text(told)

    def end(self) -> str:
        """The rest."""
        text, self._held = self._held, ""
        return self._redactor.text(text)


def _occurrences(form: str, text: str) -> Iterator[tuple[int, int]]:
    """The stretches of the text that consist of the form, itself overlapping or not."""
    size = len(form)
    start = text.find(form)
    while start >= 0:
        last = start
        while (further := text.rfind(form, last + 1, last + 2 * size - 1)) >= 0:
            last = further
        yield start, last + size
        start = text.find(form, last + size)


def _open_end(form: str, text: str) -> int:
    """Where the longest end of the text begins that the form begins with."""
    lead = form[:_LEAD]
    at = text.find(lead, max(0, len(text) - len(form) + 1))
    while at >= 0:
        if form.startswith(text[at:]):
            return at
        at = text.find(lead, at + 1)
    for at in range(max(0, len(text) - len(lead) + 1), len(text)):
        if form.startswith(text[at:]):
            return at
    return len(text)


def _joined(text: str) -> tuple[str, Callable[[int], int]]:
    """The text without its line ends, and from a place in that to the place in the text itself."""
    pieces, ends, gone = [], [], [0]
    last = size = 0
    for found in _BREAK.finditer(text):
        pieces.append(text[last : found.start()])
        size += found.start() - last
        last = found.end()
        ends.append(size)
        gone.append(last - size)

    def back(index: int) -> int:
        return index + gone[bisect.bisect_right(ends, index)]

    return "".join([*pieces, text[last:]]), back


def _widened(span: tuple[int, int], text: str) -> tuple[int, int]:
    """With the characters on both sides that hold bits of the value as well."""
    start, stop = span
    if start and _BASE64.fullmatch(text, start - 1, start):
        start -= 1
    if stop < len(text) and _BASE64.fullmatch(text, stop, stop + 1):
        stop += 1
    return start, stop
