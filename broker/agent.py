"""The A2A agent that the bus serves: requests in, tasks out."""

import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import orjson

from bus import (
    BINDING,
    InvalidParams,
    MethodNotFound,
    Reply,
    Request,
    TaskNotFound,
    Unauthenticated,
    UnsupportedOperation,
)
from skills import Contract, Skill

from .ledger import Ledger
from .operations import Receipt
from .pipeline import DEFAULT_DEADLINE, Asked, Pipeline
from .records import invocation_id
from .sessions import Session, claimed_session, verify

SCHEMAS = "urn:skillbus:a2a-extension:skill-schemas:v1"
"""The extension of the agent card that gives each skill's schemas, effects and risk."""

_SESSION_CACHE_SECONDS = 1.0
_SESSION_CACHE_SIZE = 4096


class SkillAgent:
    """Answers A2A requests from the pipeline and the ledger; a `bus.Agent`.

    Every request is authenticated before anything is looked up (A2A 1.0, section 13.1). Operations: SendMessage,
    GetTask, GetExtendedAgentCard.
    """

    def __init__(self, name: str, pipeline: Pipeline, ledger: Ledger, *, version: str, url: str = "") -> None:
        self.name = name
        self._pipeline = pipeline
        self._ledger = ledger
        self._version = version
        self._url = url
        self._sessions: dict[str, tuple[float, Session]] = {}
        self._operations: Mapping[str, Callable[[Request, Session], Awaitable[bytes]]] = {
            "SendMessage": self._send_message,
            "GetTask": self._get_task,
            "GetExtendedAgentCard": self._get_card,
        }

    async def __call__(self, request: Request, reply: Reply) -> None:
        session = await self._authenticate(request)
        operation = self._operations.get(request.operation)
        if operation is None:
            raise MethodNotFound(f"this agent has no operation {request.operation!r}")
        await reply.send(await operation(request, session))

    async def _authenticate(self, request: Request) -> Session:
        name = claimed_session(request)
        now = time.time()
        since, session = self._sessions.get(name, (0.0, None))
        if session is None or not 0 <= now - since < _SESSION_CACHE_SECONDS:
            # A short memory is safe: keys and grants of a session never change, and whatever changes the ledger
            # looks at the session again in its own transaction.
            session = await self._ledger.session(name)
            if session is not None:
                if len(self._sessions) >= _SESSION_CACHE_SIZE:
                    self._sessions.clear()
                self._sessions[name] = now, session
        return verify(request, session, now)

    # operations

    async def _send_message(self, request: Request, session: Session) -> bytes:
        message = _member(request.payload, "message", dict)
        if message.get("messageId") != request.message_id:
            raise InvalidParams("message.messageId is not the message id of the request")
        context = message.get("contextId") or session.episode
        if not isinstance(context, str) or len(context) > 255:
            raise InvalidParams("message.contextId must be a string of at most 255 characters")
        if message.get("taskId"):
            await self._refuse_continuation(message["taskId"], session)
        skill_id = _skill_id(request.payload, message)
        deadline = request.deadline if request.deadline is not None else time.time() + DEFAULT_DEADLINE
        asked = Asked(session, skill_id, _arguments(message), request.message_id, context, deadline)
        receipt = await self._pipeline.call(asked)
        return orjson.dumps({"task": self._task(receipt)})

    async def _refuse_continuation(self, task_id: Any, session: Session) -> None:
        receipt = await self._ledger.receipt(task_id) if isinstance(task_id, str) else None
        if receipt is None or receipt.episode != session.episode:
            raise TaskNotFound
        raise UnsupportedOperation("the task has ended; send a message without a taskId")

    async def _get_task(self, request: Request, session: Session) -> bytes:
        receipt = await self._ledger.receipt(_member(request.payload, "id", str))
        if receipt is None or receipt.episode != session.episode:
            raise TaskNotFound
        return orjson.dumps(self._task(receipt))

    async def _get_card(self, request: Request, session: Session) -> bytes:
        fresh = await self._ledger.session(session.id)
        if fresh is None or not fresh.is_alive(time.time()):
            raise Unauthenticated("the session has expired or was revoked")
        return orjson.dumps(self.card(self._pipeline.visible(fresh)))

    # what is said

    def card(self, skills: list[Skill]) -> dict[str, Any]:
        """The agent card, with these skills (A2A 1.0, section 4.4.1)."""
        return {
            "name": self.name,
            "description": "Tools published as A2A skills: granted, budgeted and logged.",
            "version": self._version,
            "supportedInterfaces": [{"url": self._url, "protocolBinding": BINDING, "protocolVersion": "1.0"}],
            "capabilities": {
                "streaming": False,
                "pushNotifications": False,
                "extendedAgentCard": True,
                "extensions": [
                    {
                        "uri": SCHEMAS,
                        "description": "Input and output schema, effects and risk of each skill",
                        "required": False,
                        "params": {"skills": {skill.id: _declared(skill) for skill in skills}},
                    }
                ],
            },
            "defaultInputModes": ["application/json"],
            "defaultOutputModes": ["application/json"],
            "skills": [_listed(skill.contract) for skill in skills],
        }

    def _task(self, receipt: Receipt) -> dict[str, Any]:
        moment = (
            datetime.fromtimestamp(receipt.closed_at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        )
        status: dict[str, Any] = {"state": f"TASK_STATE_{receipt.state.upper()}", "timestamp": moment}
        reason = receipt.metadata.get("reason")
        if reason:
            status["message"] = {
                "messageId": f"{receipt.task_id}-status",
                "taskId": receipt.task_id,
                "contextId": receipt.context_id,
                "role": "ROLE_AGENT",
                "parts": [{"text": reason}],
            }
        return {
            "id": receipt.task_id,
            "contextId": receipt.context_id,
            "status": status,
            "artifacts": [self._artifact(receipt)],
        }

    def _artifact(self, receipt: Receipt) -> dict[str, Any]:
        output = orjson.loads(receipt.output)
        metadata = {
            "tool": receipt.skill,
            "tier": receipt.metadata.get("tier", "live"),
            "status": _status(receipt.state, output),
            "retryable": output.get("retryable") is True or receipt.metadata.get("retryable") is True,
            "untrusted": output.get("untrusted") is not False,
            "outcome": receipt.outcome,
            "entry": receipt.entry_index,
            "invocation": invocation_id(receipt.episode, receipt.task_id),
            "output": receipt.output_ref,
        }
        part: dict[str, Any] = {"data": orjson.Fragment(receipt.output), "mediaType": "application/json"}
        if receipt.metadata.get("mode") == "text/plain" and output.keys() == {"text", "world"}:
            # just these two, so that who has the artifact can rebuild the output and check its hash
            metadata["world"] = output["world"]
            part = {"text": output["text"], "mediaType": "text/plain"}
        return {"artifactId": f"{receipt.task_id}-output", "name": receipt.skill, "parts": [part], "metadata": metadata}


def _status(state: str, output: Mapping[str, Any]) -> str:
    """`ok` or `error`: what the output says of itself, in any of the ways that packs have, if the call went through."""
    if output.get("status") in ("ok", "error"):
        return str(output["status"])
    said = output.get("ok") is not False and not str(output.get("text", "")).startswith("error: ")
    return "ok" if state == "completed" and said else "error"


def _listed(contract: Contract) -> dict[str, Any]:
    return {
        "id": contract.id,
        "name": contract.title,
        "description": contract.description,
        "tags": list(contract.tags) or ["tool"],
        "examples": list(contract.examples),
        "inputModes": ["application/json"],
        "outputModes": [contract.output_mode],
    }


def _declared(skill: Skill) -> dict[str, Any]:
    contract = skill.contract
    return {
        "input": contract.input_schema,
        "output": contract.output_schema,
        "access": contract.access.model_dump() if contract.access else None,
        "effects": [effect.model_dump() for effect in contract.effects],
        "risk": contract.risk.model_dump(),
        "deadlineSeconds": contract.deadline,
        "tier": skill.tier,
    }


def _skill_id(payload: Mapping[str, Any], message: Mapping[str, Any]) -> str:
    for holder in (message, payload):
        metadata = holder.get("metadata")
        if isinstance(metadata, dict) and "skill_id" in metadata:
            found = metadata["skill_id"]
            if isinstance(found, str) and found:
                return found
            raise InvalidParams("metadata.skill_id must be a non-empty string")
    raise InvalidParams("name the skill as skill_id in the metadata of the message or of the request")


def _arguments(message: Mapping[str, Any]) -> Any:
    parts = _member(message, "parts", list)
    if len(parts) != 1 or not isinstance(parts[0], dict) or "data" not in parts[0]:
        raise InvalidParams("the message must have exactly one part, a data part that holds the arguments")
    return parts[0]["data"]


_KINDS: Mapping[type, str] = {dict: "an object", list: "an array", str: "a string"}
_T = TypeVar("_T")


def _member(holder: Mapping[str, Any], name: str, kind: type[_T]) -> _T:
    value = holder.get(name)
    if not isinstance(value, kind):
        raise InvalidParams(f"{name} must be {_KINDS[kind]}")
    return value
