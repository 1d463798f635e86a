import os
from pathlib import Path
from typing import Any

import pytest

from skills.host import BackendContext, BackendError, Unconfigured


def test_the_environment_beats_the_table() -> None:
    context = BackendContext(
        "mail", {"host": " a ", "port": 25, "x": True, "y": None, "z": []}, {"SKILLBUS_MAIL_HOST": " b "}
    )
    assert [context.option(name) for name in ("host", "port", "x", "y", "z", "none")] == ["b", "25", "", "", "", ""]
    assert BackendContext("mail", {"host": "a"}, {"SKILLBUS_MAIL_HOST": "  "}).option("host") == "a"
    assert BackendContext("mail", {}, {"SKILLBUS_SEARCH_HOST": "b"}).option("host") == ""


def test_a_secret_has_several_sources(tmp_path: Path) -> None:
    file, other = tmp_path / "key", tmp_path / "other"
    file.write_text("  from-file\n")
    other.write_text("from-other")
    table = {"api_key_file": str(other), "api_key": "never"}

    def secret(environ: dict[str, str], table: dict[str, str] = table) -> str | None:
        found = BackendContext("search", table, environ).secret("api_key", "TAVILY_API_KEY")
        return found.get_secret_value() if found else None

    assert secret({"SKILLBUS_SEARCH_API_KEY": "ours", "TAVILY_API_KEY": "theirs"}) == "ours"
    assert secret({"TAVILY_API_KEY": "theirs", "SKILLBUS_SEARCH_API_KEY": " "}) == "theirs"
    assert secret({"TAVILY_API_KEY_FILE": str(file)}) == "from-file"
    assert secret({}) == "from-other"
    assert secret({}, {}) is None
    assert secret({}, {"api_key": "a value in the table is none"}) is None


def test_a_secret_is_not_shown(tmp_path: Path) -> None:
    context = BackendContext("search", {"api_key": "hush"}, {"TAVILY_API_KEY": "hush"})
    secret = context.secret("api_key", "TAVILY_API_KEY")
    assert secret is not None
    assert "hush" not in f"{context!r} {secret!r} {secret}"


def test_a_file_that_holds_no_secret_is_an_error_without_its_content(tmp_path: Path) -> None:
    binary, large, fifo, empty = (tmp_path / name for name in ("binary", "large", "fifo", "empty"))
    binary.write_bytes(b"hush\xff")
    large.write_text("hush" * 20_000)
    empty.write_text(" \n")
    os.mkfifo(fifo)
    for path in (binary, large, fifo, tmp_path, tmp_path / "none", "~no-such-user-here/x", "a\0b"):
        context = BackendContext("search", {}, {"TAVILY_API_KEY_FILE": str(path)})
        with pytest.raises(Unconfigured, match="api_key_file") as caught:
            context.secret("api_key", "TAVILY_API_KEY")
        assert "hush" not in str(caught.value)
    context = BackendContext("search", {}, {"TAVILY_API_KEY_FILE": str(empty)})
    assert context.secret("api_key", "TAVILY_API_KEY") is None


@pytest.mark.parametrize("wait", [float("nan"), float("inf"), -1, 10**400, "soon", None])
def test_what_is_no_time_to_wait_is_not_known(wait: Any) -> None:
    assert BackendError("x", retry_after=wait).retry_after is None


def test_only_true_is_retryable() -> None:
    said: Any = "yes"
    assert BackendError("x", retryable=said).retryable is False
    error = BackendError("x", retryable=True, retry_after=2.5)
    assert (error.retryable, error.retry_after) == (True, 2.5)
