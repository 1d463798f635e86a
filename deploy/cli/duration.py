"""Durations as people write them: `90m`, `1h30m`, `2d`, `0.5s`, or plain seconds."""

import re

from .failure import Failure

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])", re.ASCII)
_LONGEST = 100 * 366 * _SECONDS["d"]


def parse_duration(text: str, *, option: str) -> float:
    """Seconds, at least 0. Raises Failure, which names the option."""
    parts = _PART.findall(text)
    if re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII):
        seconds = float(text)
    elif parts and "".join(number + unit for number, unit in parts) == text:
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    else:
        raise Failure(f"{option} {text!r} is no duration: write it like 1h, 90m, 1h30m, 3600 (seconds) or 0.5s")
    if seconds > _LONGEST:
        raise Failure(f"{option} {text!r} is over a hundred years")
    return seconds


def parse_wait(text: str, *, option: str) -> float:
    """Seconds that somebody waits, more than 0 and at most a day. Raises Failure, which names the option."""
    seconds = parse_duration(text, option=option)
    if not 0 < seconds <= _SECONDS["d"]:
        raise Failure(f"{option} is more than 0 and at most a day")
    return seconds


def write_duration(seconds: float) -> str:
    """The two largest units that say it: `2d`, `1h30m`, `45s`."""
    left = round(seconds)
    parts: list[str] = []
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, int(_SECONDS[unit]))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"
