import json
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.agent.signing import SigningKey
from tests.deploy.conftest import Ended, Home

Skillbus = Callable[..., Ended]


def test_the_card_is_printed_and_verified(skillbus: Skillbus, session: Path, home: Home) -> None:
    ended = skillbus("card")
    assert (ended.code, ended.err) == (0, "")
    card = json.loads(ended.out)
    assert "ailang-read" in [skill["id"] for skill in card["skills"]]
    kid = SigningKey.load(home.folder / "state" / "signing.pem").kid
    ended = skillbus("card", "--verify")
    assert (ended.code, ended.err) == (0, f"✓ signed by {kid}\n")
    assert json.loads(ended.out) == card


def test_the_keys_are_exported_and_trusted_elsewhere(
    skillbus: Skillbus, session: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert skillbus("card").code == 0
    monkeypatch.delenv("SKILLBUS_SESSION")
    ended = skillbus("card", "--jwks")
    assert ended.code == 0, ended.err
    (key,) = json.loads(ended.out)["keys"]
    assert set(key) == {"kty", "crv", "x", "kid", "alg", "use"}
    keys = home.folder / "keys.json"
    keys.write_text(ended.out)
    assert skillbus("card", "--verify", "--keys", str(keys), "--session", str(session)).code == 0


def test_a_card_of_another_key_is_not_shown(skillbus: Skillbus, session: Path, home: Home) -> None:
    other = home.folder / "other.pem"
    keys = home.folder / "keys.json"
    keys.write_text(json.dumps({"keys": [SigningKey.load_or_create(other).jwk]}))
    ended = skillbus("card", "--verify", "--keys", str(keys))
    assert (ended.code, ended.out) == (3, "")
    assert ended.err == "error: the card is not signed by a key that is trusted\n"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--jwks", "--verify"], "give one of them"),
        (["--keys", "keys.json"], "--keys is for --verify"),
        (["--verify"], "the first worker to start makes it"),
        (["--jwks"], "the first worker to start makes it"),
        (["--verify", "--keys", "keys.json"], "keys.json: No such file"),
        (["--verify", "--keys", "skillbus.toml"], "skillbus.toml is no JWK set"),
    ],
)
def test_what_can_not_be_done(skillbus: Skillbus, session: Path, home: Home, options: list[str], reason: str) -> None:
    (home.folder / "skillbus.toml").write_text("")
    ended = skillbus("card", *options)
    assert (ended.code, ended.out) == (1, "")
    assert reason in ended.err


def test_an_open_key_stops_what_would_sign_with_it(skillbus: Skillbus, session: Path, home: Home) -> None:
    assert skillbus("card").code == 0
    (home.folder / "state" / "signing.pem").chmod(0o644)
    for command in (["card"], ["card", "--jwks"], ["call", "calc", "--arg", "expr=1"]):
        ended = skillbus(*command)
        assert (ended.code, ended.out) == (1, "")
        assert "chmod 600" in ended.err
