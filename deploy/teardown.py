"""Taking down what an agent left standing on a RabbitMQ broker, for agents that were only shown or tried."""

import aio_pika

from bus import Names


async def remove(url: str, names: Names, agent: str) -> None:
    """Delete the queues of an agent with all that is in them, and the exchanges of its prefix."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        for queue in (names.queue(agent), names.dead):
            await channel.queue_delete(queue)
        for exchange in (names.requests, names.dead):
            await channel.exchange_delete(exchange)
