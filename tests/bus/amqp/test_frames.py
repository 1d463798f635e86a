"""Frames are written as an independent codec reads them, and read whatever they hold."""

from typing import Any

import pamqp.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from bus.amqp import frames
from bus.driver import Outgoing, Properties
from bus.errors import InvalidParams

SHORT = st.text(min_size=1, max_size=60)
NAME = st.from_regex(r"[a-z0-9._:-]{0,60}", fullmatch=True)
SCALAR = st.one_of(st.text(max_size=300), st.booleans(), st.integers(-(1 << 63), (1 << 63) - 1))
PROPERTIES = st.builds(
    Properties,
    type=st.none() | SHORT,
    content_type=st.none() | SHORT,
    content_encoding=st.none() | SHORT,
    message_id=st.none() | SHORT,
    correlation_id=st.none() | SHORT,
    reply_to=st.none() | SHORT,
    expiration=st.none() | st.integers(0, 1 << 32),
    timestamp=st.none() | st.integers(0, 4_000_000_000),
    user_id=st.none() | SHORT,
    app_id=st.none() | SHORT,
    persistent=st.booleans(),
    headers=st.dictionaries(SHORT, SCALAR, max_size=6),
)


def split(data: bytes) -> list[tuple[int, Any]]:
    """All frames in `data`, read by pamqp."""
    found = []
    while data:
        used, channel, frame = pamqp.frame.unmarshal(data)
        found.append((channel, frame))
        data = data[used:]
    return found


def payloads(data: bytes) -> list[bytes]:
    """The payloads of the frames in `data`."""
    found = []
    while data:
        end = 7 + int.from_bytes(data[3:7], "big")
        found.append(data[7:end])
        data = data[end + 1 :]
    return found


@given(PROPERTIES, st.binary(max_size=600), st.booleans())
def test_a_message_reads_back(properties: Properties, body: bytes, mandatory: bool) -> None:
    message = Outgoing("a2a.requests", "echo", body, properties)
    data = frames.publish(7, message, mandatory=mandatory, frame_max=200)
    (channel, method), (_, header), *chunks = split(data)
    assert channel == 7
    assert isinstance(method, commands.Basic.Publish)
    assert (method.exchange, method.routing_key, method.mandatory) == ("a2a.requests", "echo", mandatory)
    assert isinstance(header, ContentHeader)
    assert header.body_size == len(body)
    assert b"".join(chunk.value for _, chunk in chunks) == body
    assert all(isinstance(chunk, ContentBody) and len(chunk.value) <= 192 for _, chunk in chunks)
    theirs = header.properties
    assert theirs.message_type == properties.type
    assert theirs.correlation_id == properties.correlation_id
    assert theirs.reply_to == properties.reply_to
    assert theirs.message_id == properties.message_id
    assert theirs.delivery_mode == (2 if properties.persistent else 1)
    assert (theirs.headers or {}) == properties.headers
    assert theirs.expiration == (None if properties.expiration is None else str(properties.expiration))
    assert (theirs.timestamp and int(theirs.timestamp.timestamp())) or (properties.timestamp or 0) == 0
    payload = payloads(data)[1]
    assert frames.read_properties(payload) == properties
    assert frames.read_size(payload) == len(body)


@given(st.binary(max_size=300))
def test_reading_properties_never_raises(data: bytes) -> None:
    found = frames.read_properties(data)
    assert isinstance(found, Properties)


@given(PROPERTIES, st.data())
def test_properties_that_are_cut_short_are_a_flaw(properties: Properties, data: st.DataObject) -> None:
    whole = frames.publish(1, Outgoing("", "q", b"", properties), mandatory=False, frame_max=4096)
    header = payloads(whole)[1]
    if len(header) > 15:
        cut = data.draw(st.integers(14, len(header) - 1))
        assert frames.read_properties(header[:cut]).flaw is not None


def header(flags: int, rest: bytes) -> bytes:
    return b"\x00\x3c\x00\x00" + bytes(8) + flags.to_bytes(2, "big") + rest


def table(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


CORRELATION = b"\x03c-1"


@pytest.mark.parametrize(
    ("rest", "flaw"),
    [
        (table(b"\x01aS\x00\x00\x00\x01\xff"), "no table"),
        (table(b"\x01\xffV"), "no table"),
        (table(b"\x01aV\x01aV"), "twice"),
        (table(b"\x01a?"), "unknown type"),
        (table(b"\x01a"), "unknown type"),
        (table(b"\xffa"), "no table"),
        (table(b"\x01aS\x00\x00\xff\xff"), "no table"),
        (table(b"\x01al\x00"), "no table"),
        (table(b"\x01aD\x00"), "no table"),
        (table(b"\x01aA\x00\x00\x00\x05A\x00\x00\x00\x00" * 1), None),
        (table(b"\x01a" + b"".join(b"A" + (5 * n).to_bytes(4, "big") for n in range(2000, -1, -1))), "too deep"),
    ],
)
def test_a_bad_table_leaves_the_rest_readable(rest: bytes, flaw: str | None) -> None:
    found = frames.read_properties(header(1 << 13 | 1 << 10, rest + CORRELATION))
    assert found.correlation_id == "c-1"
    if flaw is None:
        assert found.flaw is None
    else:
        assert flaw in str(found.flaw)


def test_what_the_client_library_fails_at_is_read() -> None:
    year_200000 = header(1 << 10 | 1 << 6, CORRELATION + (1 << 62).to_bytes(8, "big"))
    assert frames.read_properties(year_200000).timestamp == 1 << 62
    assert frames.read_properties(year_200000).flaw is None
    no_utf8 = header(1 << 10 | 1 << 7, CORRELATION + b"\x02\xff\xfe")
    assert frames.read_properties(no_utf8).message_id is None
    assert "UTF-8" in str(frames.read_properties(no_utf8).flaw)
    assert frames.read_properties(no_utf8).correlation_id == "c-1"
    no_number = header(1 << 8, b"\x04soon")
    assert "expiration" in str(frames.read_properties(no_number).flaw)
    assert "more" in str(frames.read_properties(header(1, b"")).flaw)


def test_every_kind_of_value_is_read() -> None:
    values: dict[str, Any] = {
        "t": True, "I": 5, "l": 1 << 40, "S": "text", "V": None, "F": {"n": 1}, "A": [1, "a"], "x": bytearray(b"raw"),
    }  # fmt: skip
    properties = commands.Basic.Properties(headers=values)
    found = frames.read_properties(ContentHeader(body_size=0, properties=properties).marshal())
    assert found.headers == {**values, "x": b"raw"}
    rest = table(b"\x01bb\xff\x01BB\xff\x01ss\xff\xff\x01uu\xff\xff\x01ii\xff\xff\xff\xff")
    assert frames.read_properties(header(1 << 13, rest)).headers == {
        "b": -1, "B": 255, "s": -1, "u": 65535, "i": (1 << 32) - 1,
    }  # fmt: skip
    rest = table(b"\x01DD\x02\x00\x00\x00\x7b\x01ff\x3f\x80\x00\x00\x01dd" + b"\x3f\xf0" + bytes(6))
    assert frames.read_properties(header(1 << 13, rest)).headers == {"D": 1.23, "f": 1.0, "d": 1.0}


def test_settling_reads_as_it_should() -> None:
    ((channel, ack),) = split(frames.ack(3, 77))
    assert isinstance(ack, commands.Basic.Ack)
    assert (channel, ack.delivery_tag, ack.multiple) == (3, 77, False)
    ((_, up),) = split(frames.reject(3, 78, requeue=False))
    assert isinstance(up, commands.Basic.Reject)
    assert (up.delivery_tag, up.requeue) == (78, False)
    ((_, back),) = split(frames.reject(3, 79, requeue=True))
    assert isinstance(back, commands.Basic.Nack)
    assert (back.delivery_tag, back.requeue, back.multiple) == (79, True, False)


@given(NAME, st.integers(0, (1 << 63) - 1), st.booleans(), NAME, SHORT)
def test_deliveries_and_returns_are_read(tag: str, number: int, again: bool, exchange: str, key: str) -> None:
    deliver = commands.Basic.Deliver(tag, number, again, exchange, key)
    payload = pamqp.frame.marshal(deliver, 1)[7:-1]
    assert frames.read_deliver(payload) == frames.Deliver(number, again, tag.encode())
    back = commands.Basic.Return(312, "NO_ROUTE", exchange, key)
    assert frames.read_return(pamqp.frame.marshal(back, 1)[7:-1]) == (312, "NO_ROUTE", exchange, key)
    confirm = commands.Basic.Ack(number, again)
    assert frames.read_confirm(pamqp.frame.marshal(confirm, 1)[7:-1]) == (number, again)


def test_what_amqp_cannot_carry_is_refused() -> None:
    for properties in (
        Properties(message_id="x" * 256),
        Properties(headers={"n": 1 << 70}),
        Properties(type="ü" * 128),
    ):
        with pytest.raises(InvalidParams):
            frames.publish(1, Outgoing("", "q", b"", properties), mandatory=True, frame_max=4096)
