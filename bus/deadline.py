"""A point in time on the wire: RFC 3339 in UTC, milliseconds, and Unix seconds in the program."""

import math
import re
from datetime import UTC, datetime

_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:[Zz]|[+-]00:00)", flags=re.ASCII
)  # RFC 3339, section 5.6, narrowed to UTC


def after(now: float, seconds: float) -> float:
    """The deadline that lies `seconds` after `now`, in whole milliseconds so that it reads back as it was written."""
    return math.floor((now + seconds) * 1000) / 1000


def write(deadline: float) -> str:
    """Unix seconds as `2026-11-30T15:01:00.000Z`. Raises `ValueError` outside the years 1 to 9999."""
    try:
        seconds, milliseconds = divmod(round(deadline * 1000), 1000)
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError) as error:
        raise ValueError("not a time between the years 1 and 9999") from error
    return f"{moment.replace(tzinfo=None).isoformat(timespec='seconds')}.{milliseconds:03d}Z"


def read(text: str) -> float:
    """Unix seconds from RFC 3339 in UTC; parts smaller than a microsecond are dropped. Raises `ValueError`."""
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise ValueError("not an RFC 3339 time in UTC")
    day, clock, fraction = found.groups()
    return datetime.fromisoformat(f"{day}T{clock}.{(fraction or '')[:6].ljust(6, '0')}+00:00").timestamp()
