import copy
import multiprocessing
import os
import pickle
import stat
from pathlib import Path

import jwt
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from broker.agent.signing import SigningKey, SigningKeyError

# RFC 8037, appendix A.1 to A.3: the key, its public half and its thumbprint.
SEED = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"
PUBLIC = {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}
THUMBPRINT = "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"


def test_the_public_key_and_its_name_are_those_of_rfc_8037() -> None:
    key = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(SEED)))
    assert key.kid == THUMBPRINT
    assert key.jwk == {**PUBLIC, "kid": THUMBPRINT, "alg": "EdDSA", "use": "sig"}


def test_a_signature_holds_for_what_was_signed_alone() -> None:
    key = SigningKey.generate()
    public = jwt.PyJWK(key.jwk).key
    assert isinstance(public, Ed25519PublicKey)
    public.verify(key.sign(b"said"), b"said")
    with pytest.raises(InvalidSignature):
        public.verify(key.sign(b"said"), b"unsaid")


def test_a_key_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "signing.pem"
    old = os.umask(0)
    try:
        made = SigningKey.load_or_create(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SigningKey.load_or_create(path).kid == made.kid == SigningKey.load(path).kid
    assert [each.name for each in tmp_path.iterdir()] == ["signing.pem"]


def _kid(path: Path) -> str:
    return SigningKey.load_or_create(path).kid


def test_workers_that_begin_at_once_have_one_key(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        kids = pool.map(_kid, [tmp_path / "signing.pem"] * 12, chunksize=1)
    assert len(set(kids)) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602])
def test_a_key_that_is_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "signing.pem"
    SigningKey.load_or_create(path)
    path.chmod(mode)
    with pytest.raises(SigningKeyError, match=f"open to others .mode {mode:04o}.: chmod 600"):
        SigningKey.load_or_create(path)


@pytest.mark.parametrize("content", [b"", b"private: hunter2", b"x" * 10_000])
def test_what_is_no_key_is_refused_and_not_repeated(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "signing.pem"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(SigningKeyError, match="holds no Ed25519 key") as raised:
        SigningKey.load_or_create(path)
    assert "hunter2" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert path.read_bytes() == content


def test_a_place_for_no_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SigningKeyError, match="not a regular file"):
        SigningKey.load_or_create(tmp_path)
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(SigningKeyError, match="not a regular file"):
        SigningKey.load_or_create(tmp_path / "fifo")
    with pytest.raises(SigningKeyError, match="can't be written: No such file"):
        SigningKey.load_or_create(tmp_path / "absent" / "signing.pem")
    with pytest.raises(SigningKeyError, match="can't be read: No such file"):
        SigningKey.load(tmp_path / "absent.pem")


def test_nothing_of_the_secret_is_shown() -> None:
    key = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(SEED)))
    assert repr(key) == f"SigningKey(kid='{THUMBPRINT}')"
    for leak in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError):
            leak(key)
