"""A worker process dies with calls in its hands; another one answers them."""

import asyncio
import os
import sys
from pathlib import Path

import bus
from bus import Reply, Request
from tests.conformance.stage import RabbitStage, soon, until

WORKER = """
import asyncio, sys, bus

async def agent(request, reply):
    print("started", request.message_id, flush=True)
    await asyncio.Event().wait()

async def main():
    async with await bus.serve(sys.argv[1], "echo", agent, prefix=sys.argv[2], slots=8):
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def answer(request: Request, reply: Reply) -> None:
    await reply.send({"id": request.message_id, "again": request.redelivered})


async def test_a_killed_worker_s_calls_are_another_s(rabbitmq_url: str, unique_prefix: str) -> None:
    async with RabbitStage(unique_prefix, rabbitmq_url) as stage:
        root = Path(bus.__file__).parent.parent
        worker = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WORKER, rabbitmq_url, unique_prefix,
            stdout=asyncio.subprocess.PIPE, cwd=root, env={**os.environ, "PYTHONPATH": str(root)},
        )  # fmt: skip
        try:
            client = await stage.connect()
            connection = await stage.raw()
            async with asyncio.timeout(20):
                while not await connection.consumers(stage.names.queue("echo")):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            ids = [f"k-{number}" for number in range(12)]
            calls = asyncio.gather(*(client.send("echo", {"messageId": key, "parts": []}) for key in ids))
            assert worker.stdout is not None
            for _ in range(8):
                assert b"started" in await soon(worker.stdout.readline())
            worker.kill()
            await worker.wait()
            server = await stage.serve("echo", answer)
            responses = await soon(calls)
            assert [response["id"] for response in responses] == ids
            assert sum(response["again"] for response in responses) == 8
            await until(lambda: server.stats().answered == 12)
        finally:
            if worker.returncode is None:
                worker.kill()
                await worker.wait()
