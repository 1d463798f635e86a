"""The AILANG binary behind real pipes: a stand-in plays what was recorded of it."""

import asyncio
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skills import Context, Directory, Done, Failed, PlannedEffect
from skills.ailang import sandbox, stub
from skills.ailang.run import effect_of
from skills.canonical import ref
from tests.skills.ailang.conftest import PAIR, Lane
from tests.skills.ailang.standin import CLI, QUIET
from tests.skills.ailang.transcripts import of_kind
from tests.skills.vectors import Row, expand

EFFECTS = {"read": "Workspace.Read", "write": "Workspace.Write", "edit": "Workspace.Write", "ai_check": "Ailang.Check"}
MakeLane = Callable[..., Lane]

# Requests that no process is started for, because a check before it answers. Those for protected paths are answered
# with the binary's own text; the two others fail, and the plans of our tools never send them.
FAILS = {
    "op-empty": "broker: Ailang.CLI refused: op is not a string",
    "fmt-write-denied": 'broker: Ailang.CLI refuses op "fmt": flag "write" writes the worktree; Ailang.CLI never '
    "writes (use Workspace.Write)",
}
ANSWERED_BEFORE = ("write-git", "write-deny", "edit-deny")

TOOL_ROWS = [row for row in of_kind("policy-tool") if row["request"] != {"op": "summary"}]
SUMMARIES = {row["id"]: row for row in of_kind("policy-tool") if row["request"] == {"op": "summary"}}
RUN = {"path": "m.ail"}


def filled(row: Row, lane: Lane) -> Any:
    return json.loads(row["stdout"].replace("${ROOT}", str(lane.root)))


def base_digest(lane: Lane) -> str:
    return hashlib.sha256((lane.folder / "state/policies/ep1.toml").read_bytes()).hexdigest()


@pytest.mark.parametrize("row", TOOL_ROWS, ids=lambda row: row["id"])
async def test_an_exchange_with_policy_tool(row: Row, lane: Lane) -> None:
    payload = expand(row["request"], {"${ROOT}": str(lane.root)})
    lane.binary.play({**row, "request": payload})
    outcome = await lane.request(EFFECTS.get(payload.get("op"), "Ailang.CLI"), payload)
    if row["id"] in FAILS:
        assert outcome == Failed(FAILS[row["id"]])
        assert lane.binary.calls() == []
        return
    assert isinstance(outcome, Done)
    expected = filled(row, lane)
    assert outcome.output == {
        **expected, "tool": ref(lane.binary.path.read_bytes()), "policy_digest": base_digest(lane),
    }  # fmt: skip
    assert len(lane.binary.calls()) == (0 if row["id"].startswith(ANSWERED_BEFORE) else 1)


@pytest.mark.parametrize("row", of_kind("run"), ids=lambda row: row["id"])
async def test_a_run(row: Row, lane: Lane) -> None:
    lane.binary.play(row)
    outcome = await lane.request(effect_of(row["request"].get("caps", [])), row["request"])
    (call,) = lane.binary.calls()
    assert call["stdin"] == row["request"].get("stdin", row["stdin"])
    expected = row["expect"]
    if expected["effect"] == "failed":
        assert isinstance(outcome, Failed)
        assert "produced no recognised outcome envelope (rc 0, " in outcome.reason
        return
    assert isinstance(outcome, Done)
    output = dict(outcome.output)
    assert list(output) == ["admitted", "exit_code", "decision", "limit", "stdout", "stderr", "policy"]
    assert output["admitted"] == (expected["shape"] != "c")
    assert output["exit_code"] == row["exit_code"]
    assert output["limit"] is None
    assert output["decision"]["ok"] is output["admitted"]
    for name in ("admitted", "exit_code", "stdout", "limit"):
        assert output[name] == expected.get(name, output[name])
    assert output["decision"].get("missing_from_policy") == expected.get(
        "missing", output["decision"].get("missing_from_policy")
    )
    file = Path(call["argv"][2])
    assert output["policy"]["digest"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert output["policy"] == {**output["policy"], **expected.get("policy", {})}
    assert output["policy"]["net_allow"] == ([PAIR] if "Net" in row["request"].get("caps", []) else [])


@pytest.mark.parametrize("row", of_kind("run-envelope"), ids=lambda row: row["id"])
async def test_an_envelope_through_pipes(row: Row, lane: Lane) -> None:
    lane.binary.play(row, any=True)
    outcome = await lane.request("Ailang.Run", RUN)
    if not row["expect"]["recognised"]:
        assert isinstance(outcome, Failed)
        assert f"no recognised outcome envelope (rc {row['exit_code']}, " in outcome.reason
        return
    assert isinstance(outcome, Done)
    assert outcome.output["admitted"] == row["expect"]["admitted"]
    assert (outcome.output["limit"] is not None) == row["expect"]["limit"]
    assert (outcome.output["stdout"], outcome.output["stderr"]) == (row["stdout"], row["stderr"])


@pytest.mark.parametrize("row", of_kind("usage"), ids=lambda row: row["id"])
async def test_what_ends_without_a_response_is_a_failure(row: Row, lane: Lane) -> None:
    lane.binary.play(row, any=True)
    of_tool = row["argv"][0] == "policy-tool"
    outcome = await lane.request(*(("Workspace.Read", {"op": "read", "path": "x"}) if of_tool else ("Ailang.Run", RUN)))
    assert isinstance(outcome, Failed)
    first = row["stderr"].split("\n")[0]
    assert first in outcome.reason


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


async def test_a_runs_arguments_never_reach_its_flags(lane: Lane) -> None:
    lane.binary.play(QUIET, any=True)
    arguments = {"path": "a.ail", "args_json": "[1]", "argv": ["--policy", "-", "--"], "stdin": "é\n"}
    await lane.call("ailang-run", arguments)
    (call,) = lane.binary.calls()
    policy = str(lane.folder / "state/policies/ep1.toml")
    assert call["argv"] == ["run", "--policy", policy, "--args-json", "[1]", "--", "a.ail", "--", "--policy", "-", "--"]
    assert call["stdin"] == "é\n"


@pytest.mark.parametrize(
    ("stdout", "why"),
    [
        ("", "response is not JSON"),
        ("{", "response is not JSON"),
        ('{"ok":true} {}', "response is not JSON"),
        ('{"ok":true,"ok":false}', "duplicate"),
        ("[]", "not an object with a boolean ok"),
        ('{"ok":1}', "not an object with a boolean ok"),
        ('{"content":"x"}', "not an object with a boolean ok"),
        ('{"ok":true,"world":{}}', 'carries the reserved key "world"'),
        ('{"ok":true,"tool":"x"}', 'carries the reserved key "tool"'),
        ('{"ok":true,"policy_digest":"x"}', 'carries the reserved key "policy_digest"'),
        ('{"ok":true,"content":"\udcff"}', "response is not JSON"),
    ],
)
async def test_a_response_that_is_none(lane: Lane, stdout: str, why: str) -> None:
    lane.binary.play({**QUIET, "stdout": stdout}, any=True)
    outcome = await lane.request("Ailang.Check", {"op": "ai_check", "path": "x"})
    assert isinstance(outcome, Failed)
    assert outcome.reason.startswith("broker: ")
    assert why in outcome.reason


async def test_a_crash_is_a_failure(lane: Lane) -> None:
    lane.binary.play(QUIET, kill=True)
    outcome = await lane.request("Ailang.Check", {"op": "ai_check", "path": "x"})
    assert outcome == Failed('broker: policy-tool ended with -9, stderr ""')
    outcome = await lane.request("Ailang.Run", RUN)
    assert isinstance(outcome, Failed)
    assert "(rc -9, " in outcome.reason


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


@pytest.mark.parametrize(
    ("switches", "caps", "why"),
    [
        ({"run_allow_caps": [], "run_net_allow": []}, ["Env"], 'capability "Env" is not enabled by the operator'),
        ({"run_allow_caps": ["Env"], "run_net_allow": []}, ["IO", "Net"], 'capability "Net" is not enabled'),
        ({"run_allow_caps": ["Env"], "run_net_allow": []}, ["Declassify", "Env"], 'capability "Declassify" is not'),
    ],
)
async def test_a_capability_needs_the_operators_switch(
    make_lane: MakeLane, switches: dict[str, Any], caps: list[str], why: str
) -> None:
    lane = make_lane(**switches)
    outcome = await lane.request(effect_of(caps), {**RUN, "caps": caps})
    assert isinstance(outcome, Failed)
    assert why in outcome.reason
    assert "tools.ailang.run_allow_caps" in outcome.reason
    assert lane.binary.calls(summaries=True) == []


async def test_the_policy_of_a_run_is_that_of_its_capabilities(lane: Lane) -> None:
    for caps, name in (
        (["FS", "IO"], "ep1.toml"),
        (None, "ep1.toml"),
        (["Declassify", "IO"], "ep1.run-Declassify.IO.toml"),
    ):
        lane.binary.play(QUIET, any=True)
        await lane.request("Ailang.Run", RUN if caps is None else {**RUN, "caps": caps})
        assert Path(lane.binary.calls()[0]["argv"][2]).name == name


async def test_the_examples_need_a_corpus_and_nothing_else_does(make_lane: MakeLane) -> None:
    lane = make_lane(examples=None)
    lane.table.pop("examples")
    lane.skills = {skill.id: skill for skill in lane.load()}
    lane.binary.play(QUIET, any=True)
    missing = Done({"ok": False, "refused": stub.NO_CORPUS})
    assert await lane.call("examples-search", {"query": "fold"}) == missing
    assert await lane.call("ailang-cli", {"op": "examples_search", "query": "fold"}) == missing
    assert lane.binary.calls() == []
    assert isinstance(await lane.call("ailang-cli", {"op": "version"}), Done)
    (call,) = lane.binary.calls()
    assert "AILANG_EXAMPLES" not in call["env"]
    assert {skill.id for skill in lane.skills.values() if skill.tier == "stub"} == {"examples-search"}


async def test_files_may_stay_with_the_native_handlers(make_lane: MakeLane) -> None:
    lane = make_lane(files="native")
    assert await lane.call("ailang-write", {"path": "a.txt", "content": "x"}) == await lane.call(
        "ailang-write", {"path": "a.txt", "content": "x"}
    )
    assert (lane.root / "a.txt").read_text() == "x"
    assert lane.binary.calls(summaries=True) == []


@pytest.mark.parametrize("path", ["git~1/x", "hub/w.yml", "hub/new", ".git.", "d/.GIT/x"])
@pytest.mark.parametrize("op", ["write", "edit"])
async def test_the_binary_is_not_asked_to_write_what_a_link_or_a_spelling_protects(
    make_lane: MakeLane, path: str, op: str
) -> None:
    lane = make_lane()
    (lane.root / ".github").mkdir()
    (lane.root / "hub").symlink_to(".github")
    lane.binary.play(QUIET, any=True)
    outcome = await lane.request(
        "Workspace.Write", {"op": op, "path": path, "content": "", "old_text": "a", "new_text": ""}
    )
    assert isinstance(outcome, Done)
    assert outcome.output["ok"] is False
    assert "read-only" in outcome.output["refused"]
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


async def test_a_request_that_is_not_ours_starts_no_process(lane: Lane) -> None:
    lane.binary.play(QUIET, any=True)
    skill = lane.skills["ailang-check"]
    assert skill.handler is not None
    payload = {"op": "ai_check", "path": "x"}
    with lane.context() as context:
        elsewhere = PlannedEffect("e1", "Ailang.Check", "web", 1, payload)
        assert await skill.handler(elsewhere, context) == Failed(
            'broker: Ailang.Check refused: scope "web" is not "worktree"'
        )
    nowhere = Context("i", "e", context.deadline)
    effect = PlannedEffect("e1", "Ailang.Check", "worktree", 1, payload)
    assert await skill.handler(effect, nowhere) == Failed("broker: no worktree")
    assert lane.binary.calls(summaries=True) == []


def test_the_directory_tells_where_it_is_as_long_as_it_is_there(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with Directory.open(root) as directory:
        assert directory.located() == str(root.resolve())
        root.rename(tmp_path / "kept")
        root.mkdir()
        with pytest.raises(OSError):
            directory.located()


def test_every_row_is_played() -> None:
    assert len(TOOL_ROWS) + len(SUMMARIES) + sum(len(of_kind(kind)) for kind in ("run", "run-envelope", "usage")) > 105
    assert set(FAILS) <= {row["id"] for row in TOOL_ROWS}
