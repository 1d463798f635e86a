"""One push notification: what is said of a task, and the headers that prove who says it (A2A 1.0, section 4.3.3)."""

import hashlib
import secrets
from collections.abc import Iterator, Sequence

import orjson
from jwt.utils import base64url_encode

from bus import MEDIA_TYPE, VERSION

from .. import answers
from ..agent.signing import SigningKey
from ..agent.streams import Sent
from ..ledger.push_configs import BEFORE, PushConfig
from ..ledger.tasks import Event, Task

SIGNATURE = "X-Skillbus-Signature"
"""The header that holds the signature: a JWT for this URL and this body."""

TOKEN = "X-A2A-Notification-Token"  # noqa: S105 - a header's name
TYPE = "skillbus-push+jwt"
VALID = 300.0
"""Seconds that a signature holds."""


def notices(task: Task, events: Sequence[Event], after: int) -> Iterator[Sent]:
    """What a receiver that has taken the log of a task up to place `after` is still to be told.

    `events` are those past that place that are kept. Where some are missing, the task as it is stands for them.
    """
    if after == BEFORE:
        after = 0
        yield Sent(0, {"task": answers.begun(task)})
    if task.events > after and (not events or events[0].seq != after + 1):
        if task.receipt is not None:
            yield Sent(task.events + 2, {"task": answers.standing(task)}, gap=True, last=True)
            return
        yield Sent(task.events, {"task": answers.standing(task)}, gap=True)
        return
    yield from (Sent(event.seq, event.body) for event in events)
    if task.receipt is not None:
        artifact, status = answers.ending(task.receipt)
        last = task.events + 2
        if after < last - 1:
            yield Sent(last - 1, artifact)
        if after < last:
            yield Sent(last, status, last=True)


def body_of(sent: Sent) -> bytes:
    """The JSON of a `StreamResponse`."""
    return sent.body if isinstance(sent.body, bytes) else orjson.dumps(sent.body)


def headers_of(
    config: PushConfig, sent: Sent, body: bytes, *, agent: str, key: SigningKey | None, now: float
) -> dict[str, str]:
    """The headers of a notification: the credentials of its config, and with a key its signature."""
    headers = {
        "Content-Type": MEDIA_TYPE,
        "A2A-Version": VERSION,
        "A2A-Task-Id": config.task_id,
        "A2A-Task-Seq": str(sent.seq),
        "User-Agent": "skillbus",
    }
    if sent.gap:
        headers["A2A-Gap"] = "true"
    if config.scheme:
        headers["Authorization"] = f"{config.scheme} {config.credentials}"
    if config.token:
        headers[TOKEN] = config.token
    if key is not None:
        headers[SIGNATURE] = _signature(config, sent, body, agent, key, now)
    return headers


def _signature(config: PushConfig, sent: Sent, body: bytes, agent: str, key: SigningKey, now: float) -> str:
    claims = {
        "iss": agent,
        "aud": config.url,
        "sub": config.task_id,
        "seq": sent.seq,
        "iat": int(now),
        "exp": int(now + VALID),
        "jti": secrets.token_hex(16),
        "dig": f"sha256:{hashlib.sha256(body).hexdigest()}",
    }
    header = {"alg": "EdDSA", "kid": key.kid, "typ": TYPE}
    signed = b".".join(base64url_encode(orjson.dumps(each)) for each in (header, claims))
    return b".".join((signed, base64url_encode(key.sign(signed)))).decode()
