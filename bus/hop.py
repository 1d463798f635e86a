"""From one call to the next: what a call that is made for another takes over from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self

from bus.errors import DeadlineExceeded
from bus.message import Request
from bus.names import ROOT_TASK

MARGIN = 0.5
"""Seconds of its own deadline that a call keeps from those it makes, to say what became of them."""


class Parent(Protocol):
    """A call that another is made for: a `Request`, a `Hop`, or what a skill's handler is told of its call."""

    @property
    def deadline(self) -> float | None:
        """Unix time in seconds."""

    @property
    def onward(self) -> Mapping[str, str]:
        """The service parameters that calls made for this one carry."""


@dataclass(frozen=True, slots=True)
class Hop:
    """A `Parent` by its values."""

    deadline: float | None
    onward: Mapping[str, str]

    @classmethod
    def of(cls, request: Request, task_id: str) -> Self:
        """For an agent that keeps tasks: calls within it are ended with the task, or with the root of the task."""
        return cls(request.deadline, {ROOT_TASK: task_id, **request.onward})


def seconds_within(deadline: float | None, now: float, wanted: float) -> float:
    """How long a call may take that is made for one with this deadline: at most `wanted`.

    Raises `DeadlineExceeded` when nothing is left.
    """
    left = wanted if deadline is None else min(wanted, deadline - MARGIN - now)
    if left <= 0:
        message = "nothing is left of the deadline of the call that this one is made for"
        raise DeadlineExceeded(message, metadata={"local": "true"})
    return left
