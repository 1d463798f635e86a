"""The agent card: who the agent is, and the skills that whoever asks may see (A2A 1.0, section 4.4.1)."""

from collections.abc import Sequence
from typing import Any

from bus import BINDING
from skills import Contract, Skill

SCHEMAS = "urn:skillbus:a2a-extension:skill-schemas:v1"
"""The extension of the agent card that gives each skill's schemas, effects and risk."""


def card_of(name: str, version: str, url: str, skills: Sequence[Skill]) -> dict[str, Any]:
    """The card of an agent with these skills."""
    return {
        "name": name,
        "description": "Tools published as A2A skills: granted, budgeted and logged.",
        "version": version,
        "supportedInterfaces": [{"url": url, "protocolBinding": BINDING, "protocolVersion": "1.0"}],
        "capabilities": {
            "streaming": True,
            "pushNotifications": False,
            "extendedAgentCard": True,
            "extensions": [
                {
                    "uri": SCHEMAS,
                    "description": "Input and output schema, effects and risk of each skill",
                    "required": False,
                    "params": {"skills": {skill.id: _declared(skill) for skill in skills}},
                }
            ],
        },
        "defaultInputModes": ["application/json"],
        "defaultOutputModes": ["application/json"],
        "skills": [_listed(skill.contract) for skill in skills],
    }


def _listed(contract: Contract) -> dict[str, Any]:
    return {
        "id": contract.id,
        "name": contract.title,
        "description": contract.description,
        "tags": list(contract.tags) or ["tool"],
        "examples": list(contract.examples),
        "inputModes": ["application/json"],
        "outputModes": [contract.output_mode],
    }


def _declared(skill: Skill) -> dict[str, Any]:
    contract = skill.contract
    return {
        "input": contract.input_schema,
        "output": contract.output_schema,
        "access": contract.access.model_dump() if contract.access else None,
        "effects": [effect.model_dump() for effect in contract.effects],
        "risk": contract.risk.model_dump(),
        "deadlineSeconds": contract.deadline,
        "tier": skill.tier,
    }
