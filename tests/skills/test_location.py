import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from skills import Closed, Directory, Entry, Location, Protected


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    (tmp_path / "old.txt").write_text("old")
    (tmp_path / "old.txt").chmod(0o640)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    with Directory.open(tmp_path) as opened:
        yield opened


def put(directory: Directory, path: str, data: bytes = b"new", **options: object) -> None:
    with directory.resolve(path) as location:
        location.write(data, **options)  # type: ignore[arg-type]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_read(directory: Directory) -> None:
    with directory.resolve("old.txt") as location, location.open() as file:
        assert (location.size, file.read()) == (3, b"old")


@pytest.mark.parametrize(
    ("path", "error"), [("folder", IsADirectoryError), ("gone", FileNotFoundError), ("fifo", OSError), ("", OSError)]
)
def test_only_a_regular_file_is_opened(directory: Directory, path: str, error: type[OSError]) -> None:
    with directory.resolve(path) as location, pytest.raises(error):
        location.open()


def test_a_file_that_became_something_else_is_not_opened(directory: Directory, tmp_path: Path) -> None:
    for become in (
        lambda path: path.symlink_to("/etc/passwd"),
        lambda path: os.mkfifo(path),
        lambda path: path.mkdir(),
    ):
        path = tmp_path / "changing"
        path.write_text("x")
        with directory.resolve("changing") as location:
            path.unlink()
            become(path)
            with pytest.raises(OSError):
                location.open()
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()


def test_a_directory_is_scanned(directory: Directory, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("folder")
    with directory.resolve("") as location:
        assert set(location.scan()) == {
            Entry("old.txt", "file"), Entry("folder", "directory"), Entry("link", "link"), Entry("fifo", "other"),
        }  # fmt: skip


@pytest.mark.parametrize(("path", "error"), [("old.txt", NotADirectoryError), ("gone", FileNotFoundError)])
def test_only_a_directory_is_scanned(directory: Directory, path: str, error: type[OSError]) -> None:
    with directory.resolve(path) as location, pytest.raises(error):
        next(location.scan())


def test_a_new_file_has_mode_0644_and_a_replaced_one_keeps_its_own(directory: Directory, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        put(directory, "new.txt")
        put(directory, "old.txt")
    finally:
        os.umask(before)
    assert mode(tmp_path / "new.txt") == 0o644
    assert mode(tmp_path / "old.txt") == 0o640


def test_the_caller_may_choose_the_mode(directory: Directory, tmp_path: Path) -> None:
    put(directory, "old.txt", mode=0o600)
    assert mode(tmp_path / "old.txt") == 0o600


def test_a_write_is_whole_and_leaves_nothing_else(directory: Directory, tmp_path: Path) -> None:
    with (tmp_path / "old.txt").open("rb") as reader:
        put(directory, "old.txt", b"n" * 1_000_000)
        assert reader.read() == b"old"
    assert (tmp_path / "old.txt").read_bytes() == b"n" * 1_000_000
    assert {path.name for path in tmp_path.iterdir()} == {"old.txt", "folder", "fifo"}


def test_a_hard_link_elsewhere_keeps_its_content(directory: Directory, tmp_path: Path) -> None:
    (tmp_path / "twin").hardlink_to(tmp_path / "old.txt")
    put(directory, "old.txt")
    assert (tmp_path / "twin").read_text() == "old"


def test_a_link_is_followed_and_stays(directory: Directory, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("folder/target")
    put(directory, "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "target").read_text() == "new"


@pytest.mark.parametrize(
    ("path", "error", "text"),
    [
        ("folder", IsADirectoryError, "'folder'"),
        ("", IsADirectoryError, "'.'"),
        ("new/", IsADirectoryError, "'new'"),
        ("fifo", OSError, "Not a regular file: 'fifo'"),
        ("gone/new.txt", FileNotFoundError, "'gone/new.txt'"),
    ],
)
def test_what_cannot_be_written(directory: Directory, path: str, error: type[OSError], text: str) -> None:
    with pytest.raises(error, match=text):
        put(directory, path)


def test_missing_directories_are_made_on_request(directory: Directory, tmp_path: Path) -> None:
    put(directory, "gone/far/new.txt", parents=True)
    assert (tmp_path / "gone/far/new.txt").read_text() == "new"


def test_a_directory_that_appears_meanwhile_is_used(directory: Directory, tmp_path: Path) -> None:
    with directory.resolve("gone/new.txt") as location:
        (tmp_path / "gone").mkdir()
        location.write(b"new", parents=True)
    assert (tmp_path / "gone/new.txt").read_text() == "new"


def test_a_link_that_appears_meanwhile_is_not_followed(directory: Directory, tmp_path: Path) -> None:
    with directory.resolve("gone/new.txt") as location:
        (tmp_path / "gone").symlink_to("folder")
        with pytest.raises(OSError):
            location.write(b"new", parents=True)
    assert list((tmp_path / "folder").iterdir()) == []


def test_a_file_that_became_a_link_is_not_even_tried(directory: Directory, tmp_path: Path) -> None:
    with directory.resolve("old.txt") as location:
        (tmp_path / "old.txt").unlink()
        (tmp_path / "old.txt").symlink_to("/dev/null")
        with pytest.raises(OSError, match="symbolic links"):
            location.write(b"new")


def test_without_replace_a_file_that_appears_meanwhile_is_safe(directory: Directory, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        put(directory, "old.txt", replace=False)
    with directory.resolve("new.txt") as location:
        (tmp_path / "new.txt").write_text("theirs")
        with pytest.raises(FileExistsError):
            location.write(b"ours", replace=False)
    assert (tmp_path / "new.txt").read_text() == "theirs"
    assert len(list(tmp_path.iterdir())) == 4


def test_a_file_system_without_hard_links_is_no_obstacle(
    directory: Directory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    put(directory, "new.txt", replace=False)
    assert (tmp_path / "new.txt").read_text() == "new"


def test_a_failed_write_leaves_nothing(directory: Directory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for name in ("write", "rename", "fchmod"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            with pytest.raises(OSError, match=r"No space left on device: 'old.txt'"):
                put(directory, "old.txt")
    assert {path.name for path in tmp_path.iterdir()} == {"old.txt", "folder", "fifo"}
    assert (tmp_path / "old.txt").read_text() == "old"


def test_a_write_whose_directory_was_closed_does_not_happen(directory: Directory, tmp_path: Path) -> None:
    with directory.resolve("old.txt") as location:
        directory.close()
        with pytest.raises(Closed):
            location.write(b"late")
    assert (tmp_path / "old.txt").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    "path", [".git", ".git/config", "git-link/config", "folder/.GIT/x", ".github/w.yml", "hub/w.yml"]
)
def test_a_protected_path_is_not_written_by_any_way(directory: Directory, tmp_path: Path, path: str) -> None:
    for name in (".git", ".github"):
        (tmp_path / name).mkdir()
    (tmp_path / "git-link").symlink_to(".git")
    (tmp_path / "hub").symlink_to(".github")
    with pytest.raises(Protected):
        put(directory, path, parents=True)
    assert list((tmp_path / ".git").iterdir()) == list((tmp_path / ".github").iterdir()) == []


def test_the_name_asked_for_counts_as_well(directory: Directory, tmp_path: Path) -> None:
    (tmp_path / ".ailang").symlink_to("folder")
    with pytest.raises(Protected):
        put(directory, ".ailang/x.ail")


@pytest.mark.parametrize("step", ["rename", "link", "mkdir"])
def test_closing_waits_for_what_is_landing_and_nothing_lands_after(
    directory: Directory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    begun, go = Event(), Event()
    real = getattr(os, step)

    def slow(*arguments: Any, **options: Any) -> None:
        begun.set()
        assert go.wait(10)
        real(*arguments, **options)

    monkeypatch.setattr(os, step, slow)
    path = "new/deep/a.txt" if step == "mkdir" else "a.txt"
    with ThreadPoolExecutor(2) as threads:
        writing = threads.submit(put, directory, path, parents=True, replace=step == "rename")
        assert begun.wait(10)
        closing = threads.submit(directory.close)
        assert not wait([closing], timeout=0.1).done, "it is closed, and the file still to land"
        go.set()
        closing.result(10)
        landed = sorted(path.name for path in tmp_path.rglob("*"))
        if step == "mkdir":
            with suppress(Closed):  # or it came to its end first: which of the two goes on is not settled
                writing.result(10)
        else:
            writing.result(10)
            assert (tmp_path / "a.txt").read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.rglob("*") if not path.name.endswith(".tmp")) == landed


def test_a_closed_location_closes_once(directory: Directory) -> None:
    location: Location = directory.resolve("old.txt")
    location.close()
    location.close()
