"""When a call is sent again."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retry:
    """When a call is sent again under the same message id, in seconds.

    No reply within `first_reply` of an attempt, then a pause of `pause`, doubled each time and varied by `spread`,
    and the next attempt, `attempts` in all. An agent that does not know a message id again should be called with
    `attempts=1`; a lost connection sends again even so, because nobody else knows what became of the request.
    """

    attempts: int = 3
    first_reply: float = 15.0
    pause: float = 1.0
    spread: float = 0.2

    def wait(self, resends: int) -> float:
        """How long after an attempt the next one follows."""
        chance = random.uniform(1 - self.spread, 1 + self.spread)  # noqa: S311 - spreads load, guards nothing
        return self.first_reply + self.pause * 2.0**resends * chance
