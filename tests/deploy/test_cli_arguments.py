import io
from pathlib import Path

import pytest

from deploy.cli.arguments import gather
from deploy.cli.failure import Failure


def test_texts_and_values_are_one_object() -> None:
    given = gather(["path=a=b.txt", "empty="], ['n={"a": [1, 2.5]}', "flag=true"], None)
    assert given == {"path": "a=b.txt", "empty": "", "n": {"a": [1, 2.5]}, "flag": True}


def test_nothing_is_an_empty_object() -> None:
    assert gather([], [], None) == {}


@pytest.mark.parametrize("whole", ['{"a": 1.5}', "[1]", '"x"', "null"])
def test_a_whole_value_is_taken_as_it_is(whole: str) -> None:
    assert gather([], [], whole) == {'{"a": 1.5}': {"a": 1.5}, "[1]": [1], '"x"': "x", "null": None}[whole]


def test_a_whole_value_comes_from_a_file_or_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "arguments.json"
    file.write_text('{"text": "héllo\\nworld"}')
    assert gather([], [], f"@{file}") == {"text": "héllo\nworld"}
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"n": 1}')))
    assert gather([], [], "-") == {"n": 1}


@pytest.mark.parametrize(
    ("texts", "values", "whole", "says"),
    [
        (["a=1"], [], "{}", "not both"),
        ([], ["a=1"], "{}", "not both"),
        (["a"], [], None, "--arg 'a' must be NAME=VALUE"),
        ([], ["=1"], None, "--arg-json '=1' must be NAME=VALUE"),
        (["a=1", "a=2"], [], None, "'a' is given twice"),
        (["a=1"], ["a=2"], None, "'a' is given twice"),
        ([], ["a={"], None, "--arg-json a: "),
        ([], [], '{"a": 1, "a": 2}', "--json: duplicate object member"),
        ([], [], "NaN", "--json: "),
        ([], [], "@nowhere.json", "--json @nowhere.json: the file can't be read"),
    ],
)
def test_what_is_wrong_is_named(texts: list[str], values: list[str], whole: str | None, says: str) -> None:
    with pytest.raises(Failure) as caught:
        gather(texts, values, whole)
    assert says in str(caught.value)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(Failure, match="is not UTF-8"):
        gather([], [], f"@{file}")
