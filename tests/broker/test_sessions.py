import dataclasses
import time
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.grants.grant import Grant
from broker.sessions import MAX_LIFETIME, Credential, Session, SessionError, claimed_session, mint, verify
from bus import Request, Unauthenticated, Unsigned
from tests.vectors import parametrize

GRANTS = (Grant("E", "s", 1, 2**40),)


def signed(
    credential: Credential,
    *,
    body: bytes = b"{}",
    message_id: str = "m",
    agent: str = "a",
    expires: float | None = None,
) -> Request:
    unsigned = Unsigned(agent, "SendMessage", message_id, body, time.time() + 30 if expires is None else expires)
    return Request(agent, "SendMessage", message_id, body, {}, authorization=credential.authorize(unsigned))


def proven(request: Request, session: Session) -> Session:
    assert claimed_session(request) == session.id
    return verify(request, session, time.time())


def test_a_proof_holds_for_its_own_request() -> None:
    credential, session = mint("ep1", GRANTS, ttl=60)
    assert proven(signed(credential), session) is session


@pytest.mark.parametrize(
    "changed", [{"body": b"[]"}, {"message_id": "other"}, {"agent": "other"}, {"operation": "GetTask"}]
)
def test_a_proof_holds_for_no_other_request(changed: dict[str, Any]) -> None:
    credential, session = mint("ep1", GRANTS, ttl=60)
    with pytest.raises(Unauthenticated):
        proven(dataclasses.replace(signed(credential), **changed), session)


def test_another_credential_proves_nothing() -> None:
    _, session = mint("ep1", GRANTS, ttl=60)
    stranger, _ = mint("ep1", GRANTS, ttl=60)
    with pytest.raises(Unauthenticated):
        verify(signed(stranger), session, time.time())


@pytest.mark.parametrize("ago", [10.0, 3600.0, 1e9])
def test_an_expired_proof_is_refused(ago: float) -> None:
    credential, session = mint("ep1", GRANTS, ttl=60)
    with pytest.raises(Unauthenticated, match="has expired"):
        proven(signed(credential, expires=time.time() - ago), session)


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Bearer x", "Basic abc", "Bearer a.b.c", "Bearer " + "é" * 9]
)
def test_what_is_no_proof_is_refused(header: str | None) -> None:
    with pytest.raises(Unauthenticated):
        claimed_session(Request("a", "SendMessage", "m", b"{}", {}, authorization=header))


def forged(credential: Credential, algorithm: str, key: Any, **claims: Any) -> Request:
    now = int(time.time())
    base = {"iat": now, "exp": now + 30, "jti": "m", "aud": "a", "op": "SendMessage", "dig": "sha256:"}
    token = jwt.encode(base | claims, key, algorithm=algorithm, headers={"kid": credential.id})
    return Request("a", "SendMessage", "m", b"{}", {}, authorization=f"Bearer {token}")


def test_no_other_algorithm_is_taken() -> None:
    credential, session = mint("ep1", GRANTS, ttl=60)
    for request in (forged(credential, "none", None), forged(credential, "HS256", session.public_key)):
        with pytest.raises(Unauthenticated):
            verify(request, session, time.time())


def test_a_proof_without_end_is_refused() -> None:
    credential, session = mint("ep1", GRANTS, ttl=60)
    good = signed(credential)
    key = credential._key
    claims = jwt.decode(str(good.authorization)[7:], options={"verify_signature": False})
    claims["exp"] += int(MAX_LIFETIME) * 2
    token = jwt.encode(claims, key, algorithm="EdDSA", headers={"kid": credential.id})
    with pytest.raises(Unauthenticated, match="too long"):
        proven(dataclasses.replace(good, authorization=f"Bearer {token}"), session)


@pytest.mark.parametrize("claim", ["iat", "exp", "jti", "aud", "op", "dig"])
@pytest.mark.parametrize("value", ["\ud800", 10**400, float("inf"), [], None])
def test_no_claim_breaks_the_check(claim: str, value: Any) -> None:
    credential, session = mint("ep1", GRANTS, ttl=60)
    good = signed(credential)
    claims = jwt.decode(str(good.authorization)[7:], options={"verify_signature": False})
    token = jwt.encode({**claims, claim: value}, credential._key, algorithm="EdDSA", headers={"kid": credential.id})
    with pytest.raises(Unauthenticated):
        proven(dataclasses.replace(good, authorization=f"Bearer {token}"), session)


@pytest.mark.parametrize("missing", ["iat", "exp", "jti", "aud", "op", "dig"])
def test_every_claim_is_needed(missing: str) -> None:
    credential, session = mint("ep1", GRANTS, ttl=60)
    good = signed(credential)
    claims = jwt.decode(str(good.authorization)[7:], options={"verify_signature": False})
    del claims[missing]
    token = jwt.encode(claims, credential._key, algorithm="EdDSA", headers={"kid": credential.id})
    with pytest.raises(Unauthenticated):
        proven(dataclasses.replace(good, authorization=f"Bearer {token}"), session)


def test_a_session_is_alive_in_its_last_second_and_its_grants_are_not() -> None:
    _, session = mint("ep1", GRANTS, ttl=10, now=100)
    assert session.is_alive(110.9)
    assert not session.is_alive(111)
    assert not session.grants[0].is_live(110)
    assert session.grants[0].is_live(109)


def test_a_revoked_session_is_refused() -> None:
    credential, session = mint("ep1", GRANTS, ttl=60)
    with pytest.raises(Unauthenticated, match="revoked"):
        proven(signed(credential), dataclasses.replace(session, revoked_at=1))


def test_grants_are_clamped_to_the_session_and_earlier_ends_kept() -> None:
    _, session = mint("ep1", [Grant("E", "s", 1, 2**40), Grant("F", "s", 1, 0)], ttl=10, now=100)
    assert [grant.expires_at for grant in session.grants] == [110, 0]


@pytest.mark.parametrize(
    ("episode", "grants", "ttl", "why"),
    [
        ("", GRANTS, 1, "authority: mint: empty episode id"),
        ("ep1", GRANTS, -1, "authority: mint: negative ttl -1"),
        ("ep1", (), 1, "authority: mint: no grants"),
        ("../x", GRANTS, 1, "is not a name"),
        ("Ep", GRANTS, 1, "is not a name"),
        ("a\n", GRANTS, 1, "is not a name"),
    ],
)
def test_what_is_not_minted(episode: str, grants: tuple[Grant, ...], ttl: int, why: str) -> None:
    with pytest.raises(SessionError, match=why):
        mint(episode, grants, ttl=ttl)


@parametrize("world", kind="episode_id")
def test_episode_names(row: dict[str, Any]) -> None:
    try:
        mint(row["input"], GRANTS, ttl=1)
        accepted = True
    except SessionError:
        accepted = False
    assert accepted == row["output"]


@parametrize("world", kind="session_header", id="session-header-2")
def test_a_credential_is_named_by_the_hash_of_its_text(row: dict[str, Any]) -> None:
    credential = Credential(row["input"].removeprefix("Bearer "))
    assert credential.id == row["output"]["credential_id"]


@pytest.mark.parametrize("text", ["", "0" * 63, "0" * 65, "G" * 64, "A" * 64, "0" * 64 + "\n"])
def test_what_is_no_credential(text: str) -> None:
    with pytest.raises(SessionError) as caught:
        Credential(text)
    assert text == "" or text not in str(caught.value)


def test_nothing_that_can_be_printed_shows_the_credential() -> None:
    credential, session = mint("ep1", GRANTS, ttl=60)
    request = signed(credential)
    for shown in (repr(credential), str(credential), repr(session), repr(request), str(request.authorization)):
        assert credential.reveal() not in shown
    assert str(request.authorization) not in repr(request)


@given(st.text(max_size=300))
def test_no_header_breaks_the_check(header: str) -> None:
    _, session = mint("ep1", GRANTS, ttl=60)
    request = Request("a", "SendMessage", "m", b"{}", {}, authorization=header)
    for check in (lambda: claimed_session(request), lambda: verify(request, session, time.time())):
        with pytest.raises(Unauthenticated):
            check()
