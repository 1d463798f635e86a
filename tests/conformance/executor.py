"""A sample agent of a2a-sdk: it answers, streams, asks for input, waits to be cancelled, and fails, as it is told."""

import asyncio

from a2a.client.client import Client
from a2a.helpers.proto_helpers import new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers.default_request_handler_v2 import DefaultRequestHandlerV2
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import ContentTypeNotSupportedError

from bus.sdk.transport import within


class Sample(AgentExecutor):
    """Does what the text of the message says."""

    def __init__(self) -> None:
        self.waiting = asyncio.Event()
        self.released = asyncio.Event()
        self.contexts: list[RequestContext] = []
        self.next: Client | None = None

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.contexts.append(context)
        message = context.message
        assert message is not None
        if self.next is not None:
            asked = pb.SendMessageRequest(message=new_text_message("echo", role=pb.ROLE_USER))
            async for _ in self.next.send_message(asked, context=within(context)):
                pass
        text = context.get_user_input()
        if text.startswith("echo"):
            await event_queue.enqueue_event(
                new_text_message(text.removeprefix("echo "), context_id=context.context_id, role=pb.ROLE_AGENT)
            )
            return
        task = context.current_task
        if task is None:
            task = new_task_from_user_message(message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        match text:
            case "work":
                for number in range(3):
                    await updater.add_artifact(
                        [new_text_part(f"part {number}")],
                        artifact_id="result",
                        name="result",
                        append=number > 0,
                        last_chunk=number == 2,
                    )
                await updater.complete(updater.new_agent_message([new_text_part("done")]))
            case "ask":
                await updater.requires_input(updater.new_agent_message([new_text_part("which one?")]))
            case "wait":
                self.waiting.set()
                await asyncio.Event().wait()
            case "hold":
                self.waiting.set()
                await self.released.wait()
                await updater.complete()
            case "leave":
                await updater.update_status(pb.TASK_STATE_WORKING)
            case "refuse":
                raise ContentTypeNotSupportedError("only text", data={"wanted": "text/plain"})
            case _:
                await updater.complete(updater.new_agent_message([new_text_part(f"answered: {text}")]))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def card(*interfaces: pb.AgentInterface) -> pb.AgentCard:
    return pb.AgentCard(
        name="sample",
        description="does what it is told",
        version="1",
        supported_interfaces=interfaces,
        capabilities=pb.AgentCapabilities(streaming=True, push_notifications=True, extended_agent_card=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[pb.AgentSkill(id="all", name="all", description="all", tags=["sample"])],
    )


def handler(executor: Sample, own_card: pb.AgentCard) -> DefaultRequestHandlerV2:
    extended = pb.AgentCard()
    extended.CopyFrom(own_card)
    extended.description = "does what it is told, and more"
    return DefaultRequestHandlerV2(
        executor,
        InMemoryTaskStore(),
        own_card,
        push_config_store=InMemoryPushNotificationConfigStore(),
        extended_agent_card=extended,
    )
