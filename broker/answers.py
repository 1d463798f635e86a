"""What is said of a task, as A2A's JSON (A2A 1.0, section 4.1)."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from .ledger.operations import Receipt
from .ledger.records import invocation_id
from .ledger.tasks import Task


def moment(seconds: float) -> str:
    """Unix seconds as A2A writes them: UTC, milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def status_message(message_id: str, task_id: str, context_id: str, text: str) -> dict[str, Any]:
    """The message in a status."""
    return {
        "messageId": message_id,
        "taskId": task_id,
        "contextId": context_id,
        "role": "ROLE_AGENT",
        "parts": [{"text": text}],
    }


def finished(receipt: Receipt, *, whole: bool = True) -> dict[str, Any]:
    """The task that a committed call is; with its result if it is to be `whole`."""
    task = {"id": receipt.task_id, "contextId": receipt.context_id, "status": _final_status(receipt)}
    return {**task, "artifacts": [_artifact(receipt)]} if whole else task


def begun(task: Task) -> dict[str, Any]:
    """A task as it was when it began: the leading event of its log, the same whenever it is asked for."""
    state = "WORKING" if task.begun else "SUBMITTED"
    return _open(task, state, task.opened_at)


def submitted(task_id: str, context_id: str, now: float) -> dict[str, Any]:
    """A task that waits for what it needs and has nothing in the ledger yet."""
    return {
        "id": task_id,
        "contextId": context_id,
        "status": {"state": "TASK_STATE_SUBMITTED", "timestamp": moment(now)},
    }


def standing(task: Task, *, artifacts: Sequence[Mapping[str, Any]] = (), whole: bool = True) -> dict[str, Any]:
    """A task as it is now; `artifacts` are what a running one has sent ahead, `whole` lets a result in."""
    if task.receipt is None:
        said = _open(task, "WORKING", task.updated_at)
        return {**said, "artifacts": list(artifacts)} if artifacts else said
    return finished(task.receipt, whole=whole)


def ending(receipt: Receipt) -> tuple[dict[str, Any], dict[str, Any]]:
    """The last two events of a task: its result, then its final status."""
    named = {"taskId": receipt.task_id, "contextId": receipt.context_id}
    artifact = {"artifactUpdate": {**named, "artifact": _artifact(receipt), "append": False, "lastChunk": True}}
    return artifact, {"statusUpdate": {**named, "status": _final_status(receipt)}}


def asked(task: Task, arguments: bytes) -> dict[str, Any]:
    """The message that a task began with, as far as the ledger keeps it."""
    return {
        "messageId": task.message_id,
        "taskId": task.id,
        "contextId": task.context_id,
        "role": "ROLE_USER",
        "parts": [{"data": orjson.Fragment(arguments), "mediaType": "application/json"}],
        "metadata": {"skill_id": task.skill},
    }


def _open(task: Task, state: str, at: float) -> dict[str, Any]:
    metadata: dict[str, Any] = {"tool": task.skill, "invocation": invocation_id(task.episode, task.id)}
    if task.deadline is not None:
        metadata["deadline"] = moment(task.deadline)
    if task.root_task:
        metadata["rootTask"] = task.root_task
    return {
        "id": task.id,
        "contextId": task.context_id,
        "status": {"state": f"TASK_STATE_{state}", "timestamp": moment(at)},
        "metadata": metadata,
    }


def _final_status(receipt: Receipt) -> dict[str, Any]:
    status: dict[str, Any] = {
        "state": f"TASK_STATE_{receipt.state.upper()}",
        "timestamp": moment(receipt.closed_at),
    }
    reason = receipt.metadata.get("reason")
    if reason:
        status["message"] = status_message(f"{receipt.task_id}-status", receipt.task_id, receipt.context_id, reason)
    return status


def _artifact(receipt: Receipt) -> dict[str, Any]:
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
    if state != "completed" or output.get("ok") is False:  # where a `status` beside it may be that of the effect
        return "error"
    if output.get("status") in ("ok", "error"):
        return str(output["status"])
    return "error" if str(output.get("text", "")).startswith("error: ") else "ok"
