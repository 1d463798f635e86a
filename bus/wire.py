"""Between messages and requests: what is written into properties, headers and body, and what is read out of them.

Nothing that arrives makes reading raise anything but a `BusError`.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from bus import deadline as time
from bus import names as n
from bus.driver import Incoming, Outgoing, Properties
from bus.errors import (
    BusError,
    ContentTypeNotSupported,
    InternalError,
    InvalidAgentResponse,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    ParseError,
    VersionNotSupported,
    from_json,
)
from bus.limits import Limits
from bus.message import Request

_NO_HEADERS: Mapping[str, str] = {}
_NO_SCALARS: Mapping[str, str | int | bool] = {}
_ALWAYS: Mapping[str, str] = {n.A2A_VERSION: n.VERSION, n.DEADLINE: time.write(0.0)}  # what each request has besides
_APART = frozenset({n.A2A_VERSION, n.DEADLINE, n.AUTHORIZATION, n.TENANT})


class Address(NamedTuple):
    """Where the answer to a message goes, and under which number."""

    reply_to: str
    correlation_id: str


def encode(body: Mapping[str, Any] | bytes) -> bytes:
    """The JSON bytes of a body. Raises `InvalidParams` for what JSON can't say."""
    if isinstance(body, bytes):
        return body
    try:
        encoded = orjson.dumps(body)
    except TypeError as error:  # orjson's JSONEncodeError is one
        raise InvalidParams(f"the body cannot be written as JSON: {error}") from error
    if b"null" in encoded and not _is_finite(body):  # the encoder writes null for a number that is none
        raise InvalidParams("the body cannot be written as JSON: a number is not finite")
    return encoded


def _is_finite(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, (list, tuple)) or all(map(_is_finite, value))


def request(
    names: n.Names,
    agent: str,
    operation: str,
    body: bytes,
    *,
    message_id: str,
    address: Address,
    deadline: float,
    now: float,
    user: str | None,
    app_id: str,
    authorization: str | None = None,
    headers: Mapping[str, str] = _NO_HEADERS,
    attempt: int = 1,
) -> Outgoing:
    """One attempt at a request. Its parts have been checked with `check_request`."""
    all_headers: dict[str, Any] = {n.A2A_VERSION: n.VERSION, n.DEADLINE: time.write(deadline), **headers}
    if authorization is not None:
        all_headers[n.AUTHORIZATION] = authorization
    if attempt > 1:
        all_headers[n.ATTEMPT] = attempt
    return Outgoing(
        names.requests,
        names.key(agent, operation),
        body,
        Properties(
            type=operation,
            content_type=n.MEDIA_TYPE,
            message_id=message_id,
            correlation_id=address.correlation_id,
            reply_to=address.reply_to,
            expiration=max(1, int((deadline - now) * 1000)),
            timestamp=int(now),
            user_id=user,
            app_id=app_id,
            persistent=True,
            headers=all_headers,
        ),
    )


def message_id(body: Mapping[str, Any] | bytes) -> str | None:
    """The key of the message in a body that is not encoded yet."""
    message = body.get("message") if isinstance(body, Mapping) else None
    found = message.get("messageId") if isinstance(message, Mapping) else None
    return found if isinstance(found, str) else None


def check_request(operation: str, message_id: str, body: bytes, headers: Mapping[str, str], limits: Limits) -> None:
    """What a receiver would refuse, a sender refuses first. Raises the same `BusError`."""
    if operation not in n.OPERATIONS:
        raise MethodNotFound(f"no such operation: {operation}")
    _check_message_id(message_id)
    _check_size(body, limits)
    if headers:
        for name in headers:
            if name in n.SET_BY_BINDING or not (name.startswith("a2a-") or name in (n.TRACEPARENT, n.TRACESTATE)):
                raise InvalidParams(f"{name} is not a header that a caller sets")
        _check_headers({**_ALWAYS, **headers}, limits)
        _check_depth(headers, limits)


def check_parts(body: Mapping[str, Any], limits: Limits) -> None:
    """Raises `InvalidRequest` for a message of more parts than there may be."""
    message = body.get("message")
    parts = message.get("parts") if isinstance(message, Mapping) else None
    if isinstance(parts, Sequence) and len(parts) > limits.parts and not isinstance(parts, str):
        raise InvalidRequest(
            f"the message has {len(parts)} parts, more than {limits.parts}", metadata={"maxParts": str(limits.parts)}
        )


def return_address(names: n.Names, properties: Properties) -> Address | None:
    """Where a request can be answered; None when it can't or must not be."""
    reply_to, correlation_id = properties.reply_to, properties.correlation_id
    if not reply_to or not correlation_id or not names.allows_reply_to(reply_to, properties.user_id):
        return None
    return Address(reply_to, correlation_id)


def write_address(address: Address) -> str:
    """An address as text that `read_address` reads."""
    return orjson.dumps(list(address)).decode()


def read_address(names: n.Names, text: str) -> Address:
    """The address in a text. Raises `InvalidParams` for anything else."""
    try:
        reply_to, correlation_id = orjson.loads(text)
    except (ValueError, TypeError):
        raise InvalidParams("this is no address of a caller") from None
    known = isinstance(reply_to, str) and isinstance(correlation_id, str)
    if not known or not correlation_id or not names.allows_reply_to(reply_to, None):
        raise InvalidParams("this is no address of a caller")
    return Address(reply_to, correlation_id)


def read_request(agent: str, message: Incoming, limits: Limits, now: float) -> Request:
    """The request in a delivery. Raises the `BusError` to answer with; a deadline that has passed is no error here."""
    properties, body = message.properties, message.body
    if properties.flaw is not None:
        raise InvalidRequest(f"the message's properties cannot be read: {properties.flaw}")
    headers = properties.headers
    if headers.get(n.A2A_VERSION) != n.VERSION:
        raise VersionNotSupported(f"the header {n.A2A_VERSION} has to be {n.VERSION}")
    if properties.content_type not in n.MEDIA_TYPES or properties.content_encoding not in (None, "identity"):
        raise ContentTypeNotSupported(f"the content type has to be {n.MEDIA_TYPE}, without an encoding")
    operation = properties.type
    if not operation:
        raise InvalidRequest("the property type has to name the operation")
    if operation not in n.OPERATIONS:
        raise MethodNotFound
    message_id = properties.message_id or ""
    _check_message_id(message_id)
    _check_size(body, limits)
    _check_headers(headers, limits)
    _check_depth(headers, limits)
    payload = read_object(body, limits.depth)
    check_parts(payload, limits)
    sent = payload.get("message")
    if isinstance(sent, dict) and sent.get("messageId", message_id) != message_id:
        raise InvalidRequest("the property message_id and the message's messageId differ")
    return Request(
        agent=agent,
        operation=operation,
        message_id=message_id,
        body=body,
        payload=payload,
        deadline=_read_deadline(headers.get(n.DEADLINE), limits, now),
        authorization=_text(headers, n.AUTHORIZATION),
        caller=properties.user_id,
        tenant=_tenant(headers, payload),
        traceparent=_text(headers, n.TRACEPARENT),
        tracestate=_text(headers, n.TRACESTATE),
        redelivered=message.redelivered,
        headers={
            name: value if isinstance(value, str) else str(value).lower()
            for name, value in headers.items()
            if name not in _APART and name.startswith("a2a-")
        },
    )


def reply(
    address: Address,
    operation: str | None,
    body: bytes,
    *,
    responder: str,
    error: bool = False,
    sequence: int = 0,
    final: bool = True,
    stream: str | None = None,
    headers: Mapping[str, str | int | bool] = _NO_SCALARS,
) -> Outgoing:
    """A reply to a request, for the default exchange: the only one, or one of a stream."""
    all_headers: dict[str, Any] = {n.SEQUENCE: sequence}
    if final:
        all_headers[n.FINAL] = True
    all_headers[n.RESPONDER] = responder
    if error:
        all_headers[n.ERROR] = True
    if stream is not None:
        all_headers[n.STREAM] = stream
    if headers:
        all_headers |= headers
    return Outgoing(
        "",
        address.reply_to,
        body,
        Properties(
            type=operation,
            content_type=n.MEDIA_TYPE,
            correlation_id=address.correlation_id,
            persistent=final,
            headers=all_headers,
        ),
    )


def error_reply(
    address: Address,
    operation: str | None,
    error: BusError,
    *,
    responder: str,
    sequence: int = 0,
    stream: str | None = None,
) -> Outgoing:
    """The reply that says what went wrong."""
    try:
        body = orjson.dumps(error.as_json())
    except TypeError:  # an agent's text that UTF-8 can't hold, metadata that are no strings
        body = orjson.dumps(InternalError().as_json())
    return reply(address, operation, body, responder=responder, error=True, sequence=sequence, stream=stream)


def check_reply_headers(headers: Mapping[str, Any], limits: Limits) -> None:
    """Raises `InvalidAgentResponse` for headers that an agent may not set."""
    for name in headers:
        if not name.startswith("a2a-") or name in n.SET_BY_SERVER:
            raise InvalidAgentResponse(f"{name} is not a header that an agent sets")
    try:
        _check_headers(headers, limits)
    except BusError as error:
        raise InvalidAgentResponse(f"the headers of the agent's response: {error.message}") from error


def read_reply(message: Incoming, limits: Limits) -> dict[str, Any]:
    """The response object of a final reply. Raises the error that it carries, or `InvalidAgentResponse`."""
    properties = message.properties
    if properties.flaw is not None:
        raise InvalidAgentResponse(f"the reply's properties cannot be read: {properties.flaw}")
    try:
        _check_size(message.body, limits)
        body = read_object(message.body, limits.depth)
    except BusError as error:
        raise InvalidAgentResponse(f"the reply cannot be read: {error.message}") from error
    if properties.headers.get(n.ERROR) is True:
        raise from_json(body)
    return body


def read_object(body: bytes, depth: int) -> dict[str, Any]:
    """The JSON object in a body. Raises `ParseError` for what is not JSON, `InvalidRequest` for another shape."""
    try:
        value = orjson.loads(body)
    except ValueError as error:
        raise ParseError(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRequest("the body is not a JSON object")
    check_depth(value, body, depth)
    return value


def check_depth(value: Any, encoded: bytes, depth: int) -> None:
    """Raises `InvalidRequest` for a value, and its encoding, that nests deeper than it may."""
    # No value nests deeper than it has opening brackets; few have enough of them to be worth a walk.
    if encoded.count(b"{") + encoded.count(b"[") > depth and _deeper_than(value, depth):
        raise InvalidRequest(f"the body nests deeper than {depth} levels")


def _deeper_than(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _check_message_id(message_id: str) -> None:
    if not message_id:
        raise InvalidRequest("the property message_id is missing")
    if len(message_id.encode(errors="replace")) > n.SHORT:
        raise InvalidRequest(f"a message id has at most {n.SHORT} bytes")


def _check_size(body: bytes, limits: Limits) -> None:
    if len(body) > limits.body:
        raise InvalidRequest(
            f"the body has {len(body)} bytes, more than {limits.body}", metadata={"maxMessageBytes": str(limits.body)}
        )


@lru_cache(maxsize=1024)
def _is_name(name: str) -> bool:
    return 0 < len(name) <= 128 and name.isascii() and name.isprintable() and " " not in name and name == name.lower()


def _check_headers(headers: Mapping[str, Any], limits: Limits) -> None:
    total = 0
    for name, value in headers.items():
        if name.startswith("x-"):  # the broker's own, such as x-death
            continue
        if not _is_name(name):
            raise InvalidRequest("a header's name is 1 to 128 lower-case ASCII characters")
        if isinstance(value, str):
            total += len(name) + (len(value) if value.isascii() else len(value.encode(errors="replace")))
        elif isinstance(value, int):
            total += len(name) + 8
        else:
            raise InvalidRequest("a header's value is a string, an integer or a boolean", metadata={"header": name})
    if total > limits.headers:
        raise InvalidRequest(f"the headers have {total} bytes, more than {limits.headers}")


def _check_depth(headers: Mapping[str, Any], limits: Limits) -> None:
    value = headers.get(n.DEPTH)
    if value is None:
        return
    text = str(value)
    if isinstance(value, bool) or not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise InvalidRequest(f"the header {n.DEPTH} is not a whole number")
    if int(text) > limits.hops:
        raise InvalidRequest(
            f"more than {limits.hops} calls stand above this one: do agents call each other in a circle?",
            metadata={"maxDepth": str(limits.hops)},
        )


def _text(headers: Mapping[str, Any], name: str) -> str | None:
    value = headers.get(name)
    if value is None or isinstance(value, str):
        return value
    raise InvalidRequest(f"the header {name} is not a string")


def _tenant(headers: Mapping[str, Any], payload: Mapping[str, Any]) -> str | None:
    told, said = _text(headers, n.TENANT), payload.get("tenant")
    if not isinstance(said, str) or not said:
        return told
    if told is not None and told != said:
        raise InvalidRequest(f"the header {n.TENANT} and the body's tenant differ")
    return said


def _read_deadline(value: Any, limits: Limits, now: float) -> float | None:
    if value is None:
        return None
    try:
        deadline = time.read(value) if isinstance(value, str) else None
    except ValueError:
        deadline = None
    if deadline is None:
        raise InvalidRequest(f"the header {n.DEADLINE} is not an RFC 3339 time in UTC")
    if deadline > now + limits.horizon + limits.skew:
        raise InvalidRequest(f"the deadline lies more than {limits.horizon:g} s ahead")
    return deadline
