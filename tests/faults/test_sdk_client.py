"""A client of the SDK whose broker is killed and started again in the middle of a call and of a stream."""

import asyncio
from pathlib import Path

import pytest

from deploy.rabbitmq import PrivateNode
from tests.conformance.agents import SdkHandler, Skills
from tests.conformance.callers import short
from tests.conformance.stage import RabbitStage, until

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("kind", ["native", "sdk"])
async def test_a_call_and_a_stream_outlive_their_broker(
    rabbitmq_node: PrivateNode, unique_prefix: str, tmp_path: Path, kind: str
) -> None:
    async with RabbitStage(unique_prefix, rabbitmq_node.url) as stage:
        stand = Skills(stage, tmp_path) if kind == "native" else SdkHandler(stage)
        async with stand:
            caller = await stand.caller("sdk")
            caller.limit = 100.0
            operations = ("SendMessage", "SendStreamingMessage")
            calls = [asyncio.create_task(caller.call(each, {"message": stand.message("wait")})) for each in operations]
            await until(lambda: stand.runs == 2)
            await asyncio.to_thread(rabbitmq_node.settle)  # the queue is new
            await asyncio.to_thread(rabbitmq_node.kill)
            await asyncio.to_thread(rabbitmq_node.start)
            running = await caller.call("ListTasks", {"status": "TASK_STATE_WORKING"})
            for task in running["tasks"]:
                assert short(await caller.call("CancelTask", {"id": task["id"]})).startswith("CANCELED")
            answer, events = await asyncio.gather(*calls)
            assert short(answer).startswith("CANCELED")
            assert short(events[-1]).lower().startswith("canceled")
            assert stand.runs == 2
