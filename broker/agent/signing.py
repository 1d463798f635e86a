"""The agent's signing key: made once, kept in a file that its owner alone can read, never shown."""

import hashlib
import os
import secrets
import stat
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Self

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from jwt.utils import base64url_encode

from skills.canonical import encode

MAX_FILE = 4096


class SigningKeyError(ValueError):
    """There is no key that can be used; the message says why and what to do, and holds nothing of the key."""


class SigningKey:
    """An Ed25519 key (RFC 8032) that signs for an agent. Its public half is a JWK (RFC 8037)."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def generate(cls) -> Self:
        """A new key, in memory alone."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """The key in the file `path`: unencrypted PKCS #8 in PEM.

        Raises SigningKeyError for a file that is not there, that others can read, or that holds no such key.
        """
        path = Path(path)
        try:
            # Opening a FIFO would wait for who writes into it.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            try:
                mode = os.fstat(descriptor).st_mode
                text = os.read(descriptor, MAX_FILE + 1) if stat.S_ISREG(mode) else b""
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise SigningKeyError(f"the signing key {path} can't be read: {reason}") from None
        if not stat.S_ISREG(mode):
            raise SigningKeyError(f"the signing key {path} is not a regular file")
        if mode & 0o077:
            raise SigningKeyError(
                f"the signing key {path} is open to others (mode {stat.S_IMODE(mode):04o}): chmod 600 {path}, "
                "and make a new one if others may have read it"
            )
        try:
            key = load_pem_private_key(text, None)
        except (ValueError, TypeError, UnsupportedAlgorithm):  # whose texts may repeat what they were given
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise SigningKeyError(
                f"{path} holds no Ed25519 key: `openssl genpkey -algorithm ed25519` writes one, unencrypted and in PEM"
            )
        return cls(key)

    @classmethod
    def load_or_create(cls, path: Path | str) -> Self:
        """The key in the file `path`; if there is none, a new one is written there with mode 0600.

        Several that begin at once end with the same key. Its folder must exist. Raises SigningKeyError.
        """
        path = Path(path)
        if not path.exists():
            try:
                _write(path, cls.generate()._pem())
            except OSError as error:
                raise SigningKeyError(f"the signing key {path} can't be written: {error.strerror}") from None
        return cls.load(path)

    def __repr__(self) -> str:
        return f"SigningKey(kid={self.kid!r})"

    def __reduce__(self) -> str:
        raise TypeError("a signing key is not copied")

    @cached_property
    def jwk(self) -> dict[str, str]:
        """The public key, for who verifies (RFC 7517, RFC 8037)."""
        return {**self._required, "kid": self.kid, "alg": "EdDSA", "use": "sig"}

    @cached_property
    def kid(self) -> str:
        """The name of the key: its SHA-256 thumbprint (RFC 7638)."""
        return base64url_encode(hashlib.sha256(encode(self._required)).digest()).decode()

    def sign(self, data: bytes) -> bytes:
        """The signature of `data`, 64 bytes; the same each time."""
        return self._key.sign(data)

    @cached_property
    def _required(self) -> dict[str, str]:
        raw = self._key.public_key().public_bytes_raw()
        return {"crv": "Ed25519", "kty": "OKP", "x": base64url_encode(raw).decode()}

    def _pem(self) -> bytes:
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, content: bytes) -> None:
    """Make the file whole or not at all; one that is there by then stays."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
