"""What a server counts."""

from dataclasses import dataclass


@dataclass(slots=True)
class ServerStats:
    """Counts since the server was made, and the calls that run now.

    `delivered` counts every delivery, `redelivered` those that the broker had delivered before. Each ends in one of:
    `answered` (with a result), `failed` (with an error that the agent raised), `refused` (with an error before the
    agent saw it, a deadline that had passed among them), `dead_lettered` (it could not be answered), `requeued` (the
    server stopped first), `unanswered` (its connection was lost; the redelivery answers), `left` (accepted, and to be
    answered later). `accepted` were acknowledged before their end. `unheard` replies had no reader any more. `events`
    are the replies of streams before the last one. `stale` acknowledgements came after their connection was lost.
    `losses` are lost connections.
    """

    delivered: int = 0
    redelivered: int = 0
    answered: int = 0
    failed: int = 0
    refused: int = 0
    dead_lettered: int = 0
    requeued: int = 0
    unanswered: int = 0
    accepted: int = 0
    left: int = 0
    unheard: int = 0
    events: int = 0
    stale: int = 0
    losses: int = 0
    running: int = 0
