"""Delivering push notifications: in order for each config, again until they are taken, by whichever worker lives."""

import asyncio
import logging
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from bus import Backoff
from bus.destination import DestinationRefused, Unresolved
from bus.webhook import WebhookFailed, Webhooks

from ..agent.signing import SigningKey
from ..agent.streams import Sent
from ..ledger.push_configs import TAKEN, PushConfig
from ..ledger.push_outbox import Due, Key, Outbox
from ..ledger.watch import LedgerUnavailable
from ..pipeline.pipeline import EVENTS_KEPT, Pipeline
from .notice import body_of, headers_of, notices

POLL = 0.25
"""Seconds between two looks at what is due."""

LANES = 32
"""Configs that one worker delivers for at a time: in all, for one session, and to one origin."""
LANES_OF_SESSION = 8
LANES_TO_ORIGIN = 4

SAVE = 0.25
"""Seconds after which it is kept how far a config is: what a worker that dies has sent since is sent again."""

LEASE = 15.0
"""Seconds after which another worker goes on with what a dead one had; renewed three times in that time."""

AHEAD = 1 << 20
"""Bytes that are kept in memory for one config."""

ATTEMPTS = 16
BACKOFF = Backoff(first=1.0, most=3600.0)
"""Pauses after failures, in seconds: with `ATTEMPTS` two to four hours until a receiver is given up."""

_FORGET_EVERY = 3600.0

log = logging.getLogger(__name__)


class _GivenUp(Exception):
    """Nothing more is sent for this config; the text says why."""


@dataclass(slots=True)
class _Lane:
    """The delivery for one config, while this worker has it."""

    key: Key
    origin: str
    place: int
    failures: int
    due_at: float = 0.0
    saved: float = 0.0
    ahead: deque[Sent] = field(default_factory=deque)


class PushDelivery:
    """Delivers what is due in the ledger, until it is closed. Every worker of an agent runs one.

    A receiver that hangs or is gone holds up nobody else: it has at most `LANES_TO_ORIGIN` lanes, for one attempt each,
    and then waits for its next.
    """

    def __init__(
        self,
        agent: str,
        pipeline: Pipeline,
        outbox: Outbox,
        webhooks: Webhooks,
        *,
        key: SigningKey | None = None,
        attempts: int = ATTEMPTS,
        backoff: Backoff = BACKOFF,
        poll: float = POLL,
        lease: float = LEASE,
    ) -> None:
        self._agent = agent
        self._pipeline = pipeline
        self._outbox = outbox
        self._webhooks = webhooks
        self._key = key
        self._attempts = attempts
        self._backoff = backoff
        self._poll = poll
        self._lease = lease
        self._lanes: dict[Key, tuple[PushConfig, asyncio.Task[None]]] = {}
        self._news = asyncio.Event()
        self._forgotten = 0.0

    async def run(self) -> None:
        """Deliver until cancelled; then what is on its way is left to the other workers, and no connection stays."""
        renewal = asyncio.create_task(self._renew(), name="push leases")
        try:
            while True:
                self._news.clear()
                try:
                    while await self._take_on():
                        pass
                    await self._forget()
                except LedgerUnavailable:
                    pass  # the ledger's watch has said so
                except Exception:
                    log.exception("push notifications can't be looked for now")
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._poll):
                        await self._news.wait()
        finally:
            tasks = [renewal, *(task for _, task in self._lanes.values())]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._webhooks.close()

    async def _take_on(self) -> bool:
        """Begin lanes for what is due; whether there may be more."""
        room = LANES - len(self._lanes)
        if room <= 0:
            return False
        sessions = Counter(config.session for config, _ in self._lanes.values())
        origins = Counter(config.origin for config, _ in self._lanes.values())
        now = self._pipeline.clock()
        found = await self._outbox.due(
            now,
            LANES,
            sessions=[name for name, count in sessions.items() if count >= LANES_OF_SESSION],
            origins=[name for name, count in origins.items() if count >= LANES_TO_ORIGIN],
        )
        wanted: list[Due] = []
        for due in found:
            session, origin = due.config.session, due.config.origin
            full = sessions[session] >= LANES_OF_SESSION or origins[origin] >= LANES_TO_ORIGIN
            if due.config.key not in self._lanes and not full and len(wanted) < room:
                sessions[session] += 1
                origins[origin] += 1
                wanted.append(due)
        if not wanted:
            return False
        for due in await self._outbox.claim(wanted, now, now + self._lease):
            lane = _Lane(due.config.key, due.config.origin, due.place, due.failures, saved=now)
            task = asyncio.create_task(self._serve(lane), name=f"push {due.config.task_id}")
            self._lanes[lane.key] = due.config, task
            task.add_done_callback(partial(self._left, lane.key))
        return True

    def _left(self, key: Key, task: asyncio.Task[None]) -> None:
        del self._lanes[key]
        self._news.set()
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, LedgerUnavailable):
            log.error("push notifications of task %s stopped: %s", key[0], type(error).__name__, exc_info=error)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._lease / 3)
            if self._lanes:
                try:
                    await self._outbox.renew(list(self._lanes), self._pipeline.clock() + self._lease)
                except Exception as error:
                    log.warning("the leases of push notifications could not be renewed: %s", error)

    # one lane

    async def _serve(self, lane: _Lane) -> None:
        """Send all there is for one config, then let go of it."""
        try:
            while (config := await self._outbox.mine(lane.key)) is not None:
                sent = await self._next(config, lane)
                if sent is None or not await self._send(config, sent, lane):
                    break
                if sent.last:
                    raise _GivenUp(TAKEN)
                await self._save(lane)
        except _GivenUp as end:
            if str(end) != TAKEN:
                log.warning("push notifications of task %s to %s end: %s", lane.key[0], lane.origin, end)
            await self._outbox.end(lane.key, lane.place, str(end), self._pipeline.clock())
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):
                # Whatever went wrong here may go better elsewhere, or a while later: each time a longer one.
                lane.failures += not isinstance(error, LedgerUnavailable)
                lane.due_at = self._pipeline.clock() + self._backoff.pause(max(lane.failures, 1))
            with suppress(Exception):
                await asyncio.shield(self._leave(lane))
            raise
        else:
            await self._leave(lane)

    async def _leave(self, lane: _Lane) -> None:
        due_at = max(lane.due_at, self._pipeline.clock())
        await self._outbox.leave(lane.key, lane.place, lane.failures, due_at)

    async def _save(self, lane: _Lane) -> None:
        now = self._pipeline.clock()
        if now - lane.saved >= SAVE:
            lane.saved = now
            await self._outbox.taken(lane.key, lane.place)

    async def _next(self, config: PushConfig, lane: _Lane) -> Sent | None:
        """What comes next for a config, None when there is nothing now."""
        if lane.ahead:
            return lane.ahead.popleft()
        found = await self._pipeline.ledger.tasks.follow(config.task_id, max(lane.place, 0))
        session = await self._pipeline.ledger.session(config.session)
        if found is None or found[0].episode != config.episode:
            return None
        task, events = found
        # Asked again each time: who has lost the right to see a task is not told of it any more.
        if session is None or session.revoked_at is not None or not self._pipeline.shows(session, task):
            raise _GivenUp("its session may not see the task any more")
        size = 0
        for sent in notices(task, events, lane.place):
            lane.ahead.append(sent)
            size += len(sent.body)
            if size > AHEAD:
                break  # the rest is read again
        if not lane.ahead and task.receipt is not None:
            raise _GivenUp(TAKEN)
        return lane.ahead.popleft() if lane.ahead else None

    async def _send(self, config: PushConfig, sent: Sent, lane: _Lane) -> bool:
        """Whether it was taken. Raises _GivenUp when it never will be."""
        now = self._pipeline.clock()
        body = body_of(sent)
        headers = headers_of(config, sent, body, agent=self._agent, key=self._key, now=now)
        asked_for: float | None = None
        try:
            answer = await self._webhooks.post(config.url, body, headers)
        except DestinationRefused as error:
            raise _GivenUp(str(error)) from None
        except (Unresolved, WebhookFailed) as error:
            reason = str(error)
        else:
            if answer.taken:
                lane.place, lane.failures = sent.seq, 0
                return True
            reason, asked_for = f"it answers {answer.status}", answer.retry_after
            if not answer.may_pass:
                raise _GivenUp(reason)
        lane.failures += 1
        if lane.failures >= self._attempts:
            raise _GivenUp(f"{reason}, after {lane.failures} attempts")
        pause = max(self._backoff.pause(lane.failures), min(asked_for or 0.0, self._backoff.most))
        lane.due_at = self._pipeline.clock() + pause
        level = logging.INFO if lane.failures == 1 else logging.DEBUG
        log.log(level, "push to %s for task %s: %s; again in %.1f s", lane.origin, config.task_id, reason, pause)
        return False

    async def _forget(self) -> None:
        now = self._pipeline.clock()
        if now - self._forgotten >= _FORGET_EVERY:
            self._forgotten = now
            await self._outbox.forget(now - EVENTS_KEPT)
