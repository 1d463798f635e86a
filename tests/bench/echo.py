"""The bus alone: an agent that answers with what it was asked, a stream with as many events as it is asked for."""

import asyncio

import bus
from bus import Reply, Request
from bus.names import STREAMING


async def serve(url: str, agent: str) -> None:
    """Echo until cancelled."""
    async with await bus.serve(url, agent, echo):
        print("ready", flush=True)
        await asyncio.Future()


async def echo(request: Request, reply: Reply) -> None:
    """Answer with the request's body."""
    if request.operation in STREAMING:
        for _ in range(request.payload["events"] - 1):
            await reply.send(request.body, final=False)
    await reply.send(request.body)
