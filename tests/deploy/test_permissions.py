"""The permissions that the doctor proposes are those of the operator's page."""

import shlex

import bus
from deploy.permissions import Permissions
from tests.deploy.test_topology_broker import rights

NAMES = bus.Names("team.a2a")


def test_they_are_those_of_the_page() -> None:
    assert list(Permissions.worker(NAMES, "tools")) == rights("worker", "team.a2a", "alice", "tools")
    assert list(Permissions.caller(NAMES, "alice")) == rights("caller", "team.a2a", "alice", "tools")


def test_a_shell_hands_them_on_as_they_are() -> None:
    mine = Permissions.caller(NAMES, "o'hara")
    words = shlex.split(mine.command("o'hara", "a b"))
    assert words == ["rabbitmqctl", "set_permissions", "-p", "a b", "o'hara", *mine]
