"""Names and who may be answered where."""

import pytest

from bus import BINDING, OPERATIONS, Names
from bus.errors import InvalidParams
from bus.names import check_agent


def test_the_binding_is_the_one_that_was_agreed() -> None:
    assert BINDING == "urn:skillbus:a2a-binding:amqp-0-9-1:v1"
    assert len(OPERATIONS) == 11


@pytest.mark.parametrize("name", ["a", "echo", "0", "a.b-c_d", "x" * 64])
def test_names_of_agents(name: str) -> None:
    assert check_agent(name) == name
    assert Names().queue(name) == f"a2a.q.{name}"


@pytest.mark.parametrize("name", ["", "A", "-a", ".a", "_a", "a b", "a/b", "ä", "a\n", "#", "*", "x" * 65])
def test_names_of_no_agent(name: str) -> None:
    with pytest.raises(InvalidParams):
        check_agent(name)


@pytest.mark.parametrize("prefix", ["", "A", "a b", "amq#", "x" * 33])
def test_no_prefixes(prefix: str) -> None:
    with pytest.raises(InvalidParams):
        Names(prefix)


def test_a_prefix_is_in_every_name() -> None:
    names = Names("team.x")
    assert names.requests == "team.x.requests"
    assert names.dead == "team.x.dead"
    assert names.queue("echo") == "team.x.q.echo"
    assert names.new_reply_queue("alice").startswith("team.x.reply.alice.")
    assert names.new_reply_queue(None).startswith("team.x.reply.anonymous.")
    assert names.new_reply_queue("alice") != names.new_reply_queue("alice")


def test_replies_go_only_to_the_sender() -> None:
    names = Names()
    assert names.allows_reply_to(names.new_reply_queue("alice"), "alice")
    assert names.allows_reply_to(names.new_reply_queue("alice"), None)
    assert names.allows_reply_to("a2a.reply.alice.5b1c", "alice")
    assert names.allows_reply_to("a2a.reply.al.ice.5b1c", "al.ice")
    for address, user in [
        ("a2a.reply.alice.5b1c", "bob"),
        ("a2a.reply.al.ice.5b1c", "al"),
        ("a2a.reply.alice.5b1c", "ali"),
        ("a2a.reply.alice.", "alice"),
        ("a2a.reply.alice", "alice"),
        ("a2a.reply.", None),
        ("a2a.reply", None),
        ("a2a.reply.5b1c", None),
        ("a2a.q.echo", None),
        ("a2a.dead", None),
        ("b2b.reply.alice.5b1c", "alice"),
        ("amq.rabbitmq.reply-to.x", None),
        ("a2a.reply.alice." + "x" * 300, "alice"),
        ("a2a.reply.alice.a b", "alice"),
    ]:
        assert not names.allows_reply_to(address, user), address
