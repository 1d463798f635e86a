"""The measure: a durable request and reply written plainly with aio-pika, as its documentation shows it.

Persistent requests to a quorum queue, confirmed; manual acknowledgement after the reply; replies to an exclusive
queue. Nothing is checked, signed, granted or logged.
"""

import asyncio
import uuid
from typing import Any

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

QUORUM: Any = {"x-queue-type": "quorum"}


async def serve(url: str, queue_name: str) -> None:
    """Echo until cancelled."""
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel(publisher_confirms=True)
        await channel.set_qos(prefetch_count=64)
        queue = await channel.declare_queue(queue_name, durable=True, arguments=QUORUM)

        async def answer(message: AbstractIncomingMessage) -> None:
            await channel.default_exchange.publish(
                aio_pika.Message(message.body, correlation_id=message.correlation_id),
                routing_key=message.reply_to or "",
                mandatory=False,
            )
            await message.ack()

        await queue.consume(answer)
        print("ready", flush=True)
        await asyncio.Future()


class Caller:
    """The client of `serve`."""

    def __init__(self, url: str, queue_name: str) -> None:
        self._url = url
        self._queue_name = queue_name
        self._waiting: dict[str, asyncio.Future[bytes]] = {}

    async def open(self) -> None:
        self._connection = await aio_pika.connect(self._url)
        self._channel = await self._connection.channel(publisher_confirms=True)
        self._replies = await self._channel.declare_queue(exclusive=True)
        await self._replies.consume(self._settle, no_ack=True)

    async def _settle(self, message: AbstractIncomingMessage) -> None:
        self._waiting.pop(message.correlation_id or "").set_result(message.body)

    async def call(self, body: bytes) -> bytes:
        key = uuid.uuid4().hex
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[key] = reply
        message = aio_pika.Message(
            body, correlation_id=key, reply_to=self._replies.name, delivery_mode=aio_pika.DeliveryMode.PERSISTENT
        )
        await self._channel.default_exchange.publish(message, routing_key=self._queue_name)
        return await reply

    async def close(self) -> None:
        """Delete the queue and go."""
        await self._channel.queue_delete(self._queue_name)
        await self._connection.close()
