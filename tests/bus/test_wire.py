"""Reading whatever arrives, and reading back what was written."""

import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bus
from bus import BusError, Limits, Names, wire
from bus.driver import Outgoing, Properties
from bus.wire import Address
from tests.bus.amqp.test_frames import PROPERTIES

LIMITS = Limits()
NOW = 1_800_000_000.0
ADDRESS = Address("a2a.reply.alice.1", "c-1")
TEXT = st.text(min_size=1, max_size=40)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)


@dataclass
class Message:
    """A delivery that nobody delivered."""

    properties: Properties
    body: bytes = b"{}"
    redelivered: bool = False
    stale: bool = False
    settled: list[str] = field(default_factory=list)

    def ack(self) -> bool:
        self.settled.append("ack")
        return True

    def reject(self, *, requeue: bool) -> bool:
        self.settled.append("requeue" if requeue else "reject")
        return True

    @classmethod
    def of(cls, outgoing: Outgoing) -> "Message":
        return cls(outgoing.properties, outgoing.body)


def a_request(body: bytes = b"{}", **options: Any) -> Outgoing:
    given_options: dict[str, Any] = {
        "message_id": "m",
        "address": ADDRESS,
        "deadline": NOW + 30,
        "now": NOW,
        "user": "alice",
        "app_id": "test/1",
        **options,
    }
    return wire.request(Names(), "echo", "SendMessage", body, **given_options)


@given(
    message_id=TEXT,
    payload=st.dictionaries(TEXT.filter(lambda name: name != "message"), JSON, max_size=4),
    seconds=st.integers(1, 86_400_000).map(lambda ms: ms / 1000),
    authorization=st.none() | TEXT.map("Bearer {}".format),
    extensions=st.none() | TEXT,
    attempt=st.integers(1, 9),
    again=st.booleans(),
)
def test_a_request_reads_back(
    message_id: str,
    payload: dict[str, Any],
    seconds: float,
    authorization: str | None,
    extensions: str | None,
    attempt: int,
    again: bool,
) -> None:
    headers = {} if extensions is None else {"a2a-extensions": extensions}
    body = wire.encode(payload)
    outgoing = a_request(
        body,
        message_id=message_id,
        deadline=NOW + seconds,
        authorization=authorization,
        headers=headers,
        attempt=attempt,
    )
    request = wire.read_request("echo", replace(Message.of(outgoing), redelivered=again), LIMITS, NOW)
    assert request.payload == payload
    assert request.body == body
    assert request.message_id == message_id
    assert request.deadline == pytest.approx(NOW + seconds, abs=0.001)
    assert request.authorization == authorization
    assert request.caller == "alice"
    assert request.redelivered is again
    expected = headers if attempt == 1 else {**headers, "a2a-attempt": str(attempt)}
    assert request.headers == expected
    assert authorization is None or authorization not in repr(outgoing)


ODD = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.binary(max_size=20), st.lists(st.text()))
HEADERS = st.dictionaries(
    st.one_of(
        st.text(max_size=20), st.sampled_from(["a2a-version", "a2a-deadline", "a2a-authorization", "traceparent"])
    ),
    st.one_of(st.text(max_size=40), ODD),
    max_size=6,
)


@given(PROPERTIES, HEADERS, st.binary(max_size=200), st.none() | st.text(max_size=20), st.booleans())
def test_reading_a_request_raises_nothing_but_bus_errors(
    properties: Properties, headers: dict[str, Any], body: bytes, flaw: str | None, right: bool
) -> None:
    if right:  # most of it is as it should be, so that the rest is looked at
        headers = {**headers, "a2a-version": "1.0"}
        properties = replace(properties, content_type="application/a2a+json", content_encoding=None, type="GetTask")
        flaw = None
    message = Message(replace(properties, headers=headers, flaw=flaw), body)
    with suppress(BusError):
        assert isinstance(wire.read_request("echo", message, LIMITS, NOW).payload, dict)


@given(PROPERTIES, HEADERS, st.binary(max_size=200))
def test_reading_a_reply_raises_nothing_but_bus_errors(
    properties: Properties, headers: dict[str, Any], body: bytes
) -> None:
    for is_error in (True, False):
        message = Message(replace(properties, headers={**headers, "a2a-error": is_error}), body)
        with suppress(BusError):
            assert isinstance(wire.read_reply(message, LIMITS), dict)


@given(st.dictionaries(TEXT, JSON, max_size=4))
def test_a_reply_reads_back(response: dict[str, Any]) -> None:
    outgoing = wire.reply(ADDRESS, "SendMessage", wire.encode(response), responder="echo/1")
    assert (outgoing.exchange, outgoing.routing_key) == ("", ADDRESS.reply_to)
    assert outgoing.properties.correlation_id == ADDRESS.correlation_id
    assert wire.read_reply(Message.of(outgoing), LIMITS) == response


def test_the_request_on_the_wire() -> None:
    outgoing = a_request(b'{"a":1}', authorization="Bearer x", headers={"traceparent": "00-1-2-01"}, attempt=2)
    assert (outgoing.exchange, outgoing.routing_key, outgoing.body) == ("a2a.requests", "echo", b'{"a":1}')
    assert outgoing.properties == Properties(
        type="SendMessage",
        content_type="application/a2a+json",
        message_id="m",
        correlation_id="c-1",
        reply_to="a2a.reply.alice.1",
        expiration=30_000,
        timestamp=int(NOW),
        user_id="alice",
        app_id="test/1",
        persistent=True,
        headers={
            "a2a-version": "1.0",
            "a2a-deadline": "2027-01-15T08:00:30.000Z",
            "a2a-authorization": "Bearer x",
            "a2a-attempt": 2,
            "traceparent": "00-1-2-01",
        },
    )


def test_the_reply_on_the_wire() -> None:
    error = wire.error_reply(ADDRESS, "GetTask", bus.TaskNotFound(metadata={"id": "t"}), responder="echo/1")
    assert error.properties == Properties(
        type="GetTask",
        content_type="application/a2a+json",
        correlation_id="c-1",
        persistent=True,
        headers={"a2a-seq": 0, "a2a-final": True, "a2a-responder": "echo/1", "a2a-error": True},
    )
    assert orjson.loads(error.body) == {
        "code": -32001,
        "message": "task not found",
        "details": [
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "TASK_NOT_FOUND",
                "domain": "a2a-protocol.org",
                "metadata": {"id": "t"},
            }
        ],
    }


def test_a_time_that_is_nearly_over_still_expires_later_than_now() -> None:
    assert a_request(deadline=NOW - 5).properties.expiration == 1


def test_the_authorization_shows_nowhere() -> None:
    outgoing = a_request(authorization="Bearer secret")
    assert "secret" not in repr(outgoing)
    request = wire.read_request("echo", Message.of(outgoing), LIMITS, NOW)
    assert request.authorization == "Bearer secret"
    assert "secret" not in repr(request)
    assert "a2a-authorization" not in request.headers


def test_an_error_that_json_cannot_say_is_internal() -> None:
    error = bus.TaskNotFound("half a \ud800 pair")
    body = orjson.loads(wire.error_reply(ADDRESS, None, error, responder="echo/1").body)
    assert body["code"] == bus.InternalError.code


@pytest.mark.parametrize("depth", [1, 2, 64])
def test_nesting_is_counted(depth: int) -> None:
    for opened, closed in (("[", "]"), ('{"a":', "}")):
        inner = opened * (depth - 1) + "1" + closed * (depth - 1)
        assert wire.read_object(f'{{"x":{inner}}}'.encode(), depth)
        with pytest.raises(bus.InvalidRequest, match="deeper"):
            wire.read_object(f'{{"x":{opened}{inner}{closed}}}'.encode(), depth)
    wide = orjson.dumps({"a": [[] for _ in range(1000)], "b": '"[[[['})
    assert wire.read_object(wide, 3)


def test_a_large_body_is_named_with_the_limit() -> None:
    message = Message.of(a_request(b'{"a":"' + b"x" * 100 + b'"}'))
    with pytest.raises(bus.InvalidRequest) as caught:
        wire.read_request("echo", message, Limits(body=50), NOW)
    assert caught.value.metadata == {"maxMessageBytes": "50"}


def test_parts_are_counted() -> None:
    def read(message: Any) -> None:
        wire.read_request("echo", Message.of(a_request(orjson.dumps({"message": message}))), Limits(parts=2), NOW)

    few: list[Any] = [{"parts": [{}, {}]}, {"parts": "abc"}, {"parts": None}, {}, [1, 2, 3], None]
    for message in few:
        read(message)
    with pytest.raises(bus.InvalidRequest, match="has 3 parts, more than 2") as caught:
        read({"parts": [{}, {}, {}]})
    assert caught.value.metadata == {"maxParts": "2"}


@pytest.mark.parametrize("value", [["x"], {"x": 1}, 0.5, b"bytes", None])
def test_headers_are_flat(value: Any) -> None:
    message = Message.of(a_request())
    message.properties.headers = {**message.properties.headers, "a2a-load": value}
    with pytest.raises(bus.InvalidRequest, match="a string, an integer or a boolean"):
        wire.read_request("echo", message, LIMITS, NOW)


def test_a_deadline_lies_within_the_horizon() -> None:
    for ahead, taken in ((24 * 3600 + 1.9, True), (24 * 3600 + 2.1, False)):
        message = Message.of(a_request(deadline=NOW + ahead))
        try:
            wire.read_request("echo", message, LIMITS, NOW)
        except bus.InvalidRequest:
            assert not taken
        else:
            assert taken


def test_a_request_without_a_deadline_has_none() -> None:
    outgoing = a_request()
    outgoing.properties.headers = {"a2a-version": "1.0"}
    assert wire.read_request("echo", Message.of(outgoing), LIMITS, time.time()).deadline is None


def test_only_a_caller_s_own_headers_may_be_set() -> None:
    check = wire.check_request
    check("GetTask", "m", b"{}", {"a2a-extensions": "x", "traceparent": "x", "tracestate": "x"}, LIMITS)
    for name in ("a2a-version", "a2a-deadline", "a2a-authorization", "x-death", "cc", "trace", "a2a-seq"):
        with pytest.raises(bus.InvalidParams):
            check("GetTask", "m", b"{}", {name: "x"}, LIMITS)
