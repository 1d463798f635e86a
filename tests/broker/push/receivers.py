"""Houses that tell webhooks of their tasks, and the deliveries beside them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from broker.agent.agent import SkillAgent
from broker.ledger.ledger import Ledger
from broker.pipeline.pipeline import Pipeline
from broker.push.delivery import PushDelivery
from broker.sessions import Credential
from bus import Backoff
from bus.destination import Policy
from bus.webhook import Webhooks

from ..house import House, message

QUICK = Backoff(first=0.01, most=0.05)
LOCAL = Policy(["127.0.0.0/8"], http=True)


def house_with_push(
    pipeline: Pipeline, ledger: Ledger, credential: Credential, policy: Policy = LOCAL, **more: Any
) -> House:
    return House(SkillAgent("house", pipeline, ledger, version="1", push=policy, **more), credential)


class Deliveries:
    """Starts deliveries as workers do, and ends them."""

    def __init__(self, pipeline: Pipeline, ledger: Ledger) -> None:
        self._pipeline = pipeline
        self._ledger = ledger
        self._open = AsyncExitStack()

    def start(
        self, owner: str = "w1", *, policy: Policy = LOCAL, timeout: float = 10.0, **options: Any
    ) -> "asyncio.Task[None]":
        options = {"poll": 0.02, "backoff": QUICK, **options}
        webhooks = Webhooks(policy, timeout=timeout)
        delivery = PushDelivery("house", self._pipeline, self._ledger.outbox(owner), webhooks, **options)
        task = asyncio.create_task(delivery.run())
        self._open.push_async_callback(self.stop, task)
        return task

    @staticmethod
    async def stop(task: "asyncio.Task[None]") -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def __aenter__(self) -> "Deliveries":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()


async def deliveries_of(pipeline: Pipeline, ledger: Ledger) -> AsyncIterator[Deliveries]:
    async with Deliveries(pipeline, ledger) as deliveries:
        yield deliveries


def asking(skill: str, arguments: Any, url: str, *, message_id: str = "m1", **config: Any) -> dict[str, Any]:
    """A request to send a message whose task is told to a webhook."""
    return {
        "message": message(skill, arguments, message_id),
        "configuration": {"returnImmediately": True, "taskPushNotificationConfig": {"url": url, **config}},
    }
