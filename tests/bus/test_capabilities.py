"""What follows from what a broker says of itself."""

from typing import Any

import pytest

import bus
from bus.amqp import connection as amqp
from bus.amqp.connection import Amqp
from bus.capabilities import REFUSED, TABLE, Capabilities, Capability, capabilities


def rabbit(version: Any) -> Capabilities:
    return capabilities({"product": "RabbitMQ", "version": version})


EVERYWHERE = {"safe-dead-letters", "quorum-expiry"}
FROM_4 = {"client-deaths-ignored", "default-delivery-limit", "native-amqp-1.0", "small-messages", "khepri"}
FROM_3_13 = {"queue-consumer-timeout", "stream-filter"}
FROM_4_3 = {"priorities", "delayed-retry", "timeout-cancels", "no-transient-queues"}

VERSIONS = {
    "3.10.8": EVERYWHERE | {"nack-counts"},
    "3.12.0": EVERYWHERE | {"nack-counts", "queue-consumer-timeout"},
    "3.13.7": EVERYWHERE | {"nack-counts"} | FROM_3_13,
    "4.0.5": EVERYWHERE | {"nack-counts"} | FROM_3_13 | FROM_4 | {"two-priorities"},
    "4.2.1": EVERYWHERE | {"nack-counts"} | FROM_3_13 | FROM_4 | {"two-priorities"},
    "4.3.0": EVERYWHERE | FROM_3_13 | FROM_4 | FROM_4_3,
}


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_version_can_do(version: str) -> None:
    found = rabbit(version)
    assert {capability.name for capability in found.known} == VERSIONS[version]
    assert found.refusal is None
    assert found.is_tabled
    assert str(found) == f"RabbitMQ {version}"
    assert all(name in found for name in VERSIONS[version])


def test_the_table_has_a_line_for_each_name() -> None:
    assert len({capability.name for capability in TABLE}) == len(TABLE)
    assert all(capability.meaning and "\n" not in capability.meaning for capability in TABLE)
    assert not Capability("x", "y", since=(4, 0, 0), until=(4, 3, 0)).holds((4, 3, 0))


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("3.13.0", "#11159"),
        ("3.13.2", "#11159"),
        ("3.13.2+1", "#11159"),
        ("3.9.29", "use 3.10 or later"),
        ("2.8.7", "use 3.10 or later"),
    ],
)
def test_a_version_that_breaks_a_promise_is_refused(version: str, reason: str) -> None:
    refusal = rabbit(version).refusal
    assert refusal is not None
    assert refusal.startswith(f"RabbitMQ {version} must not be used")
    assert reason in refusal


@pytest.mark.parametrize("version", ["3.10.0", "3.12.14", "3.13.3", "4.1.0-rc.1", "4.3", "5.0.0"])
def test_others_are_not(version: str) -> None:
    assert rabbit(version).refusal is None
    assert all(each.since < each.until for each in REFUSED)


def test_a_later_version_than_the_table_knows_counts_as_the_latest_it_knows() -> None:
    assert rabbit("4.9.1").known == rabbit("4.3.0").known
    assert not rabbit("4.9.1").is_tabled


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"product": "LavinMQ", "version": "2.4.0"},
        {"product": "RabbitMQ"},
        {"product": "RabbitMQ", "version": "unknown"},
        {"product": "RabbitMQ", "version": 4},
        {"product": None, "version": ["4", "3"]},
        {"product": b"\xff\x00", "version": b"4.3.0"},
    ],
)
def test_of_a_broker_that_says_something_else_nothing_is_known(properties: dict[str, Any]) -> None:
    found = capabilities(properties)
    assert (found.version, found.known, found.refusal, found.is_tabled) == (None, (), None, False)
    assert str(found).isprintable()


def test_bytes_are_read_as_text() -> None:
    assert capabilities({"product": b"RabbitMQ", "version": b"4.1.2"}).version == (4, 1, 2)


async def test_the_broker_inside_the_process_says_so() -> None:
    connection = await bus.MemoryBroker().connect("looking")
    assert str(connection.capabilities) == "the broker inside this process"
    assert connection.capabilities.refusal is None


@pytest.mark.rabbitmq
async def test_a_connection_tells_what_it_is_connected_to(rabbitmq_url: str) -> None:
    connection = await Amqp(rabbitmq_url).connect("looking")
    try:
        assert connection.capabilities.product == "RabbitMQ"
        assert connection.capabilities.version is not None
        assert "safe-dead-letters" in connection.capabilities
    finally:
        await connection.close()


@pytest.mark.rabbitmq
async def test_a_refused_version_lets_nobody_in(rabbitmq_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amqp, "capabilities", lambda _: rabbit("3.13.1"))
    with pytest.raises(bus.Refused, match=r"3\.13\.1 must not be used.*#11159"):
        await bus.connect(rabbitmq_url)
