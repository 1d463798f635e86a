import contextlib
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skills import DENY_WRITE, Protected, Protection


def pattern_of(path: str, protection: Protection | None = None) -> str | None:
    with pytest.raises(Protected) as raised:
        (protection or Protection()).check(path)
    return raised.value.pattern


@pytest.mark.parametrize(
    "path",
    [
        ".git", ".git/config", "a/.git/hooks/x", ".GIT/config", ".Git", "./.git", "a//.git", ".git.", ".git ",
        ".git. ./x", ".g\u0131t", ".g\u0130t", ".\uff47it", "\uff0egit", "\u2024git", ".g\u200bit", "\u200d.git",
        ".git\u00ad", ".git\ufe0f", ".git\ufeff/config", ".g\u034fit", ".gi\U000e0001t", "git~1", "GIT~1/config",
        "git~2", ".git::$INDEX_ALLOCATION", ".git:x/config", "a\\.git\\config",
    ],
)  # fmt: skip
def test_git_is_read_only_in_any_spelling(path: str) -> None:
    assert pattern_of(path) is None


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        (".github/workflows/x.yml", ".github/**"),
        (".GITHUB/x", ".github/**"),
        (".github", ".github/**"),
        (".pi/settings.json", ".pi/**"),
        (".claude/settings.json", ".claude/**"),
        (".ailang/x.ail", ".ailang/**"),
        (".aiLang\u200b/x.ail", ".ailang/**"),
        (".gitmodules", ".[gG][iI][tT][mM][oO][dD][uU][lL][eE][sſS]"),
        ("a/.GitModule\u017f", ".[gG][iI][tT][mM][oO][dD][uU][lL][eE][sſS]"),
        (".gitattributes", ".[gG][iI][tT][aA][tT][tT][rR][iI][bB][uU][tT][eE][sſS]"),
        (".gitmodules.", ".[gG][iI][tT][mM][oO][dD][uU][lL][eE][sſS]"),
        (".gitmodules:stream", ".[gG][iI][tT][mM][oO][dD][uU][lL][eE][sſS]"),
    ],
)
def test_the_deny_list_names_the_pattern_that_matched(path: str, pattern: str) -> None:
    assert pattern_of(path) == pattern


def test_a_kelvin_sign_is_a_k() -> None:
    assert pattern_of("ma\u212ae/x", Protection(("make/**",))) == "make/**"


@pytest.mark.parametrize(
    "path",
    ["", "a", "git", "git/config", ".gitignore", ".gitkeep", "x.git", ".gitx", "a.github/x", "a/.github/x", ".githu",
     "git~", "git~1x", "pi/x", ".pip/x", "gitmodules", "a/.claude.md", "日本語/é.txt", "-x", "~"],
)  # fmt: skip
def test_other_paths_are_not_protected(path: str) -> None:
    Protection().check(path)


def test_a_glob_holds_for_the_whole_path_and_the_last_name() -> None:
    protection = Protection(("secret/*.key", "*.lock"))
    assert pattern_of("secret/a.key", protection) == "secret/*.key"
    assert pattern_of("a/b/c.LOCK", protection) == "*.lock"
    protection.check("a.key")


def test_the_text_and_its_digest_tell_the_policy() -> None:
    text = Protection(("a/**", 'b"ſ')).text
    assert text == 'fs_deny_write = ["a/**", "b\\"ſ"]\n'
    assert Protection().digest == hashlib.sha256(Protection().text.encode()).hexdigest()
    assert Protection().digest == "20dc95f24725dc4f08b7a71ec40a55925accb928fcdfd06c895c19f29c96bf7e"
    assert Protection().deny == DENY_WRITE


@given(st.sampled_from([".git", ".github/x", ".gitmodules", ".claude/x"]), st.data())
def test_no_mix_of_case_and_invisible_characters_gets_through(path: str, data: st.DataObject) -> None:
    spelled = "".join(
        data.draw(st.sampled_from(["", "\u200b", "\u2060", "\ufe0f", "\u00ad"]))
        + (data.draw(st.sampled_from([char, char.upper()])) if char != "/" else char)
        for char in path
    )
    pattern_of(spelled)


@given(st.text())
def test_any_text_is_a_path_or_protected(path: str) -> None:
    with contextlib.suppress(Protected):
        Protection().check(path)
