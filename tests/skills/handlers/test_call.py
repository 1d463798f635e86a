"""What a handler may ask for, whatever it sends."""

import time
from dataclasses import replace
from typing import Any

import pytest

from skills import Context, Failed
from skills.handlers import Rejected, Supply
from skills.handlers.call import Call
from skills.redaction import RedactingReporter, Redactor, Secret

from .ways import Notes, Reports, tool


class Out(Notes):
    async def get(self, key: str) -> Any:
        raise OSError("the disk is gone: sesame")


def call_of(memory: Any, *modes: str) -> Call:
    one = tool("inline", "echo", memories={"Notes": modes})
    supply = Supply(memories={"Notes": memory}, redact=lambda text: text.replace("sesame", "[secret]"))
    return Call(one, {"text": ""}, Context("call", "episode", time.time()), supply)


def asking(operation: str, name: str = "Notes", **arguments: Any) -> dict[str, Any]:
    return {"memory": name, "operation": operation, "arguments": arguments}


PUT = asking("put", key="a", value=1, version=None)
GET = asking("get", key="a")


@pytest.mark.parametrize(
    ("modes", "message", "kind"),
    [
        (("read",), PUT, "denied"),
        (("read",), asking("delete", key="a", version=None), "denied"),
        (("write",), GET, "denied"),
        ((), GET, "denied"),
        (("read", "write"), asking("get", "Others", key="a"), "denied"),
        (("read",), asking("__class__"), "denied"),
        (("read",), asking("get"), "invalid"),
        (("read",), asking("get", key="a", more=1), "invalid"),
        (("read",), asking("get", key=1), "invalid"),
        (("read",), asking("get", key="\ud800"), "invalid"),
        (("read",), asking("list", prefix="", limit=0, after=""), "invalid"),
        (("read",), asking("list", prefix="", limit=True, after=""), "invalid"),
        (("read",), asking("list", prefix="", limit=10**9, after=""), "invalid"),
        (("write",), asking("put", key="a", value=1, version=-1), "invalid"),
        (("write",), asking("put", key="a", value="\ud800", version=None), "invalid"),
        (("read",), {"memory": "Notes"}, "invalid"),
        (("read",), {}, "invalid"),
        (("read",), {"chunk": "\ud800", "artifact": "a", "last": False}, "invalid"),
    ],
)
async def test_what_is_not_granted_or_not_right_is_rejected(modes: Any, message: Any, kind: str) -> None:
    notes = Notes()
    with pytest.raises(Rejected) as rejected:
        await call_of(notes, *modes).ask(message)
    assert rejected.value.kind == kind
    assert notes.entries == {}


async def test_the_error_of_a_memory_stays_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Rejected, match="the memory Notes can't be used now"):
        await call_of(Out(), "read").ask(GET)
    assert "the disk is gone: [secret]" in caplog.text
    assert "sesame" not in caplog.text


@pytest.mark.parametrize("message", [{}, {"is": "progress"}, {"is": "log"}, {"is": []}, {"is": "progress", "text": 1}])
async def test_a_report_that_is_none_is_left_out(message: Any, caplog: pytest.LogCaptureFixture) -> None:
    await call_of(Notes()).tell(message)
    assert "it sent a report that is none" in caplog.text


async def test_a_level_that_is_none_is_information() -> None:
    await call_of(Notes()).tell({"is": "log", "text": ["a"], "level": []})


def test_what_fails_is_redacted() -> None:
    call = call_of(Notes())
    assert call.failed("ValueError: sesame") == Failed("ValueError: [secret]")
    assert call.done({"text": "", "sesame": 1}) == Failed(
        'the output is wrong: unknown field "[secret]"; known: text, number, count'
    )
    assert "sesame" not in repr(call.supply)


async def test_however_deep_a_chunk_is_it_is_sent_or_rejected() -> None:
    call = call_of(Notes(), "read")
    reporter = RedactingReporter(Redactor([Secret("API_KEY", "sesame")]), Reports())
    call.context = replace(call.context, reporter=reporter)
    content: dict[str, Any] = {}
    rejected: list[str] = []
    for depth in range(1000):
        content = {"a": content}
        if depth > 400:
            try:
                await call.ask({"chunk": content, "artifact": "a", "last": False})
            except Rejected as error:
                rejected.append(str(error))
    assert rejected
    assert all("nested too deeply" in each or each == "too large" for each in rejected)
