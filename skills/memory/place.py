"""Whose a memory is: what it is called, and the scope and owner that its entries are kept apart by."""

from dataclasses import dataclass
from typing import Literal

from ..skill import Context

Scope = Literal["session", "episode", "agent", "tenant"]


class NoOwner(LookupError):
    """The call has nothing that a memory of this scope could belong to."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where the entries of one memory stand for one owner. No key leads from one place to another."""

    memory: str
    scope: str
    owner: str


def place_of(memory: str, scope: Scope, context: Context, tenant: str = "") -> Place:
    """The place of a memory for a call; what the handler says has no part in it. Raises NoOwner.

    `tenant` is the worker's own: one that a caller names is a word, and no credential.
    """
    owners: dict[str, str] = {
        "session": context.session,
        "episode": context.episode,
        "agent": context.agent,
        "tenant": tenant,
    }
    if not owners[scope]:
        raise NoOwner(f"the memory {memory} is kept by {scope}, and the call has no {scope}")
    return Place(memory, scope, owners[scope])
