import pytest
from hypothesis import given
from hypothesis import strategies as st

from skills import Refused
from skills.host.paths import hidden, normalised, suffix


@pytest.mark.parametrize(
    ("given_path", "path"),
    [("", ""), (".", ""), ("./", ""), ("a", "a"), ("./a//b/.", "a/b"), ("a\\b", "a/b"), ("~", "~"), ("a b", "a b"),
     ("C", "C"), (":", ":"), ("1:", "1:"), ("a..b/c..", "a..b/c..")],
)  # fmt: skip
def test_a_path_is_normalised(given_path: str, path: str) -> None:
    assert normalised(given_path) == path


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/a", "absolute paths are not allowed: '/a'"),
        ("\\a", "absolute paths are not allowed: '/a'"),
        ("c:", "absolute paths are not allowed: 'c:'"),
        ("é:x", "absolute paths are not allowed: 'é:x'"),
        ("..", "path escapes the workspace: '..'"),
        ("a\\..\\b", "path escapes the workspace: 'a\\\\..\\\\b'"),
        ("a/../.b", "path escapes the workspace: 'a/../.b'"),
        (".b/..", "dotfile segments are not allowed: '.b'"),
        ("...", "dotfile segments are not allowed: '...'"),
    ],
)
def test_the_first_bad_segment_is_refused(path: str, text: str) -> None:
    with pytest.raises(Refused) as raised:
        normalised(path)
    assert str(raised.value) == text


@given(st.text(alphabet="./\\abc~ "))
def test_what_passes_stays_inside_and_is_stable(given_path: str) -> None:
    try:
        path = normalised(given_path)
    except Refused:
        return
    assert not path.startswith("/")
    assert not hidden(path)
    assert normalised(path) == path


@pytest.mark.parametrize(
    ("path", "found"),
    [("a.txt", ".txt"), ("a.TXT", ".txt"), ("a.tar.gz", ".gz"), ("a", ""), ("a.", ""), ("d.txt/a", ""), ("x/.txt", ""),
     ("a.b/c.Md", ".md"), ("a..txt", ".txt"), ("", "")],
)  # fmt: skip
def test_the_suffix_is_the_last_of_the_last_name(path: str, found: str) -> None:
    assert suffix(path) == found


def test_a_dot_anywhere_hides() -> None:
    assert hidden(".git/x")
    assert hidden("a/.b/c")
    assert not hidden("a./b.c")
    assert not hidden("")
