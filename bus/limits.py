"""What a message may measure. Both sides check: the sender so that it learns at once, the receiver because it must."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes, times in seconds.

    `body` is what an agent card advertises as `maxMessageBytes`. `depth` is how deep its JSON may nest, `parts` how
    many parts the message in it may have. `headers` is the sum of all header names and values. `skew` is how far two
    clocks may differ before a deadline counts as passed; `horizon` is how far ahead a deadline may lie. `hops` is how
    many calls may stand above a request.
    """

    body: int = 1024 * 1024
    depth: int = 64
    parts: int = 1000
    headers: int = 16 * 1024
    skew: float = 2.0
    horizon: float = 24 * 3600.0
    hops: int = 16
