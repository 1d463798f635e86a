"""What the host never allows, whatever was granted."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from .glob import matches

if TYPE_CHECKING:
    from skills import Contract

DENIED = "denied:policy"

_SENSITIVITIES = {"normal", "workspace", "external", "high", "unknown"}


class HostPolicy(BaseModel):
    """Skills, effects and risks that are denied on this host; without any, nothing is.

    `deny` names skills and `deny_effects` effects, with `*` and `?` for others. No session, grant or skill changes it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    deny: tuple[str, ...] = Field(default=(), description="ids of skills that are never run")
    deny_effects: tuple[str, ...] = Field(default=(), description="effects that are never run")
    deny_sensitivity: tuple[str, ...] = Field(default=(), description="sensitivities whose skills are never run")
    deny_writes: StrictBool = Field(default=False, description="whether only skills that are read-only may run")
    deny_egress: StrictBool = Field(default=False, description="whether skills that reach outside are never run")
    deny_irreversible: StrictBool = Field(default=False, description="whether what can't be undone is never run")

    def refusal(self, contract: "Contract", effect: str | None = None) -> str | None:
        """What denies a skill, or an effect of it: the setting's name and what it met; None if nothing does."""
        risk = contract.risk
        if any(matches(pattern, contract.id) for pattern in self.deny):
            return f"deny: {contract.id}"
        if risk.sensitivity in self.deny_sensitivity:
            return f"deny_sensitivity: {risk.sensitivity}"
        for name, met in (
            ("deny_writes", not risk.read_only),
            ("deny_egress", risk.external_egress),
            ("deny_irreversible", risk.irreversible),
        ):
            if getattr(self, name) and met:
                return f"{name}: {contract.id}"
        if effect is not None and any(matches(pattern, effect) for pattern in self.deny_effects):
            return f"deny_effects: {effect}"
        return None

    def hides(self, contract: "Contract") -> bool:
        """Whether nothing of a skill may run."""
        effects = [effect.name for effect in contract.effects]
        return self.refusal(contract) is not None or (
            bool(effects) and all(self.refusal(contract, effect) is not None for effect in effects)
        )

    def unmet(self, contracts: "Iterable[Contract]") -> Iterator[str]:
        """What the policy names and none of these skills is or has: it may be misspelt, and then it denies nothing."""
        known = list(contracts)
        effects = {effect.name for contract in known for effect in contract.effects}
        sensitivities = {contract.risk.sensitivity for contract in known} | _SENSITIVITIES
        for pattern in self.deny:
            if not any(matches(pattern, contract.id) for contract in known):
                yield f"deny: no skill that is loaded is called {pattern!r}"
        for pattern in self.deny_effects:
            if not any(matches(pattern, effect) for effect in effects):
                yield f"deny_effects: no skill that is loaded has an effect {pattern!r}"
        for name in self.deny_sensitivity:
            if name not in sensitivities:
                yield f"deny_sensitivity: no skill that is loaded is {name!r}"


UNRESTRICTED = HostPolicy()
"""The policy of a host that has none."""
