from pathlib import Path
from typing import Any

import pytest

from skills.host import FileSettings
from skills.host.settings import Setting
from tests.vectors import parametrize


def resolve(environ: dict[str, str], config: Any = None, **options: bool) -> FileSettings:
    return FileSettings.resolve({} if config is None else {"fs": config}, environ, **options)


@parametrize("host-tools.policy", kind="resolve_fs")
def test_the_backend_is_resolved_as_recorded(row: dict[str, Any]) -> None:
    assert FileSettings.resolve(row["config"], row["env"]).backend == Setting(*row["output"])


@parametrize("host-tools.policy", kind="resolve_fs_write")
def test_the_write_switch_is_resolved_as_recorded(row: dict[str, Any]) -> None:
    assert FileSettings.resolve(row["config"], row["env"], write_default=False).write == Setting(*row["output"])


@parametrize("host-tools.policy", kind="resolve_fs_workspace")
def test_the_workspace_is_resolved_as_recorded(row: dict[str, Any]) -> None:
    root = FileSettings.resolve(row["config"], row["env"]).root
    assert Setting(root.value or "/", root.source) == Setting(*row["output"]), "the recordings ran in /"


def test_our_own_variables_beat_the_originals() -> None:
    both = {
        "SKILLBUS_FS_BACKEND": "local",
        "MKLANG_FS_BACKEND": "stub",
        "SKILLBUS_FS_WRITE": "0",
        "MKLANG_FS_WRITE": "1",
    }
    settings = resolve(both)
    assert settings.backend == Setting("local", "env")
    assert settings.write == Setting(False, "env")
    blank = resolve({"SKILLBUS_FS_BACKEND": " ", "MKLANG_FS_BACKEND": "stub"})
    assert blank.backend == Setting("stub", "env")


def test_writes_are_on_unless_somebody_says_off() -> None:
    assert resolve({}).write == Setting(True, "default")
    assert resolve({"MKLANG_FS_WRITE": "no"}).write == Setting(False, "env")
    assert resolve({}, {"write": False}).write == Setting(False, "config")
    assert resolve({}, write_default=False).write == Setting(False, "default")


@pytest.mark.parametrize("config", [None, 1, "x", [], {}, {"backend": 1, "write": 1, "workspace": 1}, {"backend": " "}])
def test_what_has_the_wrong_type_or_is_blank_is_not_set(config: Any) -> None:
    assert resolve({}, config) == FileSettings(
        Setting("local", "default"), Setting(True, "default"), Setting(None, "default")
    )


def test_the_root_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve({"MKLANG_FS_ROOT": "~/x/../y"}).root == Setting(f"{tmp_path.resolve()}/y", "env")
    assert resolve({}, {"workspace": " ~ "}).root == Setting(str(tmp_path.resolve()), "config")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (1, ["tools.fs is not taken: it must be a table"]),
        ({"write": "maybe"}, ["tools.fs.write is not taken: it must be true or false"]),
        ({"write": 1}, ["tools.fs.write is not taken: it must be true or false"]),
        ({"workspace": 1}, ["tools.fs.workspace is not taken: it must be a string"]),
        ({"backend": ["maybe"]}, ["tools.fs.backend is not taken: it must be a string"]),
        ({"writes": "maybe"}, ["tools.fs.writes is not taken: known are backend, write, workspace"]),
        ({"write": True, "workspace": "", "backend": "stub"}, []),
        (None, []),
    ],
)
def test_what_is_not_taken_is_warned_of(config: Any, says: list[str], caplog: pytest.LogCaptureFixture) -> None:
    FileSettings.resolve({"fs": config}, {})
    assert [record.getMessage() for record in caplog.records] == says
    FileSettings.resolve({}, {})
    assert len(caplog.records) == len(says)


@pytest.mark.parametrize("path", ["~nobody-here/x", "a\0b", "x" * 5_000])
def test_a_root_that_can_be_no_directory_costs_no_tool(path: str) -> None:
    assert resolve({"SKILLBUS_FS_ROOT": path}).root.source == "env"
    assert resolve({}, {"workspace": path}).root.source == "config"


def test_a_variable_that_nobody_reads_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    FileSettings.resolve({}, {"SKILLBUS_FS_WRITES": "hush", "SKILLBUS_FS_WRITE": "0", "MKLANG_FS_ROOT": "/"})
    assert caplog.messages == [
        "SKILLBUS_FS_WRITES is not taken: known are SKILLBUS_FS_BACKEND, SKILLBUS_FS_ROOT, SKILLBUS_FS_WRITE"
    ]
