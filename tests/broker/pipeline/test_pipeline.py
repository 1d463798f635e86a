import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.chain.provenance import Provenance
from broker.grants.grant import Grant
from broker.ledger.ledger import Ledger
from broker.ledger.settlement import Receipt
from broker.pipeline.pipeline import Asked, Pipeline, task_id
from broker.sessions import mint
from broker.worktrees.worktrees import Worktrees
from bus import (
    DeadlineExceeded,
    IdempotencyConflict,
    InternalError,
    InvalidParams,
    SandboxUnavailable,
    SkillNotFound,
    Unauthenticated,
    Unavailable,
)
from skills import Catalog

from ..conftest import SECRET, Effects

Ask = Callable[..., Asked]
SPENT = ("Test.Run", "test")


def output(receipt: Receipt) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(receipt.output)
    return value


async def test_an_effect_runs_is_debited_and_logged(
    pipeline: Pipeline, ledger: Ledger, ask: Ask, effects: Effects
) -> None:
    receipt = await pipeline.call(ask("once", {"a": 1}))
    assert (receipt.state, receipt.outcome, receipt.entry_index) == ("completed", "succeeded", 1)
    body = output(receipt)
    assert body["ok"] is True
    assert [e["status"] for e in body["world"]["effects"]] == ["ok"]
    assert effects.runs == [{"a": 1}]
    assert await ledger.spent("ep1") == {SPENT: 1}
    assert (await Provenance(ledger).verify("ep1")).faults == ()


async def test_a_skill_without_effects_costs_nothing(pipeline: Pipeline, ledger: Ledger, ask: Ask) -> None:
    receipt = await pipeline.call(ask("pure", [1.50]))
    assert output(receipt)["got"] == [1.5]
    assert (receipt.state, receipt.outcome) == ("completed", "succeeded")
    assert await ledger.spent("ep1") == {}


async def test_a_plan_refusal_costs_nothing_and_is_committed(
    pipeline: Pipeline, ledger: Ledger, ask: Ask, effects: Effects
) -> None:
    receipt = await pipeline.call(ask("once", {"refuse": True}))
    assert (receipt.state, receipt.outcome) == ("rejected", "refused")
    assert output(receipt) == {"ok": False, "refused": "not like this", "world": output(receipt)["world"]}
    assert output(receipt)["world"]["effects"] == []
    assert effects.runs == []
    assert await ledger.spent("ep1") == {}
    assert len(await ledger.entries(episode="ep1")) == 1


async def test_a_denial_runs_nothing_and_is_committed_with_its_label(
    pipeline: Pipeline, ledger: Ledger, ask: Ask, effects: Effects
) -> None:
    _, poor = mint("ep1", [Grant("Test.Run", "test", 0, 2**40)], ttl=60)
    await ledger.add_session(poor)
    receipt = await pipeline.call(ask("once", session=poor))
    assert (receipt.state, receipt.outcome) == ("rejected", "denied:budget")
    assert [e["status"] for e in output(receipt)["world"]["effects"]] == ["denied"]
    assert effects.runs == []
    assert await ledger.spent("ep1") == {}
    assert (await Provenance(ledger).verify("ep1")).faults == ()


@pytest.mark.parametrize(
    ("do", "reason"),
    [
        ("fail", "the handler failed"),
        ("raise", "the handler failed"),
        ("odd reason", "the handler failed"),
        ("exit", "the handler failed"),
        ("base", "the handler failed"),
        ("none", "the handler failed"),
        ("dict", "the handler failed"),
        ("cancel", "the handler failed"),
        ("time out", "the handler failed"),
        ("large", "the limit is 983040"),
        ("odd", "surrogate"),
    ],
)
async def test_a_failed_handler_is_debited_and_says_no_more_than_it_may(
    pipeline: Pipeline, ledger: Ledger, ask: Ask, do: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    receipt = await pipeline.call(ask("once", {"do": do}))
    assert (receipt.state, receipt.outcome) == ("failed", "failed")
    assert reason in receipt.metadata["reason"]
    assert SECRET not in json.dumps(receipt.metadata) + str(receipt.output)
    assert (SECRET in caplog.text) == (do == "fail")  # what a handler says of a failure is for the host
    assert await ledger.open_calls("ep1") == 0
    assert (await pipeline.call(ask("once", {"do": do}))).output == receipt.output
    assert await ledger.spent("ep1") == {SPENT: 1}
    assert (await Provenance(ledger).verify("ep1")).faults == ()


async def test_a_handler_past_its_deadline_is_a_failure(pipeline: Pipeline, ask: Ask, effects: Effects) -> None:
    receipt = await pipeline.call(ask("quick", {"do": "wait"}))
    assert (receipt.state, receipt.metadata["retryable"]) == ("failed", True)
    assert "did not end within" in receipt.metadata["reason"]


async def test_the_finish_phase_reshapes_the_output(pipeline: Pipeline, ask: Ask) -> None:
    receipt = await pipeline.call(ask("once", {"finish": "yes"}))
    assert output(receipt)["shape"] == "new"
    assert output(receipt)["status"] == "ok"


@pytest.mark.parametrize("how", ["crash", "index", "exit"])
async def test_a_finish_phase_that_fails_does_not_hide_that_the_effect_ran(
    pipeline: Pipeline, ledger: Ledger, ask: Ask, how: str
) -> None:
    receipt = await pipeline.call(ask("once", {"finish": how}))
    assert (receipt.state, receipt.outcome) == ("failed", "failed")
    assert [e["status"] for e in output(receipt)["world"]["effects"]] == ["ok"]
    assert "finish phase failed" in receipt.metadata["reason"]
    assert (await Provenance(ledger).verify("ep1")).faults == ()


async def test_the_phases_see_what_is_stored_each_for_itself(pipeline: Pipeline, ledger: Ledger, ask: Ask) -> None:
    receipt = await pipeline.call(ask("once", {"finish": "yes", "mutate": 1, "b": 1.0, "a": 1e22}))
    (entry,) = await ledger.entries(episode="ep1")
    record = json.loads((await ledger.objects([json.loads(entry.encoded)["transitionRef"]])).popitem()[1].payload)
    stored = (await ledger.objects([record["input"]]))[record["input"]].payload
    assert stored == b'{"a":10000000000000000000000,"b":1,"finish":"yes","mutate":1}'
    assert output(receipt)["saw"] == json.loads(stored)


@pytest.mark.parametrize("arguments", [{"break": 1}, {"crash": 1}, {"crash": "exit"}, {"crash": "base"}])
async def test_a_broken_plan_changes_nothing(pipeline: Pipeline, ledger: Ledger, ask: Ask, arguments: Any) -> None:
    with pytest.raises(InternalError):
        await pipeline.call(ask("once", arguments))
    assert await ledger.entries(episode="ep1") == []
    assert await ledger.open_calls("ep1") == 0


@pytest.mark.parametrize("skill", ["absent", "hidden", "", "x" * 1000])
async def test_an_invisible_skill_is_not_told_from_an_absent_one(
    pipeline: Pipeline, ledger: Ledger, ask: Ask, skill: str
) -> None:
    with pytest.raises(SkillNotFound) as caught:
        await pipeline.call(ask(skill))
    assert caught.value.message == SkillNotFound.default
    assert await ledger.entries(episode="ep1") == []


async def test_what_is_visible(pipeline: Pipeline, ask: Ask) -> None:
    assert [s.id for s in pipeline.visible(ask("pure").session)] == ["again", "once", "placed", "pure", "quick"]


@pytest.mark.parametrize("arguments", [float("inf"), {"a": "\ud800"}, {"a": "x" * (1 << 20)}])
async def test_arguments_that_cannot_be_kept_are_refused(pipeline: Pipeline, ask: Ask, arguments: Any) -> None:
    with pytest.raises(InvalidParams):
        await pipeline.call(ask("pure", arguments))


# once, however often it is asked for


async def test_a_resend_finds_what_was_committed(
    pipeline: Pipeline, ledger: Ledger, ask: Ask, effects: Effects
) -> None:
    first = await pipeline.call(ask("once", {"a": 1, "b": 2}))
    again = await pipeline.call(ask("once", {"b": 2, "a": 1}, context_id="another"))
    assert again.replayed
    assert not first.replayed
    assert (again.output, again.entry_index, again.context_id) == (first.output, first.entry_index, "ep1")
    assert len(effects.runs) == 1
    assert await ledger.spent("ep1") == {SPENT: 1}


async def test_refusals_and_plain_answers_are_replayed_too(pipeline: Pipeline, ledger: Ledger, ask: Ask) -> None:
    for message, skill, arguments in (("a", "once", {"refuse": 1}), ("b", "pure", {})):
        first = await pipeline.call(ask(skill, arguments, message))
        assert (await pipeline.call(ask(skill, arguments, message))).output == first.output
    assert len(await ledger.entries(episode="ep1")) == 2


@pytest.mark.parametrize(("skill", "arguments"), [("once", {"a": 2}), ("again", {"a": 1}), ("pure", {"a": 1})])
async def test_the_same_message_with_another_request_is_a_conflict(
    pipeline: Pipeline, ledger: Ledger, ask: Ask, skill: str, arguments: Any
) -> None:
    await pipeline.call(ask("once", {"a": 1}))
    with pytest.raises(IdempotencyConflict):
        await pipeline.call(ask(skill, arguments))
    assert len(await ledger.entries(episode="ep1")) == 1


async def test_a_resend_joins_the_call_that_runs(pipeline: Pipeline, ask: Ask, effects: Effects) -> None:
    asked = [asyncio.create_task(pipeline.call(ask("once", {"do": "wait"}))) for _ in range(5)]
    await effects.started.wait()
    with pytest.raises(IdempotencyConflict):
        await pipeline.call(ask("once", {"do": "other"}))
    effects.gate.set()
    assert len({receipt.entry_index for receipt in await asyncio.gather(*asked)}) == 1
    assert len(effects.runs) == 1


async def test_a_call_outlives_who_asked(pipeline: Pipeline, ledger: Ledger, ask: Ask, effects: Effects) -> None:
    asked = asyncio.create_task(pipeline.call(ask("once", {"do": "wait"})))
    await effects.started.wait()
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    effects.gate.set()
    receipt = await pipeline.call(ask("once", {"do": "wait"}))
    assert receipt.state == "completed"
    assert len(effects.runs) == 1


async def test_200_calls_on_a_budget_of_50(pipeline: Pipeline, ledger: Ledger, ask: Ask, effects: Effects) -> None:
    receipts = await asyncio.gather(*(pipeline.call(ask("once", {}, f"m{n}")) for n in range(200)))
    outcomes = [receipt.outcome for receipt in receipts]
    assert outcomes.count("succeeded") == 50
    assert outcomes.count("denied:budget") == 150
    assert len(effects.runs) == 50
    assert await ledger.spent("ep1") == {SPENT: 50}
    assert (await Provenance(ledger).verify("ep1")) == type(await Provenance(ledger).verify("ep1"))("ep1", 200, ())


async def test_two_workers_share_one_budget(
    pipeline: Pipeline,
    catalog: Catalog,
    ledger_path: Any,
    worktrees: Worktrees,
    ledger: Ledger,
    ask: Ask,
    effects: Effects,
) -> None:
    async with await Ledger.open(str(ledger_path)) as other_ledger:
        other = Pipeline(catalog, other_ledger, worktrees, owner="w2", version="0")
        calls = [(pipeline if n % 2 else other).call(ask("once", {}, f"m{n}")) for n in range(100)]
        outcomes = [receipt.outcome for receipt in await asyncio.gather(*calls)]
        await other.close()
    assert (outcomes.count("succeeded"), outcomes.count("denied:budget")) == (50, 50)
    assert len(effects.runs) == 50
    assert (await Provenance(ledger).verify("ep1")).faults == ()


# crashes


async def abandoned(catalog: Catalog, ledger: Ledger, worktrees: Worktrees, asked: Asked, effects: Effects) -> None:
    """Leave a call as a worker that was killed while its effect ran leaves it."""
    dying = Pipeline(catalog, ledger, worktrees, owner="dead", version="0", lease=0.05)
    running = asyncio.create_task(dying.call(asked))
    await effects.started.wait()
    await dying.close(grace=0)
    await asyncio.gather(running, return_exceptions=True)
    assert await ledger.open_calls("ep1") == 1


async def test_an_effect_that_is_not_safe_to_repeat_is_found_indeterminate(
    pipeline: Pipeline, catalog: Catalog, ledger: Ledger, worktrees: Worktrees, ask: Ask, effects: Effects
) -> None:
    asked = ask("once", {"do": "wait"})
    await abandoned(catalog, ledger, worktrees, asked, effects)
    receipt = await pipeline.call(asked)
    assert (receipt.state, receipt.outcome) == ("failed", "indeterminate")
    assert "indeterminate" in receipt.metadata["reason"]
    assert "sha256:" in receipt.metadata["reason"]
    assert [e["status"] for e in output(receipt)["world"]["effects"]] == ["indeterminate"]
    assert len(effects.runs) == 1
    assert await ledger.spent("ep1") == {SPENT: 1}
    assert (await pipeline.call(asked)).output == receipt.output
    assert (await Provenance(ledger).verify("ep1")).faults == ()


async def test_a_repeatable_effect_runs_again_without_a_second_debit(
    pipeline: Pipeline, catalog: Catalog, ledger: Ledger, worktrees: Worktrees, ask: Ask, effects: Effects
) -> None:
    asked = ask("again", {"do": "wait"})
    await abandoned(catalog, ledger, worktrees, asked, effects)
    effects.gate.set()
    receipt = await pipeline.call(asked)
    assert (receipt.state, receipt.outcome) == ("completed", "succeeded")
    assert len(effects.runs) == 2
    assert await ledger.spent("ep1") == {SPENT: 1}
    assert (await Provenance(ledger).verify("ep1")).faults == ()


async def test_an_intent_that_this_worker_forgot_is_settled_at_once(
    pipeline: Pipeline, ledger: Ledger, ask: Ask, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:

        async def fails(_closing: object) -> Receipt:
            raise Unavailable

        broken.setattr(ledger, "commit", fails)
        with pytest.raises(Unavailable):
            await pipeline.call(ask("once"))
    assert await ledger.open_calls("ep1") == 1
    assert (await asyncio.wait_for(pipeline.call(ask("once")), 5)).outcome == "indeterminate"
    assert len(effects.runs) == 1


async def test_a_living_worker_is_waited_for(
    pipeline: Pipeline, catalog: Catalog, ledger: Ledger, worktrees: Worktrees, ask: Ask, effects: Effects
) -> None:
    other = Pipeline(catalog, ledger, worktrees, owner="w2", version="0")
    first = asyncio.create_task(other.call(ask("once", {"do": "wait"})))
    await effects.started.wait()
    second = asyncio.create_task(pipeline.call(ask("once", {"do": "wait"})))
    effects.gate.set()
    assert (await first).output == (await second).output
    assert len(effects.runs) == 1
    await other.close()


async def test_a_worker_that_was_taken_over_cannot_commit(
    pipeline: Pipeline, catalog: Catalog, ledger: Ledger, worktrees: Worktrees, ask: Ask, effects: Effects
) -> None:
    stalled = Pipeline(catalog, ledger, worktrees, owner="stalled", version="0", lease=0)
    first = asyncio.create_task(stalled.call(ask("once", {"do": "wait"})))
    await effects.started.wait()
    taken = await pipeline.call(ask("once", {"do": "wait"}))
    assert taken.outcome == "indeterminate"
    effects.gate.set()
    assert (await first).output == taken.output
    assert len(await ledger.entries(episode="ep1")) == 1
    await stalled.close()


async def test_a_call_past_its_deadline_is_not_begun(
    pipeline: Pipeline, ledger: Ledger, ask: Ask, effects: Effects
) -> None:
    with pytest.raises(DeadlineExceeded):
        await pipeline.call(ask("once", deadline=time.time() - 1))
    assert (effects.runs, await ledger.spent("ep1"), await ledger.open_calls("ep1")) == ([], {}, 0)


async def test_a_session_revoked_meanwhile_changes_nothing(
    pipeline: Pipeline, ledger: Ledger, ask: Ask, effects: Effects
) -> None:
    asked = ask("once")
    await ledger.revoke(now=1, session_id=asked.session.id)
    for skill in ("once", "pure"):
        with pytest.raises(Unauthenticated):
            await pipeline.call(ask(skill, {}, skill))
    assert (effects.runs, await ledger.entries(episode="ep1")) == ([], [])


# the worktree


async def test_without_a_worktree_nothing_is_debited(
    pipeline: Pipeline, ledger: Ledger, ask: Ask, effects: Effects
) -> None:
    with pytest.raises(SandboxUnavailable, match="has no worktree"):
        await pipeline.call(ask("placed"))
    assert (effects.runs, await ledger.spent("ep1")) == ([], {})


async def test_worktree_effects_of_an_episode_run_one_at_a_time(
    pipeline: Pipeline, ledger: Ledger, worktrees: Worktrees, ask: Ask, effects: Effects
) -> None:
    await worktrees.create("ep1")
    first = asyncio.create_task(pipeline.call(ask("placed", {"do": "wait"})))
    await effects.started.wait()
    second = asyncio.create_task(pipeline.call(ask("placed", {}, "m2")))
    beside = await pipeline.call(ask("once", {}, "m3"))
    assert beside.entry_index == 1
    assert len(effects.runs) == 2
    effects.gate.set()
    assert [(await call).entry_index for call in (first, second)] == [2, 3]


async def test_the_deadline_passes_while_the_worktree_is_busy(
    pipeline: Pipeline, ledger: Ledger, worktrees: Worktrees, ask: Ask, effects: Effects
) -> None:
    await worktrees.create("ep1")
    first = asyncio.create_task(pipeline.call(ask("placed", {"do": "wait"})))
    await effects.started.wait()
    with pytest.raises(DeadlineExceeded):
        await pipeline.call(ask("placed", {}, "m2", deadline=time.time() + 0.05))
    effects.gate.set()
    assert (await first).state == "completed"
    assert await ledger.spent("ep1") == {SPENT: 1}


async def test_an_abandoned_worktree_effect_is_known_at_once(
    pipeline: Pipeline, catalog: Catalog, ledger: Ledger, worktrees: Worktrees, ask: Ask, effects: Effects
) -> None:
    await worktrees.create("ep1")
    dying = Pipeline(catalog, ledger, worktrees, owner="dead", version="0", lease=3600)
    asyncio.create_task(dying.call(ask("placed", {"do": "wait"}))).add_done_callback(
        lambda t: t.cancelled() or t.exception()
    )
    await effects.started.wait()
    await dying.close(grace=0)
    assert (await pipeline.call(ask("placed", {"do": "wait"}))).outcome == "indeterminate"


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["once", "again", "pure"]), st.integers(0, 3), st.sampled_from(["a", "b", "fail", "refuse"])
        ),
        max_size=20,
    )
)
async def test_any_order_of_calls_leaves_a_sound_ledger(
    catalog: Catalog, worktrees: Worktrees, effects: Effects, tmp_path_factory: pytest.TempPathFactory, calls: list[Any]
) -> None:
    async with await Ledger.open(str(tmp_path_factory.mktemp("l") / "ledger.db")) as ledger:
        _, session = mint("ep1", [Grant("Test.Run", "test", 4, 2**40)], ttl=60)
        await ledger.add_session(session)
        pipeline = Pipeline(catalog, ledger, worktrees, owner="w", version="0")
        before = len(effects.runs)

        async def call(skill: str, message: int, do: str) -> str:
            arguments = {"refuse": 1} if do == "refuse" else {"do": do}
            try:
                return (
                    await pipeline.call(Asked(session, skill, arguments, f"m{message}", "c", time.time() + 30))
                ).task_id
            except IdempotencyConflict:
                return ""

        done = set(await asyncio.gather(*(call(*one) for one in calls))) - {""}
        verdict = await Provenance(ledger).verify("ep1")
        assert verdict.faults == ()
        assert verdict.entries == len(done)
        spent = (await ledger.spent("ep1")).get(SPENT, 0)
        assert spent == len(effects.runs) - before <= 4
        await pipeline.close()


def test_task_ids() -> None:
    assert task_id("a", "m") == task_id("a", "m")
    assert len({task_id("a", "m"), task_id("b", "m"), task_id("a", "n"), task_id("a\0", "m")}) == 4
