"""Sessions: the credential that only its holder has, the proof it makes, and what verifies the proof."""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import jwt
import orjson
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from jwt.utils import base64url_decode

from bus import Request, Unauthenticated, Unsigned
from skills.canonical import ref

from .grants.grant import Grant

EPISODE = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
LEEWAY = 2.0
MAX_LIFETIME = 24 * 3600.0

_CREDENTIAL = re.compile(r"[0-9a-f]{64}")
_ALGORITHM = "EdDSA"
_CLAIMS = ["iat", "exp", "jti", "aud", "op", "dig"]


class SessionError(ValueError):
    """A session can't be minted, or a credential can't be read; the message says why."""


class Credential:
    """The secret of a session: an Ed25519 seed as 64 lower-case hex digits, shown once and never sent."""

    def __init__(self, text: str) -> None:
        if not _CREDENTIAL.fullmatch(text):
            raise SessionError("a credential is 64 lower-case hexadecimal digits")
        self._text = text

    @classmethod
    def generate(cls) -> "Credential":
        return cls(secrets.token_hex(32))

    def __repr__(self) -> str:
        return f"Credential(id={self.id[:8]}…)"

    def reveal(self) -> str:
        """The credential itself, for the one time that it is shown or written to its file."""
        return self._text

    @cached_property
    def id(self) -> str:
        """What names the session without giving it away: the SHA-256 of the credential's text, in hex."""
        return hashlib.sha256(self._text.encode()).hexdigest()

    @cached_property
    def _key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(self._text))

    @property
    def public_key(self) -> bytes:
        """The 32 raw bytes that verify this credential's proofs."""
        return self._key.public_key().public_bytes_raw()

    def authorize(self, request: Unsigned) -> str:
        """The proof for one attempt of one request: a JWT that holds for this message and body alone."""
        now = time.time()
        claims = {
            "iat": int(now),
            "exp": int(min(request.expires, now + MAX_LIFETIME) + LEEWAY),
            "jti": request.message_id,
            "aud": request.agent,
            "op": request.operation,
            "dig": ref(request.body),
        }
        return "Bearer " + jwt.encode(claims, self._key, algorithm=_ALGORITHM, headers={"kid": self.id})


@dataclass(frozen=True, slots=True)
class Session:
    """What a credential stands for. Alive while now <= `expires_at` and not revoked (Unix seconds)."""

    id: str
    public_key: bytes = field(repr=False)
    episode: str
    grants: tuple[Grant, ...]
    created_at: int
    expires_at: int
    revoked_at: int | None = None

    def is_alive(self, now: float) -> bool:
        return self.revoked_at is None and int(now) <= self.expires_at


def mint(episode: str, grants: Sequence[Grant], *, ttl: int, now: int | None = None) -> tuple[Credential, Session]:
    """A new credential and its session of `ttl` seconds, to which its grants are clamped. Raises SessionError."""
    if not episode:
        raise SessionError("authority: mint: empty episode id")
    if not EPISODE.fullmatch(episode):
        raise SessionError(f"episode {episode!r} is not a name: 1 to 64 of a-z, 0-9 and -, not beginning with -")
    if ttl < 0:
        raise SessionError(f"authority: mint: negative ttl {ttl}")
    if not grants:
        raise SessionError("authority: mint: no grants")
    created = int(time.time()) if now is None else now
    expires = created + ttl
    clamped = tuple(replace(grant, expires_at=min(grant.expires_at, expires)) for grant in grants)
    credential = Credential.generate()
    return credential, Session(credential.id, credential.public_key, episode, clamped, created, expires)


def claimed_session(request: Request) -> str:
    """The id of the session that a request says it comes from; nothing is verified yet. Raises Unauthenticated."""
    # The library would check the whole token here and once more in `verify`; only its header is needed.
    try:
        kid = orjson.loads(base64url_decode(_token(request).partition(".")[0])).get("kid")
    except (ValueError, AttributeError):
        raise Unauthenticated(metadata={"schemes": "bearer"}) from None
    if not isinstance(kid, str) or not _CREDENTIAL.fullmatch(kid):
        raise Unauthenticated(metadata={"schemes": "bearer"})
    return kid


def verify(request: Request, session: Session | None, now: float) -> Session:
    """The session, if the request proves that it holds its credential and the session is alive.

    The proof must be signed by the session's key, be in force, and name this agent, operation, message id and
    body. Raises Unauthenticated, with the same words whatever was wrong except for an expired proof or session.
    """
    if session is None:
        raise Unauthenticated(metadata={"schemes": "bearer"})
    try:
        claims: dict[str, Any] = jwt.decode(
            _token(request),
            _public_key(session.public_key),
            algorithms=[_ALGORITHM],
            audience=request.agent,
            leeway=LEEWAY,
            options={"require": _CLAIMS},
        )
    except jwt.ExpiredSignatureError:
        raise Unauthenticated("the proof of the session has expired") from None
    except (jwt.PyJWTError, ValueError, TypeError):
        raise Unauthenticated(metadata={"schemes": "bearer"}) from None
    bound = (claims["jti"], claims["op"], claims["dig"])
    wanted = (request.message_id, request.operation, ref(request.body))
    if not all(
        isinstance(b, str) and hmac.compare_digest(b.encode(errors="surrogatepass"), w.encode())
        for b, w in zip(bound, wanted, strict=True)
    ):
        raise Unauthenticated("the proof was made for another request")
    if int(claims["exp"]) - int(claims["iat"]) > MAX_LIFETIME + 2 * LEEWAY + 1:
        raise Unauthenticated("the proof of the session is valid for too long")
    if not session.is_alive(now):
        raise Unauthenticated("the session has expired or was revoked")
    return session


def _token(request: Request) -> str:
    scheme, _, token = (request.authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Unauthenticated(metadata={"schemes": "bearer"})
    return token.strip()


@lru_cache(maxsize=4096)
def _public_key(raw: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(raw)
