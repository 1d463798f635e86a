"""A request as an agent sees it, and the channel it answers on."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from bus.names import DEPTH, ROOT_TASK, TENANT, TRACEPARENT, TRACESTATE

_NO_HEADERS: Mapping[str, str | int | bool] = {}


@dataclass(frozen=True, slots=True)
class Request:
    """One A2A request, checked for form and not for authority.

    `operation` is the A2A method name (A2A 1.0, section 5.3), `body` the exact bytes that were sent and
    `payload` the JSON object in them. `message_id` is the idempotency key. `deadline` is Unix time in seconds.
    `caller` is the broker's user that published it, when the broker vouched for it. `headers` holds the other
    `a2a-*` service parameters, lower case.
    """

    agent: str
    operation: str
    message_id: str
    body: bytes
    payload: Mapping[str, Any]
    deadline: float | None = None
    authorization: str | None = field(default=None, repr=False)
    caller: str | None = None
    tenant: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    redelivered: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def root_task(self) -> str | None:
        """The task that this request is part of; who cancels it ends what was begun for it as well."""
        return self.headers.get(ROOT_TASK) or None

    @property
    def depth(self) -> int:
        """How many calls stand above this one."""
        return int(self.headers.get(DEPTH, "0"))

    @property
    def onward(self) -> Mapping[str, str]:
        """The service parameters that calls made for this one carry: root task, depth, tenant and trace."""
        found = {
            ROOT_TASK: self.root_task,
            DEPTH: str(self.depth + 1),
            TENANT: self.tenant,
            TRACEPARENT: self.traceparent,
            TRACESTATE: self.tracestate,
        }
        return {name: value for name, value in found.items() if value}


class Reply(Protocol):
    """The caller's correlated channel."""

    @property
    def heard(self) -> bool:
        """False once it is known that nobody listens any more; what is sent then goes nowhere."""

    async def send(
        self,
        body: Mapping[str, Any] | bytes,
        *,
        final: bool = True,
        headers: Mapping[str, str | int | bool] = _NO_HEADERS,
    ) -> None:
        """Send one response object, JSON or its encoded bytes; `final` marks the last one.

        A streaming operation may send any number of events before it. They arrive in the order in which they are
        sent; sending waits while too many of them are on their way. `headers` are further `a2a-*` headers of this
        one message (`a2a-task-id`, `a2a-task-seq`, `a2a-gap`).
        """

    @property
    def address(self) -> str:
        """Where the caller waits: for `Server.answer`, in any server of the same agent, now or later."""

    async def accept(self) -> bool:
        """Acknowledge the request before it is answered, once the agent itself has kept it, its `address` included.

        From then on the broker delivers it to nobody: not when this server dies, nor when it takes longer than the
        broker waits for an acknowledgement. The agent may return without a final reply, and answer by the address.
        Events of a stream that were sent before are with the broker first. False when the connection it came on is
        gone: then it is delivered again.
        """


Agent = Callable[[Request, Reply], Awaitable[None]]
"""Anything that answers requests. It sends exactly one final reply, or raises, before it or after events; once it has
accepted it may do neither. A `BusError` is answered as it is, any other exception as an internal error without
details."""


@dataclass(frozen=True, slots=True)
class Unsigned:
    """A request about to be sent, for the hook that vouches for it; `expires` is Unix time in seconds."""

    agent: str
    operation: str
    message_id: str
    body: bytes
    expires: float


Authorize = Callable[[Unsigned], str]
"""Returns the value of the `a2a-authorization` header for one attempt of one request."""
