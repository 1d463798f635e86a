import json
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.agent.agent import SCHEMAS
from deploy.cli import skills as module
from tests.deploy.conftest import Ended

Skillbus = Callable[..., Ended]


def test_the_extension_is_the_one_of_the_card() -> None:
    assert module.SCHEMAS == SCHEMAS


def test_a_session_sees_what_it_was_granted(skillbus: Skillbus, session: Path) -> None:
    ended = skillbus("skills")
    assert (ended.code, ended.err) == (0, "7 skill(s)\n")
    table = [line.split() for line in ended.out.splitlines()]
    assert table[0] == ["SKILL", "EFFECT", "LEFT", "TIER", "REQUIRED", "DOES"]
    rows = {row[0]: row[1:4] for row in table[1:]}
    assert list(rows) == sorted(rows)
    assert rows["calc"] == ["-", "-", "live"]
    assert rows["read_file"] == ["Workspace.Read=worktree", "5", "live"]
    lines = {line.split()[0]: line for line in ended.out.splitlines()}
    assert "path, old_text, new_text  Replace old_text with new_text in a file" in lines["ailang-edit"]
    assert lines["ailang-edit"].endswith(" …")
    assert rows["list_files"][2] == "live"
    assert "  -  " in lines["list_files"]  # nothing is required
    skillbus("call", "list_files")
    left = {line.split()[0]: line.split()[2] for line in skillbus("skills").out.splitlines()[1:]}
    assert (left["read_file"], left["write_file"]) == ("4", "5")


def test_another_session_sees_less(skillbus: Skillbus, session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    credential = skillbus("session", "new", "ep2", "-g", "Workspace.Read=worktree:0").out.strip()
    monkeypatch.setenv("SKILLBUS_SESSION", credential)
    seen = json.loads(skillbus("skills", "--json").out)
    assert [skill["id"] for skill in seen] == ["ailang-read", "calc", "list_files", "read_file"]
    assert {skill["id"]: skill["left"] for skill in seen}["read_file"] == 0


def test_json_holds_the_contracts(skillbus: Skillbus, session: Path) -> None:
    ended = skillbus("skills", "--json")
    assert ended.err == ""
    skill = {skill["id"]: skill for skill in json.loads(ended.out)}["ailang-edit"]
    assert skill["input"]["required"] == ["path", "old_text", "new_text"]
    assert skill["effects"] == [{"name": "Workspace.Write", "scope": "worktree", "cost": 1}]
    assert (skill["left"], skill["tier"]) == (5, "live")


def test_verbose_describes(skillbus: Skillbus, session: Path) -> None:
    out = skillbus("skills", "--verbose").out
    assert "  arguments  path, old_text, new_text\n" in out
    assert "  effect     Workspace.Read=worktree, 5 left\n" in out
    assert "  arguments  [expr], [query]\n" in out
    assert "  tier       live\n" in out


def test_verbose_tells_each_tier_and_how_to_raise_it(
    skillbus: Skillbus, session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grants = ("Web.Search=web:1", "Knowledge.Search=kb:1", "Mail.Send=mail:1", "Workspace.Read=worktree:1")
    options = [option for grant in grants for option in ("--grant", grant)]
    monkeypatch.setenv("SKILLBUS_SESSION", skillbus("session", "new", "ep3", *options).out.strip())
    monkeypatch.setenv("SKILLBUS_MAIL_BACKEND", "fake")
    out = skillbus("skills", "--verbose").out
    assert "  tier       stub; to raise it, set TAVILY_API_KEY, or SKILLBUS_SEARCH_BACKEND=searxng" in out
    assert "  tier       stub; to raise it, build an index with `skillbus kb add DIR`" in out
    assert "  tier       fake; to raise it, set SKILLBUS_MAIL_BACKEND=smtp, SKILLBUS_MAIL_HOST" in out
    monkeypatch.setenv("TAVILY_API_KEY", "tvly-hush")
    found = {skill["id"]: skill for skill in json.loads(skillbus("skills", "--json").out)}
    assert (found["search"]["tier"], found["send_reply"]["tier"]) == ("live", "fake")
    assert "raiseTier" not in found["search"]
    assert "hush" not in str(found)


def test_one_skill_is_shown_whole(skillbus: Skillbus, session: Path) -> None:
    out = skillbus("skills", "ailang-read").out
    assert out.startswith("ailang-read  Read (sandboxed)\n")
    assert "read_only true" in out
    assert "input schema" in out
    assert "output schema" in out
    assert json.loads(skillbus("skills", "ailang-read", "--json").out)["id"] == "ailang-read"


@pytest.mark.parametrize("name", ["send_reply", "nothing"])
def test_a_skill_without_a_grant_is_like_one_that_is_absent(skillbus: Skillbus, session: Path, name: str) -> None:
    ended = skillbus("skills", name)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"error: no skill '{name}': it is absent or not granted")
