"""What is malformed is answered where it can be and dead-lettered where it can't, and the server goes on."""

from typing import Any

import orjson
import pytest

from bus import Limits, Reply, Request
from tests.conformance.stage import Stage, until

BODY = b'{"message":{"messageId":"m-1","role":"ROLE_USER","parts":[]}}'

ANSWERED: dict[str, tuple[bytes, dict[str, Any], int]] = {
    "no JSON": (b"certainly", {}, -32700),
    "empty": (b"", {}, -32700),
    "cut short": (BODY[:-1], {}, -32700),
    "more after the end": (BODY + b"{}", {}, -32700),
    "no UTF-8": (b'{"a":"\xff"}', {}, -32700),
    "half a surrogate pair": (b'{"a":"\\ud800"}', {}, -32700),
    "byte order mark": (b"\xef\xbb\xbf{}", {}, -32700),
    "NaN": (b'{"a":NaN}', {}, -32700),
    "infinity": (b'{"a":1e999}', {}, -32700),
    "nested beyond the parser": (b"[" * 5000 + b"]" * 5000, {}, -32700),
    "nested too deep": (b'{"a":' * 65 + b"1" + b"}" * 65, {}, -32600),
    "array": (b"[]", {}, -32600),
    "string": (b'"text"', {}, -32600),
    "null": (b"null", {}, -32600),
    "too large": (b'{"a":"' + b"x" * 2000 + b'"}', {}, -32600),
    "too many parts": (b'{"message":{"parts":[' + b"1," * 1000 + b"1]}}", {}, -32600),
    "another message id": (BODY, {"message_id": "m-2"}, -32600),
    "no message id": (BODY, {"message_id": None}, -32600),
    "empty message id": (BODY, {"message_id": ""}, -32600),
    "no type": (BODY, {"type": None}, -32600),
    "unknown type": (BODY, {"type": "DropTables"}, -32601),
    "type in lower case": (BODY, {"type": "sendmessage"}, -32601),
    "no content type": (BODY, {"content_type": None}, -32005),
    "other content type": (BODY, {"content_type": "text/plain"}, -32005),
    "encoded": (BODY, {"content_encoding": "gzip"}, -32005),
    "no version": (BODY, {"headers": {"a2a-version": None}}, -32009),
    "old version": (BODY, {"headers": {"a2a-version": "0.3"}}, -32009),
    "version as a number": (BODY, {"headers": {"a2a-version": 1}}, -32009),
    "deadline as a number": (BODY, {"headers": {"a2a-deadline": 1_700_000_000}}, -32600),
    "deadline in words": (BODY, {"headers": {"a2a-deadline": "tomorrow"}}, -32600),
    "deadline without a zone": (BODY, {"headers": {"a2a-deadline": "2026-11-30T15:01:00"}}, -32600),
    "deadline in another zone": (BODY, {"headers": {"a2a-deadline": "2026-11-30T15:01:00+02:00"}}, -32600),
    "deadline on no day": (BODY, {"headers": {"a2a-deadline": "2026-02-30T15:01:00Z"}}, -32600),
    "deadline in a century": (BODY, {"headers": {"a2a-deadline": "2126-11-30T15:01:00Z"}}, -32600),
    "deadline long ago": (BODY, {"headers": {"a2a-deadline": "1999-11-30T15:01:00Z"}}, -31008),
    "header in upper case": (BODY, {"headers": {"A2A-Extensions": "x"}}, -32600),
    "header with a space": (BODY, {"headers": {"a2a extensions": "x"}}, -32600),
    "header without a name": (BODY, {"headers": {"": "x"}}, -32600),
    "header with a long name": (BODY, {"headers": {"a" * 129: "x"}}, -32600),
    "header with a fraction": (BODY, {"headers": {"a2a-load": 0.5}}, -32600),
    "headers too large together": (BODY, {"headers": {f"a2a-{n}": "x" * 1000 for n in range(17)}}, -32600),
    "headers too large": (BODY, {"headers": {"a2a-extensions": "x" * 17_000}}, -32600),
    "authorization as a number": (BODY, {"headers": {"a2a-authorization": 7}}, -32600),
    "tenant as a boolean": (BODY, {"headers": {"a2a-tenant": True}}, -32600),
}

REPLY_QUEUE = "{prefix}.reply.{user}.0123456789abcdef"

DEAD_LETTERED: dict[str, dict[str, Any]] = {
    "no reply address": {"reply_to": None},
    "empty reply address": {"reply_to": ""},
    "a work queue as reply address": {"reply_to": "{prefix}.q.fine"},
    "the dead-letter queue as reply address": {"reply_to": "{prefix}.dead"},
    "another prefix": {"reply_to": "other.reply.{user}.0123456789abcdef"},
    "another user's queue": {"reply_to": "{prefix}.reply.somebody.0123456789abcdef"},
    "a queue of a user whose name goes on": {"reply_to": "{prefix}.reply.{user}.more.0123456789abcdef"},
    "the prefix alone": {"reply_to": "{prefix}.reply."},
    "the user alone": {"reply_to": "{prefix}.reply.{user}."},
    "no correlation id": {"correlation_id": None},
    "empty correlation id": {"correlation_id": ""},
    "nothing at all": {
        "reply_to": None,
        "correlation_id": None,
        "type": None,
        "message_id": None,
        "content_type": None,
    },
}


async def fine(request: Request, reply: Reply) -> None:
    await reply.send({"body": request.body.decode()})


@pytest.mark.parametrize("name", ANSWERED)
async def test_answered(stage: Stage, name: str) -> None:
    body, properties, code = ANSWERED[name]
    server = await stage.serve("fine", fine, limits=Limits(body=1500) if name == "too large" else None)
    box = await stage.listen()
    await stage.publish("fine", body, **{"reply_to": box.address, "correlation_id": "c-1", **properties})
    reply = await box.next()
    assert reply.properties.correlation_id == "c-1"
    assert reply.properties.type == properties.get("type", "SendMessage")
    assert reply.properties.content_type == "application/a2a+json"
    assert reply.properties.headers["a2a-error"] is True
    assert reply.properties.headers["a2a-final"] is True
    error = orjson.loads(reply.body)
    assert error["code"] == code
    assert error["details"][0]["@type"] == "type.googleapis.com/google.rpc.ErrorInfo"
    await until(lambda: server.stats().refused == 1)
    await lives(stage)


@pytest.mark.parametrize("name", DEAD_LETTERED)
async def test_dead_lettered(stage: Stage, name: str) -> None:
    server = await stage.serve("fine", fine)
    dead = await stage.dead_letters()
    words = {"prefix": stage.prefix, "user": stage.driver.user}
    properties = {"reply_to": REPLY_QUEUE, "correlation_id": "c-1", **DEAD_LETTERED[name]}
    address = properties["reply_to"]
    await stage.publish("fine", BODY, **{**properties, "reply_to": address and address.format(**words)})
    letter = await dead.next()
    assert letter.body == BODY
    assert letter.properties.headers["x-death"][0]["reason"] == "rejected"
    assert letter.properties.headers["x-death"][0]["queue"] == stage.names.queue("fine")
    assert server.stats().dead_lettered == 1
    await lives(stage)


async def test_without_a_vouched_user_any_reply_queue_will_do(stage: Stage) -> None:
    await stage.serve("fine", fine)
    box = await stage.listen()
    await stage.publish("fine", BODY, reply_to=box.address, correlation_id="c-1", user_id=None)
    assert orjson.loads((await box.next()).body) == {"body": BODY.decode()}


async def test_plain_json_and_an_identity_encoding_are_taken(stage: Stage) -> None:
    await stage.serve("fine", fine)
    box = await stage.listen()
    plain = {"content_type": "application/json", "content_encoding": "identity"}
    await stage.publish("fine", BODY, reply_to=box.address, correlation_id="c-1", **plain)
    reply = await box.next()
    assert reply.properties.headers.get("a2a-error") is None
    assert reply.properties.headers["a2a-seq"] == 0
    assert reply.properties.headers["a2a-responder"].startswith("fine/")
    assert reply.properties.persistent


async def test_headers_of_the_broker_are_left_alone(stage: Stage) -> None:
    seen: list[Request] = []

    async def agent(request: Request, reply: Reply) -> None:
        seen.append(request)
        await reply.send({})

    await stage.serve("fine", agent)
    box = await stage.listen()
    headers = {"x-odd": 0.5, "X-Mine": "y", "a2a-seq": 4, "a2a-flag": True}
    headers.pop("X-Mine")
    await stage.publish("fine", BODY, reply_to=box.address, correlation_id="c-1", headers=headers)
    reply = await box.next()
    assert seen[0].headers == {"a2a-seq": "4", "a2a-flag": "true"}
    assert not [name for name in reply.properties.headers if name.startswith("x-")]


async def lives(stage: Stage) -> None:
    """The server still answers."""
    client = await stage.connect()
    assert await client.send("fine", {"messageId": "after", "parts": []})
