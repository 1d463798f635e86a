import errno
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skills import Closed, Directory, Escape, Protected, Protection
from skills.directory import MAX_LINKS, MAX_PATH

SECRET = b"outside"


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def files_below(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A root with everything hostile that a tree can hold, and a folder outside with secrets."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "a" / "b").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret.txt").write_bytes(SECRET)
    (root / "file.txt").write_bytes(b"inside")
    (root / "a" / "deep.txt").write_bytes(b"inside")
    (root / "a" / "b" / "deeper.txt").write_bytes(b"inside")
    for name, target in {
        "in": "a/deep.txt",
        "in-abs": f"{root}/a/deep.txt",
        "a/up": "../file.txt",
        "a/b/far-up": "../../file.txt",
        "around": "../root/file.txt",
        "around-abs": f"{tmp_path}/../{tmp_path.name}/./root/a",
        "through": f"{tmp_path}/outside/../root/a",
        "dir": "a",
        "dangling": "a/nothing",
        "out": "../outside/secret.txt",
        "out-dir": "../outside",
        "out-abs": f"{outside}/secret.txt",
        "out-near": f"{root}x/secret.txt",
        "a/out": "../../outside",
        "root-abs": "/",
        "proc": "/proc/self/root",
        "self": "self",
        "ping": "pong",
        "pong": "ping",
    }.items():
        (root / name).symlink_to(target)
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "sock"))
    for number in range(MAX_LINKS + 1):
        (root / f"chain{number}").symlink_to(f"chain{number + 1}" if number < MAX_LINKS else "file.txt")
    return root


@pytest.fixture
def directory(tree: Path) -> Iterator[Directory]:
    with Directory.open(tree) as opened:
        yield opened


@pytest.mark.parametrize(
    ("path", "resolved", "kind"),
    [
        ("", "", "directory"),
        (".", "", "directory"),
        ("./", "", "directory"),
        ("file.txt", "file.txt", "file"),
        ("./a//b/./deeper.txt", "a/b/deeper.txt", "file"),
        ("a/", "a", "directory"),
        ("a/b/..", "a", "directory"),
        ("in", "a/deep.txt", "file"),
        ("in-abs", "a/deep.txt", "file"),
        ("a/up", "file.txt", "file"),
        ("a/b/far-up", "file.txt", "file"),
        ("dir/b/far-up", "file.txt", "file"),
        ("around", "file.txt", "file"),
        ("around-abs/deep.txt", "a/deep.txt", "file"),
        ("dir/b", "a/b", "directory"),
        ("fifo", "fifo", "other"),
        ("sock", "sock", "other"),
        ("chain1", "file.txt", "file"),
        ("nothing", "nothing", None),
        ("a/nothing/at/all", "a/nothing/at/all", None),
        ("nothing/", "nothing", None),
        ("dangling", "a/nothing", None),
        ("dir/new", "a/new", None),
    ],
)
def test_a_path_is_resolved_inside(directory: Directory, path: str, resolved: str, kind: str | None) -> None:
    with directory.resolve(path) as location:
        assert (location.path, location.kind, location.requested) == (resolved, kind, path)


def test_an_absolute_path_to_the_inside_is_one(directory: Directory, tree: Path) -> None:
    with directory.resolve(f"{tree}/a/deep.txt") as location:
        assert location.path == "a/deep.txt"


@pytest.mark.parametrize(
    "path",
    [
        "..", "../outside/secret.txt", "a/../../outside", "/", "/etc/passwd", "out", "out-dir", "out-dir/secret.txt",
        "out-abs", "out-near", "a/out/secret.txt", "dir/out/secret.txt", "root-abs", "root-abs/etc/passwd", "proc",
        "through", "../rootx", "../root/../outside",
    ],
)  # fmt: skip
def test_what_leads_outside_is_an_escape(directory: Directory, path: str) -> None:
    with pytest.raises(Escape):
        directory.resolve(path)


@pytest.mark.parametrize(
    ("path", "code", "names"),
    [
        ("self", errno.ELOOP, "self"),
        ("ping/x", errno.ELOOP, "ping"),
        ("chain0", errno.ELOOP, "chain40"),
        ("file.txt/", errno.ENOTDIR, "file.txt"),
        ("file.txt/.", errno.ENOTDIR, "file.txt"),
        ("a/deep.txt/x", errno.ENOTDIR, "a/deep.txt"),
        ("in/x", errno.ENOTDIR, "a/deep.txt"),
        ("fifo/x", errno.ENOTDIR, "fifo"),
        ("nothing/../file.txt", errno.ENOENT, "nothing"),
        ("a/" + "n" * 256, errno.ENAMETOOLONG, "a/" + "n" * 256),
        ("a/" * MAX_PATH, errno.ENAMETOOLONG, "a/" * MAX_PATH),
    ],
)
def test_a_way_that_ends_early_is_an_os_error_that_names_no_path_of_the_host(
    directory: Directory, path: str, code: int, names: str
) -> None:
    with pytest.raises(OSError) as raised:
        directory.resolve(path)
    assert raised.value.errno == code
    if code != errno.ELOOP:
        assert raised.value.filename == names
    assert not str(raised.value.filename).startswith("/")


@pytest.mark.parametrize("path", ["a\0b", "\0", "a/\0", "a\ud800"])
def test_what_no_file_system_takes_is_a_value_error(directory: Directory, path: str) -> None:
    with pytest.raises(ValueError, match=r"null byte|surrogates"):
        directory.resolve(path)


def test_a_way_of_endless_ups_and_downs_ends(tree: Path, directory: Directory) -> None:
    for number in range(10):
        (tree / "a" / f"zigzag{number}").symlink_to(
            "b/../" * 700 + (f"zigzag{number + 1}" if number < 9 else "deep.txt")
        )
    with directory.resolve("a/zigzag5") as location:
        assert location.path == "a/deep.txt"
    with pytest.raises(OSError, match="symbolic links"):
        directory.resolve("a/zigzag0")


def test_depth_costs_no_descriptors(tmp_path: Path) -> None:
    deep = "/".join("d" * 500)
    (tmp_path / deep).mkdir(parents=True)
    before = descriptors()
    with Directory.open(tmp_path) as directory, directory.resolve(deep) as location:
        assert location.kind == "directory"
        assert descriptors() == before + 2


def test_no_descriptor_is_left(tree: Path) -> None:
    before = descriptors()
    with Directory.open(tree) as directory:
        for path in [
            *(str(path.relative_to(tree)) for path in tree.rglob("*")),
            "..",
            "/",
            "a\0",
            "n" * 300,
            "no/file",
        ]:
            with suppress(Escape, OSError, ValueError), directory.resolve(path) as location:
                with suppress(OSError), location.open() as file:
                    file.read(1)
                with suppress(OSError):
                    list(location.scan())
                with suppress(OSError, Protected):
                    location.write(b"inside", parents=True, replace=False)
        assert descriptors() == before + 1
    assert descriptors() == before


def test_a_directory_that_is_dropped_is_closed(tree: Path) -> None:
    before = descriptors()
    Directory.open(tree).resolve("a").close()
    assert descriptors() == before


def test_a_closed_directory_opens_nothing(tree: Path) -> None:
    directory = Directory.open(tree)
    directory.close()
    directory.close()
    assert directory.closed
    with pytest.raises(Closed):
        directory.resolve("file.txt")


def test_opening_what_is_no_directory_fails(tree: Path) -> None:
    for name in ("file.txt", "nothing", "fifo"):
        with pytest.raises(OSError):
            Directory.open(tree / name)


def test_the_root_itself_may_be_reached_through_a_link(tree: Path) -> None:
    link = tree.parent / "link"
    link.symlink_to(tree)
    with Directory.open(link) as directory, directory.resolve("in-abs") as location:
        assert location.path == "a/deep.txt"


def test_a_directory_stays_the_one_it_was(tree: Path, directory: Directory) -> None:
    tree.rename(tree.parent / "moved")
    tree.symlink_to("outside")
    with directory.resolve("file.txt") as location, location.open() as file:
        assert file.read() == b"inside"


NAMES = st.sampled_from(
    ["", ".", "..", "a", "b", "root", "outside", "secret.txt", "file.txt", "in", "in-abs", "up", "far-up", "around",
     "around-abs", "dir", "dangling", "out", "out-dir", "out-abs", "root-abs", "proc", "self", "ping", "fifo", "sock",
     "chain0", "chain1", "new", ".git", "n" * 255, "n" * 300, "é", "\u202e", "\\", "~", "*"]
) | st.text(max_size=8)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(NAMES, max_size=8), absolute=st.booleans())
def test_no_path_leaves_the_directory(tree: Path, directory: Directory, names: list[str], absolute: bool) -> None:
    path = "/" * absolute + "/".join(names)
    outside = tree.parent / "outside"
    (outside / "only-outside").touch()  # a name that no path here has, so that no file inside is called so
    with suppress(Escape, OSError, ValueError, Protected), directory.resolve(path) as location:
        assert ".." not in location.path.split("/")
        if location.kind == "file":
            with location.open() as file:
                assert file.read() == b"inside"
        elif location.kind == "directory":
            assert "only-outside" not in {entry.name for entry in location.scan()}
        location.write(b"inside", parents=True)
    assert files_below(outside) == {"secret.txt": SECRET, "only-outside": b""}
    assert {path.name for path in tree.parent.iterdir()} == {"root", "outside"}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    target=st.lists(NAMES.filter(lambda name: name and "\0" not in name), min_size=1, max_size=6), start=st.booleans()
)
def test_no_link_leaves_the_directory(tree: Path, directory: Directory, target: list[str], start: bool) -> None:
    link = tree / "link"
    link.unlink(missing_ok=True)
    with suppress(OSError, ValueError):
        link.symlink_to("/" * start + "/".join(target))
    for path in ("link", "link/secret.txt", "link/x/y"):
        with suppress(Escape, OSError, ValueError, Protected), directory.resolve(path) as location:
            if location.kind == "file":
                with location.open() as file:
                    assert file.read() == b"inside"
            location.write(b"inside", parents=True)
    assert files_below(tree.parent / "outside") == {"secret.txt": SECRET}
    assert {path.name for path in tree.parent.iterdir()} == {"root", "outside"}


@pytest.mark.parametrize("path", ["swap/secret.txt", "swap/sub/secret.txt", "in-swap"])
def test_a_directory_that_becomes_a_link_meanwhile_leads_nowhere(tree: Path, path: str) -> None:
    """One thread exchanges a folder for a link to the outside while others read and write through its name."""
    outside = tree.parent / "outside"
    (outside / "sub").mkdir()
    (outside / "sub" / "secret.txt").write_bytes(SECRET)
    real, link = tree / "real", tree / "link"
    (real / "sub").mkdir(parents=True)
    for place in (real, real / "sub"):
        (place / "secret.txt").write_bytes(b"inside")
    link.symlink_to(outside)
    (tree / "in-swap").symlink_to("swap/secret.txt")
    swap, done = tree / "swap", threading.Event()

    def exchange() -> None:
        while not done.is_set():
            real.rename(swap)
            swap.rename(real)
            link.rename(swap)
            swap.rename(link)

    leaked: list[bytes] = []
    seen: set[str] = set()

    def call(directory: Directory, write: bool) -> None:
        for _ in range(1500):
            try:
                with directory.resolve(path) as location:
                    if write:
                        location.write(b"inside")
                    else:
                        with location.open() as file:
                            leaked.append(file.read())
                seen.add("done")
            except (Escape, OSError) as error:
                seen.add(type(error).__name__)

    with Directory.open(tree) as directory:
        swapper = threading.Thread(target=exchange)
        callers = [threading.Thread(target=call, args=(directory, write)) for write in (False, True)]
        swapper.start()
        for thread in callers:
            thread.start()
        for thread in callers:
            thread.join()
        done.set()
        swapper.join()
    assert set(leaked) <= {b"inside"}
    assert files_below(outside) == {"secret.txt": SECRET, "sub/secret.txt": SECRET}


@pytest.mark.parametrize("step", range(12))
@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("path", ["a/b/secret.txt", "a/zigzag"])
def test_a_link_in_the_place_of_any_folder_at_any_step_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, write: bool, path: str
) -> None:
    """The same, but not left to chance: the folders become links just before the step-th name is opened."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    for place, content in ((root, b"inside"), (outside, SECRET)):
        (place / "a" / "b").mkdir(parents=True)
        (place / "a" / "b" / "secret.txt").write_bytes(content)
    (root / "a" / "zigzag").symlink_to("b/../b/secret.txt")
    opened, steps = os.open, 0

    def open_later(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        nonlocal steps
        if dir_fd is not None:
            if steps == step:
                (root / "a" / "b").rename(root / "a" / "kept")
                (root / "a" / "b").symlink_to(outside / "a" / "b")
                (root / "a").rename(root / "kept")
                (root / "a").symlink_to(outside / "a")
            steps += 1
        return opened(path, flags, mode, dir_fd=dir_fd)

    with Directory.open(root) as directory:
        monkeypatch.setattr(os, "open", open_later)
        with suppress(Escape, OSError), directory.resolve(path) as location:
            if write:
                location.write(b"inside")
            else:
                with location.open() as file:
                    assert file.read() == b"inside"
        monkeypatch.undo()
    assert files_below(outside) == {"a/b/secret.txt": SECRET}


def test_any_number_of_threads_may_use_it(tree: Path) -> None:
    before = descriptors()
    with Directory.open(tree) as directory:

        def call(number: int) -> None:
            for _ in range(100):
                with directory.resolve(f"a/{number}.txt") as location:
                    location.write(b"%d" % number)
                with directory.resolve(f"dir/{number}.txt") as location, location.open() as file:
                    assert file.read() == b"%d" % number

        threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert descriptors() == before
    assert len(list((tree / "a").glob("?.txt"))) == 8


def test_the_deny_list_is_the_callers(tree: Path) -> None:
    with Directory.open(tree, protection=Protection(("*.lock",))) as directory:
        for path, pattern in (("a/x.lock", "*.lock"), (".git/x", None)):
            with directory.resolve(path) as location, pytest.raises(Protected) as raised:
                location.write(b"", parents=True)
            assert raised.value.pattern == pattern
        with directory.resolve(".github") as location:
            location.write(b"", parents=True)


def test_it_tells_where_it_is_as_long_as_it_is_there(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with Directory.open(root) as directory:
        assert directory.located() == str(root.resolve())
        root.rename(tmp_path / "kept")
        root.mkdir()
        with pytest.raises(OSError):
            directory.located()
