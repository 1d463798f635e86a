"""What surrounds the binary: policies that it has verified, its environment, its time, its bytes."""

import asyncio
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from time import time

import pytest

from skills import Context, Directory, Done, Failed, PlannedEffect
from skills.ailang import sandbox
from tests.skills.ailang.conftest import PAIR, Lane
from tests.skills.ailang.standin import CLI, QUIET
from tests.skills.ailang.transcripts import of_kind
from tests.skills.vectors import Row

MakeLane = Callable[..., Lane]

SUMMARIES = {row["id"]: row for row in of_kind("policy-tool") if row["request"] == {"op": "summary"}}
RUN = {"path": "m.ail"}


def base_digest(lane: Lane) -> str:
    return hashlib.sha256((lane.folder / "state/policies/ep1.toml").read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("summary-fake-permissive", 'broker: policy security_mode is "permissive", want "restricted"'),
        ("summary-fake-elsewhere", 'broker: policy fs_sandbox "/" is not the workspace root "{root}"'),
    ],
)
async def test_a_policy_that_the_binary_reads_otherwise_is_not_used(
    make_lane: MakeLane, name: str, reason: str
) -> None:
    lane = make_lane()
    lane.binary.play(SUMMARIES[name], summary=True)
    outcome = await lane.request("Workspace.Read", {"op": "read", "path": "x"})
    assert outcome == Failed(reason.format(root=lane.root))
    lane.binary.play(QUIET, any=True)
    assert isinstance(await lane.request("Workspace.Read", {"op": "read", "path": "x"}), Done), "it is asked again"


@pytest.mark.parametrize("name", ["summary", "summary-fake-restricted"])
async def test_a_policy_that_the_binary_reads_as_it_is_meant(make_lane: MakeLane, name: str) -> None:
    lane = make_lane()
    lane.binary.play(SUMMARIES[name], summary=True)
    # the summary is taken, and then played for the request itself, to which it is no answer but an object
    outcome = await lane.request("Ailang.CLI", {"op": "check", "path": "x"})
    assert isinstance(outcome, Failed)
    assert "another request" in outcome.reason
    lane.binary.play(QUIET, any=True)
    answer = await lane.request("Ailang.CLI", {"op": "check", "path": "x"})
    assert isinstance(answer, Done)
    digest = "fakedigest" if "fake" in name else base_digest(lane)
    assert answer.output["policy_digest"] == digest
    if "fake" in name:  # its list of operations counts, whatever ours is
        outcome = await lane.request("Ailang.CLI", {"op": "version"})
        assert outcome == Failed('broker: Ailang.CLI refuses op "version": not in this effect\'s op allowlist')


@pytest.mark.parametrize(
    ("summary", "why"),
    [
        ({"policy_digest": ""}, "policy summary lacks a digest or a cli op list"),
        ({"cli": []}, "policy summary lacks a digest or a cli op list"),
        ({"fs_sandbox": None}, 'policy fs_sandbox "None" is not the workspace root'),
        ({"fs_sandbox": "\0"}, 'policy fs_sandbox "\0" is not the workspace root'),
    ],
)
async def test_a_summary_that_lacks_something(make_lane: MakeLane, summary: Row, why: str) -> None:
    lane = make_lane()
    whole = {"security_mode": "restricted", "policy_digest": "d", "fs_sandbox": str(lane.root), "cli": CLI, **summary}
    answer = json.dumps({"ok": True, "summary": whole})
    lane.binary.play({**QUIET, "request": {"op": "summary"}, "stdout": answer}, summary=True, any=True)
    outcome = await lane.request("Workspace.Read", {"op": "read", "path": "x"})
    assert isinstance(outcome, Failed)
    assert why in outcome.reason


@pytest.mark.parametrize("name", ["policy-unknown-cap", "policy-bare-host"])
async def test_a_variant_that_the_binary_refuses_is_not_run(make_lane: MakeLane, name: str) -> None:
    lane = make_lane()
    await lane.request("Ailang.Run", RUN)
    lane.binary.play(SUMMARIES[name], summary=True)
    outcome = await lane.request("Ailang.RunNet", {**RUN, "caps": ["IO", "Net"]})
    assert isinstance(outcome, Failed)
    assert outcome.reason.startswith(
        "broker: run policy variant ep1.run-IO.Net.toml is not verified by policy-tool summary: it answered"
    )
    assert lane.binary.calls() == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"caps": ["FS", "IO"]}, "its caps are"),
        ({"net_allow": ["127.0.0.1:1"]}, "its net_allow is another"),
        ({"policy_digest": "d"}, "its policy_digest is not that of the file"),
        ({"security_mode": "trusted_host"}, 'security_mode is "trusted_host", want "restricted"'),
    ],
)
async def test_a_variant_must_be_what_was_rendered(make_lane: MakeLane, change: Row, why: str) -> None:
    lane = make_lane()
    await lane.request("Ailang.Run", RUN)
    said = {
        "security_mode": "restricted", "policy_digest": "${DIGEST}", "fs_sandbox": "${ROOT}",
        "caps": ["Net", "IO", "FS"], "net_allow": [PAIR], **change,
    }  # fmt: skip
    row = {**QUIET, "request": {"op": "summary"}, "stdout": json.dumps({"ok": True, "summary": said})}
    lane.binary.play({**row, "argv": ["policy-tool", "--policy", "${POLICY}"]}, summary=True)
    outcome = await lane.request("Ailang.RunNet", {**RUN, "caps": ["IO", "Net"]})
    assert isinstance(outcome, Failed)
    assert why in outcome.reason


async def test_a_policy_is_verified_once_and_written_again_when_it_is_not_as_it_was(make_lane: MakeLane) -> None:
    lane = make_lane()
    lane.binary.play(QUIET, any=True)
    for _ in range(2):
        await lane.request("Workspace.Read", {"op": "read", "path": "x"})
    assert len(lane.binary.calls(summaries=True)) == 3
    policy = lane.folder / "state/policies/ep1.toml"
    digest = base_digest(lane)
    policy.write_text('security_mode = "off"')
    policy.chmod(0o644)
    await lane.request("Workspace.Read", {"op": "read", "path": "x"})
    assert base_digest(lane) == digest
    assert policy.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in policy.parent.iterdir()] == ["ep1.toml"]


async def test_a_policy_that_others_may_read_is_put_right(lane: Lane) -> None:
    lane.binary.play(QUIET, any=True)
    await lane.request("Workspace.Read", {"op": "read", "path": "x"})
    policy = lane.folder / "state/policies/ep1.toml"
    policy.chmod(0o666)
    await lane.request("Workspace.Read", {"op": "read", "path": "x"})
    assert policy.stat().st_mode & 0o777 == 0o600


async def test_the_process_gets_its_environment_and_nothing_else(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hush")
    lane.binary.play(QUIET, any=True)
    await lane.request("Workspace.Read", {"op": "read", "path": "x"})
    (call,) = lane.binary.calls()
    cache = str(lane.folder / "state/cache/ep1")
    assert {name: value for name, value in call["env"].items() if name != "LC_CTYPE"} == {
        "HOME": cache, "PATH": "/usr/bin:/bin", "LANG": "C", "LC_ALL": "C", "AILANG_CACHE_DIR": cache,
        "AILANG_EXAMPLES": str(lane.folder / "examples"),
    }  # fmt: skip
    assert call["cwd"] == str(lane.root)
    assert call["group"] != os.getpgid(0)
    assert call["argv"] == ["policy-tool", "--policy", str(lane.folder / "state/policies/ep1.toml")]
    assert call["stdin"] == '{"op":"read","path":"x"}'


@pytest.mark.parametrize("effect", ["Ailang.Check", "Ailang.Run"])
async def test_output_over_the_limit_is_a_failure_and_not_cut(lane: Lane, effect: str) -> None:
    lane.binary.play(QUIET, spew=8_388_609)
    payload = {"op": "ai_check", "path": "x"} if effect == "Ailang.Check" else RUN
    assert await lane.request(effect, payload) == Failed("broker: the tool binary wrote more than 8388608 bytes")


async def test_a_process_that_does_not_end_is_ended(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    lane.binary.play(QUIET, sleep=True)
    monkeypatch.setattr(sandbox, "LIMIT", 0.5)
    outcome = await lane.request("Ailang.Run", RUN)
    assert outcome == Failed("broker: the tool binary did not end within 0.5 s", retryable=True)
    for call in lane.binary.calls():  # one, unless this machine took longer to start it
        with pytest.raises(ProcessLookupError):
            os.killpg(call["group"], 0)


async def test_a_canceled_call_leaves_no_process(lane: Lane) -> None:
    fifo = lane.folder / "fifo"
    os.mkfifo(fifo)
    lane.binary.play(QUIET, fifo=str(fifo), sleep=True)
    call = asyncio.create_task(lane.request("Ailang.Run", RUN))
    group = int(await asyncio.to_thread(fifo.read_text))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    with pytest.raises(ProcessLookupError):
        os.killpg(group, 0)


async def test_the_lock_on_the_worktree_is_the_processs_too(lane: Lane) -> None:
    fifo = lane.folder / "locked"
    os.mkfifo(fifo)
    lane.binary.play(QUIET, fifo=str(fifo), sleep=True)
    handler = lane.skills["ailang-run"].handler
    assert handler is not None
    lock = os.open(lane.root, os.O_RDONLY)
    with Directory.open(lane.root, lock=lock) as worktree:
        planned = PlannedEffect("e1", "Ailang.Run", "worktree", 1, RUN)
        call = asyncio.ensure_future(handler(planned, Context("a2a:ep1:1", lane.episode, time() + 60, worktree)))
        group = int(await asyncio.to_thread(fifo.read_text))
        held = os.path.samestat(Path(f"/proc/{group}/fd/{lock}").stat(), os.fstat(lock))
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    os.close(lock)
    assert held


async def test_without_time_no_process_is_started(lane: Lane) -> None:
    lane.binary.play(QUIET, any=True)
    outcome = await lane.request("Ailang.Run", RUN, seconds=1)
    assert outcome == Failed("broker: the call's deadline leaves no time for the tool binary", retryable=True)
    assert lane.binary.calls() == []


@pytest.mark.parametrize("how", ["replaced", "rewritten", "gone"])
async def test_a_binary_whose_bytes_change_is_refused(make_lane: MakeLane, how: str) -> None:
    lane = make_lane()
    lane.binary.play(QUIET, any=True)
    assert isinstance(await lane.request("Workspace.Read", {"op": "read", "path": "x"}), Done)
    path = lane.binary.path
    text = path.read_text() + "# more\n"
    if how == "rewritten":
        path.write_text(text)
    else:
        path.rename(path.with_name("kept"))
        if how == "replaced":
            path.write_text(text)
            path.chmod(0o755)
    lane.binary.play(QUIET, any=True)
    outcome = await lane.request("Workspace.Read", {"op": "read", "path": "x"})
    assert isinstance(outcome, Failed)
    assert outcome.reason.startswith(
        "broker: the tool binary is gone" if how == "gone" else "broker: the tool binary's bytes have changed"
    )
    assert lane.binary.calls() == []


async def test_nothing_of_the_operators_may_lie_in_a_worktree(make_lane: MakeLane) -> None:
    lane = make_lane()
    (lane.root / "inside").mkdir()
    (lane.folder / "link").symlink_to(lane.root / "inside")
    for key, value in (("state", lane.root / "inside"), ("examples", lane.folder / "link")):
        lane.table[key] = str(value)
        lane.skills = {skill.id: skill for skill in lane.load()}
        outcome = await lane.request("Workspace.Read", {"op": "read", "path": "x"})
        assert isinstance(outcome, Failed)
        assert f'resolves inside the workspace root "{lane.root}"; the' in outcome.reason
        lane.table[key] = str(lane.folder / key)


async def test_a_worktree_that_was_replaced_is_not_entered(make_lane: MakeLane) -> None:
    lane = make_lane()
    skill = lane.skills["ailang-check"]
    assert skill.handler is not None
    effect = PlannedEffect("e1", "Ailang.Check", "worktree", 1, {"op": "ai_check", "path": "x"})
    with lane.context() as context:
        lane.root.rename(lane.folder / "kept")
        lane.root.symlink_to(lane.folder / "kept")
        with pytest.raises(OSError, match="Stale"):
            await skill.handler(effect, context)
    assert lane.binary.calls(summaries=True) == []
