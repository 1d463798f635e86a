"""The signed card, held against the verifier of A2A's own SDK."""

import copy
import json
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from a2a.client.client import ClientConfig
from a2a.client.client_factory import ClientFactory
from a2a.types import AgentCard, GetExtendedAgentCardRequest
from a2a.utils.signing import InvalidSignaturesError, create_agent_card_signer, create_signature_verifier
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.json_format import MessageToDict, ParseDict
from jwt.utils import base64url_decode, base64url_encode

import bus
from broker.agent.agent import SkillAgent
from broker.agent.card import BadSignature, jwks, sign, verify
from broker.agent.signing import SigningKey
from broker.grants.grant import Grant
from broker.ledger.ledger import Ledger
from broker.pipeline.pipeline import Pipeline
from broker.sessions import mint
from bus.sdk.transport import register

from ..house import House

URL = "amqps://broker.example:5671/%2F?agent=house"


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return SigningKey.generate()


@pytest.fixture
def signing(pipeline: Pipeline, ledger: Ledger, house: House, key: SigningKey) -> House:
    agent = SkillAgent("house", pipeline, ledger, version="1", url=URL, key=key)
    return House(agent, house.credential)


def sdk_verify(card: Any, key: SigningKey) -> None:
    """As a client that is built on the SDK does it. Raises what the SDK raises."""
    keys = {each["kid"]: jwt.PyJWK(each) for each in jwks(key)["keys"]}
    create_signature_verifier(lambda kid, _: keys[str(kid)], ["EdDSA"])(ParseDict(card, AgentCard()))


async def test_what_a_session_sees_is_signed(signing: House, key: SigningKey, ledger: Ledger) -> None:
    card = await signing.ask("GetExtendedAgentCard", {})
    assert verify(card, jwks(key)) == key.kid
    sdk_verify(card, key)
    assert json.loads(base64url_decode(card["signatures"][0]["protected"])) == {
        "alg": "EdDSA", "typ": "JOSE", "kid": key.kid,
    }  # fmt: skip
    # One that sees less has a card of its own, signed as well.
    poor, session = mint("ep1", [Grant("Nothing", "test", 1, 2**40)], ttl=60)
    await ledger.add_session(session)
    less = await House(signing.agent, poor).ask("GetExtendedAgentCard", {})
    assert [skill["id"] for skill in less["skills"]] == ["pure"]
    assert verify(less, jwks(key)) == key.kid
    assert less["signatures"] != card["signatures"]
    assert await signing.ask("GetExtendedAgentCard", {}) == card


async def test_a_client_of_the_sdk_verifies_it_on_its_way_over_the_bus(signing: House, key: SigningKey) -> None:
    broker = bus.MemoryBroker()
    factory = ClientFactory(ClientConfig())
    register(factory, broker=broker, authorize=signing.credential.authorize)
    keys = {each["kid"]: jwt.PyJWK(each) for each in jwks(key)["keys"]}
    asked = GetExtendedAgentCardRequest()
    async with await bus.serve(broker, "house", signing.agent):
        for trusted, good in ((keys, True), ({key.kid: jwt.PyJWK(SigningKey.generate().jwk)}, False)):
            check = create_signature_verifier(lambda kid, _, trusted=trusted: trusted[kid], ["EdDSA"])  # type: ignore[misc]
            async with factory.create(ParseDict(signing.agent.card([]), AgentCard())) as client:
                if good:
                    card = await client.get_extended_agent_card(asked, signature_verifier=check)
                    assert [skill.id for skill in card.skills][:2] == ["again", "once"]
                else:
                    with pytest.raises(InvalidSignaturesError):
                        await client.get_extended_agent_card(asked, signature_verifier=check)


def _rename(card: Any) -> None:
    card["name"] = "another"


def _redirect(card: Any) -> None:
    card["supportedInterfaces"][0]["url"] = "amqps://elsewhere.example:5671/%2F?agent=house"


def _widen(card: Any) -> None:
    card["capabilities"]["extensions"][0]["params"]["skills"]["once"]["risk"]["read_only"] = True


def _drop(card: Any) -> None:
    card["skills"].pop()


def _add(card: Any) -> None:
    card["documentationUrl"] = "https://elsewhere.example"


def _unsign(card: Any) -> None:
    for each in card["signatures"]:
        each["signature"] = base64url_encode(bytes(64)).decode()


@pytest.mark.parametrize("change", [_rename, _redirect, _widen, _drop, _add, _unsign])
async def test_a_card_that_was_changed_does_not_verify(
    signing: House, key: SigningKey, change: Callable[[Any], None]
) -> None:
    card = copy.deepcopy(await signing.ask("GetExtendedAgentCard", {}))
    change(card)
    with pytest.raises(BadSignature, match="was changed"):
        verify(card, jwks(key))
    with pytest.raises(InvalidSignaturesError):
        sdk_verify(card, key)


CARD: dict[str, Any] = {
    "name": "plain",
    "description": "without an empty member",
    "version": "1",
    "supportedInterfaces": [{"url": URL, "protocolBinding": bus.BINDING, "protocolVersion": "1.0"}],
    "capabilities": {"streaming": True, "pushNotifications": False},
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "skills": [{"id": "s", "name": "s", "description": "s", "tags": ["t"]}],
}
SCHEMA: dict[str, Any] = {
    "type": "object", "properties": {}, "required": [], "default": None, "title": "", "maximum": 1e-9, "enum": [1.5, 2],
}  # fmt: skip


def test_one_signature_does_where_nothing_is_empty(key: SigningKey) -> None:
    card = sign(CARD, key)
    assert len(card["signatures"]) == 1
    sdk_verify(card, key)
    assert sign(card, key) == card


def test_empty_members_are_signed_as_the_specification_and_as_the_sdk_have_it(key: SigningKey) -> None:
    extension = {"uri": "urn:x", "params": {"schema": SCHEMA}}
    card = sign({**CARD, "skills": [], "capabilities": {"streaming": False, "extensions": [extension]}}, key)
    assert len(card["signatures"]) == 2
    assert verify(card, jwks(key)) == key.kid
    sdk_verify(card, key)
    assert verify({**card, "signatures": card["signatures"][:1]}, jwks(key)) == key.kid
    # Filling an empty member is a change.
    card["skills"] = CARD["skills"]
    with pytest.raises(BadSignature, match="was changed"):
        verify(card, jwks(key))


def test_a_signature_of_the_sdk_verifies() -> None:
    secret = Ed25519PrivateKey.generate()
    key = SigningKey(secret)
    header = {"kid": key.kid, "alg": "EdDSA", "jku": None, "typ": "JOSE"}
    signer = create_agent_card_signer(secret, header)  # type: ignore[arg-type]
    signed = MessageToDict(signer(ParseDict(CARD, AgentCard())))
    assert verify(signed, jwks(key)) == key.kid


@pytest.mark.parametrize(
    ("card", "keys", "reason"),
    [
        ({}, None, "not signed"),
        ({"signatures": []}, None, "not signed"),
        ({"signatures": "all of them"}, None, "not signed"),
        ({"signatures": [None, 1, {}, {"protected": "é", "signature": "x"}]}, None, "not signed by a key"),
        ({"signatures": [{"protected": "e30", "signature": ""}]}, None, "not signed by a key"),
        ({"signatures": [{"protected": "e30"}], "name": "\ud800"}, None, "can't be verified"),
        (CARD, {}, "no JWK set"),
        (CARD, {"keys": [{"crv": "Ed25519", "kid": "k", "x": "AAAA"}]}, "'k' is no Ed25519 key"),
    ],
)
def test_what_holds_no_signature_of_ours(key: SigningKey, card: Any, keys: Any, reason: str) -> None:
    with pytest.raises(BadSignature, match=reason):
        verify(card, jwks(key) if keys is None else keys)


@pytest.mark.parametrize(
    "changes", [{"alg": "none"}, {"alg": "HS256"}, {"crit": ["exp"]}, {"b64": False}, {"kid": "unknown"}, {"kid": 7}]
)
def test_a_header_that_is_not_ours_is_not_taken(key: SigningKey, changes: dict[str, Any]) -> None:
    card = sign(CARD, key)
    header = json.loads(base64url_decode(card["signatures"][0]["protected"])) | changes
    card["signatures"][0]["protected"] = base64url_encode(json.dumps(header).encode()).decode()
    with pytest.raises(BadSignature, match="not signed by a key that is trusted"):
        verify(card, jwks(key))


def test_one_trusted_key_of_several_is_enough(key: SigningKey) -> None:
    other = SigningKey.generate()
    card = sign(CARD, key)
    card["signatures"] = sign(CARD, other)["signatures"] + card["signatures"]
    assert verify(card, jwks(key)) == key.kid
    assert verify(card, {"keys": [{"kty": "RSA", "kid": "r"}, *jwks(other)["keys"]]}) == other.kid
