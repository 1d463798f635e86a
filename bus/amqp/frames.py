"""The AMQP 0-9-1 frames that carry messages and settle them: bytes to values and back, nothing else.

They are written here and not left to the client library for two reasons. One object and one system call a message
instead of a dozen make the difference between hundreds and thousands of calls a second. And reading never fails: a
property that is not UTF-8, a timestamp in the year 200000 or a table nested a thousand deep, each of which makes the
library drop the connection and meet the same message again, is a `flaw` here.
"""

from collections.abc import Callable
from functools import lru_cache
from struct import Struct, error
from typing import Any, NamedTuple

from bus.driver import Outgoing, Properties, Scalar
from bus.errors import InvalidParams

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
END = 0xCE
OVERHEAD = 8
"""Bytes of a frame around its payload."""

# Class and method numbers, as the first four bytes of a method frame's payload.
DELIVER, RETURN, ACK, NACK = 0x003C003C, 0x003C0032, 0x003C0050, 0x003C0078
_PUBLISH, _REJECT = 0x003C0028, 0x003C005A
BLOCKED, UNBLOCKED, CLOSE = 0x000A003C, 0x000A003D, 0x000A0032

HEARTBEAT_FRAME = bytes((HEARTBEAT, 0, 0, 0, 0, 0, 0, END))

_FRAME = Struct(">BHI")
_SETTLE = Struct(">BHIIQBB")
_CONTENT = Struct(">HHQH")
_U8, _U16, _U32, _U64 = Struct(">B"), Struct(">H"), Struct(">I"), Struct(">Q")
_I8, _I16, _I32, _I64 = Struct(">b"), Struct(">h"), Struct(">i"), Struct(">q")
_F32, _F64 = Struct(">f"), Struct(">d")
_END = bytes((END,))
_BASIC = 60
_TABLE_DEPTH = 4

# Presence of a property in the content header, AMQP 0-9-1 section 4.2.6.1, in the order of their values.
_CONTENT_TYPE, _ENCODING, _HEADERS, _MODE, _PRIORITY, _CORRELATION = (1 << bit for bit in range(15, 9, -1))
_REPLY_TO, _EXPIRATION, _MESSAGE_ID, _TIMESTAMP, _TYPE, _USER, _APP, _CLUSTER = (1 << bit for bit in range(9, 1, -1))


class Deliver(NamedTuple):
    """What a `basic.deliver` says about the message that follows."""

    tag: int
    redelivered: bool
    consumer: bytes = b""


class Return(NamedTuple):
    """What a `basic.return` says about the message that follows."""

    code: int
    text: str
    exchange: str
    routing_key: str


def publish(channel: int, message: Outgoing, *, mandatory: bool, frame_max: int) -> bytes:
    """All frames of one message. Raises `InvalidParams` for a property that AMQP can't carry."""
    body = message.body
    flags, properties = _write_properties(message.properties)
    header = _CONTENT.pack(_BASIC, 0, len(body), flags)
    parts = [
        _publish_method(channel, message.exchange, message.routing_key, mandatory),
        _FRAME.pack(HEADER, channel, len(header) + len(properties)),
        header,
        properties,
        _END,
    ]
    room = frame_max - OVERHEAD
    for start in range(0, len(body), room):
        chunk = body[start : start + room]
        parts += (_FRAME.pack(BODY, channel, len(chunk)), chunk, _END)
    return b"".join(parts)


def ack(channel: int, tag: int) -> bytes:
    """A `basic.ack` of one delivery."""
    return _SETTLE.pack(METHOD, channel, 13, ACK, tag, 0, END)


def reject(channel: int, tag: int, *, requeue: bool) -> bytes:
    """Give a delivery back or up.

    Back is `basic.nack`: brokers from 4.3 on count only `basic.reject` towards the delivery limit, and a worker that
    drains is not the message's fault.
    """
    if requeue:
        return _SETTLE.pack(METHOD, channel, 13, NACK, tag, 0b10, END)
    return _SETTLE.pack(METHOD, channel, 13, _REJECT, tag, 0, END)


def read_deliver(payload: bytes) -> Deliver:
    """The tags of the delivery and of its consumer, from the payload of a method frame."""
    at = 5 + payload[4]
    return Deliver(_U64.unpack_from(payload, at)[0], payload[at + 8] & 1 == 1, payload[5:at])


def read_return(payload: bytes) -> Return:
    """Why a message came back, from the payload of a method frame."""
    at, strings = 6, []
    for _ in range(3):
        end = at + 1 + payload[at]
        strings.append(payload[at + 1 : end].decode(errors="replace"))
        at = end
    return Return(_U16.unpack_from(payload, 4)[0], *strings)


def read_close(payload: bytes) -> tuple[int, str]:
    """The code and the text of a `connection.close`."""
    end = 7 + payload[6]
    return _U16.unpack_from(payload, 4)[0], payload[7:end].decode(errors="replace")


def read_confirm(payload: bytes) -> tuple[int, bool]:
    """The tag of a `basic.ack` or `basic.nack`, and whether it stands for all before it too."""
    return _U64.unpack_from(payload, 4)[0], payload[12] & 1 == 1


def read_size(payload: bytes) -> int:
    """The size of the body that follows, from the payload of a header frame."""
    size: int = _U64.unpack_from(payload, 4)[0]
    return size


def read_properties(payload: bytes) -> Properties:
    """The properties in a header frame's payload. Never raises: what can't be read is in `flaw`."""
    found = Properties()
    try:
        _read_properties(payload, found)
    except (IndexError, error):
        found.flaw = found.flaw or "they are cut short"
    return found


@lru_cache(maxsize=1024)
def _publish_method(channel: int, exchange: str, routing_key: str, mandatory: bool) -> bytes:
    payload = b"".join(
        (_U32.pack(_PUBLISH), b"\0\0", _short(exchange), _short(routing_key), b"\1" if mandatory else b"\0")
    )
    return b"".join((_FRAME.pack(METHOD, channel, len(payload)), payload, _END))


def _short(text: str) -> bytes:
    data = text.encode()
    if len(data) > 255:
        raise InvalidParams("a name or property of a message has more than 255 bytes")
    return bytes((len(data),)) + data


def _write_properties(p: Properties) -> tuple[int, bytes]:
    flags, parts = 0, []
    if p.content_type is not None:
        flags |= _CONTENT_TYPE
        parts.append(_name(p.content_type))
    if p.content_encoding is not None:
        flags |= _ENCODING
        parts.append(_name(p.content_encoding))
    if p.headers:
        flags |= _HEADERS
        table = b"".join([_name(key) + _write_value(value) for key, value in p.headers.items()])
        parts += (_U32.pack(len(table)), table)
    flags |= _MODE
    parts.append(b"\2" if p.persistent else b"\1")
    if p.correlation_id is not None:
        flags |= _CORRELATION
        parts.append(_short(p.correlation_id))
    if p.reply_to is not None:
        flags |= _REPLY_TO
        parts.append(_name(p.reply_to))
    if p.expiration is not None:
        flags |= _EXPIRATION
        parts.append(_short(str(p.expiration)))
    if p.message_id is not None:
        flags |= _MESSAGE_ID
        parts.append(_short(p.message_id))
    if p.timestamp is not None:
        flags |= _TIMESTAMP
        parts.append(_U64.pack(p.timestamp))
    if p.type is not None:
        flags |= _TYPE
        parts.append(_name(p.type))
    if p.user_id is not None:
        flags |= _USER
        parts.append(_name(p.user_id))
    if p.app_id is not None:
        flags |= _APP
        parts.append(_name(p.app_id))
    return flags, b"".join(parts)


_name = lru_cache(maxsize=1024)(_short)
"""Short strings that come again and again: types, header names, reply queues."""


def _write_value(value: Scalar) -> bytes:
    if isinstance(value, str):
        data = value.encode()
        return b"S" + _U32.pack(len(data)) + data
    if isinstance(value, bool):
        return b"t\1" if value else b"t\0"
    if isinstance(value, int):
        if -(1 << 63) <= value < 1 << 63:
            return b"l" + _I64.pack(value)
        raise InvalidParams("an integer in a header has more than 64 bits")
    return b"d" + _F64.pack(value)


def _read_properties(data: bytes, p: Properties) -> None:
    at = 14
    (flags,) = _U16.unpack_from(data, 12)
    if flags & 1:
        p.flaw = "there are more than AMQP 0-9-1 has"
        return

    def short() -> str | None:
        nonlocal at
        end = at + 1 + data[at]
        if end > len(data):
            raise IndexError
        raw = data[at + 1 : end]
        at = end
        try:
            return raw.decode()
        except UnicodeDecodeError:
            p.flaw = "one of them is not UTF-8"
            return None

    if flags & _CONTENT_TYPE:
        p.content_type = short()
    if flags & _ENCODING:
        p.content_encoding = short()
    if flags & _HEADERS:
        end = at + 4 + _U32.unpack_from(data, at)[0]
        if end > len(data):
            raise IndexError
        try:
            p.headers = _read_table(data, at + 4, end, _TABLE_DEPTH)
        except (IndexError, ValueError, error) as wrong:
            p.flaw = (
                f"the headers cannot be read: {wrong}" if isinstance(wrong, _TableError) else "the headers are no table"
            )
        at = end
    if flags & _MODE:
        p.persistent = data[at] == 2
        at += 1
    if flags & _PRIORITY:
        at += 1
    if flags & _CORRELATION:
        p.correlation_id = short()
    if flags & _REPLY_TO:
        p.reply_to = short()
    if flags & _EXPIRATION:
        text = short() or ""
        if text.isascii() and text.isdigit():
            p.expiration = int(text)
        else:
            p.flaw = "the expiration is no number"
    if flags & _MESSAGE_ID:
        p.message_id = short()
    if flags & _TIMESTAMP:
        (p.timestamp,) = _U64.unpack_from(data, at)
        at += 8
    if flags & _TYPE:
        p.type = short()
    if flags & _USER:
        p.user_id = short()
    if flags & _APP:
        p.app_id = short()


class _TableError(ValueError):
    pass


def _read_table(data: bytes, at: int, end: int, depth: int) -> dict[str, Any]:
    table: dict[str, Any] = {}
    while at < end:
        stop = at + 1 + data[at]
        if stop > end:
            raise IndexError
        key = data[at + 1 : stop].decode()
        if key in table:
            raise _TableError("a name comes twice")
        table[key], at = _read_value(data, stop, end, depth)
    return table


def _read_array(data: bytes, at: int, end: int, depth: int) -> list[Any]:
    values = []
    while at < end:
        value, at = _read_value(data, at, end, depth)
        values.append(value)
    return values


def _read_value(data: bytes, at: int, end: int, depth: int) -> tuple[Any, int]:
    kind = data[at : at + 1]
    at += 1
    fixed = _FIXED.get(kind)
    if fixed is not None:
        stop = at + fixed[0].size
        if stop > end:
            raise IndexError
        return fixed[1](fixed[0].unpack_from(data, at)[0]), stop
    if kind in b"SxAF" and kind:
        start = at + 4
        stop = start + _U32.unpack_from(data, at)[0]
        if stop > end:
            raise IndexError
        if kind == b"S":
            return data[start:stop].decode(), stop
        if kind == b"x":
            return data[start:stop], stop
        if depth == 0:
            raise _TableError("they nest too deep")
        nested = _read_table if kind == b"F" else _read_array
        return nested(data, start, stop, depth - 1), stop
    if kind == b"V":
        return None, at
    if kind == b"D":
        if at + 5 > end:
            raise IndexError
        return _I32.unpack_from(data, at + 1)[0] / 10 ** data[at], at + 5
    raise _TableError("a value has an unknown type")


def _same(value: Any) -> Any:
    return value


_FIXED: dict[bytes, tuple[Struct, Callable[[Any], Any]]] = {
    b"t": (_U8, bool),
    b"b": (_I8, _same),
    b"B": (_U8, _same),
    b"s": (_I16, _same),
    b"u": (_U16, _same),
    b"I": (_I32, _same),
    b"i": (_U32, _same),
    b"l": (_I64, _same),
    b"L": (_I64, _same),
    b"T": (_U64, _same),
    b"f": (_F32, _same),
    b"d": (_F64, _same),
}
