"""Push notifications of an a2a-sdk request handler that is served over this bus."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from a2a.helpers.proto_helpers import new_text_message
from a2a.server.request_handlers.default_request_handler_v2 import DefaultRequestHandlerV2
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError
from google.protobuf.json_format import ParseDict

import bus
from bus import Backoff
from bus.destination import Policy
from bus.sdk import AmqpTransport, sdk_agent
from bus.sdk.push import WebhookSender, validator
from bus.webhook import Webhooks
from tests.bus.test_destination import Names
from tests.conformance import executor
from tests.conformance.stage import Stage, soon
from tests.webhooks import HANG, Receiver

LOCAL = ["127.0.0.0/8"]


@dataclass
class House:
    client: AmqpTransport
    sender: WebhookSender
    names: Names

    async def config(self, task_id: str, url: str, **more: object) -> pb.TaskPushNotificationConfig:
        said = ParseDict({"taskId": task_id, "url": url, **more}, pb.TaskPushNotificationConfig())
        async with asyncio.timeout(20):
            return await self.client.create_task_push_notification_config(said)

    async def send(self, text: str, url: str, **more: object) -> list[pb.StreamResponse]:
        config = ParseDict({"url": url, **more}, pb.TaskPushNotificationConfig())
        request = pb.SendMessageRequest(
            message=new_text_message(text, role=pb.ROLE_USER),
            configuration=pb.SendMessageConfiguration(task_push_notification_config=config),
        )
        return [event async for event in self.client.send_message_streaming(request)]


@pytest.fixture
async def house(stage: Stage) -> AsyncIterator[House]:
    names = Names(["127.0.0.1"])
    webhooks = Webhooks(Policy(LOCAL, http=True, resolve=names), timeout=0.5)
    configs = InMemoryPushNotificationConfigStore()
    sender = WebhookSender(configs, webhooks, attempts=3, backoff=Backoff(first=0.01, most=0.05))
    url = bus.Interface("sample", "broker.test", 5671, prefix=stage.prefix).url
    card = executor.card(pb.AgentInterface(url=url, protocol_binding=bus.BINDING, protocol_version="1.0"))
    handler = DefaultRequestHandlerV2(
        executor.Sample(),
        InMemoryTaskStore(),
        card,
        push_config_store=configs,
        push_sender=sender,
        push_url_validator=validator(webhooks.policy),
    )
    server = await stage.serve("sample", sdk_agent(handler))
    client = AmqpTransport(stage.client_target, "sample", card=card, prefix=stage.prefix)
    yield House(client, sender, names)
    await client.close()
    await server.stop(0)
    await handler.aclose()
    await sender.aclose()
    await webhooks.close()


async def test_the_four_operations(house: House) -> None:
    (first, *_) = await soon(house.send("work", "http://hooks.test:1/hook", id="sent"))
    task_id = first.task.id
    made = await house.config(task_id, "http://hooks.test:1/other", id="made", token="t-1")
    assert (made.task_id, made.id, made.url) == (task_id, "made", "http://hooks.test:1/other")
    wanted = pb.GetTaskPushNotificationConfigRequest(task_id=task_id, id="made")
    assert await soon(house.client.get_task_push_notification_config(wanted)) == made
    everything = pb.ListTaskPushNotificationConfigsRequest(task_id=task_id)
    found = await soon(house.client.list_task_push_notification_configs(everything))
    assert {config.id for config in found.configs} == {"sent", "made"}
    gone = pb.DeleteTaskPushNotificationConfigRequest(task_id=task_id, id="made")
    await soon(house.client.delete_task_push_notification_config(gone))
    with pytest.raises(TaskNotFoundError):
        await soon(house.client.get_task_push_notification_config(wanted))
    with pytest.raises(TaskNotFoundError):
        await house.config("absent", "http://hooks.test:1/")


async def test_a_receiver_is_told_what_a_client_sees(house: House) -> None:
    async with Receiver(answers=deque([500])) as receiver:
        url = f"http://hooks.test:{receiver.port}/hook"
        secrets = {"token": "t-1", "authentication": {"scheme": "Bearer", "credentials": "c-1"}}
        events = await soon(house.send("work", url, **secrets))
        posted = await receiver.count(len(events) + 1)
    assert posted[0].body == posted[1].body
    told = [ParseDict(each.json, pb.StreamResponse()) for each in posted[1:]]
    assert [each.WhichOneof("payload") for each in told] == [each.WhichOneof("payload") for each in events]
    assert told[-1].status_update.status.state == pb.TASK_STATE_COMPLETED
    for each in posted:
        assert each.headers["content-type"] == "application/a2a+json"
        assert each.headers["authorization"] == "Bearer c-1"
        assert each.headers["x-a2a-notification-token"] == "t-1"


async def test_a_receiver_that_hangs_holds_up_neither_the_task_nor_the_others(house: House) -> None:
    async with Receiver(always=HANG) as hanging, Receiver() as receiver:
        (first, *_) = await soon(house.send("work", f"http://hooks.test:{hanging.port}/hook"))
        assert first.WhichOneof("payload") == "task"
        events = await soon(house.send("work", f"http://hooks.test:{receiver.port}/hook"))
        await receiver.count(len(events))
        assert len(hanging.posted) <= 3


@pytest.mark.parametrize("url", ["http://10.0.0.1/", "https://user:hush@hooks.test/", "file:///etc/passwd"])
async def test_a_url_is_checked_when_it_is_registered(house: House, url: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InvalidParamsError):
        await soon(house.send("work", url))
    (first, *_) = await soon(house.send("work", "http://hooks.test:1/"))
    with pytest.raises(InvalidParamsError):
        await house.config(first.task.id, url)
    assert "hush" not in "".join(record.getMessage() for record in caplog.records if record.name.startswith("bus"))


async def test_a_url_is_checked_again_when_it_is_used(house: House, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    house.names.answers = [["127.0.0.1"], ["169.254.169.254"]]
    async with Receiver() as receiver:
        await soon(house.send("work", f"http://hooks.test:{receiver.port}/hook"))
        await house.sender.aclose(10)
        assert receiver.posted == []
    assert "not public" in caplog.text


async def test_a_redirect_and_a_refusal_are_given_up(house: House) -> None:
    async with Receiver() as inner, Receiver(always=(302, {"Location": inner.url})) as receiver:
        events = await soon(house.send("work", f"http://hooks.test:{receiver.port}/hook"))
        await receiver.count(len(events))
        await house.sender.aclose(10)
        assert inner.posted == []
        assert len(receiver.posted) == len(events)


async def test_closing_lets_go_of_what_waits(house: House) -> None:
    async with Receiver(always=HANG) as hanging:
        await soon(house.send("work", f"http://hooks.test:{hanging.port}/hook"))
        await hanging.count(1)
        await asyncio.wait_for(house.sender.aclose(), 10)
