"""How editors colour contracts: by Pygments, and by a TextMate grammar."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from pygments.lexers import get_lexer_by_name, get_lexer_for_filename
from pygments.token import Error, Keyword, Name, Token

import skills.tb
from skills.tb.highlighting import TbLexer

from .page import ADVANCED, EXTENDED, MONEY, SIMPLE, VECTORS
from .sources import SOUP, modules

GRAMMAR: dict[str, Any] = json.loads((Path(skills.tb.__file__).parent / "tb.tmLanguage.json").read_text())
RIGHT = [SIMPLE, ADVANCED, EXTENDED, MONEY]
VALID = [row["source"] for row in VECTORS if row["kind"] == "compile" and "air" in row["output"]]


def test_pygments_finds_the_lexer_by_name_and_by_file() -> None:
    assert isinstance(get_lexer_by_name("tb"), TbLexer)
    assert isinstance(get_lexer_for_filename("search.tb"), TbLexer)


def coloured(source: str) -> list[tuple[Any, str]]:
    return list(TbLexer(stripnl=False, ensurenl=False).get_tokens(source))


@pytest.mark.parametrize("source", RIGHT + VALID)
def test_a_contract_has_no_error_and_loses_nothing(source: str) -> None:
    tokens = coloured(source)
    assert "".join(text for _, text in tokens) == source.replace("\r\n", "\n")
    assert [text for kind, text in tokens if kind in Error] == []


def test_each_word_has_its_colour() -> None:
    colours = {text: kind for kind, text in coloured(ADVANCED)}
    for keyword in ("tool", "takes", "gives", "requires", "secrets", "uses", "read", "type", "memory"):
        assert colours[keyword] in Keyword
    for name in ("SearchRequest", "LLM_API_KEY", "network", "request", "examples.tool_advanced"):
        assert colours[name] in Name


@pytest.mark.parametrize("wrong", ["return fetch(x.q)", "# no", "secrets sk-abc"])
def test_what_is_none_is_shown_as_an_error(wrong: str) -> None:
    assert any(kind in Error for kind, _ in coloured(SIMPLE + f"    {wrong}\n"))


@given(modules())
def test_whatever_is_right_has_no_error(source: str) -> None:
    assert not any(kind in Error for kind, text in coloured(source.removeprefix("\ufeff")))


@given(SOUP)
def test_whatever_stands_there_is_shown(source: str) -> None:
    shown = "".join(text for kind, text in coloured(source) if kind in Token)
    assert shown == source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def scopes(line: str) -> list[tuple[str, str]]:
    """What a TextMate engine makes of one line: the first pattern that fits at the first place where one does."""
    for reference in GRAMMAR["patterns"]:
        pattern = GRAMMAR["repository"][reference["include"][1:]] if "include" in reference else reference
        found = re.search(pattern.get("match") or pattern["begin"], line)
        if found:
            captures = pattern.get("captures") or pattern.get("beginCaptures") or {}
            return [(pattern.get("name", ""), found[0])] + [
                (each["name"], found[int(group)] or "") for group, each in captures.items()
            ]
    return []


@pytest.mark.parametrize("source", RIGHT + VALID)
def test_the_textmate_grammar_knows_each_line(source: str) -> None:
    for line in source.splitlines():
        assert not line.strip() or not any(name.startswith("invalid") for name, _ in scopes(line)), line


def test_the_textmate_grammar_names_each_part() -> None:
    found = {text: name for line in (ADVANCED + EXTENDED).splitlines() for name, text in scopes(line)}
    assert found["SummarizeWithContext"] == "entity.name.type.tb"
    assert found["LLM_API_KEY"] == "constant.other.tb"
    assert found["network, secret_read, memory_read"] == "constant.other.tb"
    assert found["shop.money"] == "entity.name.namespace.tb"
    assert found["note"] == "variable.other.member.tb"
    assert any(name.startswith("invalid") for name, _ in scopes("    return fetch(x.q)"))
    assert any(name.startswith("invalid") for name, _ in scopes("# no"))


def test_each_pattern_is_used() -> None:
    assert {each["include"][1:] for each in GRAMMAR["patterns"] if "include" in each} == set(GRAMMAR["repository"])
    assert (GRAMMAR["scopeName"], GRAMMAR["fileTypes"]) == ("source.tb", ["tb"])
