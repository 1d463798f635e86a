import asyncio
import json
import os
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from time import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skills import (
    Closed,
    Context,
    Directory,
    Done,
    EffectResult,
    PackContext,
    Protection,
    Skill,
    admit_finish,
    admit_plan,
)
from skills.host import FileSettings, list_files, pack, read_file, write_file
from skills.host.envelope import FIELDS
from skills.host.files import OFFLINE
from tests.vectors import rows

LOCAL = FileSettings.resolve({}, {})
LIST, READ, WRITE = list_files(LOCAL), read_file(LOCAL), write_file(LOCAL)
TOOLS = [LIST, READ, WRITE]


async def answer(
    skill: Skill, arguments: Any, worktree: Path, protection: Protection | None = None
) -> Mapping[str, Any]:
    plan = skill.plan(arguments)
    admit_plan(plan.as_json(), skill.contract.effects)
    if plan.result is not None:
        assert plan.refused
        return plan.result
    assert skill.handler is not None
    assert skill.finish is not None
    with Directory.open(worktree, protection=protection) as directory:
        outcome = await skill.handler(plan.effects[0], Context("i", "e", time() + 60, directory))
    assert isinstance(outcome, Done)
    output = skill.finish(arguments, EffectResult("e1", plan.effects[0].effect, "ok", "sha256:0", outcome.output))
    admit_finish(dict(output))
    return output


async def error(skill: Skill, arguments: Any, worktree: Path) -> Any:
    return (await answer(skill, arguments, worktree))["error"]


# the frame of the three tools


@pytest.mark.parametrize("skill", TOOLS, ids=lambda skill: skill.id)
@pytest.mark.parametrize("arguments", [None, [], "x", 1])
def test_arguments_that_are_no_object_are_refused_with_an_envelope(skill: Skill, arguments: Any) -> None:
    plan = skill.plan(arguments)
    assert plan.refused
    assert plan.result is not None
    assert set(FIELDS) < set(plan.result)
    assert plan.result["error"] == "arguments must be a JSON object"


@pytest.mark.parametrize("skill", TOOLS, ids=lambda skill: skill.id)
@pytest.mark.parametrize("status", ["failed", "denied", "indeterminate"])
def test_an_effect_without_an_output_is_told(skill: Skill, status: Any) -> None:
    assert skill.finish is not None
    name = skill.contract.effects[0].name
    output = skill.finish({"path": " a.txt "}, EffectResult("e1", name, status, "sha256:0"))
    assert output["error"] == f"the {name} effect ended {status}"
    assert (output["status"], output["path"], output["stub"]) == ("error", "a.txt", False)
    assert set(skill.contract.output_schema["required"]) == set(output)


@pytest.mark.parametrize("skill", TOOLS, ids=lambda skill: skill.id)
async def test_without_a_worktree_nothing_is_looked_for_anywhere_else(skill: Skill) -> None:
    assert skill.handler is not None
    effect = skill.plan({"path": "a.txt", "content": ""}).effects[0]
    outcome = await skill.handler(effect, Context("i", "e", time() + 60))
    assert isinstance(outcome, Done)
    assert outcome.output["error"] == "workspace root is not a directory: ."


@pytest.mark.parametrize("skill", TOOLS, ids=lambda skill: skill.id)
async def test_a_handler_whose_worktree_was_closed_does_nothing(skill: Skill, tmp_path: Path) -> None:
    assert skill.handler is not None
    effect = skill.plan({"path": "a.txt", "content": ""}).effects[0]
    directory = Directory.open(tmp_path)
    directory.close()
    with pytest.raises(Closed):
        await skill.handler(effect, Context("i", "e", time() + 60, directory))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [list_files, read_file, write_file])
def test_offline_they_answer_without_an_effect(make: Any) -> None:
    skill: Skill = make(FileSettings.resolve({}, {"SKILLBUS_FS_BACKEND": "stub"}))
    plan = skill.plan({"path": "a", "content": "x"})
    assert skill.tier == "stub"
    assert plan.result is not None
    assert (plan.refused, plan.result["error"], plan.result["stub"]) == (True, OFFLINE, True)


@pytest.mark.parametrize("skill", TOOLS, ids=lambda skill: skill.id)
def test_their_contracts(skill: Skill) -> None:
    contract = skill.contract
    [row] = [row for row in rows("host-tools.policy", kind="metadata") if row["input"]["tool"] == skill.id]
    assert {"name": contract.id, **contract.risk.model_dump()} == row["output"]
    [effect] = contract.effects
    assert contract.access is not None
    assert (contract.access.name, contract.access.cost, effect.cost) == (effect.name, 0, 1)
    assert effect.name == ("Workspace.Write" if skill is WRITE else "Workspace.Read")
    assert (contract.repeatable, contract.worktree) == (skill is not WRITE, True)
    for example in contract.examples:
        assert not skill.plan(json.loads(example)).refused


def test_the_pack_takes_its_tier_from_the_operator() -> None:
    tiers = {skill.id: skill.tier for skill in pack(PackContext({"fs": {"backend": "stub"}}))}
    files = ("list_files", "read_file", "write_file")
    assert {name: tiers[name] for name in files} == dict.fromkeys(files, "stub")
    live = {skill.id: skill.tier for skill in pack(PackContext(environ={"MKLANG_FS_BACKEND": "local"}))}
    assert {live[name] for name in files} == {"live"}


# order of checks, and errors


@pytest.mark.parametrize(
    ("skill", "arguments", "text"),
    [
        (LIST, {"path": None}, None),
        (READ, {"path": "a\0b"}, "read failed: embedded null byte"),
        (LIST, {"path": "a\0b"}, "list failed: embedded null byte"),
        (WRITE, {"path": "a\0b", "content": ""}, "write failed: embedded null byte"),
        (READ, {"path": "a\ud800"}, "read failed: 'utf-8' codec can't encode character '\\ud800' in position 1: "),
        (READ, {"path": 10**5000}, "read failed: Exceeds the limit (4300 digits)"),
        (READ, {"path": "..", "max_bytes": "x"}, "max_bytes must be an integer"),
        (READ, {"path": "f.txt", "max_bytes": float("inf")}, "max_bytes must be an integer"),
        (READ, {"path": "f.txt", "max_bytes": Decimal("1E+400")}, "max_bytes must be an integer"),
        (READ, {"path": "f.txt", "max_bytes": float("nan")}, "max_bytes must be an integer"),
        (READ, {"path": "f.txt", "max_bytes": {"a": 1}}, "max_bytes must be an integer"),
        (READ, {"path": "f.txt", "max_bytes": Decimal("2.9")}, None),
        (READ, {"path": "f.txt", "max_bytes": "3"}, None),
        (READ, {"path": "f.txt", "max_bytes": 10**30}, None),
        (READ, {"path": "d"}, "no such file: 'd'"),
        (READ, {"path": " ./nope/ "}, "no such file: './nope/'"),
        (READ, {"path": "f.txt/x"}, "no such file: 'f.txt/x'"),
        (LIST, {"path": "f.txt/x"}, "no such directory: 'f.txt/x'"),
        (LIST, {"path": "loop"}, "list failed: Symlink loop from 'loop'"),
        (LIST, {"path": "loop/x"}, "list failed: Symlink loop from 'loop/x'"),
        (LIST, {"path": "n" * 300}, f"list failed: [Errno 36] File name too long: '{'n' * 300}'"),
        (LIST, {"path": "hidden-link"}, "path escapes the workspace: 'hidden-link'"),
        (LIST, {"path": "out"}, "path escapes the workspace: 'out'"),
        (READ, {"path": "out\\secret.txt"}, "path escapes the workspace: 'out\\\\secret.txt'"),
        (READ, {"path": "pipe.txt"}, "no such file: 'pipe.txt'"),
        (WRITE, {"path": "..", "content": None}, "missing content"),
        (WRITE, {"path": "../a.py", "content": ""}, "path escapes the workspace: '../a.py'"),
        (WRITE, {"path": "", "content": ""}, "empty path"),
        (WRITE, {"path": "a.py", "content": "x" * 300_000}, "suffix '.py' is not writable "),
        (WRITE, {"path": "f.txt", "content": "x" * 300_000}, "content is 300000 bytes — write cap is 262144"),
        (WRITE, {"path": "f.txt", "content": "x"}, "'f.txt' exists — pass overwrite: true"),
        (WRITE, {"path": "./f.txt", "content": "x"}, "'./f.txt' exists — pass overwrite: true"),
        (WRITE, {"path": "d/../f.txt", "content": "x"}, "path escapes the workspace: 'd/../f.txt'"),
        (WRITE, {"path": "pipe.txt", "content": "x"}, "'pipe.txt' exists — pass overwrite: true"),
        (WRITE, {"path": "pipe.txt", "content": "x", "overwrite": 1}, "write failed: [Errno 22] Not a regular file: "),
        (WRITE, {"path": "f.txt/a/b.txt", "content": "x"}, "write failed: [Errno 20] Not a directory: 'f.txt/a'"),
        (WRITE, {"path": "out/a.txt", "content": "x"}, "path escapes the workspace: 'out/a.txt'"),
        (WRITE, {"path": "hidden-link/a.txt", "content": "x"}, "path escapes the workspace: 'hidden-link/a.txt'"),
        (WRITE, {"path": "git~1/a.txt", "content": "x"}, "path is read-only: 'git~1/a.txt'"),
        (WRITE, {"path": "\u200b.git/a.txt", "content": "x"}, r"path is read-only: '\u200b.git/a.txt'"),
        (WRITE, {"path": f"{'n' * 252}.txt", "content": "x"}, "write failed: [Errno 36] File name too long: "),
        (WRITE, {"path": f"{'n' * 300}/a.txt", "content": "x"}, "write failed: [Errno 36] File name too long: "),
        (WRITE, {"path": f"new/{'n' * 300}/a.txt", "content": "x"}, "write failed: [Errno 36] File name too long: "),
        (WRITE, {"path": f"{'n' * 251}.txt", "content": "x"}, None),
        (WRITE, {"path": "c.json", "content": {"a": Decimal("1.5")}}, None),
        (WRITE, {"path": "n.txt", "content": "x", "overwrite": [1]}, None),
        (WRITE, {"path": "n.txt", "content": "x", "overwrite": [[1] * 10] * 20_000}, None),
        (WRITE, {"path": "n.txt", "content": [[1] * 10] * 20_000}, "write failed: the value takes more than 65536 "),
        (WRITE, {"path": [[1] * 10] * 20_000, "content": ""}, "write failed: the value takes more than 16384 "),
        (LIST, {"path": [[1] * 10] * 20_000}, "list failed: the value takes more than 16384 characters"),
        (LIST, {"path": "a/" * 500_000}, "list failed: the path is longer than 16384 characters"),
        (READ, {"path": "./" * 8_000 + "f.txt"}, None),
        (READ, {"path": "f.txt", "max_bytes": [[1] * 10] * 20_000}, "max_bytes must be an integer"),
        (WRITE, {"path": "deep.txt", "content": "\0" * 200_000}, "write failed: the content takes more than "),
    ],
)  # fmt: skip
async def test_an_error_is_told_in_the_envelope(skill: Skill, arguments: Any, text: str | None, tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "d", root / ".hidden", outside):
        folder.mkdir(parents=True)
    (root / "f.txt").write_text("text")
    (outside / "secret.txt").write_text("secret")
    for name, target in {"loop": "loop", "hidden-link": ".hidden", "out": "../outside"}.items():
        (root / name).symlink_to(target)
    os.mkfifo(root / "pipe.txt")
    found = await error(skill, arguments, root)
    assert found is None if text is None else str(found).startswith(text)
    assert str(tmp_path) not in str(found)
    assert [path.name for path in outside.iterdir()] == ["secret.txt"]
    assert list((root / ".hidden").iterdir()) == []


async def test_a_file_that_may_not_be_read_is_an_error_with_its_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("x")
    opened = os.open

    def forbid(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None and not flags & os.O_PATH:
            raise PermissionError(13, "Permission denied", path)
        return opened(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", forbid)
    assert await error(READ, {"path": "a.txt"}, tmp_path) == "read failed: [Errno 13] Permission denied: 'a.txt'"
    assert await error(LIST, {}, tmp_path) == "list failed: [Errno 13] Permission denied: '.'"
    (tmp_path / "b").mkdir()
    assert await error(WRITE, {"path": "b/a.txt", "content": ""}, tmp_path) == (
        "write failed: [Errno 13] Permission denied: 'b/a.txt'"
    )


# what they do


async def test_a_listing_shows_names_that_are_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9")).write_text("x")
    output = await answer(LIST, {}, tmp_path)
    assert output["entries"] == [{"name": "caf\\udce9", "kind": "file", "bytes": 1}]


async def test_a_listing_leaves_out_what_may_not_be_seen(tmp_path: Path) -> None:
    (tmp_path / ".hidden").write_text("x")
    (tmp_path / "seen").write_text("x")
    for name, target in {"dead": "nothing", "loop": "loop", "dot": ".hidden", "out": "/etc/passwd", "up": ".."}.items():
        (tmp_path / name).symlink_to(target)
    os.mkfifo(tmp_path / "pipe")
    output = await answer(LIST, {}, tmp_path)
    assert [entry["name"] for entry in output["entries"]] == ["seen"]
    assert output["count"] == 1


async def test_a_listing_is_in_code_point_order_and_counts_the_rest(tmp_path: Path) -> None:
    names = [f"{letter}{number}" for letter in "aBé" for number in range(100)]
    for name in names:
        (tmp_path / name).write_text("")
    output = await answer(LIST, {}, tmp_path)
    assert [entry["name"] for entry in output["entries"]] == sorted(names)[:200]
    assert (output["count"], output["truncated"]) == (300, True)


async def test_a_large_read_is_cut_at_the_highest_cap(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 300_000)
    output = await answer(READ, {"path": "big", "max_bytes": 10**9}, tmp_path)
    assert (len(output["content"]), output["bytes"], output["truncated"]) == (262_144, 300_000, True)


async def test_what_no_answer_could_carry_is_told_and_less_of_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\x1b" * 262_144)
    output = await answer(READ, {"path": "a", "max_bytes": 262_144}, tmp_path)
    assert output["error"].startswith("read failed: the content takes more than 900000 bytes as JSON")
    assert (output["content"], output["bytes"], output["stub"]) == ("", 0, False)
    less = await answer(READ, {"path": "a", "max_bytes": 149_000}, tmp_path)
    assert (less["error"], len(less["content"]), less["truncated"]) == (None, 149_000, True)


@pytest.mark.parametrize("overwrite", [True, 1, "TRUE", "yes", "On", "1", " true "])
async def test_overwrite_is_agreed_to_in_several_words(overwrite: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    output = await answer(WRITE, {"path": "a.txt", "content": "new", "overwrite": overwrite}, tmp_path)
    assert (output["written"], output["existed"]) == (True, True)
    assert (tmp_path / "a.txt").read_text() == "new"


async def test_a_dangling_link_inside_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "l.txt").symlink_to("d/new.txt")
    output = await answer(WRITE, {"path": "l.txt", "content": "x"}, tmp_path)
    assert (output["path"], output["existed"]) == ("l.txt", False)
    assert (tmp_path / "l.txt").is_symlink()
    assert (tmp_path / "d" / "new.txt").read_text() == "x"


async def test_of_two_first_writes_one_is_told_that_the_file_exists(tmp_path: Path) -> None:
    outputs = await asyncio.gather(
        *(answer(WRITE, {"path": "a.txt", "content": str(number)}, tmp_path) for number in range(8))
    )
    [written] = [output for output in outputs if output["written"]]
    assert written["existed"] is False
    assert {output["error"] for output in outputs} == {None, "'a.txt' exists — pass overwrite: true"}


async def test_the_deny_list_holds_for_links_too(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir()
    (tmp_path / "l").symlink_to("locked")
    protection = Protection(("locked/**",))
    for path in ("locked/a.txt", "l/a.txt", "LOCKED/a.txt"):
        output = await answer(WRITE, {"path": path, "content": ""}, tmp_path, protection)
        assert output["error"] == f"path is read-only: {path!r}"
    assert list((tmp_path / "locked").iterdir()) == []


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["..", "a.txt", "d", "l.txt", "/"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    skill=st.sampled_from(TOOLS),
    arguments=VALUES
    | st.fixed_dictionaries({}, optional=dict.fromkeys(["path", "content", "max_bytes", "overwrite"], VALUES)),
)
def test_any_arguments_get_an_envelope_with_every_field(tmp_path: Path, skill: Skill, arguments: Any) -> None:
    root = tmp_path / "root"
    if not root.exists():
        (root / "d").mkdir(parents=True)
        (root / "l.txt").symlink_to("../outside.txt")
    output = asyncio.run(answer(skill, arguments, root))
    assert set(skill.contract.output_schema["required"]) == set(output)
    assert output["status"] == ("error" if output["error"] else "ok")
    json.loads(json.dumps(output, ensure_ascii=False, allow_nan=False).encode())
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


SEGMENTS = st.sampled_from(
    [
        "..",
        ".",
        "",
        "d",
        "a.txt",
        "out",
        "out.txt",
        "secret.txt",
        "up",
        "~",
        "C:",
        "．．",
        ".. ",
        "\0",
        "..\u200b",
        ".git",
        "x.md",
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    skill=st.sampled_from(TOOLS),
    segments=st.lists(SEGMENTS, min_size=1, max_size=6),
    separator=st.sampled_from(["/", "\\", "//", "/./"]),
)
def test_no_path_leaves_the_worktree(tmp_path: Path, skill: Skill, segments: list[str], separator: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    if not root.exists():
        (root / "d").mkdir(parents=True)
        outside.mkdir()
        (outside / "secret.txt").write_text("secret!")
        (root / "out").symlink_to("../outside")
        (root / "out.txt").symlink_to(outside / "secret.txt")
        (root / "d" / "up").symlink_to("../..")
    arguments = {"path": separator.join(segments), "content": "inside", "overwrite": True}
    output = asyncio.run(answer(skill, arguments, root))
    assert "secret!" not in str(output)
    assert "outside" not in str(output)
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("secret.txt", "secret!")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside", "root"]
