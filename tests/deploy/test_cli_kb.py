import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deploy.conftest import Ended, Home

Skillbus = Callable[..., Ended]


@pytest.fixture
def docs(home: Home) -> Path:
    folder = home.folder / "docs"
    folder.mkdir()
    (folder / "refunds.md").write_text("# Handbook\n## Refunds\nUnopened items come back within 30 days.\n")
    (folder / "odd\x1b[31m.txt").write_text("an odd name")
    (folder / "binary.md").write_bytes(b"\0")
    return folder


def test_from_a_folder_to_an_answer(
    skillbus: Skillbus, home: Home, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credential = skillbus("session", "new", "ep1", "--grant", "Knowledge.Search=kb:5").out.strip()
    monkeypatch.setenv("SKILLBUS_SESSION", credential)
    assert json.loads(skillbus("call", "search_kb", "--arg", "query=refunds", "--json-out").out)["stub"] is True
    ended = skillbus("kb", "add", "docs")
    assert (ended.code, ended.out) == (0, "docs: 2 added, 0 changed, 0 unchanged, 0 removed\n")
    assert ended.err == "warning: docs/binary.md is left out: it is not a text\n"
    assert (home.folder / "state" / "kb.db").stat().st_mode & 0o777 == 0o600
    output = json.loads(skillbus("call", "search_kb", "--arg", "query=refund of an item", "--json-out").out)
    assert (output["stub"], output["error"], output["untrusted"]) == (False, None, True)
    fact = "docs/refunds.md — Handbook > Refunds: Unopened items come back within 30 days."
    assert output["facts"] == [fact, "docs/odd\\x1b[31m.txt: an odd name"]
    assert "wait" not in ended.err


def test_it_is_listed_searched_and_removed(skillbus: Skillbus, docs: Path) -> None:
    assert "1 unchanged" not in skillbus("kb", "add", "docs").out
    assert "2 unchanged" in skillbus("kb", "add", "docs").out
    assert skillbus("kb", "list").out.splitlines()[1].split() == ["2", str(docs)]
    listed = skillbus("kb", "list", "--documents")
    assert [line.split()[1] for line in listed.out.splitlines()[1:]] == ["docs/odd\\x1b[31m.txt", "docs/refunds.md"]
    ended = skillbus("kb", "search", "30", "days")
    assert ended.out == "docs/refunds.md  Handbook > Refunds\n  Unopened items come back within [30] [days].\n"
    assert ended.err == "1 passage(s)\n"
    (hit,) = json.loads(skillbus("kb", "search", "days", "--json").out)
    assert hit["document"] == "docs/refunds.md"
    assert hit["score"] > 0
    assert skillbus("kb", "search", '"(*').err == "0 passage(s)\n"
    assert skillbus("kb", "remove", "docs/refunds.md").err == "1 document(s) removed\n"
    assert json.loads(skillbus("kb", "list", "--json").out) == [{"folder": str(docs), "documents": 1}]
    assert skillbus("kb", "remove", "docs").err == "1 document(s) removed\n"
    assert json.loads(skillbus("kb", "list", "-d", "--json").out) == []
    ended = skillbus("kb", "remove", "docs")
    assert (ended.code, "is not in the index" in ended.err) == (1, True)


def test_documents_of_one_name_are_told_apart(
    skillbus: Skillbus, home: Home, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = home.folder / "other" / "docs"
    other.mkdir(parents=True)
    (other / "refunds.md").write_text("none")
    assert "overlap" not in skillbus("kb", "add", "docs", "other/docs").err
    rows = [line.split() for line in skillbus("kb", "list", "-d").out.splitlines()]
    assert [row[2] for row in rows if row[1] == "docs/refunds.md"] == [str(docs), str(other)]
    monkeypatch.chdir(home.folder / "state")
    ended = skillbus("kb", "remove", "docs/refunds.md")
    assert (ended.code, f"is the name of 2 documents: say which by its path ({docs}/refunds.md, " in ended.err) == (
        1,
        True,
    )
    assert skillbus("kb", "remove", "../other/docs/refunds.md").err == "1 document(s) removed\n"
    assert skillbus("kb", "remove", "docs/refunds.md").err == "1 document(s) removed\n"


def test_folders_in_each_other_are_warned_of(skillbus: Skillbus, home: Home, docs: Path) -> None:
    (docs / "sub").mkdir()
    (docs / "sub" / "x.md").write_text("x")
    assert "overlap" not in skillbus("kb", "add", "docs").err
    assert f"docs/sub and {docs} overlap" in skillbus("kb", "add", "docs/sub").err
    assert f"docs and {docs}/sub overlap" in skillbus("kb", "add", "docs").err


def test_the_file_can_be_named(skillbus: Skillbus, home: Home, docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (taken,) = json.loads(skillbus("kb", "add", "docs", "--kb", "other.db", "--json").out)
    assert (taken["folder"], len(taken["added"]), taken["skipped"]) == (
        str(docs), 2, {"docs/binary.md": "it is not a text"},
    )  # fmt: skip
    (home.folder / "skillbus.toml").write_text('[tools.kb]\nfile = "other.db"\n')
    assert "docs" in skillbus("kb", "list").out
    monkeypatch.setenv("SKILLBUS_KB_FILE", str(home.folder / "third.db"))
    ended = skillbus("kb", "list")
    assert (ended.code, "third.db yet: `skillbus kb add DIR` makes it" in ended.err) == (1, True)
    assert not (home.folder / "state" / "kb.db").exists()


def test_what_is_no_folder_or_no_index_is_one_line(skillbus: Skillbus, home: Home, docs: Path) -> None:
    (home.folder / "text.db").write_text("no index " * 100)
    os.mkfifo(home.folder / "fifo")
    for arguments, says in (
        (("add", "nowhere"), "nowhere is not a folder"),
        (("add", "docs/refunds.md"), "is not a folder"),
        (("list",), "there is no index"),
        (("remove", "docs"), "there is no index"),
        (("list", "--kb", "text.db"), "the index text.db can't be used: file is not a database"),
        (("add", "docs", "--kb", "text.db"), "the index text.db can't be used: file is not a database"),
        (("list", "--kb", "fifo"), "the index fifo can't be used: it is not a regular file"),
    ):
        ended = skillbus("kb", *arguments)
        assert (ended.code, ended.out) == (1, "")
        assert len(ended.err.splitlines()) == 1
        assert says in ended.err
