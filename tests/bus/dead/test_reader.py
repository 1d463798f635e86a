"""What a dead letter tells, whatever stands in it."""

from dataclasses import dataclass
from typing import Any

import pytest

import bus
from bus import Names
from bus.amqp import frames
from bus.dead import letter
from bus.dead.letter import Letter
from bus.driver import Incoming, Properties

NAMES = Names("p")


@dataclass
class Message:
    """A delivery that nobody settles."""

    properties: Properties
    body: bytes = b"{}"
    redelivered: bool = False
    stale: bool = False

    def ack(self) -> bool:
        return True

    def reject(self, *, requeue: bool) -> bool:
        return requeue


def message(death: Any, **properties: Any) -> Incoming:
    headers = {"x-death": death, **properties.pop("headers", {})}
    return Message(Properties(headers=headers, **properties))


DEATH = {
    "reason": "expired",
    "queue": "p.q.tools",
    "exchange": "p.requests",
    "routing-keys": ["tools"],
    "time": 1_796_061_476,
    "original-expiration": "1500",
}


@pytest.mark.parametrize(
    "death", [None, "expired", [], ["expired"], [None], [{}], {"reason": "expired"}, [{"reason": 7}]]
)
def test_a_letter_without_a_death_certificate_is_a_letter(death: Any) -> None:
    found = Letter.dead(message(death), NAMES)
    assert (found.reason, found.queue, found.exchange, found.key, found.died) == ("unknown", "", "", "", None)
    assert found.error.reason == "INTERNAL"
    kept = found.parked_as(NAMES, "nobody", 1.0)
    assert Letter.read(Message(kept.properties)).id == found.id


@pytest.mark.parametrize("lived", ["9" * 5000, "9" * 400, "-1", "1.5", "\u0661", "", 7, None, [], {}])
def test_a_forged_death_certificate_is_read(lived: Any) -> None:
    forged = {**DEATH, "original-expiration": lived, "time": 10**30, "routing-keys": [[]], "exchange": 5}
    kept = Letter.dead(message([forged]), NAMES).parked_as(NAMES, "nobody", 1.0)
    assert kept.properties.headers.get(letter.EXPIRATION) == (7 if lived == 7 else None)
    assert frames.publish(1, kept, mandatory=True, frame_max=131_072)


def test_what_was_parked_reads_back() -> None:
    sent = Properties(
        type="SendMessage",
        content_type="application/a2a+json",
        message_id="m",
        correlation_id="c",
        reply_to="p.reply.me.1",
        user_id="me",
        headers={"x-death": [DEATH], "a2a-deadline": "2026-11-30T15:01:00.000Z", "a2a-authorization": "Bearer hush"},
    )
    dead = Letter.dead(Message(sent, b"body"), NAMES)
    kept = dead.parked_as(NAMES, "DEADLINE_EXCEEDED", 1_796_061_477.5)
    assert (kept.exchange, kept.routing_key, kept.body) == ("", "p.parked", b"body")
    assert kept.properties.user_id is None
    assert kept.properties.reply_to is None
    assert kept.properties.expiration is None
    read = Letter.read(Message(kept.properties, b"body"))
    assert read.id == dead.id
    assert (read.reason, read.queue, read.exchange, read.key) == ("expired", "p.q.tools", "p.requests", "tools")
    assert (read.died, read.parked, read.answered, read.authorized) == (
        1_796_061_476,
        1_796_061_477.5,
        "DEADLINE_EXCEEDED",
        True,
    )
    assert (read.properties.reply_to, read.properties.user_id, read.properties.expiration) == (
        "p.reply.me.1",
        "me",
        1500,
    )
    assert read.properties.headers == {"a2a-deadline": "2026-11-30T15:01:00.000Z"}
    assert "hush" not in repr(kept) + str(kept.properties.headers)


def test_the_id_tells_letters_apart() -> None:
    one = Letter.dead(message([DEATH], message_id="a"), NAMES)
    assert one.id == Letter.dead(message([DEATH], message_id="a"), NAMES).id
    later = {**DEATH, "time": 1_796_061_477}
    others = [message([later], message_id="a"), message([DEATH], message_id="b"), message([DEATH], correlation_id="a")]
    assert len({one.id, *(Letter.dead(other, NAMES).id for other in others)}) == 4


def test_headers_that_no_message_can_carry_are_written_as_text() -> None:
    odd = {"list": [1, b"\xff"], "table": {"a": None}, "huge": 1 << 63, "none": None, "bytes": b"x"}
    kept = Letter.dead(message([DEATH], headers=odd), NAMES).parked_as(NAMES, "nobody", 1.0).properties.headers
    assert all(isinstance(value, str | int | bool | float) for value in kept.values())
    assert kept["huge"] == str(1 << 63)
    flood = {"x" * 100 + "y": "z", "long": "x" * 20_000}
    kept = Letter.dead(message([DEATH], headers=flood), NAMES).parked_as(NAMES, "nobody", 1.0).properties.headers
    assert "long" not in kept
    assert kept[letter.LEFT_OUT].endswith("bytes of headers")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"reply_to": None}, "names no queue of its caller"),
        ({"correlation_id": None}, "names no queue of its caller"),
        ({"reply_to": "p.reply.other.1"}, "names no queue of its caller"),
        ({"flaw": "one of them is not UTF-8"}, "could not be read"),
    ],
)
def test_why_a_request_can_not_be_sent_again(change: dict[str, Any], why: str) -> None:
    good: dict[str, Any] = {"reply_to": "p.reply.me.1", "correlation_id": "c", "user_id": "me", "message_id": "m"}
    assert Letter.dead(message([DEATH], **good), NAMES).request(NAMES, now=0.0, seconds=1.0, user="me")
    found = Letter.dead(message([DEATH], **{**good, **change}), NAMES)
    with pytest.raises(bus.InvalidRequest, match=why):
        found.request(NAMES, now=0.0, seconds=1.0, user="me")


def test_a_request_is_sent_again_only_where_requests_go() -> None:
    elsewhere = message([{**DEATH, "exchange": "amq.topic"}], reply_to="p.reply.me.1", correlation_id="c")
    with pytest.raises(bus.InvalidRequest, match=r"did not come from p\.requests"):
        Letter.dead(elsewhere, NAMES).request(NAMES, now=0.0, seconds=1.0, user=None)


def test_nobody_else_is_made_the_sender() -> None:
    found = Letter.dead(message([DEATH], reply_to="p.reply.me.1", correlation_id="c", user_id="me"), NAMES)
    for user, sender in (("me", "me"), ("operator", None), (None, None)):
        sent = found.request(NAMES, now=100.0, seconds=2.5, user=user).properties
        assert (sent.user_id, sent.expiration, sent.timestamp) == (sender, 2500, 100)
        assert sent.headers["a2a-deadline"] == "1970-01-01T00:01:42.500Z"
