"""Every recorded row of the three file tools: their plans, their raw input, and the answers of policy-tool."""

import json
import re
from pathlib import Path
from time import time
from typing import Any

import pytest

from skills import Context, Directory, Done, Plan, Skill
from skills.ailang import ailang_edit, ailang_read, ailang_write
from skills.ailang.files import handle
from skills.ailang.native import TOOL
from skills.convention import enter
from skills.plan import PLAN_VERSION, PlannedEffect
from tests.skills.vectors import Row, expand, lay_out
from tests.vectors import HERE, rows

SKILLS = {skill.id: skill for skill in (ailang_read(), ailang_write(), ailang_edit())}
ROWS = [row for row in rows("ailang-tools") if row["tool"] in SKILLS]
PLANS = [row for row in ROWS if "plan" in row]
RAW = [row for row in ROWS if row.get("phase") == "raw"]
EFFECTS = {"read": "Workspace.Read", "write": "Workspace.Write", "edit": "Workspace.Write"}

with (HERE / "policy-tool.transcripts.jsonl").open(encoding="utf-8") as lines:
    TRANSCRIPTS = [row for row in map(json.loads, lines) if (row["request"] or {}).get("op") in EFFECTS]


# The one departure: rows name the root by its path, and where the host keeps it is nobody's business.
ROOT = "worktree"

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


@pytest.mark.parametrize("row", PLANS, ids=lambda row: row["id"])
def test_a_plan_is_as_recorded(row: Row) -> None:
    skill: Skill = SKILLS[row["tool"]]
    arguments = expand(row["arguments"], {})
    plan = skill.plan(arguments)
    assert plan.as_json() == as_plan(expand(row["plan"], {}))
    assert plan.refused == (not plan.effects)
    of_sorted = expand(row.get("plan_sorted_keys", row["plan"]), {})
    assert skill.plan(sorted_keys(arguments)).as_json() == as_plan(of_sorted)


@pytest.mark.parametrize("row", PLANS, ids=lambda row: row["id"])
def test_a_plan_by_its_raw_input_is_the_same(row: Row) -> None:
    text = json.dumps({"phase": "plan", "args": expand(row["arguments"], {})})
    skill: Skill = SKILLS[row["tool"]]
    assert enter(skill.id, skill.plan, text) == as_plan(expand(row["plan"], {}))


@pytest.mark.parametrize("row", RAW, ids=lambda row: row["id"])
def test_raw_input_is_answered_as_recorded(row: Row) -> None:
    skill: Skill = SKILLS[row["tool"]]
    answer = json.dumps(enter(skill.id, skill.plan, row["input_text"]), ensure_ascii=False)
    expected = re.escape(json.dumps(row["output"], ensure_ascii=False)).replace(re.escape("${E}"), "[^$]+")
    assert re.fullmatch(expected, answer)


@pytest.mark.parametrize("row", TRANSCRIPTS, ids=lambda row: row["id"])
async def test_the_handler_answers_like_policy_tool(row: Row, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    lay_out(root, row.get("files", FILES.get(row["id"], {})), {"${ROOT}": str(root)})
    payload = expand(row["request"], {"${ROOT}": str(root)})
    expected = json.loads(row["stdout"].replace("${ROOT}", ROOT))
    with Directory.open(root) as directory:
        effect = PlannedEffect("e1", EFFECTS[payload["op"]], "worktree", 1, payload)
        outcome = await handle(effect, Context("i", "e", time() + 60, directory))
        digest = directory.protection.digest
    assert isinstance(outcome, Done)
    assert outcome.output == {**expected, "tool": TOOL, "policy_digest": digest}


def test_the_rows_are_there() -> None:
    assert len(PLANS) > 60
    assert len(RAW) > 4
    assert len(TRANSCRIPTS) > 20


def test_plan_refusals_are_refusals() -> None:
    assert SKILLS["ailang-read"].plan({}) == Plan.refuse('missing required argument "path"')
