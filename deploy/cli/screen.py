"""What the command says: results on stdout, everything else on stderr, colours and motion only for a terminal."""

import json
import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer

from .failure import Failure

# C0 and C1 controls but tab and newline, and what turns the direction of writing: the text that a tool read may not
# command the terminal of who looks at it, nor show it in another order.
_CONTROLS = {c: f"\\x{c:02x}" for c in (*range(0x20), *range(0x7F, 0xA0)) if chr(c) not in "\t\n"} | {
    c: f"\\u{c:04x}" for c in (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
_ONE_LINE = _CONTROLS | {0x09: "\\t", 0x0A: "\\n"}


def legible(text: str, *, lines: bool = False) -> str:
    """The text with its control characters spelled out; with `lines`, newlines and tabs stay."""
    return text.translate(_CONTROLS if lines else _ONE_LINE)


def say(text: str = "") -> None:
    """One line of the result. Raises Failure where it can't be written."""
    _echo(text, color=_color())


def note(text: str, *, end: str = "\n") -> None:
    """One line for whoever is looking, or a piece of one that has another end."""
    try:
        typer.echo(text + end, nl=False, err=True, color=_color())
    except BrokenPipeError:
        raise
    except OSError:
        pass  # there is nowhere to tell it, and it was not the result


def unwritable(error: OSError) -> Failure:
    """What to tell of a result that could not be written."""
    return Failure(f"the standard output can't be written: {error.strerror}")


def warn(text: str) -> None:
    """One line about something that is not as it should be and stops nothing."""
    note(f"{style('warning:', 'yellow')} {legible(text)}")


def style(text: str, *colors: str) -> str:
    """The text in a colour, bold or dim; streams that are no terminal get it without."""
    for color in colors:
        text = typer.style(text, bold=True) if color == "bold" else text
        text = typer.style(text, dim=True) if color == "dim" else text
        text = typer.style(text, fg=color) if color not in ("bold", "dim") else text
    return text


def mark(good: bool) -> str:
    return style("✓", "green") if good else style("✗", "red")


def say_json(value: Any, *, line: bool = False) -> None:
    """A JSON value, on one line or for reading."""
    _echo(json.dumps(value, ensure_ascii=False, indent=None if line else 2), color=False)


def say_bytes(data: bytes) -> None:
    """Exactly these bytes of the result. Raises Failure where they can't be written."""
    with _writing():
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def say_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns that line up; the last one takes whatever it needs."""
    cells = [[legible(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in (headers, *cells)) for i in range(len(headers) - 1)] + [0]
    say(style(_line(headers, widths), "bold"))
    for row in cells:
        say(_line(row, widths))


@contextmanager
def busy(what: str) -> Iterator[Callable[[str], None] | None]:
    """Show at a terminal that something long goes on. What is yielded shows something else; None: nobody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(f"{escape(what)} …") as status:
        yield lambda now: status.update(f"{escape(now)} …")


def is_watched() -> bool:
    """Whether the result goes to a terminal."""
    return sys.stdout.isatty()


def check_reader() -> None:
    """Raise BrokenPipeError when nobody can read the result any more; only a write would notice it otherwise."""
    poll = select.poll()
    poll.register(sys.stdout, 0)
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        raise BrokenPipeError


def _echo(text: str, *, color: bool | None) -> None:
    with _writing():
        typer.echo(text, color=color)


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritable(error) from error


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _color() -> bool | None:
    return False if os.environ.get("NO_COLOR") else None
