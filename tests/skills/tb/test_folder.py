"""Contracts on disk, and how their tools stand."""

import os
from pathlib import Path

import pytest

from skills.tb import MANIFEST, Folder, NotAContract, Standing, starter
from skills.tb import folder as folders

from .page import ADVANCED, EXTENDED, MONEY, SIMPLE

BINDING = '[tools."examples.tool_simple.SearchDatasets"]\npython = "app:search"\ngrants = ["network"]\n'


def lay_out(folder: Path, files: dict[str, str]) -> Folder:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return Folder.read(folder)


def states(folder: Folder) -> dict[str, str]:
    return {standing.tool.id: standing.state for standing in folder.standings}


def only(folder: Folder) -> Standing:
    (standing,) = folder.standings
    return standing


def test_bound_refused_and_unbound_are_told_apart(tmp_path: Path) -> None:
    advanced = '[tools."examples.tool_advanced.SummarizeWithContext"]\npython = "app:sum"\n'
    found = lay_out(
        tmp_path, {"a.tb": SIMPLE, "b/c.tb": ADVANCED, "d.tb": EXTENDED, "e/e.tb": MONEY, MANIFEST: BINDING + advanced}
    )
    assert (found.faults, found.problems) == ((), ())
    assert states(found) == {
        "examples.tool_simple.SearchDatasets": "bound",
        "shop.orders.Total": "unbound",
        "examples.tool_advanced.SummarizeWithContext": "refused",
    }
    refused = next(each for each in found.standings if each.state == "refused")
    assert len(refused.reasons) == 3
    assert "does not grant memory_read, network, secret_read" in refused.reasons[0]


def test_without_a_manifest_nothing_is_bound(tmp_path: Path) -> None:
    found = lay_out(tmp_path, {"a.tb": SIMPLE})
    assert found.manifest is None
    assert set(states(found).values()) == {"unbound"}


def test_a_handler_that_is_not_there_binds_nothing(tmp_path: Path) -> None:
    found = lay_out(tmp_path, {"a.tb": SIMPLE, MANIFEST: BINDING.replace("app:search", "./app.py:search")})
    assert only(found).state == "refused"
    assert "the handler's file ./app.py:search is not there" in only(found).reasons[0]
    (tmp_path / "app.py").write_text("raise SystemExit('it was loaded')")
    assert only(Folder.read(tmp_path)).state == "bound"


def test_what_can_not_be_published_is_refused(tmp_path: Path) -> None:
    source = "module m\ntype A\n  world is Text\ntool T\n  takes x as A\n  gives A\n"
    found = lay_out(tmp_path, {"a.tb": source, MANIFEST: '[tools."m.T"]\npython = "a:b"\n'})
    assert only(found).state == "refused"
    assert "`world`" in only(found).reasons[0]


def test_faults_name_their_file_and_leave_the_others_alone(tmp_path: Path) -> None:
    found = lay_out(tmp_path, {"x/a.tb": "module a\ntype A\n", "b.tb": "tool\n", "c.tb": SIMPLE, MANIFEST: BINDING})
    assert [str(fault).partition(";")[0] for fault in found.faults] == [
        "b.tb:1:1: a file starts with: module <name>",
        "x/a.tb:2:1: type A has no field",
    ]
    assert states(found) == {"examples.tool_simple.SearchDatasets": "bound"}


def test_a_binding_that_no_contract_declares_is_a_problem(tmp_path: Path) -> None:
    found = lay_out(tmp_path, {"a.tb": SIMPLE, MANIFEST: BINDING + '[tools."m.Typo"]\npython = "a:b"\n'})
    assert found.problems == (f'{MANIFEST}: tools."m.Typo": no contract here declares this tool',)


def test_a_manifest_with_faults_binds_nothing(tmp_path: Path) -> None:
    found = lay_out(tmp_path, {"a.tb": SIMPLE, MANIFEST: BINDING + "deadline = 0\n"})
    assert "deadline" in found.problems[0]
    assert set(states(found).values()) == {"unbound"}


def test_hidden_folders_links_to_folders_and_other_files_are_left_out(tmp_path: Path) -> None:
    files = {".git/a.tb": SIMPLE, "node_modules/a.tb": SIMPLE, "a.txt": "x", ".b.tb": SIMPLE, "deep/d.tb": SIMPLE}
    lay_out(tmp_path, files)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "folder.tb").mkdir()
    os.mkfifo(tmp_path / "pipe.tb")
    assert list(Folder.read(tmp_path).library) == ["examples.tool_simple"]


def test_there_is_an_end_to_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "MAX_FILES", 2)
    found = lay_out(tmp_path, {f"{name}.tb": f"module {name}\n" for name in "abc"})
    assert [str(fault) for fault in found.faults] == ["c.tb:1:1: a folder has at most 2 contracts"]


def test_one_contract_is_seen_from_the_folder_of_its_manifest(tmp_path: Path) -> None:
    lay_out(tmp_path, {MANIFEST: "", "a/orders.tb": EXTENDED, "b/money.tb": MONEY, "b/bad.tb": "no"})
    found, source = Folder.around(tmp_path / "a" / "orders.tb")
    assert (found.path, source.file, found.faults) == (tmp_path, "a/orders.tb", ())
    assert found.library.air("shop.orders").source is source


def test_one_contract_without_imports_needs_no_other(tmp_path: Path) -> None:
    lay_out(tmp_path, {"a.tb": SIMPLE, "b.tb": SIMPLE})
    found, _ = Folder.around(tmp_path / "a.tb")
    assert list(found.library) == ["examples.tool_simple"]
    assert found.faults == ()
    (tmp_path / "a.tb").write_text("no")
    with pytest.raises(NotAContract, match=r"^a\.tb:1:1"):
        Folder.around(tmp_path / "a.tb")


@pytest.mark.parametrize("javascript", [False, True])
def test_the_files_to_start_from_are_right(javascript: bool, tmp_path: Path) -> None:
    files = starter("search_datasets", javascript=javascript)
    handler = "handlers.mjs" if javascript else "handlers.py"
    assert list(files) == ["search_datasets.tb", MANIFEST, handler]
    found = lay_out(tmp_path, dict(files))
    assert (found.faults, found.problems) == ((), ())
    assert (only(found).state, only(found).tool.id) == ("bound", "search_datasets.SearchDatasets")
    function = "searchDatasets" if javascript else "search_datasets"
    signature = f"function {function}(request, context)" if javascript else f"def {function}(request: dict, context)"
    assert f"async {signature}" in files[handler]
    if not javascript:
        compile(files[handler], handler, "exec")


@pytest.mark.parametrize("name", ["Greet", "a-b", "", "é", "class", "delete", "1a", "a" * 49, "../x"])
def test_a_name_that_can_not_be_one_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a name to start from has"):
        starter(name)
