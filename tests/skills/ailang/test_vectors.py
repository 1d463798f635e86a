"""Every recorded row of the eight tools: plans, raw input, finish phases, and the file answers of policy-tool."""

import json
import re
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from skills import Context, Directory, Done, EffectResult, PackContext, Plan, Skill
from skills.ailang import pack
from skills.ailang.builtins_search import finish as finish_builtins
from skills.ailang.check import finish as finish_check
from skills.ailang.files import handle
from skills.ailang.native import TOOL
from skills.convention import enter
from skills.plan import PLAN_VERSION, PlannedEffect, admit_finish, admit_plan
from tests.skills.ailang.transcripts import TRANSCRIPTS
from tests.skills.vectors import Row, expand, lay_out
from tests.vectors import rows

SKILLS = {skill.id: skill for skill in pack(PackContext())}
FINISH = {"ailang-check": finish_check, "builtins-search": finish_builtins}
ROWS = rows("ailang-tools")
PLANS = [row for row in ROWS if "plan" in row]
RAW = [row for row in ROWS if row.get("phase") == "raw"]
FINISHED = [row for row in ROWS if row.get("phase") == "finish"]
EFFECTS = {"read": "Workspace.Read", "write": "Workspace.Write", "edit": "Workspace.Write"}
OF_FILES = [row for row in TRANSCRIPTS if (row["request"] or {}).get("op") in EFFECTS]

# Of the plans, raw inputs and finish phases no row is departed from. Of the answers for files all rows are that name
# the root by its path, for where the host keeps it is nobody's business:
ROOT = "worktree"
# and these, by their ids, with what is said besides:
MORE = {"write-no-parent": ": its folder does not exist, and write makes none"}

# The files of the rows that tell only of an answer.
FILES: dict[str, Row] = {
    "edit-not-found": {"hello.ail": "eeeeeeee"},
    "edit-8-times": {"hello.ail": "eeeeeeee"},
    "edit-v051-wrong-keys": {"data.txt": "hello"},
    "edit-deny": {".ailang/x.ail": "a"},
}


def as_plan(expected: Row) -> Row:
    return {"plan": PLAN_VERSION, **expected}


def sorted_keys(value: Any) -> Any:
    return {key: value[key] for key in sorted(value)} if isinstance(value, dict) else value


def as_text(skill: Skill, text: str) -> str:
    return json.dumps(enter(skill.id, skill.plan, text, FINISH.get(skill.id)), ensure_ascii=False)


@pytest.mark.parametrize("row", PLANS, ids=lambda row: row["id"])
def test_a_plan_is_as_recorded(row: Row) -> None:
    skill: Skill = SKILLS[row["tool"]]
    arguments = expand(row["arguments"], {})
    plan = skill.plan(arguments)
    assert plan.as_json() == as_plan(expand(row["plan"], {}))
    assert plan.refused == (not plan.effects)
    assert admit_plan(plan.as_json(), skill.contract.effects)
    of_sorted = expand(row.get("plan_sorted_keys", row["plan"]), {})
    assert skill.plan(sorted_keys(arguments)).as_json() == as_plan(of_sorted)


@pytest.mark.parametrize("row", PLANS, ids=lambda row: row["id"])
def test_a_plan_by_its_raw_input_is_the_same_in_the_same_order(row: Row) -> None:
    text = json.dumps({"phase": "plan", "args": expand(row["arguments"], {})})
    skill: Skill = SKILLS[row["tool"]]
    assert as_text(skill, text) == json.dumps(as_plan(expand(row["plan"], {})), ensure_ascii=False)


@pytest.mark.parametrize("row", RAW, ids=lambda row: row["id"])
def test_raw_input_is_answered_as_recorded(row: Row) -> None:
    expected = re.escape(json.dumps(row["output"], ensure_ascii=False)).replace(re.escape("${E}"), "[^$]+")
    assert re.fullmatch(expected, as_text(SKILLS[row["tool"]], row["input_text"]))


@pytest.mark.parametrize("row", FINISHED, ids=lambda row: row["id"])
def test_a_finish_phase_is_as_recorded(row: Row) -> None:
    skill: Skill = SKILLS[row["tool"]]
    given = {"phase": "finish", "args": row["arguments"]} | ({"results": row["results"]} if "results" in row else {})
    assert as_text(skill, json.dumps(given)) == json.dumps(row["output"], ensure_ascii=False)
    match row.get("results"):
        case [{"id": i, "effect": effect, "status": status, "record": record, "output": output}]:
            assert skill.finish is not None
            of_pipeline = skill.finish(row["arguments"], EffectResult(i, effect, status, record, output))
            assert of_pipeline == row["output"]
            assert admit_finish(dict(of_pipeline))


@pytest.mark.parametrize("row", OF_FILES, ids=lambda row: row["id"])
async def test_the_native_handler_answers_like_policy_tool(row: Row, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    lay_out(root, row.get("files", FILES.get(row["id"], {})), {"${ROOT}": str(root)})
    payload = expand(row["request"], {"${ROOT}": str(root)})
    expected = json.loads(row["stdout"].replace("${ROOT}", ROOT))
    if row["id"] in MORE:
        expected["refused"] += MORE[row["id"]]
    with Directory.open(root) as directory:
        effect = PlannedEffect("e1", EFFECTS[payload["op"]], "worktree", 1, payload)
        outcome = await handle(effect, Context("i", "e", time.time() + 60, directory))
        digest = directory.protection.digest
    assert isinstance(outcome, Done)
    assert outcome.output == {**expected, "tool": TOOL, "policy_digest": digest}


def test_every_row_is_of_one_of_these_kinds() -> None:
    assert len(PLANS) + len(RAW) + len(FINISHED) == len(ROWS)
    assert {row["tool"] for row in PLANS} == set(SKILLS)
    assert {row["tool"] for row in FINISHED} == {skill.id for skill in SKILLS.values() if skill.finish} == set(FINISH)
    assert len(OF_FILES) > 20
    assert set(MORE) < {row["id"] for row in OF_FILES}


def test_plan_refusals_are_refusals() -> None:
    assert SKILLS["ailang-read"].plan({}) == Plan.refuse('missing required argument "path"')


def test_how_long_a_plan_takes() -> None:
    """Printed, never asserted: 1 ms is what a plan may take."""
    spent = []
    for row in PLANS:
        arguments = expand(row["arguments"], {})
        began = time.perf_counter()
        SKILLS[row["tool"]].plan(arguments)
        spent.append((time.perf_counter() - began) * 1000)
    print(f"{len(spent)} plans: median {statistics.median(spent):.3f} ms, longest {max(spent):.3f} ms")
