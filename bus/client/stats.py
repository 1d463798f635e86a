"""What a client counts."""

from dataclasses import dataclass


@dataclass(slots=True)
class ClientStats:
    """Counts since the client was made, and the calls that are pending now.

    `resent` are attempts after the first. `late` are replies that nobody waits for any more. `losses` are lost
    connections.
    """

    calls: int = 0
    resent: int = 0
    late: int = 0
    losses: int = 0
    pending: int = 0
