"""The pack: which tool is served by what, in which tier, and what a tool says that lacks something."""

import json
from pathlib import Path
from time import time
from typing import Any

import pytest

from skills import Catalog, Context, Directory, Done, EffectResult, PackContext, Skill
from skills.ailang import AilangSettingsError, BinaryError, pack, stub
from skills.ailang.cli import OPS
from tests.skills.ailang.standin import StandIn

IDS = [
    "ailang-read", "ailang-write", "ailang-edit", "ailang-check", "ailang-run", "builtins-search", "examples-search",
    "ailang-cli",
]  # fmt: skip
BARE = {skill.id: skill for skill in pack(PackContext())}
CALLS: dict[str, dict[str, Any]] = {
    "ailang-check": {"path": "a.ail"},
    "ailang-run": {"path": "a.ail", "caps": ["Env", "IO"]},
    "builtins-search": {"query": "x"},
    "ailang-cli": {"op": "version"},
}


def tiers(table: dict[str, Any]) -> dict[str, str]:
    return {skill.id: skill.tier for skill in pack(PackContext({"ailang": table}))}


def test_the_eight_tools_and_what_their_tiers_claim(tmp_path: Path) -> None:
    assert list(BARE) == IDS
    files, lacking = dict.fromkeys(IDS[:3], "live"), dict.fromkeys(IDS[3:], "stub")
    assert tiers({}) == files | lacking
    assert tiers({"examples": str(tmp_path)}) == files | lacking | {"examples-search": "live"}
    binary = str(StandIn(tmp_path / "bin").path)
    assert tiers({"binary": binary, "examples": str(tmp_path)}) == dict.fromkeys(IDS, "live")
    assert tiers({"binary": binary}) == dict.fromkeys(IDS, "live") | {"examples-search": "stub"}


def test_a_stub_tells_the_operator_how_to_raise_it() -> None:
    for skill in BARE.values():
        wanted = stub.SET_CORPUS if skill.id == "examples-search" else stub.SET_BINARY
        assert skill.raise_tier == (wanted if skill.tier == "stub" else "")


def test_six_effects_for_eight_tools_and_two_more_for_runs() -> None:
    effects = {skill_id: [effect.name for effect in skill.contract.effects] for skill_id, skill in BARE.items()}
    assert effects == {
        "ailang-read": ["Workspace.Read"],
        "ailang-write": ["Workspace.Write"],
        "ailang-edit": ["Workspace.Write"],
        "ailang-check": ["Ailang.Check"],
        "ailang-run": ["Ailang.Run", "Ailang.RunEnv", "Ailang.RunNet"],
        "builtins-search": ["Ailang.Discover"],
        "examples-search": ["Ailang.Discover"],
        "ailang-cli": ["Ailang.CLI"],
    }


@pytest.mark.parametrize("skill", BARE.values(), ids=lambda skill: skill.id)
def test_their_contracts(skill: Skill) -> None:
    contract = skill.contract
    assert contract.access is not None
    assert (contract.access.name, contract.access.scope, contract.access.cost) == (
        contract.effects[0].name, "worktree", 0,
    )  # fmt: skip
    assert {(effect.scope, effect.cost) for effect in contract.effects} == {("worktree", 1)}
    assert contract.worktree
    assert contract.input_schema["additionalProperties"] is False
    assert contract.output_schema["required"] == ["world"]
    assert set(contract.input_schema["required"]) <= set(contract.admits)
    assert all(len(schema) > 1 or "enum" in schema for schema in contract.input_schema["properties"].values())
    for example in contract.examples:
        assert not skill.plan(json.loads(example)).refused
    assert "daemon" not in contract.description


def test_what_was_served_is_told_by_the_page() -> None:
    assert all(op in BARE["ailang-cli"].contract.description for op in OPS)


@pytest.mark.parametrize("tool", CALLS)
async def test_without_a_binary_a_tool_says_what_is_missing_and_claims_nothing(tool: str, tmp_path: Path) -> None:
    skill = BARE[tool]
    plan = skill.plan(CALLS[tool])
    assert skill.handler is not None
    with Directory.open(tmp_path) as directory:
        outcome = await skill.handler(plan.effects[0], Context("i", "e", time() + 60, directory))
    assert outcome == Done({"ok": False, "refused": stub.NO_BINARY})
    assert "[tools.ailang]" in stub.NO_BINARY
    assert list(tmp_path.iterdir()) == []
    if skill.finish is not None:
        effect = plan.effects[0]
        answer = skill.finish(CALLS[tool], EffectResult("e1", effect.effect, "ok", "sha256:0", outcome.output))
        assert answer == {"ok": False, "status": "ok", "refused": stub.NO_BINARY}


def test_a_table_that_is_wrong_leaves_the_pack_out(tmp_path: Path) -> None:
    with pytest.raises(AilangSettingsError):
        pack(PackContext({"ailang": {"binry": "/x"}}))
    with pytest.raises(BinaryError):
        pack(PackContext({"ailang": {"binary": str(tmp_path / "nowhere")}}))
    catalog = Catalog.load(
        PackContext({"ailang": {"run_allow_caps": ["Process"]}}), installed=False, named=["skills.ailang:pack"]
    )
    assert len(catalog) == 0
    assert 'run_allow_caps names "Process"; it admits only' in str(catalog.problems[0])


def test_a_binary_other_than_the_pinned_one_is_not_served(tmp_path: Path) -> None:
    binary = str(StandIn(tmp_path / "bin").path)
    with pytest.raises(BinaryError, match="is pinned"):
        pack(PackContext({"ailang": {"binary": binary, "sha256": "sha256:" + "0" * 64}}))


def test_loading_the_pack_writes_nothing(tmp_path: Path) -> None:
    binary = str(StandIn(tmp_path / "bin").path)
    list(pack(PackContext({"ailang": {"binary": binary}}, state_dir=tmp_path / "state")))
    assert not (tmp_path / "state").exists()
