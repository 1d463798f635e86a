"""A dead letter: a request that no worker answered, as the broker hands it over and as it is kept for people."""

import hashlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from bus import deadline as time
from bus import names as n
from bus import wire
from bus.driver import Incoming, Outgoing, Properties
from bus.errors import BusError, DeadlineExceeded, InternalError, InvalidRequest, RetriesExhausted
from bus.message import Authorize, Unsigned
from bus.names import Names

_log = logging.getLogger(__name__)

# What is told of a parked letter, in headers of its own; the properties that carry no authority stay what they were.
PREFIX = "parked-"
ID, REASON, QUEUE, EXCHANGE, KEY = "parked-id", "parked-reason", "parked-queue", "parked-exchange", "parked-key"
DIED, AT, ANSWERED, AUTHORIZED = "parked-died", "parked-at", "parked-answered", "parked-authorized"
REPLY_TO, USER, EXPIRATION, FLAW = "parked-reply-to", "parked-user", "parked-expiration", "parked-flaw"
LEFT_OUT = "parked-left-out"

NOBODY = "nobody"
"""In place of an error's reason: the letter could not be answered, or nobody waited for it any more."""

_ROUTING = frozenset({"cc", "bcc"})
"""Headers by which RabbitMQ brings a message to further queues: a copy of the letter must go nowhere else."""

_MILLISECONDS = re.compile(r"[0-9]{1,10}")

_HEADERS = 16 * 1024
"""Bytes of original headers that are kept; a flood of them must not keep a letter from being parked."""


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter.

    `id` is the same however often the letter is read, so that one that was parked twice is known as one. `reason` is
    the broker's: `expired`, `delivery_limit`, `rejected`. `properties` are the original ones, without the
    authorization and without what the broker wrote (`x-*`); `authorized` tells that there was an authorization.
    `answered` is the reason of the error that the caller got, or `nobody`. Times are Unix seconds.
    """

    id: str
    reason: str
    queue: str
    exchange: str
    key: str
    died: float | None
    properties: Properties
    body: bytes = field(repr=False)
    authorized: bool = False
    answered: str = NOBODY
    parked: float | None = None

    @classmethod
    def dead(cls, message: Incoming, names: Names) -> "Letter":
        """What the broker put into the dead-letter queue. Never raises: what is missing is empty."""
        found, headers = message.properties, message.properties.headers
        deaths = headers.get("x-death")
        death = deaths[0] if isinstance(deaths, list) and deaths and isinstance(deaths[0], dict) else {}
        queue, keys, died = _text(death.get("queue")), death.get("routing-keys"), death.get("time")
        key = _text(keys[0]) if isinstance(keys, list) and keys else queue.removeprefix(f"{names.prefix}.q.")
        died = died if isinstance(died, int) and 0 < died < 1 << 36 else None
        properties = _copy(found, {name: value for name, value in headers.items() if _is_kept(name)})
        properties.reply_to, properties.user_id, properties.flaw = found.reply_to, found.user_id, found.flaw
        lived = str(death.get("original-expiration", found.expiration))  # which its sender may have forged too
        properties.expiration = int(lived) if _MILLISECONDS.fullmatch(lived) else None
        name = (queue, found.message_id, found.correlation_id, str(died), hashlib.sha256(message.body).hexdigest())
        return cls(
            id=hashlib.sha256("\0".join(part or "" for part in name).encode()).hexdigest()[:12],
            reason=_text(death.get("reason")) or "unknown",
            queue=queue,
            exchange=_text(death.get("exchange")),
            key=key,
            died=died,
            properties=properties,
            body=message.body,
            authorized=n.AUTHORIZATION in headers,
        )

    @classmethod
    def read(cls, message: Incoming) -> "Letter":
        """What was parked. Never raises: what is missing is empty."""
        headers = message.properties.headers
        told = {name: _text(headers.get(name)) for name in (ID, REASON, QUEUE, EXCHANGE, KEY, ANSWERED)}
        expiration = headers.get(EXPIRATION)
        properties = _copy(message.properties, {name: v for name, v in headers.items() if _is_kept(name)})
        properties.reply_to = _text(headers.get(REPLY_TO)) or None
        properties.user_id = _text(headers.get(USER)) or None
        properties.expiration = expiration if isinstance(expiration, int) else None
        properties.flaw = _text(headers.get(FLAW)) or None
        return cls(
            id=told[ID] or hashlib.sha256(message.body).hexdigest()[:12],
            reason=told[REASON] or "unknown",
            queue=told[QUEUE],
            exchange=told[EXCHANGE],
            key=told[KEY],
            died=_time(headers.get(DIED)),
            properties=properties,
            body=message.body,
            authorized=headers.get(AUTHORIZED) is True,
            answered=told[ANSWERED] or NOBODY,
            parked=_time(headers.get(AT)),
        )

    @property
    def agent(self) -> str:
        """Whom its request was for."""
        return n.agent_of(self.key)

    @property
    def error(self) -> BusError:
        """What its caller is told."""
        if self.reason == "expired":
            return DeadlineExceeded("the deadline passed before a worker took the request")
        if self.reason == "delivery_limit":
            # How often that was nobody knows any more: the limit is a policy's, and may have changed meanwhile.
            return RetriesExhausted("gave up: each time the worker, or its connection, was gone before the answer")
        return InternalError("the worker gave the request up")

    def parked_as(self, names: Names, answered: str, now: float) -> Outgoing:
        """The message that keeps it."""
        p = self.properties
        told = {
            ID: self.id,
            REASON: self.reason,
            QUEUE: self.queue,
            EXCHANGE: self.exchange,
            KEY: self.key,
            DIED: None if self.died is None else time.write(self.died),
            AT: time.write(now),
            ANSWERED: answered,
            AUTHORIZED: self.authorized,
            REPLY_TO: p.reply_to,
            USER: p.user_id,
            EXPIRATION: p.expiration,
            FLAW: p.flaw,
        }
        kept = {name: value for name, value in told.items() if value is not None}
        try:
            headers = {name: _scalar(value) for name, value in p.headers.items()}
            size = sum(len(name.encode()) + len(str(value).encode()) for name, value in headers.items())
            if size > _HEADERS:
                headers, kept[LEFT_OUT] = {}, f"{size} bytes of headers"
        except Exception:
            _log.exception("the headers of the dead letter %s are left out", self.id)
            headers, kept[LEFT_OUT] = {}, "headers that cannot be written"
        properties = _copy(p, {**headers, **kept})
        properties.persistent = True
        return Outgoing("", names.parked, self.body, properties)

    def request(
        self, names: Names, *, now: float, seconds: float, user: str | None, authorize: Authorize | None = None
    ) -> Outgoing:
        """The request once more, with a fresh deadline. Raises `InvalidRequest` with the reason why there is none.

        It goes to the reply queue of its first caller: if that is gone, the outcome is only in the agent's ledger.
        `user` is who publishes it; the first caller's name stands in it only if that is the same one.
        """
        p = self.properties
        if p.flaw is not None:
            raise InvalidRequest(f"its properties could not be read: {p.flaw}")
        if self.exchange != names.requests or not self.key:
            raise InvalidRequest(f"it did not come from {names.requests}")
        if wire.return_address(names, p) is None:
            raise InvalidRequest(
                "it names no queue of its caller to answer to, so that a worker would give it up again"
            )
        deadline = time.after(now, seconds)
        fresh: dict[str, Any] = {n.DEADLINE: time.write(deadline)}
        if self.authorized:
            if authorize is None:
                raise InvalidRequest("it was signed by a session, and the signature is not kept")
            unsigned = Unsigned(self.agent, p.type or "", p.message_id or "", self.body, deadline)
            fresh[n.AUTHORIZATION] = authorize(unsigned)
        headers = {name: value for name, value in p.headers.items() if name not in (n.DEADLINE, n.ATTEMPT)}
        properties = _copy(p, {**headers, **fresh})
        properties.reply_to = p.reply_to
        properties.user_id = user if user == p.user_id else None
        properties.expiration = max(1, int(seconds * 1000))
        properties.timestamp = int(now)
        properties.persistent = True
        return Outgoing(self.exchange, self.key, self.body, properties)


def _copy(p: Properties, headers: Mapping[str, Any]) -> Properties:
    """The properties that carry no authority and have no effect."""
    return Properties(
        type=p.type,
        content_type=p.content_type,
        content_encoding=p.content_encoding,
        message_id=p.message_id,
        correlation_id=p.correlation_id,
        timestamp=p.timestamp,
        app_id=p.app_id,
        headers=headers,
    )


def _is_kept(name: str) -> bool:
    # In any spelling: a malformed message may carry a secret too.
    lower = name.lower()
    return lower not in _ROUTING and not lower.endswith("authorization") and not lower.startswith(("x-", PREFIX))


def _scalar(value: Any) -> str | int | bool | float:
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 63 else str(value)
    if isinstance(value, str | float):
        return value
    return orjson.dumps(value, default=repr).decode()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _time(value: Any) -> float | None:
    try:
        return time.read(value) if isinstance(value, str) else None
    except ValueError:
        return None
