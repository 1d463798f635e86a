"""What goes wrong with memories."""

from ..errors import SkillError
from ..handlers.guest.context import Rejected


class MemoryFault(SkillError, Rejected):
    """The root of a memory's errors. `kind` says which of them in one word, for handlers in any language."""

    kind = "failed"

    def __init__(self, message: str) -> None:
        Rejected.__init__(self, type(self).kind, message)


class Conflict(MemoryFault):
    """Another version stands under a key than the one that was to be changed."""

    kind = "conflict"


class TooMuch(MemoryFault):
    """A limit of the memory would be passed."""

    kind = "too_large"


class Unfit(MemoryFault):
    """A key, a value or another argument is none that a memory takes."""

    kind = "invalid"


class StoreAway(MemoryFault):
    """The store can't be reached or used now; nothing was changed."""

    kind = "unavailable"
