"""A client that was written from docs/binding.md and knows nothing else: not one line of the bus is imported here.

What it needs of each requirement stands beside its number, such as [T1].
"""

import asyncio
import base64
import hashlib
import json
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self
from urllib.parse import urlsplit

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractExchange, AbstractIncomingMessage, AbstractRobustConnection
from aio_pika.exceptions import DeliveryError, PublishError
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

MARGIN = 0.5


class Failure(Exception):
    """An error reply, or what this client reports by itself. [E1]"""

    def __init__(self, code: int, reason: str, metadata: dict[str, str] | None = None) -> None:
        super().__init__(f"{code} {reason}")
        self.code = code
        self.reason = reason
        self.metadata = metadata or {}


class Cut(Exception):
    """A stream broke off, which is not its end. [S3]"""


@dataclass(frozen=True)
class Key:
    """Signs requests. [J1]"""

    kid: str
    private: Ed25519PrivateKey

    def proof(self, agent: str, operation: str, message_id: str, body: bytes, deadline: float) -> str:
        """A value of `a2a-authorization` for one attempt. [J2] [J5]"""
        now = int(time.time())
        claims = {
            "iat": now,
            "exp": min(int(deadline) + 2, now + 24 * 3600),
            "aud": agent,
            "op": operation,
            "jti": message_id,
            "dig": "sha256:" + hashlib.sha256(body).hexdigest(),
        }
        parts = [_base64(json.dumps(part).encode()) for part in ({"alg": "EdDSA", "kid": self.kid}, claims)]
        signature = self.private.sign(".".join(parts).encode())
        return "Bearer " + ".".join([*parts, _base64(signature)])


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@dataclass(frozen=True)
class Event:
    """One event of a stream, with its place in the task's log. [S8]"""

    body: dict[str, Any]
    task_seq: int | None
    final: bool
    gap: bool

    @property
    def task_id(self) -> str:
        ((kind, found),) = self.body.items()
        return str(found["id" if kind == "task" else "taskId"])


class Blind:
    """One connection; `close` and `open` make another one, as after a loss."""

    def __init__(self, url: str, prefix: str, agent: str, key: Key) -> None:
        self._url = url
        self._prefix = prefix
        self._agent = agent
        self._key = key
        self._user = urlsplit(url).username or "guest"
        self._waiting: dict[str, asyncio.Queue[AbstractIncomingMessage]] = {}
        self._connection: AbstractRobustConnection | Any = None
        self._channel: AbstractChannel | Any = None
        self._requests: AbstractExchange | Any = None
        self._reply_to = ""

    async def open(self) -> Self:
        """[T1] and [T3]: confirms, a reply queue of a name that was never used."""
        self._connection = await aio_pika.connect(self._url)
        self._channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
        self._requests = await self._channel.declare_exchange(f"{self._prefix}.requests", "direct", durable=True)
        self._reply_to = f"{self._prefix}.reply.{self._user}.{uuid.uuid4().hex}"
        queue = await self._channel.declare_queue(self._reply_to, exclusive=True)
        await queue.consume(self._hear, no_ack=True)
        return self

    async def close(self) -> None:
        await self._connection.close()

    async def _hear(self, message: AbstractIncomingMessage) -> None:
        """[R2]: what nobody waits for is dropped. Nothing is awaited here, so the order is kept."""
        waiting = self._waiting.get(message.correlation_id or "")
        if waiting is not None:
            waiting.put_nowait(message)

    async def _publish(
        self,
        operation: str,
        body: bytes,
        message_id: str,
        *,
        seconds: float,
        headers: dict[str, Any],
        reply_to: str | None = None,
        properties: dict[str, Any] | None = None,
    ) -> str:
        """One attempt, with the properties of 3.2 and the headers of 3.4; its correlation id."""
        correlation_id = uuid.uuid4().hex
        self._waiting[correlation_id] = asyncio.Queue()
        deadline = time.time() + seconds
        moment = datetime.fromtimestamp(deadline, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        fields: dict[str, Any] = {
            "type": operation,
            "content_type": "application/a2a+json",
            "message_id": message_id,
            "correlation_id": correlation_id,
            "reply_to": reply_to or self._reply_to,
            "delivery_mode": 2,
            "user_id": self._user,
            "headers": {
                "a2a-version": "1.0",  # [V1]
                "a2a-deadline": moment,  # [D1]
                "a2a-authorization": self._key.proof(self._agent, operation, message_id, body, deadline),  # [A5]
                **headers,
            },
        }
        try:
            await self._requests.publish(
                aio_pika.Message(body, expiration=max(seconds, 0.001), **fields | (properties or {})),
                routing_key=self._agent,
                mandatory=True,
            )
        except DeliveryError as error:  # [T2]
            returned = isinstance(error, PublishError)
            raise (Failure(-31004, "SKILL_NOT_FOUND") if returned else Failure(-31014, "UNAVAILABLE")) from error
        return correlation_id

    async def dead(self) -> AbstractIncomingMessage:
        """The next message of the dead-letter queue."""
        queue = await self._channel.get_queue(f"{self._prefix}.dead")
        async with queue.iterator() as messages:
            message: AbstractIncomingMessage = await anext(messages)
            await message.ack()
            return message

    async def call(
        self,
        operation: str,
        body: dict[str, Any],
        *,
        message_id: str | None = None,
        seconds: float = 30.0,
        headers: dict[str, Any] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """The one reply to a request. [R1]"""
        message_id = message_id or body.get("message", {}).get("messageId") or uuid.uuid4().hex
        encoded = json.dumps(body).encode()
        correlation_id = await self._publish(
            operation, encoded, message_id, seconds=seconds, headers=headers or {}, **options
        )
        try:
            reply = await asyncio.wait_for(self._waiting[correlation_id].get(), seconds)
        except TimeoutError:
            raise Failure(-31008, "DEADLINE_EXCEEDED") from None
        finally:
            del self._waiting[correlation_id]
        assert reply.headers["a2a-final"] is True
        assert reply.headers["a2a-seq"] == 0
        return self._read(reply)

    async def stream(
        self,
        operation: str,
        body: dict[str, Any],
        *,
        idle: float = 30.0,
        headers: dict[str, str] | None = None,
    ) -> AsyncIterator[Event]:
        """The events of a stream up to its end. Raises `Cut` for anything that is not its end. [S1]"""
        message_id = body.get("message", {}).get("messageId") or uuid.uuid4().hex
        asked = {"a2a-keepalive": f"{max(idle / 3, 1):g}", **(headers or {})}  # [S6] [H2]
        correlation_id = await self._publish(
            operation, json.dumps(body).encode(), message_id, seconds=60, headers=asked
        )
        waiting = self._waiting[correlation_id]
        next_seq, run = 0, None
        while True:
            try:
                reply = await asyncio.wait_for(waiting.get(), idle)
            except TimeoutError:
                raise Cut("silence") from None
            found = reply.headers
            seq, final = found["a2a-seq"], found.get("a2a-final") is True
            assert isinstance(seq, int)
            run = run or found.get("a2a-stream")
            ends_badly = final and found.get("a2a-error") is True
            if run != found.get("a2a-stream") and not ends_badly:
                raise Cut("another run")  # [S4]
            if seq < next_seq and not ends_badly:
                continue
            if seq > next_seq and run == found.get("a2a-stream"):
                raise Cut("an event is missing")  # [S2]
            next_seq = seq + 1
            answer = self._read(reply)
            place = found.get("a2a-task-seq")
            if answer:
                yield Event(answer, place if isinstance(place, int) else None, final, found.get("a2a-gap") is True)
            if final:
                del self._waiting[correlation_id]
                return

    async def resume(self, task_id: str, after: int) -> AsyncIterator[Event]:
        """What a stream has after a place in the task's log. [S9] [S10] [S11]"""
        first = True
        try:
            async for event in self.stream("SubscribeToTask", {"id": task_id}, headers={"a2a-after-seq": str(after)}):
                known = first and "task" in event.body and not event.gap
                first = False
                if not event.final and (known or (event.task_seq is not None and event.task_seq <= after)):
                    continue
                yield event
        except Failure as failure:
            if failure.reason != "UNSUPPORTED_OPERATION" or not first:
                raise
            yield Event({"task": await self.call("GetTask", {"id": task_id})}, None, final=True, gap=True)

    @staticmethod
    def _read(reply: AbstractIncomingMessage) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(reply.body)
        if reply.headers.get("a2a-error") is not True:
            return body
        (info,) = body["details"]
        assert info["@type"] == "type.googleapis.com/google.rpc.ErrorInfo"
        raise Failure(body["code"], info["reason"], info.get("metadata"))


def within(deadline: float, root: str, depth: int) -> tuple[float, dict[str, str]]:
    """The seconds and the headers of a call on behalf of another one. [D3] [D4] [D5]"""
    left = deadline - MARGIN - time.time()
    if left <= 0:
        raise Failure(-31008, "DEADLINE_EXCEEDED")
    return left, {"a2a-root-task": root, "a2a-depth": str(depth + 1)}
