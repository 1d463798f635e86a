"""A document in passages: pieces that are short enough to be a fact, each under the headings that it stands below."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_PASSAGE = 1_200  # characters
MAX_HEADING = 200

_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)[ \t#]*$")
_FENCE = re.compile(r" {0,3}(```|~~~)")


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a document; `heading` is the way of headings to it, with ` > ` between them."""

    heading: str
    body: str


def passages(text: str) -> Iterator[Passage]:
    """The passages of a text, in its order. A `#` begins a heading, as in Markdown, but not within a fence."""
    headings: list[tuple[int, str]] = []
    for level, title, section in _sections(text):
        if level:
            headings = [*(each for each in headings if each[0] < level), (level, title)]
        way = " > ".join(title for _, title in headings if title)[:MAX_HEADING]
        for body in _pieces(section):
            yield Passage(way, body)


def _sections(text: str) -> Iterator[tuple[int, str, str]]:
    """Level, title and text of each part between two headings; level 0 before the first one."""
    level, title, lines = 0, "", list[str]()
    fence = ""
    for line in text.splitlines():
        mark = _FENCE.match(line)
        if mark and fence in ("", mark[1]):
            fence = "" if fence else mark[1]
        heading = None if fence else _HEADING.match(line[:1_000])
        if heading:
            yield level, title, "\n".join(lines)
            level, title, lines = len(heading[1]), heading[2].strip(), []
        else:
            lines.append(line)
    yield level, title, "\n".join(lines)


def _pieces(section: str) -> Iterator[str]:
    """The paragraphs, as many together as fit; one that is too long is cut, between words where there are any."""
    held = ""
    for paragraph in re.split(r"\n[ \t]*\n", section):
        paragraph = paragraph.strip()
        if held and len(held) + len(paragraph) + 2 > MAX_PASSAGE:
            yield held
            held = ""
        held = f"{held}\n\n{paragraph}" if held and paragraph else held or paragraph
        while len(held) > MAX_PASSAGE:
            cut = held.rfind(" ", MAX_PASSAGE // 2, MAX_PASSAGE)
            cut = cut if cut > 0 else MAX_PASSAGE
            yield held[:cut].rstrip()
            held = held[cut:].lstrip()
    if held:
        yield held
