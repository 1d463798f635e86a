"""The error table of the binding: every condition with its code, its reason and what a gateway makes of it.

A2A's own errors keep their codes (A2A 1.0, section 5.4) and JSON-RPC's theirs. Ours stand outside
-32768..-32000, which JSON-RPC reserves, and carry the domain `skillbus`.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
A2A_DOMAIN = "a2a-protocol.org"
OWN_DOMAIN = "skillbus"


class BusError(Exception):
    """An error that travels: an agent raises it, the caller's client raises it again.

    `metadata` holds strings that help the caller (a retry hint, a limit); never a secret.
    """

    code: ClassVar[int] = -32603
    reason: ClassVar[str] = "INTERNAL"
    domain: ClassVar[str] = A2A_DOMAIN
    http_status: ClassVar[int] = 500
    default: ClassVar[str] = "internal error"

    def __init__(self, message: str | None = None, *, metadata: Mapping[str, str] | None = None) -> None:
        self.message = message or self.default
        self.metadata = dict(metadata or {})
        super().__init__(self.message)

    def as_json(self) -> dict[str, Any]:
        """The body of an error reply: `{code, message, details}` (A2A 1.0, section 3.3.2)."""
        info: dict[str, Any] = {"@type": ERROR_INFO, "reason": self.reason, "domain": self.domain}
        if self.metadata:
            info["metadata"] = self.metadata
        return {"code": self.code, "message": self.message, "details": [info]}


class InternalError(BusError):
    """The host failed; the message says no more than that."""


class ParseError(BusError):
    code, reason, http_status, default = -32700, "PARSE_ERROR", 400, "the body is not JSON"


class InvalidRequest(BusError):
    code, reason, http_status, default = -32600, "INVALID_REQUEST", 400, "the request is not valid"


class MethodNotFound(BusError):
    code, reason, http_status, default = -32601, "METHOD_NOT_FOUND", 404, "no such operation"


class InvalidParams(BusError):
    code, reason, http_status, default = -32602, "INVALID_PARAMS", 400, "the parameters are not valid"


class TaskNotFound(BusError):
    code, reason, http_status, default = -32001, "TASK_NOT_FOUND", 404, "task not found"


class TaskNotCancelable(BusError):
    code, reason, http_status, default = -32002, "TASK_NOT_CANCELABLE", 400, "the task cannot be canceled"


class PushNotificationNotSupported(BusError):
    code, reason, http_status = -32003, "PUSH_NOTIFICATION_NOT_SUPPORTED", 400
    default = "push notifications are not supported"


class UnsupportedOperation(BusError):
    code, reason, http_status, default = -32004, "UNSUPPORTED_OPERATION", 400, "this operation is not supported"


class ContentTypeNotSupported(BusError):
    code, reason, http_status, default = -32005, "CONTENT_TYPE_NOT_SUPPORTED", 400, "incompatible content types"


class InvalidAgentResponse(BusError):
    code, reason, http_status, default = -32006, "INVALID_AGENT_RESPONSE", 500, "invalid agent response"


class ExtendedCardNotConfigured(BusError):
    code, reason, http_status = -32007, "EXTENDED_AGENT_CARD_NOT_CONFIGURED", 400
    default = "the extended agent card is not configured"


class ExtensionSupportRequired(BusError):
    code, reason, http_status, default = -32008, "EXTENSION_SUPPORT_REQUIRED", 400, "extension support required"


class VersionNotSupported(BusError):
    code, reason, http_status, default = -32009, "VERSION_NOT_SUPPORTED", 400, "version not supported"


class _OwnError(BusError):
    domain = OWN_DOMAIN


class Unauthenticated(_OwnError):
    code, reason, http_status, default = -31001, "UNAUTHENTICATED", 401, "no valid proof of a session"


class GrantDenied(_OwnError):
    code, reason, http_status, default = -31003, "GRANT_DENIED", 403, "no grant covers this effect"


class SkillNotFound(_OwnError):
    code, reason, http_status, default = -31004, "SKILL_NOT_FOUND", 404, "no such skill"


class DeadlineExceeded(_OwnError):
    code, reason, http_status, default = -31008, "DEADLINE_EXCEEDED", 504, "the deadline has passed"


class IdempotencyConflict(_OwnError):
    code, reason, http_status = -31009, "IDEMPOTENCY_CONFLICT", 409
    default = "this message id was already used with another request"


class SandboxUnavailable(_OwnError):
    code, reason, http_status, default = -31012, "SANDBOX_UNAVAILABLE", 503, "the isolation cannot be built"


class Unavailable(_OwnError):
    """Queue full, draining, blocked: `retryAfterMs` in the metadata says when to come back."""

    code, reason, http_status, default = -31014, "UNAVAILABLE", 503, "not available now"


class BudgetExhausted(_OwnError):
    code, reason, http_status, default = -31029, "BUDGET_EXHAUSTED", 429, "the budget is used up"


class RetriesExhausted(_OwnError):
    code, reason, http_status, default = -31030, "RETRIES_EXHAUSTED", 500, "gave up after repeated attempts"


class AgentNotFound(SkillNotFound):
    """Nothing is bound for this agent's name: the broker returned the request at once."""

    default = "no such agent on this broker"


class TransportError(Unavailable):
    """The broker did not take or keep what was given to it. One that an agent lets through travels as `Unavailable`."""

    default = "the broker is not available now"


class ConnectionLost(TransportError):
    """The connection is gone; what was sent on it and not confirmed may or may not have arrived."""

    default = "the connection to the broker is lost"


class StreamCut(ConnectionLost):
    """A stream broke off before its end; the task may go on. `task_seq` is the last place in its log that was seen."""

    default = "the stream was cut before its end"

    def __init__(
        self,
        message: str | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        task_id: str | None = None,
        task_seq: int | None = None,
    ) -> None:
        super().__init__(message, metadata=metadata)
        self.task_id = task_id
        self.task_seq = task_seq


class Rejected(TransportError):
    """The broker refused a message: the queue is full, or could not store it. The message is nowhere."""

    default = "the queue takes no more messages now"


class Unroutable(TransportError):
    """A mandatory message had no queue to go to. The message is nowhere."""

    default = "no queue takes this message"


class Refused(TransportError):
    """The broker will not have it, however often it is asked.

    Wrong credentials, a missing permission, a vhost that is not there, a queue that exists with other arguments.
    """

    default = "the broker refuses"


class Undeclared(Refused):
    """Something has to stand on the broker and does not, and whoever says so may only look."""

    default = "something is missing on the broker"


ERRORS: dict[int, type[BusError]] = {
    kind.code: kind
    for kind in (
        InternalError, ParseError, InvalidRequest, MethodNotFound, InvalidParams,
        TaskNotFound, TaskNotCancelable, PushNotificationNotSupported, UnsupportedOperation,
        ContentTypeNotSupported, InvalidAgentResponse, ExtendedCardNotConfigured, ExtensionSupportRequired,
        VersionNotSupported, Unauthenticated, GrantDenied, SkillNotFound, DeadlineExceeded, IdempotencyConflict,
        SandboxUnavailable, Unavailable, BudgetExhausted, RetriesExhausted,
    )
}  # fmt: skip
"""Every error that travels, by its code."""


def from_json(body: Mapping[str, Any]) -> BusError:
    """The error that an error reply's body describes; an unknown code becomes an `InternalError` that names it."""
    code, message = body.get("code"), str(body.get("message", ""))
    metadata: dict[str, str] = {}
    details = body.get("details")
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, Mapping) and detail.get("@type") == ERROR_INFO:
            found = detail.get("metadata")
            if isinstance(found, Mapping):
                metadata = {str(key): str(value) for key, value in found.items()}
    kind = ERRORS.get(code) if isinstance(code, int) else None
    if kind is None:
        return InternalError(f"error {code}: {message}", metadata=metadata)
    return kind(message, metadata=metadata)
