"""What a machine is told: mklang's observation envelope as JSON, or the plain string of `calc`."""

import json
from collections.abc import Mapping
from typing import Any

from deploy.cli.envelope import Envelope

FIELDS = ("tool", "stub", "error", "status", "retryable", "untrusted")
# What else the answer of a tool has when it failed: a field of the input, and what is empty then.
EMPTY: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "search": ("query", {"results": []}),
    "search_kb": ("query", {"facts": []}),
    "send_reply": ("to", {"sent": False, "recorded": False, "delivery": "unknown"}),
    "list_files": ("path", {"entries": [], "count": 0, "truncated": False}),
    "read_file": ("path", {"content": "", "bytes": 0, "truncated": False}),
    "write_file": ("path", {"bytes": 0, "written": False, "existed": False}),
}


def of(response: Mapping[str, Any]) -> str:
    """The observation in an agent's response. Raises Failure for one that holds none.

    A tool of the host has the envelope already; the output of any other skill stands in the envelope's `output`,
    whatever it claims to be.
    """
    envelope = Envelope.of(response)
    output, said = envelope.output, envelope.metadata
    if "world" in said:  # of a skill that answers with a text
        return str(output["text"])
    rest = {name: value for name, value in output.items() if name != "world"}
    if said.get("tool") in EMPTY and all(name in rest for name in FIELDS):
        return _text({name: rest.pop(name) for name in FIELDS} | rest | {"untrusted": True})
    is_error = said.get("status") != "ok"
    body = {
        "tool": said.get("tool"),
        "stub": said.get("tier") != "live",
        "error": _error(envelope) if is_error else None,
        "status": "error" if is_error else "ok",
        "retryable": said.get("retryable") is True,
        "untrusted": True,
    }
    return _text({**body, "output": rest})


def failure(tool: str, given: Mapping[str, Any], error: str, *, retryable: bool = False) -> str:
    """The observation of a call that has no result. `stub` is true in it: no system is known to have been used."""
    if tool == "calc":
        expression = str(given.get("expr") or given.get("query") or "").strip()
        return _legible(f"error: could not evaluate {expression!r} ({error})")
    body = {"tool": tool, "stub": True, "error": error, "status": "error", "retryable": retryable, "untrusted": True}
    echoed, empty = EMPTY.get(tool, ("", {}))
    return _text({**body, **({echoed: str(given.get(echoed) or "")} if echoed else {}), **empty})


def _error(envelope: Envelope) -> str:
    for name in ("error", "refused"):
        said = envelope.output.get(name)
        if isinstance(said, str) and said:
            return said
    parts = envelope.task["status"].get("message", {}).get("parts", ())
    reason = " ".join(str(part["text"]) for part in parts if "text" in part)
    return reason or f"{envelope.metadata.get('tool')} ended {envelope.state}"


def _text(body: Mapping[str, Any]) -> str:
    return _legible(json.dumps(body, ensure_ascii=False))


def _legible(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
