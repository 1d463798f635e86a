"""The tool send_reply: a message to somebody outside."""

from collections.abc import Mapping
from typing import Any

from .. import canonical
from ..arguments import legible
from ..contract import Contract, Effect, Risk
from ..errors import Refused
from ..plan import MAX_PAYLOAD, Plan, PlannedEffect
from ..skill import Context, Done, EffectResult, Outcome, Skill
from .backends import BackendError, Outgoing
from .bindings import Binding
from .bound import BoundTool, given_text, time_left
from .envelope import clipped, observation, output_schema

MAX_BODY = 262_144  # characters
MAX_TO = 1_000
MAX_TEXT = 2_000  # characters of what a backend says
PREVIEW = 120
SECONDS = 25.0
NOTHING = {"sent": False, "recorded": False, "delivery": "stub"}

CONTRACT = Contract(
    id="send_reply",
    title="Send a reply",
    description=(
        "Send a text to a customer or to whom `to` names. `body` is the whole message, plain text. The message has "
        "left the host only when `sent` is true and `stub` is false: never say that it was sent otherwise. It can't "
        "be taken back. `error` says what went wrong; send it again only where `retryable` is true. Costs one "
        "Mail.Send call."
    ),
    tags=("mail",),
    examples=('{"to": "ada@example.com", "body": "Your refund is on its way."}',),
    input_schema={
        "type": "object",
        "properties": {
            "body": {"type": "string", "description": f"The message, up to {MAX_BODY} characters"},
            "draft": {"type": "string", "description": "The same, where `body` is left out or empty"},
            "to": {"type": "string", "description": "Who gets it: an e-mail address; left out: customer"},
        },
        "additionalProperties": True,
    },
    output_schema=output_schema(
        {
            "to": {"type": "string"},
            "chars": {"type": "integer", "description": "Length of the message"},
            "preview": {"type": "string", "description": f"Its first {PREVIEW} characters"},
            "sent": {"type": "boolean", "description": "Whether the delivery was accepted"},
            "recorded": {"type": "boolean"},
            "delivery": {"type": "string", "description": "The way it went"},
        },
        optional={
            "note": {"type": ["string", "null"]},
            "body": {"type": "string", "description": "There, and empty, where the message was empty"},
            "retry_after": {"type": "number", "description": "Seconds to wait before another try, where known"},
        },
    ),
    access=Effect(name="Mail.Send", scope="mail", cost=0),
    effects=(Effect(name="Mail.Send", scope="mail"),),
    deadline=30.0,
    risk=Risk(read_only=False, external_egress=True, irreversible=True, sensitivity="high", idempotent=True),
    measures={"operation": "send", "recipients": "/to", "bytes": "/body"},
)


def send_reply(binding: Binding) -> Skill:
    """The skill, on the backend that it is bound to."""
    tool = BoundTool("send_reply", "Mail.Send", "mail", "send failed", binding)

    def plan(arguments: Any) -> Plan:
        to = ""
        if not isinstance(arguments, Mapping):
            return tool.refusal(_payload(to, ""), "arguments must be a JSON object")
        try:
            to, body = _given(arguments)
            _check_size(body)
        except ValueError as error:
            return tool.refusal(_payload(to, ""), f"send failed: {error}")
        except Refused as refused:
            return tool.refusal(_payload(to, ""), str(refused))
        if not body:
            return tool.refusal({"to": to, "body": "", **_payload(to, "")}, "empty body")
        return Plan.one("Mail.Send", {"to": to, "body": body}, scope="mail", finish=True)

    async def handle(effect: PlannedEffect, context: Context) -> Outcome:
        to, body = effect.payload["to"], effect.payload["body"]
        message = Outgoing(to, body, context.invocation_id, 0.9 * time_left(context, SECONDS))
        late = BackendError("no answer in time; the message may have been sent")
        try:
            said = await tool.ask(lambda: binding.backend.send(message), context, seconds=SECONDS, late=late)
            if not isinstance(said, Mapping):
                raise BackendError("backend returned non-dict result")
            return Done(_answer(to, body, said))
        except BackendError as error:
            payload = _payload(to, body)
            if error.retry_after is not None:
                payload["retry_after"] = error.retry_after
            return Done(observation("send_reply", payload, error=str(error), stub=True, retryable=error.retryable))

    def finish(arguments: Any, result: EffectResult) -> Mapping[str, Any]:
        to, body = _given(arguments) if isinstance(arguments, Mapping) else ("", "")
        return tool.finish(_payload(to, body), result)

    return Skill(CONTRACT, plan, handle, finish, binding.tier, binding.raise_tier)


def _given(arguments: Mapping[str, Any]) -> tuple[str, str]:
    """To whom, and what. Raises ValueError for what is too long."""
    to = given_text({"to": arguments.get("to") or "customer"}, "to", most=MAX_TO)
    return to, given_text(arguments, "body", "draft", most=MAX_BODY)


def _check_size(body: str) -> None:
    # JSON may take six bytes for one character: only then can the payload be too large to carry.
    if len(body) * 6 > MAX_PAYLOAD // 2 and len(canonical.encode(body)) > MAX_PAYLOAD - 10_000:
        raise Refused(f"send failed: the body takes more than {MAX_PAYLOAD} bytes as JSON")


def _payload(to: str, body: str) -> dict[str, Any]:
    preview = body if len(body) <= PREVIEW else body[: PREVIEW - 3] + "..."
    return {"to": to, "chars": len(body), "preview": preview, **NOTHING}


def _answer(to: str, body: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """The envelope of what a backend says; it was a stub where the delivery is called one, or a fake."""
    delivery = _text(said.get("delivery")) or "stub"
    note, error = _text(said.get("note")), _text(said.get("error"))
    payload = {
        **_payload(to, body),
        "sent": bool(said.get("sent")),
        "recorded": bool(said.get("recorded", True)),
        "delivery": delivery,
        "note": note or None,
    }
    stub = delivery in ("stub", "fake")
    return observation("send_reply", payload, error=error, stub=stub, retryable=said.get("retryable") is True)


def _text(value: Any) -> str:
    return (
        clipped(legible(value), MAX_TEXT) if isinstance(value, str) else "" if value is None else type(value).__name__
    )
