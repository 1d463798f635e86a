"""The bus alone: an agent that answers with what it was asked."""

import asyncio

import bus
from bus import Reply, Request


async def serve(url: str, agent: str) -> None:
    """Echo until cancelled."""

    async def echo(request: Request, reply: Reply) -> None:
        await reply.send(request.body)

    async with await bus.serve(url, agent, echo):
        print("ready", flush=True)
        await asyncio.Future()
