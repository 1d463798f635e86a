"""Whether a grant can be of any use on a host: told when it is minted, where a mistake is cheap."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from skills import Contract, PlannedEffect, Quantity

from .constraints import Constraints
from .facts import Facts
from .grant import Grant
from .policy import HostPolicy

_FIXED = ("skill", "read-only", "reversible", "no-egress")
_MEASURED: Mapping[str, Quantity] = {
    "operation": "operation",
    "path": "path",
    "max-bytes": "bytes",
    "max-recipients": "recipients",
    "max-results": "results",
}


def futility(
    grant: Grant, contracts: Iterable[Contract], policy: HostPolicy, *, lifetime: tuple[int, int] | None = None
) -> str | None:
    """Why nothing can be called by a grant, in words that follow it; None if something can.

    `contracts` are those of the skills that are loaded here, which may be others than a worker has. `lifetime` is from
    when until before when the grant will hold, in Unix seconds; without it the constraints on times are left aside.
    """
    known = list(contracts)
    scopes = {effect.scope for contract in known for effect in contract.effects if effect.name == grant.effect}
    if not scopes:
        return "is of no use here: no skill that is loaded has this effect (--pack and --tools load more)"
    if grant.scope not in scopes:
        return f"is of no use here: the scope of this effect is {', '.join(sorted(scopes))}"
    having = [c for c in known if any((e.name, e.scope) == (grant.effect, grant.scope) for e in c.effects)]
    permitted = [contract for contract in having if policy.refusal(contract, grant.effect) is None]
    if not permitted:
        reasons = dict.fromkeys(str(policy.refusal(contract, grant.effect)) for contract in having)
        return f"is of no use here: the policy of this host denies it ({', '.join(reasons)})"
    if not any(_fits(grant, contract) for contract in permitted):
        names = ", ".join(contract.id for contract in permitted)
        return f"is of no use here: no skill that needs it ({names}) can fulfil its constraints"
    if lifetime is not None and not _comes(grant, *lifetime):
        return "is of no use: while its session lives there is no time at which after and before hold"
    return None


def _comes(grant: Grant, begin: int, end: int) -> bool:
    """Whether there is a second at which the constraints on times hold."""
    for name, value in grant.constraints.given:
        if name == "after":
            begin = max(begin, _second(value))
        elif name == "before":
            end = min(end, _second(value))
    return begin < end


def _second(value: str) -> int:
    return int(datetime.fromisoformat(value).timestamp())


def _fits(grant: Grant, contract: Contract) -> bool:
    """Whether a call of the skill may fulfil the constraints of the grant, as far as its contract tells."""
    given = grant.constraints.given
    measures = contract.measures
    if any(name in _MEASURED and _MEASURED[name] not in measures for name, _ in given):
        return False
    constant = {name for name, quantity in _MEASURED.items() if not measures.get(quantity, "/").startswith("/")}
    told = Constraints(tuple((name, value) for name, value in given if name in _FIXED or name in constant))
    facts = Facts.of(contract, PlannedEffect("e1", grant.effect, grant.scope, 0, {}))
    return told.fault(facts, 0) is None
