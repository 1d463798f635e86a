import os
import sys
from pathlib import Path

import pytest

from skills.redaction import Secret
from skills.secrets import SecretsMissing, resolve
from skills.secrets.reading import MAX_VALUE
from skills.tb.provider import FromCommand, FromEnvironment, FromFile, Provider

SK = "sk-live-0123456789"


async def value_of(source: Provider, environ: dict[str, str] | None = None) -> str:
    return (await resolve(["KEY"], {"KEY": source}, environ or {}))["KEY"].reveal()


async def why_not(source: Provider, environ: dict[str, str] | None = None, seconds: float = 10) -> str:
    with pytest.raises(SecretsMissing) as caught:
        await resolve(["KEY"], {"KEY": source}, environ or {}, seconds=seconds)
    assert caught.value.__cause__ is None
    return str(caught.value)


async def test_a_variable_is_taken_as_it_is() -> None:
    assert await value_of(FromEnvironment("K"), {"K": " spaced \n"}) == " spaced \n"
    assert await why_not(FromEnvironment("K")) == "secrets can't be resolved: KEY (env): the variable is not set"


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
async def test_a_file_loses_one_line_end(tmp_path: Path, end: str) -> None:
    file = tmp_path / "key"
    file.write_bytes(f"{SK}{end}".encode())
    file.chmod(0o444)  # as Docker mounts it
    assert await value_of(FromFile(file)) == SK
    file.chmod(0o600)
    file.write_bytes(f"{SK}\n\n".encode())
    assert await value_of(FromFile(file)) == f"{SK}\n"


async def test_kubernetes_changes_a_value_by_a_link(tmp_path: Path) -> None:
    for name, value in (("..one", "first value"), ("..two", "second value")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "key").write_text(value)
    (tmp_path / "..data").symlink_to("..one")
    (tmp_path / "key").symlink_to("..data/key")
    assert await value_of(FromFile(tmp_path / "key")) == "first value"
    (tmp_path / "..new").symlink_to("..two")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert await value_of(FromFile(tmp_path / "key")) == "second value"  # nothing is kept from call to call


async def test_files_that_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "sk-live-name"
    assert await why_not(FromFile(file)) == (
        "secrets can't be resolved: KEY (file): the file can't be opened: No such file or directory"
    )
    file.write_text(SK)
    file.chmod(0o666)
    assert "every user may write" in await why_not(FromFile(file))
    assert "no regular file" in await why_not(FromFile(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    assert "no regular file" in await why_not(FromFile(tmp_path / "pipe"))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"x" * (MAX_VALUE + 1), "over 65536 bytes"),
        (b"\xff\xfe secret", "not text in UTF-8"),
        (b"nul\0nul", "not text in UTF-8"),
        (b"", "less than 4 characters"),
        (b"abc\n", "less than 4 characters"),
        (b"      ", "blank"),
        (b"a line\n" * 1002, "more than 1000 lines"),
    ],
)
async def test_values_that_are_none(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / "key").write_bytes(data)
    assert reason in await why_not(FromFile(tmp_path / "key"))
    (tmp_path / "key").write_bytes(b"x" * MAX_VALUE + b"\r\n")
    assert len(await value_of(FromFile(tmp_path / "key"))) == MAX_VALUE


def python(script: str) -> FromCommand:
    return FromCommand((sys.executable, "-c", script))


async def test_a_command_gets_no_shell_and_few_variables() -> None:
    script = "import os, sys; print(sorted(os.environ), sys.argv[1:], os.getcwd())"
    source = FromCommand((sys.executable, "-c", script, "$HOME; ls"))
    environ = {"PATH": os.defpath, "HOME": "/somewhere", "AWS_SECRET": SK, "LC_CTYPE": "C.UTF-8"}
    shown = await value_of(source, environ)
    assert shown.endswith("['$HOME; ls'] /")
    assert "HOME" in shown
    assert "AWS_SECRET" not in shown


async def test_commands_that_fail_say_how_and_not_what() -> None:
    loud = python(f"import sys; print('{SK}'); sys.stderr.write('{SK}'); sys.exit(7)")
    assert await why_not(loud) == "secrets can't be resolved: KEY (command): the command ended with status 7"
    assert "can't be started: No such file" in await why_not(FromCommand((f"/nowhere/{SK}",)))
    assert "did not end within 0.3 s" in await why_not(python("import time; time.sleep(60)"), seconds=0.3)
    assert "over 65536 bytes" in await why_not(python("print('x' * 200_000)"))


async def test_all_that_is_missing_is_named_at_once() -> None:
    sources = {"A": FromEnvironment("A"), "B": FromEnvironment("B")}
    with pytest.raises(SecretsMissing) as caught:
        await resolve(["C", "B", "A"], sources, {"A": SK})
    assert [(each.handle, each.kind) for each in caught.value.missing] == [("B", "env"), ("C", "")]
    assert await resolve(["A"], sources, {"A": SK}) == {"A": Secret("A", SK)}
