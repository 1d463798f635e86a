"""The values that were resolved in this process, so that its logs can be kept free of them.

What a handler has started may speak after its call has ended: an exception that nobody retrieved, a thread. So the
values of each tool stay known until two newer ones have come in their place.
"""

from collections.abc import Mapping

from .redactor import Redactor
from .secret import Secret

KEPT = 2

_known: dict[str, list[tuple[dict[str, Secret], Redactor]]] = {}


def redactor_of(tool: str, secrets: Mapping[str, Secret]) -> Redactor:
    """The redactor for the secrets of a call of this tool; the logs of this process know them from here on."""
    kept = _known.get(tool, [])
    for values, redactor in kept:
        if values == secrets:
            return redactor
    made = Redactor(secrets.values())
    if secrets:
        _known[tool] = [(dict(secrets), made), *kept[: KEPT - 1]]
    return made


def redact_known(text: str) -> str:
    """A line of the log, or anything else that this process says, without the values that it knows."""
    for kept in list(_known.values()):
        for _, redactor in kept:
            text = redactor.text(text)
    return text


def forget() -> None:
    """Know none of them any more."""
    _known.clear()
