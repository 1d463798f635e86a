import gzip
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from skills.host import BackendError, Unconfigured, http
from skills.redaction import Redactor, Secret
from tests.skills.host.service import Service, answering


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with answering() as service:
        yield service


async def fails(service: Service, **sent: Any) -> BackendError:
    with pytest.raises(BackendError) as caught:
        await http.ask("POST", service.url, json={}, **sent)
    return caught.value


async def test_the_answer_is_json(service: Service) -> None:
    service.answer('\ufeff{"a": ["é", 1.5]}'.encode())
    assert await http.ask("POST", service.url, json={"q": 1}) == {"a": ["é", 1.5]}
    (request,) = service.requests
    assert json.loads(request.body) == {"q": 1}
    assert request.headers["accept-encoding"] == "identity"


async def test_bytes_that_are_not_utf_8_are_replaced(service: Service) -> None:
    service.answer(b'["\xff\xfe\\ud800 \\u0000"]')
    assert await http.ask("POST", service.url) == ["\ufffd\ufffd\ud800 \0"]


@pytest.mark.parametrize(
    ("status", "retryable"),
    [(400, False), (401, False), (403, False), (404, False), (301, False)]
    + [(status, True) for status in (408, 425, 429, 500, 502, 503, 504)],
)
async def test_a_status_tells_whether_to_try_again(service: Service, status: int, retryable: bool) -> None:
    service.answer(b"hush", status=status, reason="No Such Luck", Location="http://127.0.0.1:1/")
    error = await fails(service)
    assert (str(error), error.retryable) == (f"HTTP Error {status}: No Such Luck", retryable)
    assert len(service.requests) == 1, "no redirect is followed"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7),
        (" 0 ", 0),
        ("999999", 86_400),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
        ("soon", None),
        ("-1", None),
        ("1" * 30, None),
        ("", None),
    ],
)
async def test_a_rate_limit_says_when_to_come_back(service: Service, header: str, seconds: float | None) -> None:
    service.answer(b"", status=429, reason="Too Many Requests", Retry_After=header)
    error = await fails(service)
    assert (error.retryable, error.retry_after) == (True, seconds)
    assert ("retry after" in str(error)) is (seconds is not None)


async def test_a_date_to_come_back_at_is_seconds_from_now(service: Service) -> None:
    at = format_datetime(datetime.now(UTC) + timedelta(hours=2), usegmt=True)
    service.answer(b"", status=503, reason="Later", Retry_After=at)
    error = await fails(service)
    assert error.retry_after is not None
    assert 7_000 < error.retry_after <= 7_200


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"<html>", "Expecting value: line 1 column 1 (char 0)"),
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b"[" * 200_000, "no JSON that can be read"),
        (b"1" * 5_000, "no JSON that can be read"),
    ],
)
async def test_what_is_no_json_is_an_error(service: Service, body: bytes, text: str) -> None:
    service.answer(body)
    error = await fails(service)
    assert text in str(error)
    assert not error.retryable


async def test_an_answer_is_bounded(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_BYTES", 1_000)
    service.answer(b'"' + b"x" * 998 + b'"')
    assert await http.ask("POST", service.url) == "x" * 998
    service.answer(b'"' + b"x" * 2_000 + b'"')
    assert str(await fails(service)) == "the answer is larger than 1000 bytes"


async def test_a_compressed_answer_is_not_blown_up(service: Service) -> None:
    service.answer(gzip.compress(b" " * 10_000_000 + b"1"), Content_Encoding="gzip")
    assert "compressed" in str(await fails(service))


async def test_time_passes(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "SECONDS", 0.05)
    service.hang()
    error = await fails(service)
    assert (str(error), error.retryable) == ("timed out", True)


@pytest.mark.parametrize("raw", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n1", b"220 smtp ready\r\n"])
async def test_a_service_that_breaks_off(service: Service, raw: bytes) -> None:
    service.answer_raw(raw)
    error = await fails(service)
    assert (str(error), error.retryable) == ("the connection was lost", True)


async def test_nobody_listens() -> None:
    async with answering() as gone:
        pass
    error = await fails(gone)
    assert (str(error), error.retryable) == ("the service can't be reached", True)


async def test_a_service_that_speaks_no_tls(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECT_SECONDS", 0.1)
    service.url = service.url.replace("http:", "https:")
    error = await fails(service)
    assert (str(error), error.retryable) == ("timed out", True)


REPEATED = Redactor([Secret("key", "tvly/hush-hush")])


@pytest.mark.parametrize("written", [b"tvly/hush-hush", b"tvly\\/hush-hush", b"\\u0074vly/hush-hush"])
async def test_the_secret_is_blotted_out(service: Service, written: bytes) -> None:
    service.answer(b'{"said": "your key is %b!"}' % written)
    assert await http.ask("POST", service.url, redactor=REPEATED) == {"said": "your key is [secret]!"}


async def test_the_secret_is_blotted_out_of_what_stands_beside_the_status(service: Service) -> None:
    for padding in ("", "x" * 95):
        service.answer(b"", status=401, reason=f"{padding} no tvly/hush-hush")
        assert "tvly" not in str(await fails(service, redactor=REPEATED))


async def test_advice_goes_with_a_status(service: Service) -> None:
    service.answer(b"", status=403, reason="Forbidden\x1b[31m")
    assert str(await fails(service, advice={403: "ask them"})) == "HTTP Error 403: Forbidden[31m (ask them)"


@pytest.mark.parametrize("url", ["https://a.example/search/", "http://127.0.0.1:8080", "http://[::1]:1/x"])
def test_a_url_is_taken_without_its_last_slash(url: str) -> None:
    assert http.check_url(url, "URL") == url.rstrip("/")


@pytest.mark.parametrize(
    "url",
    [
        *("", "a.example", "ftp://a.example", "http://", "http://a:b/", "http://a:0/", "http://u:hush@a.example/"),
        *(
            "http://hush@a.example",
            "http://a.example/?key=hush",
            "http://a.example/#hush",
            "http://[::1",
            "http://a\nb/",
        ),
    ],
)
def test_what_is_no_plain_url_is_refused(url: str) -> None:
    with pytest.raises(Unconfigured, match="URL must be") as caught:
        http.check_url(url, "URL")
    assert "hush" not in str(caught.value)
