import asyncio
import json
import os
import tomllib
from pathlib import Path
from time import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skills import (
    DENY_WRITE,
    Closed,
    Context,
    Directory,
    Done,
    Failed,
    Outcome,
    PlannedEffect,
    Protection,
    Skill,
)
from skills.ailang import ailang_edit, ailang_read, ailang_write, files
from skills.ailang.files import MAX_BYTES, handle
from skills.ailang.native import TOOL, VERSION

READ, WRITE, EDIT = ailang_read(), ailang_write(), ailang_edit()
SKILLS = [READ, WRITE, EDIT]


async def run(effect: str, payload: Any, worktree: Directory | None, scope: str = "worktree") -> Outcome:
    return await handle(PlannedEffect("e1", effect, scope, 1, payload), Context("i", "e", time() + 60, worktree))


async def answer(skill: Skill, arguments: Any, root: Path, protection: Protection | None = None) -> dict[str, Any]:
    """The handler's answer without the two members that every answer has."""
    plan = skill.plan(arguments)
    if plan.result is not None:
        return dict(plan.result)
    with Directory.open(root, protection=protection) as directory:
        outcome = await run(plan.effects[0].effect, plan.effects[0].payload, directory)
        assert isinstance(outcome, Done)
        output = dict(outcome.output)
        assert output.pop("tool") == TOOL
        assert output.pop("policy_digest") == directory.protection.digest
    return output


async def refusal(skill: Skill, arguments: Any, root: Path) -> Any:
    output = await answer(skill, arguments, root)
    assert output.keys() == {"ok", "refused"}
    assert output["ok"] is False
    assert str(root) not in output["refused"]
    return output["refused"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "d").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    (root / "a.txt").write_text("one two two")
    (root / "empty.txt").write_text("")
    (root / "latin.txt").write_bytes(b"caf\xe9 two")
    for name in (".git", ".github"):
        (root / name).mkdir()
    for name, target in {
        "in": "a.txt", "in-abs": str(root / "a.txt"), "new-link": "d/new.txt", "git": ".git", "hub": ".github",
        "out": "../outside/secret.txt", "out-dir": "../outside", "out-abs": str(outside / "secret.txt"), "loop": "loop",
    }.items():  # fmt: skip
        (root / name).symlink_to(target)
    os.mkfifo(root / "pipe")
    return root


@pytest.mark.parametrize(
    ("path", "content"),
    [("a.txt", "one two two"), ("in", "one two two"), ("in-abs", "one two two"), ("./d/..a/../a", None)],
)
async def test_read_gives_the_content(path: str, content: str | None, root: Path) -> None:
    if content is not None:
        assert await answer(READ, {"path": path}, root) == {"ok": True, "content": content}


async def test_an_empty_file_has_no_content_member(root: Path) -> None:
    assert await answer(READ, {"path": "empty.txt"}, root) == {"ok": True}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("nope", "read nope: openat nope: no such file or directory"),
        ("nope/x", "read nope/x: openat nope/x: no such file or directory"),
        ("a.txt/x", "read a.txt/x: openat a.txt/x: not a directory"),
        ("a.txt/", "read a.txt/: openat a.txt/: not a directory"),
        ("d", "read d: read d: is a directory"),
        (".", "read .: read .: is a directory"),
        ("pipe", "read pipe: openat pipe: not a regular file"),
        ("loop", "read loop: openat loop: too many levels of symbolic links"),
        ("a\0b", "read a\0b: openat a\0b: invalid argument"),
        ("n" * 300, f"read {'n' * 300}: openat {'n' * 300}: file name too long"),
        ("latin.txt", "read latin.txt: content is not UTF-8 text (byte 3)"),
        *((path, f'read {path}: path "{path}" escapes sandbox "worktree": openat {path}: path escapes from parent')
          for path in ("out", "out-abs", "out-dir/x")),
    ],
)  # fmt: skip
async def test_what_cannot_be_read_is_refused_by_the_path_as_given(path: str, text: str, root: Path) -> None:
    assert await refusal(READ, {"path": path}, root) == text


async def test_git_and_the_deny_list_may_be_read(root: Path) -> None:
    (root / ".git" / "config").write_text("x")
    assert await answer(READ, {"path": ".git/config"}, root) == {"ok": True, "content": "x"}


async def test_a_file_over_the_cap_is_refused(root: Path) -> None:
    (root / "big").write_bytes(b"x" * MAX_BYTES)
    assert len((await answer(READ, {"path": "big"}, root))["content"]) == MAX_BYTES
    (root / "big").write_bytes(b"x" * (MAX_BYTES + 1))
    assert await refusal(READ, {"path": "big"}, root) == "read big: file exceeds the 8388608-byte transfer cap"


@pytest.mark.parametrize(
    ("path", "file", "mode"),
    [
        ("new.txt", "new.txt", 0o644),
        ("a.txt", "a.txt", 0o640),
        ("in", "a.txt", 0o640),
        ("new-link", "d/new.txt", 0o644),
    ],
)
async def test_write_creates_or_replaces(path: str, file: str, mode: int, root: Path) -> None:
    (root / "a.txt").chmod(0o640)
    assert await answer(WRITE, {"path": path, "content": "é\r\n"}, root) == {"ok": True}
    assert (root / file).read_bytes() == "é\r\n".encode()
    assert (root / file).stat().st_mode & 0o7777 == mode
    assert not any(name.name.endswith(".tmp") for name in root.rglob("*"))


@pytest.mark.parametrize("skill", [WRITE, EDIT], ids=lambda skill: skill.id)
@pytest.mark.parametrize(
    ("path", "text"),
    [
        (".git/config", ".git/ is read-only to the lane's tools"),
        (".GIT", ".git/ is read-only to the lane's tools"),
        ("d/.git/x", ".git/ is read-only to the lane's tools"),
        ("git~1/x", ".git/ is read-only to the lane's tools"),
        (".github/w.yml", 'matches fs_deny_write ".github/**" — read-only under this policy'),
        (".Github/w.yml", 'matches fs_deny_write ".github/**" — read-only under this policy'),
        ("d/.gitattributes", f'matches fs_deny_write "{DENY_WRITE[-1]}" — read-only under this policy'),
    ],
)  # fmt: skip
async def test_protected_paths_are_refused_before_anything_is_looked_at(
    skill: Skill, path: str, text: str, root: Path
) -> None:
    op = skill.id.removeprefix("ailang-")
    arguments = {"path": path, "content": "x"} if skill is WRITE else {"path": path, "old_text": "a", "new_text": "b"}
    assert await refusal(skill, arguments, root) == f"{op} {path}: {text}"


@pytest.mark.parametrize(
    ("path", "rule"), [("git/config", ".git/ is"), ("hub/w.yml", 'matches fs_deny_write ".github/**"')]
)
async def test_a_link_does_not_lead_to_a_protected_path(path: str, rule: str, root: Path) -> None:
    assert (await refusal(WRITE, {"path": path, "content": "x"}, root)).startswith(f"write {path}: {rule}")
    target = (root / path).resolve()
    target.write_text("old")
    edit = {"path": path, "old_text": "old", "new_text": "new"}
    assert (await refusal(EDIT, edit, root)).startswith(f"edit {path}: {rule}")
    assert target.read_text() == "old"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (
            "notes/todo.txt",
            "openat notes/todo.txt: no such file or directory: its folder does not exist, and write makes none",
        ),
        ("d", "openat d: is a directory"),
        ("new/", "openat new/: is a directory"),
        ("pipe", "openat pipe: not a regular file"),
        ("out", 'path "out" escapes sandbox "worktree": openat out: path escapes from parent'),
        ("out-dir/x", 'path "out-dir/x" escapes sandbox "worktree": openat out-dir/x: path escapes from parent'),
        ("a.txt/x", "openat a.txt/x: not a directory"),
    ],
)
async def test_what_cannot_be_written_is_refused(path: str, text: str, root: Path) -> None:
    assert await refusal(WRITE, {"path": path, "content": "x"}, root) == f"write {path}: {text}"
    assert (root.parent / "outside" / "secret.txt").read_text() == "secret"


async def test_content_over_the_cap_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 11)
    assert await answer(WRITE, {"path": "b", "content": "é" * 5}, root) == {"ok": True}
    assert (
        await refusal(WRITE, {"path": "b", "content": "é" * 6}, root)
        == "write b: content exceeds the 11-byte transfer cap"
    )
    edit = {"path": "a.txt", "old_text": "one", "new_text": "four"}
    assert await refusal(EDIT, edit, root) == "edit a.txt: content exceeds the 11-byte transfer cap"
    assert (root / "a.txt").read_text() == "one two two"


async def test_edit_replaces_the_one_occurrence(root: Path) -> None:
    assert await answer(EDIT, {"path": "in", "old_text": "one", "new_text": ""}, root) == {"ok": True}
    assert (root / "a.txt").read_text() == " two two"


async def test_edit_leaves_bytes_alone_that_are_not_utf_8(root: Path) -> None:
    assert await answer(EDIT, {"path": "latin.txt", "old_text": "two", "new_text": "é"}, root) == {"ok": True}
    assert (root / "latin.txt").read_bytes() == b"caf\xe9 \xc3\xa9"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("a.txt", "", "x"), "edit a.txt: old_text is required (use write to create a file)"),
        ((".git/x", "", "x"), "edit .git/x: old_text is required (use write to create a file)"),
        (("a.txt", "three", "x"), "edit a.txt: old_text not found — the file may have changed; read it again"),
        (("a.txt", "two", "x"), "edit a.txt: old_text occurs 2 times; include more context so it is unique"),
        (("nope", "a", "x"), "read nope: openat nope: no such file or directory"),
        (("d", "a", "x"), "read d: read d: is a directory"),
        (("out", "s", "x"), 'read out: path "out" escapes sandbox "worktree": openat out: path escapes from parent'),
    ],
)
async def test_what_cannot_be_edited_is_refused(arguments: tuple[str, str, str], text: str, root: Path) -> None:
    assert await refusal(EDIT, dict(zip(("path", "old_text", "new_text"), arguments, strict=True)), root) == text


async def test_occurrences_are_counted_without_overlap(root: Path) -> None:
    (root / "x").write_text("aaaa")
    assert "occurs 2 times" in await refusal(EDIT, {"path": "x", "old_text": "aa", "new_text": ""}, root)


async def test_the_policy_digest_is_that_of_the_worktrees_own_deny_list(root: Path) -> None:
    protection = Protection(("*.lock",))
    assert await answer(WRITE, {"path": "x.lock", "content": ""}, root, protection) == {
        "ok": False, "refused": 'write x.lock: matches fs_deny_write "*.lock" — read-only under this policy',
    }  # fmt: skip
    assert await answer(WRITE, {"path": ".github/x", "content": ""}, root, protection) == {"ok": True}


@pytest.mark.parametrize(
    ("effect", "payload", "scope", "reason"),
    [
        ("Workspace.Read", {"op": "read"}, "web", 'broker: Workspace.Read refused: scope "web" is not "worktree"'),
        ("Workspace.Read", {"op": "write", "path": "a"}, "worktree",
         'broker: Workspace.Read refuses op "write": not in this effect\'s op allowlist'),
        ("Workspace.Write", {"op": ["edit"]}, "worktree",
         "broker: Workspace.Write refuses op \"['edit']\": not in this effect's op allowlist"),
        ("Mail.Send", {}, "worktree", 'broker: Mail.Send refuses op "None": not in this effect\'s op allowlist'),
        ("Workspace.Read", {"op": "read", "path": "a"}, "worktree", "broker: Workspace.Read refused: no worktree"),
    ],
)  # fmt: skip
async def test_a_request_that_is_not_ours_fails(effect: str, payload: Any, scope: str, reason: str) -> None:
    assert await run(effect, payload, None, scope) == Failed(reason)


async def test_a_request_without_a_path_is_refused(root: Path) -> None:
    with Directory.open(root) as directory:
        for effect, op in (("Workspace.Read", "read"), ("Workspace.Write", "write"), ("Workspace.Write", "edit")):
            outcome = await run(effect, {"op": op}, directory)
            assert isinstance(outcome, Done)
            assert outcome.output["refused"] == f"{op}: path is required"


async def test_a_closed_worktree_is_no_answer(root: Path) -> None:
    directory = Directory.open(root)
    directory.close()
    for effect, op in (("Workspace.Read", "read"), ("Workspace.Write", "write")):
        with pytest.raises(Closed):
            await run(effect, {"op": op, "path": "a.txt"}, directory)


PATHS = st.sampled_from(
    ["a.txt", "in", "in-abs", "out", "out-dir/secret.txt", "out-abs", "loop", "git/config", "pipe", "d", "d/", "d/new",
     ".", ".git", "latin.txt", "~", "a\\b", "n" * 300]
) | st.text(max_size=6)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(skill=st.sampled_from(SKILLS), path=PATHS, old=st.sampled_from(["one", "two", "", "x"]), new=st.text(max_size=4))
def test_any_call_is_answered_in_json_and_touches_nothing_outside(
    root: Path, skill: Skill, path: str, old: str, new: str
) -> None:
    given = {"path": path, "content": new, "old_text": old, "new_text": new}
    output = asyncio.run(answer(skill, {name: given[name] for name in skill.contract.admits}, root))
    assert output["ok"] == ("refused" not in output)
    json.dumps(output, ensure_ascii=False).encode()
    assert (root.parent / "outside" / "secret.txt").read_text() == "secret"
    assert list((root / ".git").iterdir()) == []
    assert {entry.name for entry in root.parent.iterdir()} == {"root", "outside"}


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.id)
def test_their_contracts(skill: Skill) -> None:
    contract = skill.contract
    [effect] = contract.effects
    assert contract.access is not None
    assert (contract.access.name, contract.access.scope, contract.access.cost) == (effect.name, "worktree", 0)
    assert (effect.scope, effect.cost) == ("worktree", 1)
    assert contract.input_schema["required"] == list(contract.admits)
    assert contract.input_schema["additionalProperties"] is False
    assert contract.output_schema["required"] == ["world"]
    assert (contract.repeatable, contract.risk.read_only) == (skill is READ, skill is READ)
    assert skill.finish is None
    for example in contract.examples:
        assert not skill.plan(json.loads(example)).refused


def test_the_handlers_address_follows_the_version_of_the_distribution() -> None:
    with (Path(__file__).parents[3] / "pyproject.toml").open("rb") as file:
        assert tomllib.load(file)["project"]["version"] == VERSION
    assert TOOL == "sha256:d6163817a711976ba37be34f93d9565a3d442d9462ce23cee1b3f75e26d265e0"
