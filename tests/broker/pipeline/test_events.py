import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from a2a.types import StreamResponse
from google.protobuf.json_format import ParseDict

from broker.ledger.ledger import Ledger
from broker.ledger.operations import Call, Progress
from broker.ledger.settlement import KEPT_EVENTS
from broker.ledger.tasks import Event, chunks_of
from broker.pipeline.events import MAX_CHUNK, Reports
from broker.pipeline.pipeline import Asked, Pipeline, task_id
from broker.sessions import Session

from ..conftest import Effects

Ask = Callable[..., Asked]
TASK = task_id("ep1", "m1")


async def kept(ledger: Ledger, after: int = 0) -> list[Event]:
    found = await ledger.tasks.follow(TASK, after)
    assert found is not None
    return found[1]


async def test_what_a_handler_reports_becomes_events(
    pipeline: Pipeline, ledger: Ledger, ask: Ask, effects: Effects
) -> None:
    run = pipeline.begin(ask("once", {"do": "report"}))
    await effects.started.wait()
    events = await kept(ledger)
    assert [event.seq for event in events] == [1, 2, 3]
    bodies = [json.loads(event.body) for event in events]
    for body in bodies:
        ParseDict(body, StreamResponse())
    status = bodies[0]["statusUpdate"]
    assert status["status"]["state"] == "TASK_STATE_WORKING"
    assert status["status"]["message"]["parts"] == [{"text": "half way"}]
    assert status["metadata"] == {"fraction": 0.5}
    assert [(b["artifactUpdate"]["append"], b["artifactUpdate"]["lastChunk"]) for b in bodies[1:]] == [
        (False, False),
        (True, True),
    ]
    (artifact,) = chunks_of(events)
    assert artifact["parts"] == [{"text": "one "}, {"text": "two"}]
    assert [event.seq for event in await kept(ledger, 2)] == [3]
    effects.gate.set()
    assert (await run.receipt()).state == "completed"
    assert [event.seq for event in await kept(ledger)] == [1, 2, 3]


async def test_a_call_that_reports_nothing_leaves_no_events(pipeline: Pipeline, ledger: Ledger, ask: Ask) -> None:
    await pipeline.call(ask("once"))
    assert await kept(ledger) == []


@pytest.fixture
async def reports(pipeline: Pipeline, ledger: Ledger, ask: Ask, effects: Effects, session: Session) -> Any:
    """The reports of a call that runs meanwhile."""
    run = pipeline.begin(ask("once", {"do": "wait"}))
    await effects.started.wait()
    call = Call(session, "once", "m1", TASK, "ep1", run.fingerprint)
    told: list[str] = []
    reports = Reports(ledger, call, 1, time.time, told.append)
    yield reports
    await reports.close()
    effects.gate.set()
    await run.receipt()


async def test_progress_that_comes_too_fast_is_thinned_out_and_the_newest_wins(
    reports: Reports, ledger: Ledger
) -> None:
    for n in range(100):
        await reports.progress(f"step {n}", n / 100)
    await reports.close()
    texts = [json.loads(e.body)["statusUpdate"]["status"]["message"]["parts"][0]["text"] for e in await kept(ledger)]
    assert texts[0] == "step 0"
    assert texts[-1] == "step 99"
    assert len(texts) < 50
    await reports.progress("too late", None)
    await reports.chunk("progress", {"text": "too late"}, last=True)
    assert len(await kept(ledger)) == len(texts)


async def test_a_chunk_keeps_its_place_after_progress_that_waits(reports: Reports, ledger: Ledger) -> None:
    await reports.progress("a", None)
    await reports.progress("b", None)
    await reports.chunk("progress", {"text": "c"}, last=False)
    kinds = [next(iter(json.loads(event.body))) for event in await kept(ledger)]
    assert kinds == ["statusUpdate", "statusUpdate", "artifactUpdate"]


@pytest.mark.parametrize(
    ("artifact", "part"),
    [
        ("output", {"text": "x"}),
        ("", {"text": "x"}),
        ("x" * 200, {"text": "x"}),
        ("a", {"text": "x" * MAX_CHUNK}),
        ("a", {"data": object()}),
        ("a", {"text": "\ud800"}),
    ],
)
async def test_chunks_that_cannot_be(reports: Reports, ledger: Ledger, artifact: str, part: Any) -> None:
    with pytest.raises(ValueError):
        await reports.chunk(artifact, part, last=False)
    assert await kept(ledger) == []


async def test_texts_and_fractions_are_bounded(reports: Reports, ledger: Ledger) -> None:
    await reports.progress("é" * 5000 + "\ud800", 7)
    (event,) = await kept(ledger)
    update = json.loads(event.body)["statusUpdate"]
    assert len(update["status"]["message"]["parts"][0]["text"].encode()) <= 4096
    assert update["metadata"]["fraction"] == 1


async def test_only_the_newest_events_are_kept_and_numbers_go_on(
    reports: Reports, ledger: Ledger, session: Session
) -> None:
    call = Call(session, "once", "m1", TASK, "ep1", reports._call.fingerprint)
    many = [json.dumps({"n": n}).encode() for n in range(KEPT_EVENTS)]
    assert await ledger.report(Progress(call, 1, 1.0, many)) == KEPT_EVENTS
    assert await ledger.report(Progress(call, 1, 2.0, many[:3])) == KEPT_EVENTS + 3
    assert [event.seq for event in await kept(ledger)] == list(range(4, KEPT_EVENTS + 4))
    await ledger.tasks.forget(before=1.5)
    assert [event.seq for event in await kept(ledger)] == list(range(KEPT_EVENTS + 1, KEPT_EVENTS + 4))


async def test_a_worker_that_was_taken_over_reports_nothing(reports: Reports, ledger: Ledger, session: Session) -> None:
    late = Reports(ledger, reports._call, 0, time.time, lambda _: None)
    await late.progress("late", None)
    await late.close()
    assert await kept(ledger) == []


async def test_numbers_go_on_where_an_earlier_worker_ended(
    pipeline: Pipeline, ledger: Ledger, ask: Ask, effects: Effects
) -> None:
    dying = Pipeline(pipeline.catalog, ledger, pipeline._waits._worktrees, owner="dead", version="0", lease=0.05)
    run = dying.begin(ask("again", {"do": "report"}))
    await effects.started.wait()
    await dying.close()
    assert run.task.cancelled()
    effects.gate.set()
    assert (await asyncio.wait_for(pipeline.call(ask("again", {"do": "report"})), 10)).state == "completed"
    events = await kept(ledger)
    assert [event.seq for event in events] == [1, 2, 3, 4, 5, 6]
    (artifact,) = chunks_of(events)
    assert artifact["parts"] == [{"text": "one "}, {"text": "two"}]
