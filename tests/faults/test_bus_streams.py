"""Streams whose broker or whose worker dies in the middle go on, and nothing of them is lost or told twice."""

import asyncio
import os
import signal
import sys
from typing import Any

import orjson

import bus
from bus import Backoff, Patience, Reply, Request, Retry, State
from deploy.rabbitmq import PrivateNode
from tests.conformance.stage import soon, until

PATIENCE = Patience(connect=30.0, confirm=20.0, backoff=Backoff(first=0.05, most=0.5))
RETRY = Retry(attempts=10, first_reply=20.0, pause=0.1)
SETTLED = 2.5  # see test_bus_broker
STREAMS, EVENTS, HELD = 20, 30, 10


class Tasks:
    """An agent whose tasks have logs, and stop in the middle until they may go on."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.runs: dict[str, int] = {}
        self.sent = 0

    async def __call__(self, request: Request, reply: Reply) -> None:
        after = -1
        if request.operation == "SubscribeToTask":
            key = request.payload["id"]
            after = int(request.headers["a2a-after-seq"])
            task = {"id": key, "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}
            await reply.send({"task": task}, final=False, headers={"a2a-task-seq": after})
        else:
            key = request.message_id
            self.runs[key] = self.runs.get(key, 0) + 1
        for place in range(after + 1, EVENTS):
            if place == HELD:
                self.sent += 1
                await self.opened.wait()
            body = {"artifactUpdate": {"taskId": key, "artifact": {"parts": [{"data": place}]}}}
            headers: dict[str, str | int | bool] = {"a2a-task-id": key, "a2a-task-seq": place}
            await reply.send(orjson.dumps(body), final=place == EVENTS - 1, headers=headers)


async def test_twenty_streams_survive_a_killed_broker(rabbitmq_node: PrivateNode, unique_prefix: str) -> None:
    agent = Tasks()
    serving = bus.serve(rabbitmq_node.url, "tasks", agent, prefix=unique_prefix, patience=PATIENCE)
    connecting = bus.connect(rabbitmq_node.url, prefix=unique_prefix, patience=PATIENCE, retry=RETRY)
    async with await serving as server, await connecting as client:
        seen: list[list[Any]] = [[] for _ in range(STREAMS)]

        async def listen(number: int) -> None:
            message = {"message": {"messageId": f"t-{number}", "role": "ROLE_USER", "parts": []}}
            async for event in client.stream("tasks", "SendStreamingMessage", message):
                seen[number].append(event.body["artifactUpdate"]["artifact"]["parts"][0]["data"])

        await asyncio.sleep(SETTLED)
        listening = asyncio.gather(*(listen(number) for number in range(STREAMS)))
        await until(lambda: agent.sent == STREAMS and all(len(events) == HELD for events in seen))
        await asyncio.to_thread(rabbitmq_node.kill)
        await until(lambda: server.state is not State.CONNECTED and client.state is not State.CONNECTED)
        agent.opened.set()
        await asyncio.to_thread(rabbitmq_node.start)
        await soon(listening, 60)
        assert seen == [list(range(EVENTS))] * STREAMS
        assert client.stats().pending == 0
        assert not client._pending._by_id
        await until(lambda: server.stats().running == 0)
        assert server._work.held == 0


async def test_a_stream_survives_its_worker(rabbitmq_url: str, unique_prefix: str) -> None:
    """The worker is killed; its request is delivered to the next one, whose run is another stream."""
    program = (
        "import asyncio, sys\nimport bus\nfrom tests.faults.test_bus_streams import Tasks\n"
        "async def main():\n"
        "    server = await bus.serve(sys.argv[1], 'tasks', Tasks(), prefix=sys.argv[2])\n"
        "    print('ready', flush=True)\n"
        "    await server.wait_closed()\n"
        "asyncio.run(main())\n"
    )
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, rabbitmq_url, unique_prefix, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert worker.stdout is not None
        assert await soon(worker.stdout.readline()) == b"ready\n"
        async with await bus.connect(rabbitmq_url, prefix=unique_prefix, patience=PATIENCE, retry=RETRY) as client:
            seen = []
            agent = Tasks()
            agent.opened.set()
            server: bus.Server | None = None
            message = {"message": {"messageId": "t-1", "role": "ROLE_USER", "parts": []}}
            async for event in client.stream("tasks", "SendStreamingMessage", message):
                seen.append(event.task_seq)
                if len(seen) == HELD:
                    os.kill(worker.pid, signal.SIGKILL)
                    await worker.wait()
                    server = await bus.serve(rabbitmq_url, "tasks", agent, prefix=unique_prefix, patience=PATIENCE)
            assert seen == list(range(EVENTS))
            assert agent.runs == {"t-1": 1}
            assert server is not None
            await server.stop(0)
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()
        await bus.remove(rabbitmq_url, "tasks", prefix=unique_prefix)
