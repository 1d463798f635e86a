"""The A2A agent that the bus serves: requests in, tasks out."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import orjson

from bus import (
    DeadlineExceeded,
    InvalidParams,
    MethodNotFound,
    PushNotificationNotSupported,
    Reply,
    Request,
    Target,
    TaskNotFound,
    UnsupportedOperation,
)
from bus.destination import Policy
from bus.discovery.control import CANCEL
from bus.discovery.presence import Presence
from bus.discovery.vitals import INTERVAL, Info, Stats
from skills import Skill
from skills.canonical import encode, ref

from .. import answers
from ..ledger.ledger import Ledger
from ..ledger.tasks import Task
from ..ledger.waiters import Waiter
from ..ledger.watch import LedgerUnavailable
from ..pipeline.pipeline import DEFAULT_DEADLINE, LONG, Asked, Pipeline, task_id
from ..pipeline.runs import Run
from ..sessions import Session
from . import parameters
from .admission import Admission
from .cancels import Cancels
from .card import SCHEMAS, card_of, sign
from .listing import Listing
from .parameters import member
from .push_operations import MAX_CONFIGS, PushOperations
from .signing import SigningKey
from .streams import POLL, Streams
from .transitions import enter

__all__ = ["SCHEMAS", "SkillAgent"]

RETURN = 5.0
"""Seconds that a stream which is taken up again waits for a task that nobody here has."""

_CARD_CACHE_SIZE = 64

_Operation = Callable[[Request, Session, Reply], Awaitable[None]]


class SkillAgent:
    """Answers A2A requests from the pipeline and the ledger; a `bus.Agent`.

    Every request is authenticated before anything is looked up (A2A 1.0, section 13.1), and a task of another episode
    is not there. A tenant is of no meaning here: the session says everything.
    """

    def __init__(
        self,
        name: str,
        pipeline: Pipeline,
        ledger: Ledger,
        *,
        version: str,
        url: str = "",
        key: SigningKey | None = None,
        push: Policy | None = None,
        push_limit: int = MAX_CONFIGS,
    ) -> None:
        """`url` is that of the card's interface. The cards are signed with `key`, where there is one.

        With `push`, sessions may have push notifications sent to what it allows, `push_limit` configs for a task; a
        `PushDelivery` has to run somewhere.
        """
        self.name = name
        self._pipeline = pipeline
        self._ledger = ledger
        self._version = version
        self._url = url
        self._key = key
        self._cards: dict[tuple[str, ...], bytes] = {}
        self._streams = Streams(pipeline)
        self._cancels = Cancels(pipeline, ledger, self._streams, self._tell)
        self.presence: Presence | None = None
        self._admission = Admission(ledger)
        self._push = PushOperations(ledger.push, push, self._expected, pipeline.clock, push_limit) if push else None
        self._operations: Mapping[str, _Operation] = {
            "SendMessage": self._send_message,
            "SendStreamingMessage": self._stream_message,
            "SubscribeToTask": self._subscribe,
            "CancelTask": self._cancel_task,
            "GetTask": self._get_task,
            "ListTasks": self._list_tasks,
            "GetExtendedAgentCard": self._get_card,
            **(self._push.operations if self._push else {}),
        }

    async def join(
        self,
        target: Target,
        *,
        instance: str,
        prefix: str = "a2a",
        declare: bool = True,
        stats: Callable[[], Stats] = Stats,
        interval: float = INTERVAL,
    ) -> None:
        """Be present on the control exchange: learn of cancels at once, answer `ping`, `info` and `stats`, and beat.

        `stats` tells how the server of this agent does, `interval` is the seconds between two heartbeats. Without it
        all the agent works as well; cancels reach it when leases are renewed. Raises Refused, ConnectionLost.
        """
        about = Info(
            version=self._version,
            card_hash=self.card_hash,
            skills=len(self._pipeline.offered),
            operations=tuple(sorted(self._operations)),
            interval_seconds=interval,
        )

        async def cancel(_said: Mapping[str, Any]) -> None:
            await self._pipeline.look_for_cancels()

        def look() -> Stats:
            return replace(stats(), calls=self._pipeline.load)

        presence = Presence(
            target,
            self.name,
            instance=instance,
            look=look,
            about=about,
            on={CANCEL: cancel},
            prefix=prefix,
            declare=declare,
        )
        await presence.start()
        self.presence = presence

    async def leave(self) -> None:
        """Say goodbye, and hear nothing more of the control exchange."""
        presence, self.presence = self.presence, None
        if presence is not None:
            await presence.close()

    async def _tell(self, task_id: str) -> bool:
        return self.presence is not None and await self.presence.publish(CANCEL, {"task": task_id})

    async def __call__(self, request: Request, reply: Reply) -> None:
        deadline = DEFAULT_DEADLINE if request.deadline is None else request.deadline - time.time()
        async with self._ledger.watch.limit(deadline):
            while True:
                try:
                    return await self._answer(request, reply)
                except LedgerUnavailable:  # nothing was sent so far: streams wait for the ledger themselves
                    await self._ledger.watch.back()

    async def _answer(self, request: Request, reply: Reply) -> None:
        session = await self._admission.session(request)
        operation = self._operations.get(request.operation)
        if operation is None:
            if "PushNotificationConfig" in request.operation:
                raise PushNotificationNotSupported
            raise MethodNotFound(f"this agent has no operation {request.operation!r}")
        await operation(request, session, reply)

    # sending messages

    async def _send_message(self, request: Request, session: Session, reply: Reply) -> None:
        wanted = parameters.configuration(request.payload)
        history = parameters.history_length(wanted)
        at_once = parameters.flag(wanted, "returnImmediately")
        run = await self._begin(request, session, wanted)
        task = await self._streams.taken(run) if at_once else None
        if task is None:
            if run.long and await self._keep_waiting(run, request, reply, history):
                return
            receipt = await run.receipt()
            if not history:
                await reply.send(orjson.dumps({"task": answers.finished(receipt)}))
                return
            task = await self._find(receipt.task_id, session)
        (said,) = await self._told([task], history)
        await reply.send(orjson.dumps({"task": said}))

    async def _stream_message(self, request: Request, session: Session, reply: Reply) -> None:
        after = parameters.after(request)
        run = await self._begin(request, session, parameters.configuration(request.payload))
        await self._streams.send(run, after, reply)

    async def _begin(self, request: Request, session: Session, wanted: Mapping[str, Any]) -> Run:
        asked = await self._asked(request, session)

        async def attach() -> None:
            await self._attach(wanted, asked)

        return await enter(asked, self._pipeline, attach)

    async def _attach(self, wanted: Mapping[str, Any], asked: Asked) -> None:
        """Keep the push notification config of a message before its call begins, so that nothing of it is missed."""
        if wanted.get("taskPushNotificationConfig") is None:
            return
        if self._push is None:
            raise PushNotificationNotSupported
        config = member(wanted, "taskPushNotificationConfig", dict)
        await self._push.attach(config, task_id(asked.session.episode, asked.message_id), asked.session)

    async def _asked(self, request: Request, session: Session) -> Asked:
        message = member(request.payload, "message", dict)
        if message.get("messageId") != request.message_id:
            raise InvalidParams("message.messageId is not the message id of the request")
        context = _context(request, session)
        if message.get("taskId", "") != "":
            await self._refuse_continuation(message["taskId"], session)
        return Asked(
            session,
            parameters.skill_id(request.payload, message),
            parameters.arguments(message),
            request.message_id,
            context,
            request.deadline if request.deadline is not None else time.time() + DEFAULT_DEADLINE,
            parameters.root_task(request),
            request.onward,
            parameters.transition(request.payload, message),
            request.caller,
        )

    async def _keep_waiting(self, run: Run, request: Request, reply: Reply, history: int) -> bool:
        """Let the caller of a long call wait in the ledger, where its answer comes from. False when it has ended."""
        if self._pipeline.answering.answer is None:
            return False  # without a way to answer later, the request stays where it is
        task = await self._streams.taken(run)
        waiter = Waiter(run.task_id, reply.address, request.operation, history)
        if task is None or not await self._ledger.waiters.keep(waiter):
            return False
        await reply.accept()
        if run.held:
            return True  # sent again: a second place among what this worker has in hand would be taken for nothing
        run.held = True
        await asyncio.wait({run.task})
        await self._pipeline.answering.settled(run.task_id)
        return True

    async def _refuse_continuation(self, task_id: Any, session: Session) -> None:
        task = await self._find(task_id, session) if isinstance(task_id, str) else None
        if task is None:
            raise TaskNotFound
        if task.receipt is None:
            raise UnsupportedOperation("the task takes no further messages while it runs")
        raise UnsupportedOperation("the task has ended; send a message without a taskId")

    # asking for tasks

    async def _find(self, task_id: str, session: Session) -> Task:
        task = await self._look_up(task_id, session)
        if task is None:
            raise TaskNotFound
        return task

    async def _look_up(self, task_id: str, session: Session) -> Task | None:
        """The task, None while the ledger has none. Raises TaskNotFound for one that is not this session's to see."""
        task = await self._ledger.tasks.get(task_id, session.episode)
        if task is not None and not self._pipeline.shows(session, task):
            raise TaskNotFound
        return task

    def _running(self, task_id: str, session: Session) -> Run | None:
        run = self._pipeline.running(task_id, session.episode)
        return run if run is not None and run.session == session.id else None

    async def _expected(self, task_id: str, session: Session) -> Task | None:
        """A task that is in the ledger or, None, about to be. Raises TaskNotFound."""
        task = await self._look_up(task_id, session)
        if task is None and self._running(task_id, session) is None:
            raise TaskNotFound
        return task

    async def _get_task(self, request: Request, session: Session, reply: Reply) -> None:
        history = parameters.history_length(request.payload)
        task_id = member(request.payload, "id", str)
        task = await self._look_up(task_id, session)
        if task is None:
            run = self._running(task_id, session)
            if run is None:
                raise TaskNotFound
            await reply.send(orjson.dumps(answers.submitted(task_id, run.context_id, time.time())))
            return
        await self._pipeline.recover(task)
        (said,) = await self._told([task], history)
        await reply.send(orjson.dumps(said))

    async def _subscribe(self, request: Request, session: Session, reply: Reply) -> None:
        after = parameters.after(request)
        task_id = member(request.payload, "id", str)
        # Who takes a stream up again has seen its task: it waits for its worktree, or is on its way to a worker.
        until = time.monotonic() + (RETURN if after is not None else 0.0)
        while True:
            run = self._running(task_id, session)
            task = await self._look_up(task_id, session)
            if task is not None:
                return await self._streams.subscribe(task, after, request.deadline, reply)
            if run is not None:
                return await self._streams.send(run, after, reply, keep=False)
            if time.monotonic() >= until:
                raise TaskNotFound
            await asyncio.sleep(POLL)

    async def _cancel_task(self, request: Request, session: Session, reply: Reply) -> None:
        task_id = member(request.payload, "id", str)
        await self._admission.fresh(session)
        await self._look_up(task_id, session)
        # A request that is not acknowledged before its end may not take long.
        remaining = LONG if request.deadline is None else min(max(request.deadline - time.time(), 0.001), LONG)
        try:
            async with asyncio.timeout(remaining):
                task = await self._cancels.cancel(task_id, session.episode)
        except TimeoutError:
            raise DeadlineExceeded("the task is asked to end and has not ended yet") from None
        (said,) = await self._told([task], 0)
        await reply.send(orjson.dumps(said))

    async def _list_tasks(self, request: Request, session: Session, reply: Reply) -> None:
        listing = Listing.read(request.payload)
        others = tuple(skill.id for skill in self._pipeline.overseen(session))
        wanted = replace(listing.filter, session=session.id, skills=others)
        found, total = await self._ledger.tasks.page(
            session.episode, wanted, listing.size + 1, outputs=listing.artifacts
        )
        page, token = listing.cut(found)
        tasks = await self._told(page, listing.history, whole=listing.artifacts)
        answer = {"tasks": tasks, "nextPageToken": token, "pageSize": listing.size, "totalSize": total}
        await reply.send(orjson.dumps(answer))

    async def _told(self, tasks: list[Task], history: int, *, whole: bool = True) -> list[dict[str, Any]]:
        """Tasks as JSON, with as much of their history as is wanted: the one message that each began with."""
        said = [answers.standing(task, whole=whole) for task in tasks]
        if history:
            kept = await self._ledger.objects({task.input_ref for task in tasks if task.input_ref})
            for task, each in zip(tasks, said, strict=True):
                if task.input_ref in kept:
                    each["history"] = [answers.asked(task, kept[task.input_ref].payload)]
        return said

    # the card

    async def _get_card(self, request: Request, session: Session, reply: Reply) -> None:
        fresh = await self._admission.fresh(session)
        await reply.send(self._encoded_card(self._pipeline.visible(fresh, request.caller)))

    def card(self, skills: Sequence[Skill]) -> dict[str, Any]:
        """The agent card, with these skills (A2A 1.0, section 4.4.1), signed if the agent has a key (section 8.4)."""
        card = self._unsigned_card(skills)
        return card if self._key is None else sign(card, self._key)

    @cached_property
    def card_hash(self) -> str:
        """The content address of the card with every skill that is offered: equal where agents offer the same."""
        return ref(encode(self._unsigned_card(self._pipeline.offered)))

    def _unsigned_card(self, skills: Sequence[Skill]) -> dict[str, Any]:
        return card_of(self.name, self._version, self._url, skills, push=self._push is not None)

    def _encoded_card(self, skills: list[Skill]) -> bytes:
        seen = tuple(skill.id for skill in skills)
        if seen not in self._cards:
            if len(self._cards) >= _CARD_CACHE_SIZE:
                self._cards.clear()
            self._cards[seen] = orjson.dumps(self.card(skills))
        return self._cards[seen]


def _context(request: Request, session: Session) -> str:
    context = member(request.payload, "message", dict).get("contextId", "")
    if context == "":
        return session.episode
    if not isinstance(context, str) or len(context) > 255:
        raise InvalidParams("message.contextId must be a string of at most 255 characters")
    return context
