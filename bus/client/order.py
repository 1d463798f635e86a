"""What a client brings to an agent: checked and encoded once, sent as often as it takes."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from bus import deadline as deadlines
from bus import wire
from bus.errors import InvalidParams
from bus.hop import Parent, seconds_within
from bus.limits import Limits
from bus.names import TENANT, check_agent

NO_HEADERS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Order:
    """One request, whole. `deadline` is Unix time, `expires` the same moment in the loop's time.

    `authorization` stands in place of what the client's own hook would give.
    """

    agent: str
    operation: str
    body: bytes = field(repr=False)
    message_id: str
    headers: Mapping[str, str]
    deadline: float
    expires: float
    authorization: str | None = field(default=None, repr=False)


def order(
    agent: str,
    operation: str,
    body: Mapping[str, Any] | bytes,
    limits: Limits,
    *,
    message_id: str | None,
    headers: Mapping[str, str],
    timeout: float,
    authorization: str | None,
    within: Parent | None,
) -> Order:
    """See `bus.client.client.Client.request`. Raises what it says for a request that may not be sent."""
    if not 0 < timeout <= limits.horizon:
        raise InvalidParams(f"a timeout is more than 0 and at most {limits.horizon:g} s")
    now, tenant = time.time(), None
    if within is not None:
        timeout = seconds_within(within.deadline, now, timeout)
        headers = {**within.onward, **headers}
        tenant = headers.pop(TENANT, None)
    encoded = wire.encode(body)
    if isinstance(body, Mapping):
        wire.check_parts(body, limits)
        wire.check_depth(body, encoded, limits.depth)
    message_id = message_id or wire.message_id(body) or uuid4().hex
    wire.check_request(operation, message_id, encoded, headers, limits)
    if tenant and not (isinstance(body, Mapping) and body.get("tenant")):
        headers = {**headers, TENANT: tenant}
    return Order(
        check_agent(agent),
        operation,
        encoded,
        message_id,
        headers,
        deadline=deadlines.after(now, timeout),
        expires=asyncio.get_running_loop().time() + timeout,
        authorization=authorization,
    )
