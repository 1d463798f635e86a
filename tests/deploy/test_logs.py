import io
import json
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from deploy import logs
from deploy.logs import mask

CREDENTIAL = "0123456789abcdef" * 4
JWT = "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"
log = logging.getLogger("tests.of.logs")


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    logging.captureWarnings(False)
    for handler in set(root.handlers) - set(handlers):
        root.removeHandler(handler)
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def written(form: Any, *, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    logs.configure(form, level, stream)
    return stream


def objects(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (f"Authorization: Bearer {JWT}", "Authorization: Bearer ***"),
        ("authorization=bearer abc.def~/+==, next", "authorization=bearer ***, next"),
        (f"proof {JWT} came", "proof *** came"),
        (f"session {CREDENTIAL} revoked", "session *** revoked"),
        (f"{CREDENTIAL.upper()}", "***"),
        (f"handle sha256:{CREDENTIAL} stays", f"handle sha256:{CREDENTIAL} stays"),
        (f"{CREDENTIAL}0 is longer", f"{CREDENTIAL}0 is longer"),
        ("amqp://user:hunter2@host:5672/vhost", "amqp://user:***@host:5672/vhost"),
        ("amqps://user:hunt%40er2@host", "amqps://user:***@host"),
        ("amqp://:hunter2@host", "amqp://:***@host"),
        ("amqp://user:hunter@2@host/", "amqp://user:***@host/"),
        ("amqp://host:5672/a@b and mail@host", "amqp://host:5672/a@b and mail@host"),
        ("postgresql+asyncpg://me:hunter2@host/db", "postgresql+asyncpg://me:***@host/db"),
        ("amqp://u:hunter2/x@h/", "amqp://u:***@h/"),
        ("postgresql://u:***@h/db?sslmode=x&password=hunter2", "postgresql://u:***@h/db?sslmode=x&password=***"),
        ("at https://h/?access_token=hunter2&x=1, then", "at https://h/?access_token=***&x=1, then"),
        ("https://h/?api_key=hunter2#top", "https://h/?api_key=***#top"),
        ("amqps://h/?keyfile=/k.pem", "amqps://h/?keyfile=/k.pem"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_what_is_masked_and_what_is_not(text: str, masked: str) -> None:
    assert mask(text) == masked


def test_a_json_line_has_its_fields() -> None:
    stream = written("json")
    log.info("call %s took %d ms", "calc", 7, extra={"task_id": "t-1", "numbers": [1, 2.5, None, True]})
    (line,) = objects(stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("ts"))
    assert line == {
        "level": "info",
        "logger": "tests.of.logs",
        "msg": "call calc took 7 ms",
        "task_id": "t-1",
        "numbers": [1, 2.5, None, True],
    }


def test_a_line_for_people_has_them_too() -> None:
    stream = written("human")
    log.warning("call %s", "calc", extra={"task_id": "t-1"})
    line = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} warning tests\.of\.logs: call calc task_id=t-1\n"
    assert re.fullmatch(line, stream.getvalue())


def test_a_terminal_gets_the_same_line_in_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    logs.configure("human", "info", stream)
    log.error("call [bold]calc[/bold] %s", "x" * 300)
    assert "\x1b[31m" in stream.getvalue()
    assert "error   tests.of.logs: call [bold]calc[/bold] " + "x" * 300 in re.sub(r"\x1b\[\d*m", "", stream.getvalue())


def test_standard_error_is_where_it_goes(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json")
    log.info("here")
    captured = capsys.readouterr()
    assert (captured.out, json.loads(captured.err)["msg"]) == ("", "here")


def test_the_level_is_the_least_that_is_logged() -> None:
    stream = written("json", level="warning")
    log.info("no")
    log.warning("yes")
    assert [line["msg"] for line in objects(stream)] == ["yes"]


def test_debugging_us_does_not_debug_the_libraries() -> None:
    stream = written("json", level="debug")
    log.debug("ours")
    logging.getLogger("aio_pika.connection").debug("theirs")
    assert [line["msg"] for line in objects(stream)] == ["ours"]


@pytest.mark.parametrize(("level", "said"), [("debug", ["no transport"]), ("info", [])])
def test_what_the_link_tells_is_not_told_by_its_driver_too(level: str, said: list[str]) -> None:
    stream = written("json", level=level)
    logging.getLogger("aiormq.connection").error("no transport")
    assert [line["msg"] for line in objects(stream)] == said


def test_configuring_again_replaces_what_was() -> None:
    first, second = written("json"), written("human")
    log.info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1


def test_warnings_are_logged() -> None:
    stream = written("json")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", UserWarning, stacklevel=1)
    assert "UserWarning: old" in objects(stream)[0]["msg"]


@pytest.mark.parametrize("form", ["json", "human", "terminal"])
def test_no_secret_is_written_wherever_it_stands(form: str) -> None:
    stream = Terminal() if form == "terminal" else io.StringIO()
    logs.configure("json" if form == "json" else "human", "info", stream)
    url = "amqp://user:hunter2@host/"
    try:
        try:
            raise ConnectionError(f"cannot reach {url}")
        except ConnectionError as cause:
            raise RuntimeError(f"Bearer {JWT}") from cause
    except RuntimeError:
        log.exception("%s %s", CREDENTIAL, {"url": url}, extra={"headers": {"authorization": f"Bearer {JWT}"}})
    log.info("at %(url)s", {"url": url}, extra={"urls": [url], url: CREDENTIAL, "error": ValueError(url)})
    log.info(f"in the stack {url}", stack_info=True)
    text = stream.getvalue()
    assert "ConnectionError: cannot reach amqp://user:***@host/" in text
    assert "RuntimeError: Bearer ***" in text
    assert "in the stack amqp://user:***@host/" in text
    for secret in ("hunter2", JWT, CREDENTIAL):
        assert secret not in text


def test_an_exception_is_one_field_of_one_line() -> None:
    stream = written("json")
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("it broke")
    (line,) = objects(stream)
    assert line["exception"].startswith("Traceback (most recent call last):")
    assert line["exception"].endswith("ValueError: broken")


def test_a_call_with_the_wrong_arguments_is_a_line_like_any_other() -> None:
    stream = written("json")
    log.info("no place for %d", f"Bearer {JWT}")
    assert objects(stream)[0]["msg"] == "no place for %d ('Bearer ***',)"


def test_anything_may_be_an_extra_field() -> None:
    stream = written("json")
    log.info("odd", extra={"path": sys, "set": {1}, "nested": {1: {"a": (object,)}}, "level": "mine"})
    (line,) = objects(stream)
    assert line["path"].startswith("<module 'sys'")
    assert line["set"] == [1]
    assert line["nested"] == {"1": {"a": ["<class 'object'>"]}}
    assert line["level"] == "info"


class Mute:
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


ENDLESS: dict[str, Any] = {}
ENDLESS["self"] = [ENDLESS]


@pytest.mark.parametrize("form", ["json", "human", "terminal"])
@pytest.mark.parametrize(
    ("message", "arguments", "extra"),
    [
        ("lone \ud800", (), {}),
        ("%s", ("\udcff",), {"path": "\udcff", "\udcff": ["\ud800", {"\ud800": "\ud800"}]}),
        ("large", (), {"number": 1 << 70}),
        ("mute", (), {"mute": Mute(), "also": [Mute(), {Mute(): 1}]}),
        (Mute(), (), {}),
        ("%d", (Mute(),), {}),
        ("endless", (), {"endless": ENDLESS}),
    ],
)
def test_no_record_is_lost_and_none_fails(
    form: str, message: Any, arguments: tuple[Any, ...], extra: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    stream = Terminal() if form == "terminal" else io.StringIO()
    logs.configure("json" if form == "json" else "human", "info", stream)
    log.info(message, *arguments, extra=extra)
    stream.getvalue().encode()
    assert "tests.of.logs" in stream.getvalue()
    assert "Logging error" not in capsys.readouterr().err
    if form == "json":
        (line,) = objects(stream)
        assert isinstance(line["msg"], str)


def test_a_lone_surrogate_is_spelled_out() -> None:
    stream = written("json")
    log.info("lone \ud800", extra={"path": "\udcff"})
    assert objects(stream)[0]["msg"] == "lone \\ud800"
    assert objects(stream)[0]["path"] == "\\udcff"
