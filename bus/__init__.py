"""A2A over AMQP 0-9-1: call any agent through RabbitMQ, serve any agent from a RabbitMQ queue.

    async with await bus.serve("amqp://…", "echo", agent) as server: ...
    async with await bus.connect("amqp://…") as client:
        response = await client.send("echo", {"role": "ROLE_USER", "parts": [{"text": "hello"}]})
        async for event in client.stream("echo", "SendStreamingMessage", {"message": …}): ...

Knows nothing of skills, grants or tools. This module is the map: all that is public stands here.
"""

from bus.capabilities import Capabilities
from bus.client.client import Client, connect
from bus.client.leg import StreamEvent
from bus.client.retry import Retry
from bus.client.stats import ClientStats
from bus.dead.letter import Letter
from bus.dead.parked import Parked, parked_letters
from bus.dead.reader import DeadLetterReader, DeadLetterStats, read_dead_letters
from bus.discovery.control import Answer, Answers, ask
from bus.discovery.heartbeats import Registry, Sighting, Watch, watch
from bus.discovery.presence import Presence
from bus.discovery.vitals import Heartbeat, Info, Pong, Stats
from bus.driver import Driver
from bus.errors import (
    ERRORS,
    AgentNotFound,
    BudgetExhausted,
    BusError,
    ConnectionLost,
    ContentTypeNotSupported,
    DeadlineExceeded,
    ExtendedCardNotConfigured,
    ExtensionSupportRequired,
    GrantDenied,
    IdempotencyConflict,
    InternalError,
    InvalidAgentResponse,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    ParseError,
    PushNotificationNotSupported,
    Refused,
    Rejected,
    RetriesExhausted,
    SandboxUnavailable,
    SkillNotFound,
    StreamCut,
    TaskNotCancelable,
    TaskNotFound,
    TransportError,
    Unauthenticated,
    Unavailable,
    Undeclared,
    Unroutable,
    UnsupportedOperation,
    VersionNotSupported,
    from_json,
)
from bus.hop import Hop, Parent
from bus.interface import Interface
from bus.limits import Limits
from bus.link import Backoff, Patience, State
from bus.memory.broker import MemoryBroker
from bus.message import Agent, Authorize, Reply, Request, Unsigned
from bus.names import BINDING, MEDIA_TYPE, OPERATIONS, VERSION, Names
from bus.server.removal import remove
from bus.server.server import Server, serve
from bus.server.stats import ServerStats
from bus.target import Target

__all__ = [  # noqa: RUF022 - in the order a reader needs them
    # Serving an agent
    "serve",
    "Server",
    "ServerStats",
    "remove",
    "Agent",
    "Request",
    "Reply",
    # Calling an agent
    "connect",
    "Client",
    "ClientStats",
    "Retry",
    "StreamEvent",
    "Hop",
    "Parent",
    "Authorize",
    "Unsigned",
    # What no server answered
    "read_dead_letters",
    "DeadLetterReader",
    "DeadLetterStats",
    "parked_letters",
    "Parked",
    "Letter",
    # Who is there: what servers say of themselves, asked for or heard
    "Presence",
    "ask",
    "Answer",
    "Answers",
    "Pong",
    "Info",
    "Stats",
    "watch",
    "Watch",
    "Heartbeat",
    "Registry",
    "Sighting",
    # Where the broker is, and how much and how long
    "Target",
    "Driver",
    "MemoryBroker",
    "Capabilities",
    "Limits",
    "Patience",
    "Backoff",
    "State",
    # The binding
    "BINDING",
    "VERSION",
    "MEDIA_TYPE",
    "OPERATIONS",
    "Names",
    "Interface",
    # Errors: the root, the table and the way back from the wire
    "BusError",
    "ERRORS",
    "from_json",
    # Errors of A2A and JSON-RPC
    "InternalError",
    "ParseError",
    "InvalidRequest",
    "MethodNotFound",
    "InvalidParams",
    "TaskNotFound",
    "TaskNotCancelable",
    "PushNotificationNotSupported",
    "UnsupportedOperation",
    "ContentTypeNotSupported",
    "InvalidAgentResponse",
    "ExtendedCardNotConfigured",
    "ExtensionSupportRequired",
    "VersionNotSupported",
    # Errors of this binding
    "Unauthenticated",
    "GrantDenied",
    "SkillNotFound",
    "AgentNotFound",
    "DeadlineExceeded",
    "IdempotencyConflict",
    "SandboxUnavailable",
    "Unavailable",
    "BudgetExhausted",
    "RetriesExhausted",
    # Errors of the transport, which stay on this side
    "TransportError",
    "ConnectionLost",
    "StreamCut",
    "Refused",
    "Undeclared",
    "Rejected",
    "Unroutable",
]
