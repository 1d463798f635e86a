"""What search, search_kb and send_reply have in common: a backend behind them, and an answer whatever it does."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..arguments import legible
from ..plan import Plan
from ..skill import Context, EffectResult
from .backends import BackendError
from .bindings import Binding
from .envelope import clipped, observation
from .text import text

MAX_QUERY = 16_384  # characters
MAX_ERROR = 2_000  # characters of what a backend says went wrong
MARGIN = 0.5  # seconds of the deadline that are left for the answer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BoundTool:
    """One of the three tools: its name, its effect, the words that begin its failures, and its backend."""

    name: str
    effect: str
    scope: str
    failed: str
    binding: Binding

    @property
    def stub(self) -> bool:
        return self.binding.tier != "live"

    def refusal(self, payload: Mapping[str, Any], error: str) -> Plan:
        """A refusal in the plan: no effect. It says `stub`, as no real system was used."""
        return Plan(result=observation(self.name, payload, error=error, stub=True), refused=True)

    def finish(self, payload: Mapping[str, Any], result: EffectResult) -> Mapping[str, Any]:
        """The handler's own envelope, or the one that tells why there is none."""
        if result.status == "ok" and result.output is not None:
            return result.output
        error = f"the {result.effect} effect ended {result.status}"
        return observation(self.name, payload, error=error, stub=self.stub)

    async def ask(
        self, begin: Callable[[], Awaitable[Any]], context: Context, *, seconds: float, late: BackendError
    ) -> Any:
        """What the backend answers within `seconds` and the call's deadline, once it is made to `begin`.

        Raises BackendError, `late` after that time.
        """
        try:
            async with asyncio.timeout(time_left(context, seconds)):
                return await begin()
        except BackendError as error:
            raise BackendError(
                clipped(f"{self.failed}: {legible(str(error))}", MAX_ERROR),
                retryable=error.retryable,
                retry_after=error.retry_after,
            ) from None
        except TimeoutError:
            raise BackendError(f"{self.failed}: {late}", retryable=late.retryable) from None
        except Exception as error:
            # The text of an error that nobody planned for may hold anything, a secret too.
            kind = type(error).__name__
            log.warning("the backend %s of %s raised %s", self.binding.name, self.name, kind)
            raise BackendError(f"{self.failed}: the backend raised {kind}") from None


def time_left(context: Context, seconds: float) -> float:
    """The seconds that a backend may take: `seconds`, or less where the call's deadline comes first."""
    return max(0.05, min(seconds, context.deadline - time.time() - MARGIN))


def given_text(arguments: Mapping[str, Any], *names: str, most: int) -> str:
    """The first argument of these names that is not falsy, as text, stripped; "" if there is none.

    Raises ValueError for one of more than `most` characters.
    """
    value = next((arguments[name] for name in names if arguments.get(name)), "")
    found = legible(text(value, at_most=most).strip())
    if len(found) > most:
        raise ValueError(f"the {names[0]} is longer than {most} characters")
    return found
