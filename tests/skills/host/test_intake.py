import os
import sqlite3
from pathlib import Path

import pytest

from skills.host import intake
from skills.host.index import Index
from skills.host.intake import Intake, take_in


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index.open(tmp_path / "kb.db", make=True)


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "a.md").write_text("# A\nalpha")
    (folder / "deep" / "er" / "b.TXT").write_text("beta")
    return folder


def found(index: Index, query: str) -> list[str]:
    return [hit.name for hit in index.search(query, 8)]


def test_only_what_has_changed_is_read_anew(index: Index, docs: Path) -> None:
    with index:
        assert take_in(index, docs) == Intake(added=["docs/a.md", "docs/deep/er/b.TXT"])
        assert take_in(index, docs) == Intake(unchanged=["docs/a.md", "docs/deep/er/b.TXT"])
        (docs / "a.md").write_text("# A\ngamma")
        (docs / "deep" / "er" / "b.TXT").unlink()
        (docs / "c.rst").write_text("delta")
        taken = take_in(index, docs)
        assert taken == Intake(added=["docs/c.rst"], changed=["docs/a.md"], removed=["docs/deep/er/b.TXT"])
        assert [found(index, word) for word in ("alpha", "beta", "gamma", "delta")] == [
            [], [], ["docs/a.md"], ["docs/c.rst"],
        ]  # fmt: skip


def test_folders_stand_side_by_side(index: Index, docs: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "docs"
    other.mkdir(parents=True)
    (other / "a.md").write_text("alpha too")
    with index:
        take_in(index, docs)
        take_in(index, other)
        assert found(index, "alpha") == ["docs/a.md", "docs/a.md"]
        (other / "a.md").unlink()
        take_in(index, other)
        assert found(index, "alpha") == ["docs/a.md"]


def test_hostile_files_are_passed_over_or_made_harmless(
    index: Index, docs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "MAX_BYTES", 1_000)
    secret = tmp_path / "secret.md"
    secret.write_text("omega")
    (docs / "link.md").symlink_to(secret)
    (docs / "linked").symlink_to(tmp_path)
    (docs / ".hidden.md").write_text("omega")
    (docs / ".git").mkdir()
    (docs / ".git" / "x.md").write_text("omega")
    (docs / "program.py").write_text("omega")
    (docs / "big.txt").write_text("omega " * 1_000)
    (docs / "binary.txt").write_bytes(b"omega \0 omega")
    os.mkfifo(docs / "fifo.md")
    (docs / "dir.md").mkdir()
    (docs / "bytes.md").write_bytes(b"\xef\xbb\xbfsigma \xff\xfe tail\x00\x1b[31m"[:-6])
    os.close(os.open(os.fsencode(docs) + b"/\xff\x1b[31m\n'\".md", os.O_CREAT | os.O_WRONLY))
    with index:
        taken = take_in(index, docs)
        assert taken.skipped == {
            "docs/link.md": "it is a link",
            "docs/big.txt": "it is larger than 1000 bytes",
            "docs/binary.txt": "it is not a text",
            "docs/fifo.md": "it is not a regular file",
        }
        assert found(index, "omega") == []
        (name,) = found(index, "sigma")
        (hit,) = index.search("sigma", 1)
        assert (name, hit.body) == ("docs/bytes.md", "sigma \ufffd\ufffd tail")
        (odd,) = [document for document in index.documents() if document.path.startswith(b"\xff")]
        assert odd.name == "docs/\\udcff\\x1b[31m\\n'\".md"
        assert take_in(index, docs).added == []


def test_a_document_that_can_no_longer_be_taken_is_dropped(index: Index, docs: Path) -> None:
    with index:
        take_in(index, docs)
        (docs / "a.md").write_bytes(b"\0")
        taken = take_in(index, docs)
        assert taken.skipped == {"docs/a.md": "it is not a text"}
        assert found(index, "alpha") == []


def test_there_are_only_so_many_documents(index: Index, docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MAX_DOCUMENTS", 1)
    with index:
        taken = take_in(index, docs)
    assert taken.added == ["docs/a.md"]
    assert list(taken.skipped.values()) == ["the folder holds more than 1 documents"]


def test_a_folder_that_is_none_is_an_error_and_changes_nothing(index: Index, docs: Path) -> None:
    with index:
        take_in(index, docs)
        with pytest.raises(OSError, match="nowhere"):
            take_in(index, docs / "nowhere")
        with pytest.raises(NotADirectoryError):
            take_in(index, docs / "a.md")
        assert found(index, "alpha") == ["docs/a.md"]


def test_the_index_stays_well(index: Index, docs: Path, tmp_path: Path) -> None:
    with index:
        for text in ("one", "two", "three"):
            (docs / "a.md").write_text(text)
            take_in(index, docs)
    connection = sqlite3.connect(tmp_path / "kb.db")
    connection.execute("INSERT INTO words (words) VALUES ('integrity-check')")
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert connection.execute("SELECT count(*) FROM passages").fetchone() == (2,)
    connection.close()
