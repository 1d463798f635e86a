"""Grants, and the law by which one allows or denies an effect."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from skills import Effect

_DENIALS = ("denied:effect-name", "denied:scope", "denied:expired", "denied:budget")

PRESETS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "se-tools": tuple(
        (effect, "worktree")
        for effect in (
            "Workspace.Read",
            "Workspace.Write",
            "Ailang.Check",
            "Ailang.Run",
            "Ailang.RunEnv",
            "Ailang.RunNet",
            "Ailang.Discover",
            "Ailang.CLI",
        )
    ),
    "workspace": (("Workspace.Read", "worktree"), ("Workspace.Write", "worktree")),
}
"""Named sets of (effect, scope), for `skillbus session new --preset`."""


class GrantError(ValueError):
    """A grant's text is not `EFFECT=SCOPE:BUDGET`; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Leave to run `effect` in `scope`, `budget` times, until `expires_at` (Unix seconds, itself excluded)."""

    effect: str
    scope: str
    budget: int
    expires_at: int

    def is_live(self, now: int) -> bool:
        return 0 <= now < self.expires_at


@dataclass(frozen=True, slots=True)
class Decision:
    """What the law says: `label` is `allowed:<remaining>` or `denied:<why>`.

    `grant` is the index of the grant that decided (None without grants), `budget_before` what was left of it.
    """

    allowed: bool
    label: str
    grant: int | None
    budget_before: int

    @property
    def remaining(self) -> int:
        """What is left of the budget afterwards; a denial takes nothing."""
        return int(self.label.partition(":")[2]) if self.allowed else self.budget_before


def parse_grant(text: str, *, expires_at: int) -> Grant:
    """The grant in `EFFECT=SCOPE:BUDGET`, cut at the first `=` and the last `:`. Raises GrantError."""
    effect, equals, rest = text.partition("=")
    scope, colon, budget = rest.rpartition(":")
    if not equals or not colon:
        raise GrantError(f'invalid --grant "{text}": want EFFECT=SCOPE:BUDGET')
    if not effect or not scope:
        raise GrantError(f'invalid --grant "{text}": EFFECT and SCOPE must be non-empty')
    if not budget.removeprefix("-").isdecimal() or not budget.isascii() or len(budget) > 18:
        raise GrantError(f'invalid --grant "{text}": budget "{budget}" is not an integer')
    if budget.startswith("-"):
        raise GrantError(f'invalid --grant "{text}": budget must not be negative')
    return Grant(effect, scope, int(budget), expires_at)


def seeded_budget(budget: int, spent: int) -> int:
    """What is left of a budget on an episode that has already spent."""
    return max(budget - spent, 0)


def decide(
    grants: Sequence[Grant], effect: Effect, now: int, spent: Mapping[tuple[str, str], int] | None = None
) -> Decision:
    """Whether `effect` may run: the first grant that allows wins, none are added up.

    Otherwise the denial that came furthest wins (name, scope, expired, budget), the earliest grant on ties.
    `spent` is what the episode has used up, by (effect, scope).
    """
    best: tuple[int, int, int] | None = None
    for index, grant in enumerate(grants):
        left = seeded_budget(grant.budget, (spent or {}).get((grant.effect, grant.scope), 0))
        if grant.effect != effect.name:
            rank = 0
        elif grant.scope != effect.scope:
            rank = 1
        elif not grant.is_live(now):
            rank = 2
        elif effect.cost < 0 or effect.cost > left:
            rank = 3
        else:
            return Decision(True, f"allowed:{left - effect.cost}", index, left)
        if best is None or rank > best[0]:
            best = (rank, index, left)
    if best is None:
        return Decision(False, _DENIALS[0], None, 0)
    return Decision(False, _DENIALS[best[0]], best[1], best[2])


def sees(grants: Sequence[Grant], access: Effect | None, now: int) -> bool:
    """Whether a session with these grants sees a skill with this access; a used-up budget does not hide it."""
    return access is None or decide(grants, Effect(name=access.name, scope=access.scope, cost=0), now).allowed
