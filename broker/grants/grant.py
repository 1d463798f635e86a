"""Grants, and the law by which one allows or denies an effect."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skills import Effect

from .constraints import UNCONSTRAINED, ConstraintError, Constraints
from .facts import Facts

_DENIALS = ("denied:effect-name", "denied:scope", "denied:expired", "denied:constraint", "denied:budget")
_NARROWED = re.compile(r"(.*?:[0-9]+)\?(.*)", re.DOTALL)

_WORKSPACE = (("Workspace.Read", "worktree"), ("Workspace.Write", "worktree"))

PRESETS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "host-tools": (*_WORKSPACE, ("Web.Search", "web"), ("Knowledge.Search", "kb"), ("Mail.Send", "mail")),
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
    "workspace": _WORKSPACE,
}
"""Named sets of (effect, scope), for `skillbus session new --preset`."""


class GrantError(ValueError):
    """A grant is not one that can be read; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Leave to run `effect` in `scope`, `budget` times, until `expires_at` (Unix seconds, itself excluded).

    It is for calls of which the `constraints` hold.
    """

    effect: str
    scope: str
    budget: int
    expires_at: int
    constraints: Constraints = UNCONSTRAINED

    def __str__(self) -> str:
        """The grant as `parse_grant` reads it."""
        narrowed = f"?{self.constraints}" if self.constraints else ""
        return f"{self.effect}={self.scope}:{self.budget}{narrowed}"

    def is_live(self, now: int) -> bool:
        return 0 <= now < self.expires_at


@dataclass(frozen=True, slots=True)
class Decision:
    """What the law says: `label` is `allowed:<remaining>` or `denied:<why>`.

    `grant` is the index of the grant that decided (None without grants), `budget_before` what was left of it, and
    `narrowing` its constraints as text. `reason` says which of them does not hold, or what the host does not allow.
    """

    allowed: bool
    label: str
    grant: int | None
    budget_before: int
    narrowing: str = ""
    reason: str = ""

    @property
    def remaining(self) -> int:
        """What is left of the budget afterwards; a denial takes nothing."""
        return int(self.label.partition(":")[2]) if self.allowed else self.budget_before


def parse_grant(text: str, *, expires_at: int, now: int | None = None) -> Grant:
    """The grant in `EFFECT=SCOPE:BUDGET` or `EFFECT=SCOPE:BUDGET?CONSTRAINTS`. Raises GrantError.

    It is cut at the first `=` and the last `:`; constraints begin behind the first `?` that follows a `:` and a number.
    `now` is what their `for` counts from, in Unix seconds.
    """
    narrowed = _NARROWED.fullmatch(text)
    plain = narrowed[1] if narrowed else text
    effect, equals, rest = plain.partition("=")
    scope, colon, budget = rest.rpartition(":")
    if not equals or not colon:
        raise GrantError(f'invalid --grant "{text}": want EFFECT=SCOPE:BUDGET')
    if not effect or not scope:
        raise GrantError(f'invalid --grant "{text}": EFFECT and SCOPE must be non-empty')
    if not budget.removeprefix("-").isdecimal() or not budget.isascii() or len(budget) > 18:
        raise GrantError(f'invalid --grant "{text}": budget "{budget}" is not an integer')
    if budget.startswith("-"):
        raise GrantError(f'invalid --grant "{text}": budget must not be negative')
    try:
        constraints = Constraints.parse(narrowed[2], now=now) if narrowed else UNCONSTRAINED
    except ConstraintError as error:
        raise GrantError(f'invalid --grant "{text}": {error}') from None
    return Grant(effect, scope, int(budget), expires_at, constraints)


def grants_from_table(document: Mapping[str, Any], *, expires_at: int, now: int | None = None) -> list[Grant]:
    """The grants of a TOML or JSON document: a list `grants` of tables. Raises GrantError.

    Each has `effect`, `scope`, `budget` and, if it is narrowed, a table `only` of constraints.
    """
    tables = document.get("grants")
    if document.keys() != {"grants"} or not isinstance(tables, list) or not tables:
        raise GrantError("want a list `grants` of tables, and nothing else")
    return [_from_table(table, f"grant {n}", expires_at, now) for n, table in enumerate(tables, 1)]


def _from_table(table: Any, where: str, expires_at: int, now: int | None) -> Grant:
    if not isinstance(table, dict):
        raise GrantError(f"{where} must be a table with effect, scope and budget")
    unknown = table.keys() - {"effect", "scope", "budget", "only"}
    if unknown:
        raise GrantError(f"{where}: unknown key {min(unknown)!r}; a grant has effect, scope, budget, only")
    effect, scope, budget = (table.get(name) for name in ("effect", "scope", "budget"))
    if not isinstance(effect, str) or not isinstance(scope, str) or not effect or not scope:
        raise GrantError(f"{where}: effect and scope must be non-empty texts")
    if type(budget) is not int or not 0 <= budget < 10**18:
        raise GrantError(f"{where}: budget must be an integer that is not negative")
    only = table.get("only", {})
    if not isinstance(only, dict):
        raise GrantError(f"{where}: only must be a table of constraints")
    try:
        return Grant(effect, scope, budget, expires_at, Constraints.from_table(only, now=now))
    except ConstraintError as error:
        raise GrantError(f"{where}: {error}") from None


def seeded_budget(budget: int, spent: int) -> int:
    """What is left of a budget on an episode that has already spent."""
    return max(budget - spent, 0)


def decide(
    grants: Sequence[Grant],
    effect: Effect,
    now: int,
    spent: Mapping[tuple[str, str], int] | None = None,
    facts: Facts | None = None,
) -> Decision:
    """Whether `effect` may run: the first grant that allows wins, none are added up.

    Otherwise the denial that came furthest wins (name, scope, expired, constraint, budget), the earliest grant on ties.
    `spent` is what the episode has used up, by (effect, scope); `facts` are what constraints are put on, and those of a
    call of which nothing is known do not hold.
    """
    best: tuple[int, Decision] | None = None
    for index, grant in enumerate(grants):
        left = seeded_budget(grant.budget, (spent or {}).get((grant.effect, grant.scope), 0))
        narrowing, reason = str(grant.constraints), None
        if grant.effect != effect.name:
            rank = 0
        elif grant.scope != effect.scope:
            rank = 1
        elif not grant.is_live(now):
            rank = 2
        elif (reason := grant.constraints.fault(facts, now)) is not None:
            rank = 3
        elif effect.cost < 0 or effect.cost > left:
            rank = 4
        else:
            return Decision(True, f"allowed:{left - effect.cost}", index, left, narrowing)
        if best is None or rank > best[0]:
            best = rank, Decision(False, _DENIALS[rank], index, left, narrowing if rank >= 3 else "", reason or "")
    return best[1] if best else Decision(False, _DENIALS[0], None, 0)


def oversees(grants: Sequence[Grant], access: Effect | None, now: int, facts: Facts | None = None) -> bool:
    """Whether a session with these grants may know all calls of a skill with this access, whoever has made them.

    A grant that is narrowed to some calls of the skill gives no look at the others.
    """
    return access is None or any(
        (grant.effect, grant.scope) == (access.name, access.scope)
        and grant.is_live(now)
        and grant.constraints.always_hold(facts, now)
        for grant in grants
    )


def sees(grants: Sequence[Grant], access: Effect | None, now: int, facts: Facts | None = None) -> bool:
    """Whether a session with these grants sees a skill with this access; a used-up budget does not hide it.

    `facts` are those of any call of the skill: a grant that is for others only, or not for this time, does not show it.
    """
    return access is None or any(
        (grant.effect, grant.scope) == (access.name, access.scope)
        and grant.is_live(now)
        and grant.constraints.may_hold(facts, now)
        for grant in grants
    )
