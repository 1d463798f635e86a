"""What a keep-alive repeats of the events before it."""

from typing import Any

import orjson
import pytest

from bus.server.reply import _status

STATUS = {"state": "TASK_STATE_WORKING", "timestamp": "2026-11-30T15:00:00.000Z"}
WHOLE = {"taskId": "t", "contextId": "c", "status": STATUS}


@pytest.mark.parametrize(
    ("event", "found"),
    [
        ({"task": {"id": "t", "contextId": "c", "status": STATUS, "history": []}}, WHOLE),
        ({"statusUpdate": {"taskId": "t", "contextId": "c", "status": {**STATUS, "message": {"parts": []}}}}, WHOLE),
        ({"artifactUpdate": {"taskId": "t", "artifact": {"parts": [{"data": {"status": STATUS}}]}}}, None),
        ({"message": {"parts": [{"text": '"status"'}]}}, None),
        ({"task": {"id": "t", "status": "odd"}}, None),
        ({}, None),
    ],
)
def test_the_last_status(event: dict[str, Any], found: dict[str, Any] | None) -> None:
    assert _status(event) == found
    assert _status(orjson.dumps(event)) == found


@pytest.mark.parametrize("body", [b'"status"', b'["status"]', b'{"status"', b"\xff"])
def test_what_is_no_event(body: bytes) -> None:
    assert _status(body) is None
