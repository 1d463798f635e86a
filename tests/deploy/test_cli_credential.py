import os
from pathlib import Path

import pytest

from broker.sessions import Credential
from deploy.cli.credential import find_credential
from deploy.cli.failure import Failure


@pytest.fixture
def credential() -> Credential:
    return Credential.generate()


@pytest.fixture
def file(tmp_path: Path, credential: Credential) -> Path:
    path = tmp_path / "c"
    path.touch(mode=0o600)
    path.write_text(credential.reveal() + "\n")
    return path


def test_the_file_comes_before_the_environment(file: Path, credential: Credential) -> None:
    other = Credential.generate().reveal()
    assert find_credential(str(file), {"SKILLBUS_SESSION": other}).id == credential.id


def test_the_environment_holds_it_or_names_its_file(file: Path, credential: Credential) -> None:
    other = Credential.generate().reveal()
    for value in (credential.reveal(), str(file), f" {file}\n"):
        assert find_credential(None, {"SKILLBUS_SESSION": value, "WORLD_SESSION": other}).id == credential.id
        assert find_credential(None, {"SKILLBUS_SESSION": "", "WORLD_SESSION": value}).id == credential.id


def test_without_one_the_way_to_get_it_is_told() -> None:
    with pytest.raises(Failure, match=r"no session: make one with `skillbus session new"):
        find_credential(None, {})


@pytest.mark.parametrize("change", [str, str.upper])
def test_one_on_the_command_line_is_refused_and_not_repeated(credential: Credential, change: type[str]) -> None:
    with pytest.raises(Failure) as caught:
        find_credential(change(credential.reveal()), {})
    assert "--session takes the path of a file" in str(caught.value)
    assert "SKILLBUS_SESSION" in str(caught.value)
    assert credential.reveal() not in str(caught.value).lower()


def test_a_file_that_others_can_read_is_warned_of(
    file: Path, credential: Credential, capsys: pytest.CaptureFixture[str]
) -> None:
    assert find_credential(str(file), {}).id == credential.id
    assert capsys.readouterr().err == ""
    for mode in (0o640, 0o604, 0o666):
        file.chmod(mode)
        assert find_credential(str(file), {}).id == credential.id
        assert f"warning: {file} can be read by others (mode {mode:04o}): chmod 600 {file}" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "secretive", "0" * 63, "0" * 65, "A" * 64, "0" * 300, "\xff" * 10])
def test_a_file_without_a_credential_is_an_error_that_does_not_show_it(file: Path, content: str) -> None:
    file.write_text(content)
    with pytest.raises(Failure) as caught:
        find_credential(str(file), {})
    assert str(caught.value).startswith("--session: ")
    assert not content or content not in str(caught.value)


def test_a_value_that_names_no_file_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(Failure) as caught:
        find_credential(None, {"SKILLBUS_SESSION": "ab" * 31})
    assert str(caught.value).startswith("SKILLBUS_SESSION: the credential can't be read")
    assert "abab" not in str(caught.value)
    with pytest.raises(Failure, match="Is a directory"):
        find_credential(str(tmp_path), {})


def test_only_a_regular_file_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    for path in (str(tmp_path / "fifo"), "/dev/zero", "/dev/tty"):
        with pytest.raises(
            Failure, match=r"SKILLBUS_SESSION: the credential can't be read, it must be a file's path: "
        ):
            find_credential(None, {"SKILLBUS_SESSION": path})
