"""The doctor on the command line."""

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deploy.conftest import Ended, Home

Skillbus = Callable[..., Ended]


def test_a_home_with_a_session_is_well(skillbus: Skillbus, home: Home, session: Path) -> None:
    ended = skillbus("doctor")
    assert (ended.code, ended.err) == (0, "")
    *lines, last = ended.out.splitlines()
    assert last == "no check failed"
    assert [(line[0], line[2:].split()[0]) for line in lines] == [
        ("✓", name) for name in ("settings", "state", "credential", "ledger", "workspaces", "git", "packs", "rabbitmq")
    ]
    assert "in process: none configured" in lines[-1]
    assert f"{session} (SKILLBUS_SESSION)" in ended.out


def test_what_is_wrong_has_its_fix_below_it(skillbus: Skillbus, home: Home, session: Path) -> None:
    session.chmod(0o644)
    home.ledger.parent.chmod(0o777)
    ended = skillbus("doctor")
    assert (ended.code, ended.err) == (1, "")
    lines = ended.out.splitlines()
    assert lines[-1] == "2 check(s) failed"
    for name, fix in (("state", f"chmod 700 {home.ledger.parent}"), ("credential", f"chmod 600 {session}")):
        (at,) = [number for number, line in enumerate(lines) if line.startswith(f"✗ {name}")]
        assert lines[at + 1] == f"  fix: {fix}"


def test_as_json(skillbus: Skillbus, home: Home) -> None:
    ended = skillbus("doctor", "--json")
    assert (ended.code, ended.err) == (0, "")
    told = json.loads(ended.out)
    assert told["failed"] == 0
    found = {check["check"]: check for check in told["checks"]}
    assert found["git"]["level"] == "ok"
    assert found["git"]["fix"] is None
    assert found["ledger"]["level"] == "warning"
    assert "session new" in found["ledger"]["fix"]
    assert not home.ledger.exists()


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_settings_that_are_wrong_are_a_finding(
    skillbus: Skillbus, home: Home, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKILLBUS_AGENT", "No")
    monkeypatch.setenv("SKILLBUS_AMQP_URL", "http://me:hush@host/")
    ended = skillbus("doctor", *options)
    assert (ended.code, ended.err) == (1, "")
    assert "SKILLBUS_AGENT" in ended.out
    assert "hush" not in ended.out
    assert ('"failed": 1' if options else "1 check(s) failed") in ended.out


def test_a_broker_that_hangs_does_not_hang_the_doctor(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # it takes connections and says nothing
        port = server.getsockname()[1]
        ended = home.run("doctor", SKILLBUS_AMQP_URL=f"amqp://me:hush@127.0.0.1:{port}/")
    assert ended.code == 1
    assert "✗ rabbitmq      no answer within 10 s\n  fix: check that the broker is up" in ended.out
    assert ended.out.endswith("1 check(s) failed\n")
    assert "hush" not in ended.out + ended.err


@pytest.mark.rabbitmq
def test_over_a_broker(
    skillbus: Skillbus, rabbitmq_url: str, unique_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("doctor", "--amqp-url", rabbitmq_url, "--prefix", unique_prefix)
    ended = skillbus(*options)
    assert (ended.code, ended.err) == (1, "")
    for name in ("✓ rabbitmq", "✗ topology", "! agent", "✓ dead letters", "✓ permissions"):
        assert name in ended.out
    # A worker that may declare needs nothing to stand there before.
    monkeypatch.setenv("SKILLBUS_DECLARE", "true")
    ended = skillbus(*options)
    assert ended.code == 0
    assert "! topology" in ended.out
