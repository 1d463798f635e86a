"""Every name of the binding: its URI, the operations, exchanges, queues, headers, and the rules for users' names."""

import re
from dataclasses import dataclass
from functools import lru_cache
from uuid import uuid4

from bus.errors import InvalidParams

BINDING = "urn:skillbus:a2a-binding:amqp-0-9-1:v1"
"""`protocolBinding` of an agent card's interface (A2A 1.0, section 5.8)."""

VERSION = "1.0"
"""The A2A version that this binding speaks (A2A 1.0, section 3.6)."""

MEDIA_TYPE = "application/a2a+json"
MEDIA_TYPES = frozenset({MEDIA_TYPE, "application/json"})
"""What a receiver takes; a sender always writes the first."""

SEND_MESSAGE = "SendMessage"
SEND_STREAMING_MESSAGE = "SendStreamingMessage"
GET_TASK = "GetTask"
SUBSCRIBE = "SubscribeToTask"

STREAMING = frozenset({SEND_STREAMING_MESSAGE, SUBSCRIBE})
"""The operations that are answered by a stream of events."""

WORK = frozenset({SEND_MESSAGE, SEND_STREAMING_MESSAGE})
"""The operations that give an agent work; all others ask, and have a lane of their own."""

OPERATIONS = frozenset(
    {
        SEND_MESSAGE, *STREAMING, GET_TASK, "ListTasks", "CancelTask",
        "CreateTaskPushNotificationConfig", "GetTaskPushNotificationConfig", "ListTaskPushNotificationConfigs",
        "DeleteTaskPushNotificationConfig", "GetExtendedAgentCard",
    }
)  # fmt: skip
"""The eleven operations (A2A 1.0, section 5.3), as they stand in the property `type`."""

# Service parameters travel as headers, in lower case (A2A 1.0, section 3.2.6).
A2A_VERSION = "a2a-version"
DEADLINE = "a2a-deadline"
AUTHORIZATION = "a2a-authorization"
TENANT = "a2a-tenant"
ATTEMPT = "a2a-attempt"
SEQUENCE = "a2a-seq"
FINAL = "a2a-final"
ERROR = "a2a-error"
RESPONDER = "a2a-responder"
STREAM = "a2a-stream"
"""Names the run that sends the events of a stream: two runs of one request must not look like one stream."""
TASK_ID = "a2a-task-id"
TASK_SEQUENCE = "a2a-task-seq"
"""The place of an event in its task's own log, the same for all who listen; where a stream is taken up again."""
AFTER = "a2a-after-seq"
GAP = "a2a-gap"
KEEPALIVE = "a2a-keepalive"
EXTENSIONS = "a2a-extensions"
ROOT_TASK = "a2a-root-task"
"""The task that a request is part of, however many calls lie between."""
DEPTH = "a2a-depth"
"""How many calls stand above a request, so that agents that call each other in a circle come to an end."""
TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"

SET_BY_BINDING = frozenset(
    {A2A_VERSION, DEADLINE, AUTHORIZATION, TENANT, ATTEMPT, SEQUENCE, FINAL, ERROR, RESPONDER, STREAM, TASK_ID}
    | {TASK_SEQUENCE, GAP}
)
"""Header names that a caller can't choose."""

SET_BY_SERVER = frozenset(
    {A2A_VERSION, DEADLINE, AUTHORIZATION, ATTEMPT, SEQUENCE, FINAL, ERROR, RESPONDER, STREAM, AFTER, KEEPALIVE}
    | {TENANT, ROOT_TASK, DEPTH}
)
"""Header names of a reply that an agent can't choose."""

SHORT = 255
"""AMQP's limit on a short string, in bytes: message ids, correlation ids, queue names, routing keys."""

_ASK, _BATCH = ".ask", ".batch"
_AGENT = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_PREFIX = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")
_REPLY_END = re.compile(r"[A-Za-z0-9_-]{1,64}")


@lru_cache(maxsize=1024)
def check_agent(name: str) -> str:
    """The name of an agent, which is its routing key and part of its queue's name.

    Raises `InvalidParams` for anything but 1 to 64 characters of `a-z 0-9 . _ -`, the first a letter or digit.
    """
    if not _AGENT.fullmatch(name):
        raise InvalidParams("an agent's name is 1 to 64 characters of a-z 0-9 . _ -, beginning with a letter or digit")
    for end in (_ASK, _BATCH):
        if name.endswith(end):
            raise InvalidParams(f"an agent's name does not end in {end}: such are the names of further lanes")
    return name


def agent_of(key: str) -> str:
    """The agent that a request with this routing key is for, whichever lane it takes."""
    return key.removesuffix(_ASK).removesuffix(_BATCH)


@dataclass(frozen=True, slots=True)
class Names:
    """The exchanges and queues under one prefix; users without a vhost of their own choose another than `a2a`."""

    prefix: str = "a2a"

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise InvalidParams("a prefix is 1 to 32 characters of a-z 0-9 . _ -, beginning with a letter or digit")

    @property
    def requests(self) -> str:
        """The direct exchange for requests; the routing key is `key`."""
        return f"{self.prefix}.requests"

    @property
    def dead(self) -> str:
        """The fanout exchange, and the queue behind it, for what could not be answered."""
        return f"{self.prefix}.dead"

    @property
    def parked(self) -> str:
        """The queue of dead letters that are kept for people."""
        return f"{self.prefix}.parked"

    @property
    def control(self) -> str:
        """The direct exchange of short words to the workers."""
        return f"{self.prefix}.ctl"

    @property
    def cards(self) -> str:
        """The fanout exchange on which workers say that they live."""
        return f"{self.prefix}.cards"

    def queue(self, agent: str) -> str:
        """The work queue of an agent."""
        return f"{self.prefix}.q.{check_agent(agent)}"

    def ask(self, agent: str) -> str:
        """The queue of what an agent is asked, which must not wait behind its work."""
        return f"{self.queue(agent)}{_ASK}"

    def ask_key(self, agent: str) -> str:
        """The routing key of what an agent is asked."""
        return f"{check_agent(agent)}{_ASK}"

    def key(self, agent: str, operation: str) -> str:
        """The routing key of a request."""
        return check_agent(agent) if operation in WORK else self.ask_key(agent)

    def lane(self, agent: str, operation: str) -> str:
        """The queue that a request goes to."""
        return self.queue(agent) if operation in WORK else self.ask(agent)

    def batch(self, agent: str) -> str:
        """The queue of an agent's work that can wait."""
        return f"{self.queue(agent)}{_BATCH}"

    def batch_key(self, agent: str) -> str:
        """The routing key of an agent's work that can wait."""
        return f"{check_agent(agent)}{_BATCH}"

    def new_reply_queue(self, user: str | None) -> str:
        """A name for a reply queue that was never used before: it can't collide with a half-dead connection's."""
        return f"{self.prefix}.reply.{user or 'anonymous'}.{uuid4().hex}"

    def allows_reply_to(self, address: str, user: str | None) -> bool:
        """Whether a request of `user` may be answered at `address`.

        Only reply queues, and only the sender's own when the broker vouches for the sender: else a client could aim
        replies at somebody else's queue.
        """
        start = f"{self.prefix}.reply."
        if len(address) > SHORT or not address.startswith(start):
            return False
        owner, dot, end = address[len(start) :].rpartition(".")
        # The end holds no dot, so that the user `a` can't name a queue of the user `a.b`.
        return bool(dot) and (user is None or owner == user) and _REPLY_END.fullmatch(end) is not None
