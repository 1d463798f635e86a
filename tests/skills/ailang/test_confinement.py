"""Nothing outside of the worktree is read or written, by any spelling, in any tree, whoever changes it meanwhile."""

import asyncio
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from time import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skills import Context, Directory, Done, PlannedEffect, Skill
from skills.ailang import ailang_edit, ailang_read, ailang_write
from skills.ailang.files import handle

SECRET = "what lies outside"
INSIDE = "what lies inside"
LONG = "n" * 255
SKILLS = {"read": ailang_read(), "write": ailang_write(), "edit": ailang_edit()}
EFFECTS = {"read": "Workspace.Read", "write": "Workspace.Write", "edit": "Workspace.Write"}
PROTECTED = (".git", ".GIT", ".gıt", "git~1", ".github", ".GitHub", ".ailang", ".claude", ".pi", ".PI")
CAN_MAKE_DEVICES = os.geteuid() == 0


def make(place: Path, kind: str, outside: Path) -> None:
    """Something hostile, or not, at a place where nothing is yet."""
    match kind:
        case "file":
            place.write_text(INSIDE)
        case "folder":
            place.mkdir()
            (place / "b").write_text(INSIDE)
        case "fifo":
            os.mkfifo(place)
        case "device":
            try:
                os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(1, 3))
            except PermissionError:  # root, and yet not allowed to
                place.write_text(INSIDE)
        case "hard link":
            place.hardlink_to(outside / "linked.txt")
        case _:
            place.symlink_to(kind.replace("OUTSIDE", str(outside)).replace("ROOT", str(place.parent)))


LINKS = [
    "../outside", "../outside/secret.txt", "OUTSIDE", "OUTSIDE/secret.txt", "OUTSIDE/new.txt", "/", "..", ".", "a", "b",
    "A", "/proc/self/root", "/proc/self/cwd", "/dev/null", "/dev/full", "ROOT/a", "ROOT/../outside", "../root/a",
    ".git", ".git/config", ".GitHub", "a/../../outside/secret.txt", "nowhere/at/all", LONG,
]  # fmt: skip
NAMES = ["a", "b", "A", "ſ", "S", "K", LONG, *PROTECTED]
kinds = st.sampled_from(["file", "folder", "fifo", "hard link", *(["device"] if CAN_MAKE_DEVICES else []), *LINKS])
trees = st.dictionaries(st.sampled_from(NAMES), kinds, max_size=5)
segments = st.sampled_from(["..", ".", "", "b", "secret.txt", "config", "new", "outside", "root", LONG + "n", *NAMES])
paths = (
    st.lists(segments, min_size=1, max_size=5).map("/".join)
    | st.lists(segments, max_size=4).map(lambda parts: "/".join(["OUTSIDE", *parts]))
    | st.sampled_from(
        ["/etc/passwd", "/proc/self/root/etc/passwd", "/dev/null", "a\0b", "\\..\\..\\x", "~", "a" * 5_000]
    )
    | st.text(max_size=4)
)


def seen(folder: Path) -> dict[str, Any]:
    """Everything below a folder: kinds, modes, contents, targets."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        held = path.read_bytes() if stat.S_ISREG(status.st_mode) else path.readlink() if path.is_symlink() else None
        found[str(path.relative_to(folder))] = (stat.S_IFMT(status.st_mode), stat.S_IMODE(status.st_mode), held)
    return found


def is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def request(op: str, path: str) -> dict[str, Any]:
    fields = {
        "read": {},
        "write": {"content": INSIDE},
        "edit": {"old_text": "what", "new_text": "that"},
    }
    return {"op": op, "path": path, **fields[op]}


def ask(root: Path, op: str, path: str) -> dict[str, Any]:
    """The handler's answer, without the plan that would have refused the plainest ways out."""
    with Directory.open(root) as directory:
        effect = PlannedEffect("e1", EFFECTS[op], "worktree", 1, request(op, path))
        outcome = asyncio.run(handle(effect, Context("i", "e", time() + 60, directory)))
    assert isinstance(outcome, Done)
    return dict(outcome.output)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("secret.txt", "linked.txt"):
        (outside / name).write_text(SECRET)
    yield tmp_path
    assert sorted(path.name for path in tmp_path.iterdir()) in (["outside"], ["outside", "root"])


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees, calls=st.lists(st.tuples(st.sampled_from(list(EFFECTS)), paths), min_size=1, max_size=4))
def test_no_call_in_any_tree_gets_out(place: Path, tree: dict[str, str], calls: list[tuple[str, str]]) -> None:
    root, outside = place / "root", place / "outside"
    root.mkdir()
    try:
        for name, kind in tree.items():
            make(root / name, kind, outside)
        before = seen(outside)
        protected = {name: seen(root / name) for name in PROTECTED if is_folder(root / name)}
        links = {name for name, kind in tree.items() if kind == "hard link"}
        for op, path in calls:
            answer = ask(root, op, path.replace("OUTSIDE", str(outside)))
            assert answer["ok"] == ("refused" not in answer)
            if not links:  # a second name of a file is as good as its first: who made it could read it
                assert SECRET not in answer.get("content", "")
            assert not (op != "read" and answer["ok"] and path.split("/")[0] in PROTECTED)
        assert seen(outside) == before
        for name, held in protected.items():
            assert seen(root / name) == held
        assert not list(root.rglob("*.tmp"))
    finally:
        shutil.rmtree(root)


@pytest.mark.parametrize("name", PROTECTED)
@pytest.mark.parametrize("op", ["write", "edit"])
def test_no_spelling_of_what_is_protected_is_written(place: Path, name: str, op: str) -> None:
    root = place / "root"
    (root / name).mkdir(parents=True)
    (root / name / "x").write_text(INSIDE)
    for path in (f"{name}/x", f"./{name}/x", f"{name}//x", f"a/../{name}/x", f"{name}/./x"):
        answer = ask(root, op, path)
        assert answer["ok"] is False
        assert (root / name / "x").read_text() == INSIDE


@pytest.mark.parametrize("skill", SKILLS.values(), ids=lambda skill: skill.id)
@pytest.mark.parametrize("path", ["../outside/secret.txt", "/etc/passwd", "a/../../outside/secret.txt", "..", "-x"])
def test_the_plan_refuses_the_plainest_ways_out_by_itself(skill: Skill, path: str) -> None:
    given_arguments = {name: path if name == "path" else "x" for name in skill.contract.admits}
    assert skill.plan(given_arguments).refused


@pytest.mark.skipif(not CAN_MAKE_DEVICES, reason="needs root, to make a device node")
@pytest.mark.parametrize("op", EFFECTS)
def test_a_device_is_never_opened(place: Path, op: str) -> None:
    root = place / "root"
    root.mkdir()
    try:
        os.mknod(root / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))  # reading it has no end
    except PermissionError:
        pytest.skip("this root may make no devices")
    assert "not a regular file" in ask(root, op, "zero")["refused"]
    (root / "link").symlink_to("zero")
    assert "not a regular file" in ask(root, op, "link")["refused"]


@pytest.mark.parametrize("op", EFFECTS)
def test_a_fifo_that_nobody_opens_keeps_nobody_waiting(place: Path, op: str) -> None:
    root = place / "root"
    root.mkdir()
    os.mkfifo(root / "fifo")
    assert "not a regular file" in ask(root, op, "fifo")["refused"]


def test_a_hard_link_to_the_outside_is_cut_by_a_write_and_not_written_through(place: Path) -> None:
    root, outside = place / "root", place / "outside"
    root.mkdir()
    (root / "a").hardlink_to(outside / "linked.txt")
    assert ask(root, "edit", "a")["ok"] is True
    assert (root / "a").read_text() == SECRET.replace("what", "that")
    assert (outside / "linked.txt").read_text() == SECRET


def test_a_write_keeps_the_mode_and_no_reader_sees_half_of_it(place: Path) -> None:
    root = place / "root"
    root.mkdir()
    (root / "a").write_text("old")
    (root / "a").chmod(0o751)
    with (root / "a").open() as reader:
        assert ask(root, "write", "a")["ok"] is True
        assert reader.read() == "old"
    assert stat.S_IMODE((root / "a").stat().st_mode) == 0o751


def test_names_that_differ_in_case_are_different_files(place: Path) -> None:
    root = place / "root"
    root.mkdir()
    for name in ("a", "A"):
        (root / name).write_text(name)
    assert (ask(root, "read", "a")["content"], ask(root, "read", "A")["content"]) == ("a", "A")


def test_a_name_of_full_length_is_written_and_a_longer_one_refused(place: Path) -> None:
    root = place / "root"
    root.mkdir()
    assert ask(root, "write", LONG)["ok"] is True
    assert ask(root, "write", LONG)["ok"] is True, "nor does replacing it need a longer one"
    assert ask(root, "write", LONG + "n")["refused"].endswith("file name too long")
    assert [path.name for path in root.iterdir()] == [LONG]


def test_a_folder_that_becomes_a_link_and_back_while_calls_run_leads_nowhere(place: Path) -> None:
    root, outside = place / "root", place / "outside"
    (root / "d").mkdir(parents=True)
    (root / "d" / "secret.txt").write_text(INSIDE)
    before = seen(outside)
    stop = threading.Event()
    swaps = 0

    def swap() -> None:
        nonlocal swaps
        while not stop.is_set():
            (root / "d").rename(root / "kept")
            (root / "d").symlink_to(outside)
            (root / "d").unlink()
            (root / "kept").rename(root / "d")
            swaps += 1

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        answers = [
            ask(root, op, f"d/{name}") for _ in range(60) for op in EFFECTS for name in ("secret.txt", "new.txt")
        ]
    finally:
        stop.set()
        swapper.join()
    assert swaps
    assert not [answer for answer in answers if SECRET in answer.get("content", "")]
    assert seen(outside) == before
    for answer in answers:
        assert answer["ok"] or str(outside) not in answer["refused"]
