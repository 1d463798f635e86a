import os
import sys
from pathlib import Path

import pytest

from skills.ailang import binary as module
from skills.ailang.binary import Binary, BinaryError
from skills.canonical import ref

ENV = {"PATH": os.defpath}


def program(path: Path, says: str) -> Path:
    path.write_text(f"#!{sys.executable} -IS\nimport sys\nprint({says!r}, sys.stdin.read(), *sys.argv[1:])\n")
    path.chmod(0o755)
    return path


async def said(binary: Binary) -> str:
    finished = await binary.run(["a", "b"], cwd="/", env=ENV, stdin=b"in")
    assert (finished.status, finished.stderr) == (0, b"")
    return finished.stdout.decode().strip()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return program(tmp_path / "ailang", "one")


async def test_it_is_named_by_its_bytes_and_runs(path: Path) -> None:
    binary = Binary.open(path)
    assert binary.ref == ref(path.read_bytes())
    binary.check()
    assert await said(binary) == "one in a b"


async def test_what_was_opened_is_what_runs_whatever_stands_at_its_path(path: Path, tmp_path: Path) -> None:
    binary = Binary.open(path)
    program(tmp_path / "other", "two").rename(path)
    assert await said(binary) == "one in a b"
    with pytest.raises(BinaryError, match=rf"changed since it was pinned as {binary.ref}; start the worker again"):
        binary.check()


def test_the_same_bytes_put_in_its_place_are_the_same_program(path: Path, tmp_path: Path) -> None:
    binary = Binary.open(path)
    program(tmp_path / "again", "one").rename(path)
    binary.check()


@pytest.mark.parametrize("keep_times", [False, True])
def test_bytes_that_change_in_place_are_noticed(path: Path, keep_times: bool) -> None:
    binary = Binary.open(path)
    binary.check()
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b"one", b"two"))
    if keep_times:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(BinaryError, match="bytes have changed"):
        binary.check()


def test_a_change_that_its_times_cannot_tell_of_is_noticed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_identity", lambda _: (0, 0, 0, 0, 0))  # as within one tick of the clock
    binary = Binary.open(path)
    binary.check()
    path.write_bytes(path.read_bytes().replace(b"one", b"two"))
    with pytest.raises(BinaryError, match="bytes have changed"):
        binary.check()


def test_what_has_been_quiet_is_not_hashed_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_QUIET", -3600.0)
    binary = Binary.open(path)
    binary.check()
    monkeypatch.setattr(module, "_hash", lambda _: pytest.fail("hashed again"))
    binary.check()


def test_a_pin_must_hold(path: Path) -> None:
    found = ref(path.read_bytes())
    assert Binary.open(path, pinned=found).ref == found
    with pytest.raises(BinaryError, match=f"is {found}, and sha256:0{{64}} is pinned"):
        Binary.open(path, pinned="sha256:" + "0" * 64)


@pytest.mark.parametrize("what", ["gone", "folder", "fifo", "not executable"])
def test_what_is_no_program(tmp_path: Path, what: str) -> None:
    path = tmp_path / "x"
    if what == "folder":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path, 0o755)
    elif what == "not executable":
        path.write_text("x")
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(BinaryError, match="can't be opened: No such file" if what == "gone" else "executable file"):
        Binary.open(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_program_that_is_gone_is_refused(path: Path) -> None:
    binary = Binary.open(path)
    path.unlink()
    with pytest.raises(BinaryError, match="is gone: No such file or directory"):
        binary.check()


async def test_its_descriptor_is_not_handed_on(tmp_path: Path) -> None:
    path = tmp_path / "fds"
    path.write_text(f"#!{sys.executable} -IS\nimport os\nprint(sorted(os.listdir('/proc/self/fd')))\n")
    path.chmod(0o755)
    finished = await Binary.open(path).run([], cwd="/", env=ENV, stdin=b"")
    assert finished.stdout.decode().strip() == "['0', '1', '2', '3']"  # the last is that of the listing itself


def test_it_is_closed_once(path: Path) -> None:
    binary = Binary.open(path)
    binary.close()
    binary.close()
    with pytest.raises(BinaryError):
        binary.check()
