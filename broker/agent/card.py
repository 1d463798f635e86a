"""The agent card: who the agent is, and the skills that whoever asks may see, signed (A2A 1.0, sections 4.4.1, 8.4)."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from jwt.utils import base64url_decode, base64url_encode

from bus import BINDING
from skills import Contract, Skill

from ..ledger.records import transition_of
from .jcs import NoCanonicalForm, canonicalize
from .signing import SigningKey

SCHEMAS = "urn:skillbus:a2a-extension:skill-schemas:v1"
"""The extension of the agent card that gives each skill's schemas, effects and risk."""

ALGORITHM = "EdDSA"


class BadSignature(ValueError):
    """No signature of a card holds; the message says why."""


def card_of(name: str, version: str, url: str, skills: Sequence[Skill], *, push: bool = False) -> dict[str, Any]:
    """The card of an agent with these skills, unsigned; `push` says that it sends push notifications.

    Members with default values are left out, as section 8.4.1 demands of what is signed.
    """
    return {
        "name": name,
        "description": "Tools published as A2A skills: granted, budgeted and logged.",
        "version": version,
        "supportedInterfaces": [{"url": url, "protocolBinding": BINDING, "protocolVersion": "1.0"}],
        "capabilities": {
            "streaming": True,
            "pushNotifications": push,
            "extendedAgentCard": True,
            "extensions": [
                {
                    "uri": SCHEMAS,
                    "description": "Input and output schema, effects and risk of each skill",
                    "params": {"skills": {skill.id: _declared(skill) for skill in skills}},
                }
            ],
        },
        "defaultInputModes": ["application/json"],
        "defaultOutputModes": ["application/json"],
        "skills": [_listed(skill.contract) for skill in skills],
    }


def sign(card: Mapping[str, Any], key: SigningKey) -> dict[str, Any]:
    """The card with its signatures: JWS with a detached payload (RFC 7515, appendix F) over its canonical form.

    A card that holds empty members gets two. The specification keeps those that are required, or that stand in a
    schema; the SDKs of A2A drop every one before they verify. One signature holds for each.
    """
    bare = {name: value for name, value in card.items() if name != "signatures"}
    payloads = dict.fromkeys((canonicalize(bare), canonicalize(_without_empty(bare))))
    header = base64url_encode(orjson.dumps({"alg": ALGORITHM, "typ": "JOSE", "kid": key.kid}))
    signatures = [
        {
            "protected": header.decode(),
            "signature": base64url_encode(key.sign(header + b"." + base64url_encode(payload))).decode(),
        }
        for payload in payloads
    ]
    return {**bare, "signatures": signatures}


def verify(card: Mapping[str, Any], keys: Mapping[str, Any]) -> str:
    """The `kid` of the key that signed the card; `keys` is a JWK set (RFC 7517) of those that are trusted.

    Nothing in the card can be changed but that empty members go. A key that the card itself names is never fetched.
    Raises BadSignature.
    """
    trusted = _public_keys(keys)
    try:
        payload = canonicalize({name: value for name, value in card.items() if name != "signatures"})
    except NoCanonicalForm as error:
        raise BadSignature(f"the card can't be verified: {error}") from None
    signatures = card.get("signatures")
    if not isinstance(signatures, list) or not signatures:
        raise BadSignature("the card is not signed")
    known = False
    for each in signatures:
        protected, signature = (_text(each, name) for name in ("protected", "signature"))
        kid = _kid(protected)
        if kid not in trusted:
            continue
        known = True
        signed = protected.encode() + b"." + base64url_encode(payload)
        try:
            trusted[kid].verify(base64url_decode(signature), signed)
        except (InvalidSignature, ValueError):  # the latter for what is no base64
            continue
        return kid
    raise BadSignature(
        "the card was changed after it was signed" if known else "the card is not signed by a key that is trusted"
    )


def jwks(*keys: SigningKey) -> dict[str, Any]:
    """The public keys as a JWK set (RFC 7517), which is what a verifier is given."""
    return {"keys": [key.jwk for key in keys]}


def _public_keys(keys: Mapping[str, Any]) -> dict[str, Ed25519PublicKey]:
    found = keys.get("keys")
    if not isinstance(found, list):
        raise BadSignature("the trusted keys are no JWK set: an object with a list `keys`")
    trusted = {}
    for each in found:
        kid = _text(each, "kid")
        if kid and each.get("crv") == "Ed25519":  # a set may hold keys of other kinds, for others
            try:
                trusted[kid] = Ed25519PublicKey.from_public_bytes(base64url_decode(_text(each, "x")))
            except ValueError:
                raise BadSignature(f"the trusted key {kid!r} is no Ed25519 key") from None
    return trusted


def _kid(protected: str) -> str:
    """The key that a protected header names; empty for a header that we do not take."""
    try:
        header = orjson.loads(base64url_decode(protected))
    except ValueError:
        return ""
    # A header whose extensions we do not know must not be taken (RFC 7515, section 4.1.11).
    if not isinstance(header, dict) or header.get("alg") != ALGORITHM or "crit" in header or "b64" in header:
        return ""
    return _text(header, "kid")


def _text(value: Any, name: str) -> str:
    found = value.get(name) if isinstance(value, Mapping) else None
    return found if isinstance(found, str) else ""


def _without_empty(value: Any) -> Any:
    """The value without empty strings, lists, objects and nulls; None if nothing is left."""
    if isinstance(value, Mapping):
        members = ((name, _without_empty(inner)) for name, inner in value.items())
        return {name: inner for name, inner in members if inner is not None} or None
    if isinstance(value, list | tuple):
        return [inner for inner in map(_without_empty, value) if inner is not None] or None
    return None if value == "" else value


def _listed(contract: Contract) -> dict[str, Any]:
    return {
        "id": contract.id,
        "name": contract.title,
        "description": contract.description,
        "tags": list(contract.tags) or ["tool"],
        **({"examples": list(contract.examples)} if contract.examples else {}),
        "inputModes": ["application/json"],
        "outputModes": [contract.output_mode],
    }


def _declared(skill: Skill) -> dict[str, Any]:
    contract = skill.contract
    return {
        "input": contract.input_schema,
        "output": contract.output_schema,
        **({"access": contract.access.model_dump()} if contract.access else {}),
        **({"effects": [effect.model_dump() for effect in contract.effects]} if contract.effects else {}),
        "risk": contract.risk.model_dump(),
        **({"requirements": contract.requirements.model_dump(mode="json")} if contract.requirements else {}),
        **({"measures": dict(contract.measures)} if contract.measures else {}),
        "deadlineSeconds": contract.deadline,
        "tier": skill.tier,
        "transition": transition_of(contract).ref,
        **({"raiseTier": skill.raise_tier} if skill.raise_tier else {}),
    }
