import os
import sqlite3
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skills.host.index import Document, Index, IndexUnusable
from skills.host.passages import Passage

FOLDER = b"/docs"
CONTENT = {
    "refunds.md": ("Handbook > Refunds", "Unopened items may be returned within 30 days with a receipt."),
    "shipping.md": ("Handbook > Shipping", "We ship on working days. Refunds of shipping are rare, as are returns."),
    "bugs.md": ("", "Login fails now and then. Café terminals are slow."),
}


def document(name: str) -> Document:
    return Document(0, FOLDER, name.encode(), f"docs/{name}", "0" * 64, 1)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("index") / "kb.db"
    with Index.open(path, make=True) as index, index.change():
        for name, (heading, body) in CONTENT.items():
            index.put(document(name), [Passage(heading, body)])
    return path


def names(index: Index, query: str, limit: int = 8) -> list[str]:
    return [hit.name.removeprefix("docs/") for hit in index.search(query, limit)]


def test_the_best_passage_comes_first(file: Path) -> None:
    with Index.open(file) as index:
        assert names(index, "refund") == ["refunds.md", "shipping.md"], "a heading counts for more"
        assert names(index, "login cafe") == ["bugs.md"], "accents do not matter"
        assert names(index, "returning an item") == ["refunds.md", "shipping.md"], "nor do endings"
        assert names(index, "refund", limit=1) == ["refunds.md"]
        assert names(index, "unknown") == []
        (hit,) = index.search("receipt", 8)
        assert hit.snippet.endswith("with a [receipt].")
        assert hit.body == CONTENT["refunds.md"][1]
        assert hit.score < 0


SYNTAX = (
    '"',
    "'",
    "zz OR",
    "NEAR(",
    "body:x",
    "refund*",
    "^refund",
    "-refund",
    "{zz yy}: xx",
    "(",
    "zz OR OR yy",
    "\0",
    "*",
)
MORE = ("", "%", "refund\0", "; DROP TABLE words", "OR NOT NEAR", "_", "é" * 500)


@pytest.mark.parametrize("query", SYNTAX + MORE)
def test_the_syntax_of_the_index_means_nothing_in_a_query(file: Path, query: str) -> None:
    with Index.open(file) as index:
        found = names(index, query)
    assert found == (["refunds.md", "shipping.md"] if "refund" in query else [])


@given(query=st.text(alphabet=st.characters(codec="utf-8")))
def test_any_query_has_an_answer(file: Path, query: str) -> None:
    with Index.open(file) as index:
        assert isinstance(index.search(query, 3), list)


def test_a_document_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    with Index.open(tmp_path / "kb.db", make=True) as index:
        for body in ("first words", "second thoughts"):
            with index.change():
                index.put(document("a.md"), [Passage("", body), Passage("", body)])
        assert names(index, "first") == []
        assert names(index, "second") == ["a.md", "a.md"]
        with index.change():
            index.drop(index.documents())
        assert index.documents() == []
        assert names(index, "second") == []


def test_a_change_is_whole_or_nothing(tmp_path: Path) -> None:
    def change(index: Index) -> None:
        with index.change():
            index.put(document("a.md"), [Passage("", "words")])
            raise KeyboardInterrupt

    with Index.open(tmp_path / "kb.db", make=True) as index:
        with pytest.raises(KeyboardInterrupt):
            change(index)
        assert index.documents() == []
        assert names(index, "words") == []


def test_one_that_writes_keeps_another_out_and_no_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skills.host.index.BUSY_SECONDS", 0.01)
    file = tmp_path / "kb.db"
    with Index.open(file, make=True) as first, first.change():
        first.put(document("a.md"), [Passage("", "words")])
        first.put(document("large.md"), (Passage(f"{number}", "large " * 200) for number in range(8_000)))
        with Index.open(file) as reader:
            assert names(reader, "words") == []
        with (
            Index.open(file, make=True) as second,
            pytest.raises(IndexUnusable, match="another process is writing") as caught,
            second.change(),
        ):
            pass
        assert caught.value.busy
    with Index.open(file) as reader:
        assert names(reader, "words") == ["a.md"]


def test_a_reader_changes_nothing(file: Path) -> None:
    with Index.open(file) as index, pytest.raises(IndexUnusable, match="readonly"), index.change():
        index.put(document("x.md"), [])


def test_a_search_can_be_stopped(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skills.host.index._STEPS", 1)
    stop = threading.Event()
    stop.set()
    with Index.open(file) as index:
        index.stop_when(stop)
        with pytest.raises(IndexUnusable, match=r"interrupted|constructor failed"):
            index.search("refund", 8)


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Index.open(tmp_path / "below" / "kb.db", make=True).close()
    finally:
        os.umask(before)
    assert (tmp_path / "below" / "kb.db").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "below").stat().st_mode & 0o777 == 0o700


def test_what_is_no_index_is_left_alone(tmp_path: Path) -> None:
    other, text, fifo = tmp_path / "other.db", tmp_path / "text.db", tmp_path / "fifo"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE mine (a)")
    connection.close()
    text.write_text("no database, " * 100)
    os.mkfifo(fifo)
    for path, says in ((other, "not an index"), (text, "not a database"), (fifo, "not a regular file")):
        for make in (False, True):
            with pytest.raises(IndexUnusable, match=says):
                Index.open(path, make=make)
    for path in (tmp_path / "none.db", tmp_path, Path("a\0b")):
        with pytest.raises(IndexUnusable):
            Index.open(path)
    assert not (tmp_path / "none.db").exists()
    assert text.read_text().startswith("no database")


def test_an_index_of_another_version_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "kb.db"
    Index.open(file, make=True).close()
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(IndexUnusable, match="version 2"):
        Index.open(file)
