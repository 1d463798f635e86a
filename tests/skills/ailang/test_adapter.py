"""The AILANG binary behind real pipes: a stand-in plays what was recorded of it."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skills import Context, Done, Failed, PlannedEffect
from skills.ailang import stub
from skills.ailang.run import effect_of
from skills.canonical import ref
from tests.skills.ailang.conftest import PAIR, Lane
from tests.skills.ailang.standin import QUIET
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


def test_every_row_is_played() -> None:
    assert len(TOOL_ROWS) + len(SUMMARIES) + sum(len(of_kind(kind)) for kind in ("run", "run-envelope", "usage")) > 105
    assert set(FAILS) <= {row["id"] for row in TOOL_ROWS}
