"""The URL in an agent card."""

import pytest

from bus import InvalidParams
from bus.interface import Interface


@pytest.mark.parametrize(
    ("url", "interface"),
    [
        ("amqps://h?agent=a", Interface("a", "h", 5671)),
        ("amqp://H:1234/?agent=a.b-c", Interface("a.b-c", "h", 1234, tls=False)),
        ("amqps://h/my%2Fvhost?agent=a&prefix=p", Interface("a", "h", 5671, "my/vhost", "p")),
        ("amqps://[::1]:5/%2F?agent=a&unknown=1", Interface("a", "::1", 5)),
    ],
)
def test_reading(url: str, interface: Interface) -> None:
    assert Interface.read(url) == interface
    assert Interface.read(interface.url) == interface


@pytest.mark.parametrize(
    "url",
    [
        "amqps://user:secret@h?agent=a", "amqps://user@h?agent=a", "amqps://h", "amqps://h?agent=A", "amqps://h?agent=",
        "amqps://h?agent=a&agent=b", "amqps://h?agent=a&prefix=P", "amqps:///v?agent=a", "https://h?agent=a",
        "amqps://h:port?agent=a", "amqps://h:99999?agent=a", "",
    ],
)  # fmt: skip
def test_what_is_no_interface(url: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        Interface.read(url)
    assert "secret" not in caught.value.message


def test_the_broker_it_is_at() -> None:
    interface = Interface("a", "h", 5671, "v")
    assert interface.broker == "amqps://h:5671/v"
    assert interface.is_at("amqps://user:pw@H/v?cafile=x")
    for other in ("amqp://h:5671/v", "amqps://h:5672/v", "amqps://h/", "amqps://other/v"):
        assert not interface.is_at(other)


def test_an_agent_at_a_broker() -> None:
    interface = Interface.at("amqps://user:secret@H/my%2Fvhost?cafile=/x&heartbeat=5", "a", "p")
    assert interface == Interface("a", "h", 5671, "my/vhost", "p")
    assert interface.url == "amqps://h:5671/my%2Fvhost?agent=a&prefix=p"
    assert Interface.at("amqp://h", "a").url == "amqp://h:5672/%2F?agent=a"
    for wrong in ("https://h", "amqp://h:port"):
        with pytest.raises(InvalidParams):
            Interface.at(wrong, "a")
