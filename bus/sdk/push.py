"""Push notifications of a2a-sdk handlers, sent nowhere but where `bus.destination` allows.

    webhooks = Webhooks(Policy())
    sender = WebhookSender(store, webhooks)
    handler = DefaultRequestHandlerV2(
        executor, tasks, card,
        push_config_store=store, push_sender=sender, push_url_validator=validator(webhooks.policy),
    )

The SDK's own sender resolves a name anew after it was checked, and follows what its HTTP client is set to follow.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

import orjson
from a2a.server.tasks import PushNotificationConfigStore, PushNotificationEvent, PushNotificationSender
from a2a.types import a2a_pb2 as pb
from a2a.utils.proto_utils import to_stream_response

from bus.destination import DestinationRefused, Policy, Unresolved
from bus.link import Backoff
from bus.names import MEDIA_TYPE, VERSION
from bus.sdk.agent import as_json
from bus.webhook import WebhookFailed, Webhooks

ATTEMPTS = 6
WAITING = 1000
"""Notifications that wait for one receiver; then the oldest are left out."""

log = logging.getLogger(__name__)


def validator(policy: Policy) -> Callable[[str], Awaitable[bool]]:
    """What checks a URL when it is registered, for the `push_url_validator` of the SDK's request handlers."""

    async def is_allowed(url: str) -> bool:
        try:
            await policy.check(url)
        except (DestinationRefused, Unresolved) as error:
            log.info("a push notification config is refused: %s", error)
            return False
        return True

    return is_allowed


class WebhookSender(PushNotificationSender):
    """Sends each event to the receivers of its task: in order for each, again where that may help, best effort.

    A receiver that is slow or gone holds up neither the task nor the others. What waits is in memory, and ends with
    the process; `aclose` waits for it.
    """

    def __init__(
        self,
        configs: PushNotificationConfigStore,
        webhooks: Webhooks,
        *,
        attempts: int = ATTEMPTS,
        backoff: Backoff | None = None,
    ) -> None:
        self._configs = configs
        self._webhooks = webhooks
        self._attempts = attempts
        self._backoff = backoff or Backoff(first=0.5, most=30.0)
        self._lanes: dict[tuple[str, str, str], _Lane] = {}

    async def send_notification(self, task_id: str, event: PushNotificationEvent) -> None:
        """Hand an event over for sending; this does not wait for any receiver."""
        body = orjson.dumps(as_json(to_stream_response(event)))
        for config in await self._configs.get_info_for_dispatch(task_id):
            key = task_id, config.id, config.url
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._lanes[key] = _Lane(deque(maxlen=WAITING))
            lane.waiting.append((config, body))
            if lane.task is None:
                lane.task = asyncio.create_task(self._drain(key, lane), name=f"push {task_id}")

    async def aclose(self, grace: float = 0.0) -> None:
        """Wait for what is on its way for `grace` seconds, then let go of it. The webhooks stay open."""
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=grace)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _drain(self, key: tuple[str, str, str], lane: "_Lane") -> None:
        try:
            while lane.waiting:
                config, body = lane.waiting.popleft()
                refusal = await self._deliver(config, body)
                if refusal is not None:
                    log.warning("a push notification of task %s is given up: %s", config.task_id, refusal)
        finally:
            del self._lanes[key]

    async def _deliver(self, config: pb.TaskPushNotificationConfig, body: bytes) -> str | None:
        """Send until it is taken; None then, else why it is given up."""
        headers = _headers(config)
        failures = 0
        while True:
            wait = 0.0
            try:
                answer = await self._webhooks.post(config.url, body, headers)
            except DestinationRefused as error:
                return str(error)
            except (Unresolved, WebhookFailed) as error:
                reason = str(error)
            else:
                if answer.taken:
                    return None
                reason, wait = f"it answers {answer.status}", answer.retry_after or 0.0
                if not answer.may_pass:
                    return reason
            failures += 1
            if failures >= self._attempts:
                return f"{reason}, after {failures} attempts"
            await asyncio.sleep(max(self._backoff.pause(failures), min(wait, self._backoff.most)))


class _Lane:
    """What waits for one receiver, and the task that sends it."""

    def __init__(self, waiting: deque[tuple[pb.TaskPushNotificationConfig, bytes]]) -> None:
        self.waiting = waiting
        self.task: asyncio.Task[None] | None = None


def _headers(config: pb.TaskPushNotificationConfig) -> dict[str, str]:
    headers = {"Content-Type": MEDIA_TYPE, "A2A-Version": VERSION}
    if config.authentication.scheme and config.authentication.credentials:
        headers["Authorization"] = f"{config.authentication.scheme} {config.authentication.credentials}"
    if config.token:
        headers["X-A2A-Notification-Token"] = config.token
    return headers
