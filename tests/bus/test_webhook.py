import asyncio
import logging
from collections import deque
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from bus.destination import DestinationRefused, Policy, Unresolved
from bus.webhook import Answer, WebhookFailed, Webhooks
from tests.webhooks import CLOSE, HANG, Receiver, certificate

from .test_destination import Names

HEADERS = {"Authorization": "Bearer hush-hush", "Content-Type": "application/a2a+json"}
LOCAL = ["127.0.0.0/8"]


async def test_what_is_posted() -> None:
    webhooks = Webhooks(Policy(LOCAL, http=True))
    async with Receiver() as receiver:
        assert await webhooks.post(f"{receiver.url}?a=%2F&b", b"{}", HEADERS) == Answer(200)
        (posted,) = receiver.posted
    assert (posted.method, posted.path, posted.body) == ("POST", "/hook?a=%2F&b", b"{}")
    assert posted.headers == {
        "host": f"127.0.0.1:{receiver.port}", "authorization": "Bearer hush-hush",
        "content-type": "application/a2a+json", "content-length": "2",
    }  # fmt: skip
    await webhooks.close()


async def test_the_connection_goes_to_the_address_that_was_checked(tmp_path: Path) -> None:
    server, client = certificate(tmp_path, "hooks.test")
    names = Names(["127.0.0.1"], ["10.255.255.1"])
    webhooks = Webhooks(Policy(LOCAL, resolve=names), tls=client)
    async with Receiver(tls=server) as receiver:
        url = f"https://hooks.test:{receiver.port}/hook"
        assert (await webhooks.post(url, b"{}", HEADERS)).taken
        assert receiver.posted[0].headers["host"] == f"hooks.test:{receiver.port}"
        assert len(names.asked) == 1, "the name was resolved again after it had been checked"
        with pytest.raises(DestinationRefused):
            await webhooks.post(url, b"{}", HEADERS)
        assert len(receiver.posted) == 1
    await webhooks.close()


async def test_the_certificate_is_that_of_the_name(tmp_path: Path) -> None:
    server, client = certificate(tmp_path, "hooks.test")
    webhooks = Webhooks(Policy(LOCAL, resolve=Names(["127.0.0.1"])), tls=client)
    async with Receiver(tls=server) as receiver:
        for url in (f"https://other.test:{receiver.port}/", f"https://127.0.0.1:{receiver.port}/"):
            with pytest.raises(WebhookFailed, match="certificate"):
                await webhooks.post(url, b"{}", HEADERS)
        unknown = Webhooks(Policy(LOCAL, resolve=Names(["127.0.0.1"])))
        with pytest.raises(WebhookFailed, match="certificate"):
            await unknown.post(f"https://hooks.test:{receiver.port}/", b"{}", HEADERS)
        assert receiver.posted == []
    await webhooks.close()
    await unknown.close()


async def test_a_redirect_is_not_followed() -> None:
    webhooks = Webhooks(Policy(LOCAL, http=True))
    async with Receiver() as inner, Receiver(answers=deque([(307, {"Location": inner.url})])) as receiver:
        answer = await webhooks.post(receiver.url, b"{}", HEADERS)
        assert (answer.status, answer.taken, answer.may_pass) == (307, False, False)
        assert inner.posted == []
    await webhooks.close()


async def test_no_proxy_and_no_cookie(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Receiver() as proxy, Receiver(answers=deque([(200, {"Set-Cookie": "a=b; Path=/"})])) as receiver:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        webhooks = Webhooks(Policy(LOCAL, http=True))
        for _ in range(2):
            await webhooks.post(receiver.url, b"{}", {})
        assert proxy.posted == []
        assert [posted.headers.get("cookie") for posted in receiver.posted] == [None, None]
    await webhooks.close()


async def test_the_second_address_when_the_first_one_is_dead() -> None:
    async with Receiver() as receiver:
        names = Names(["127.0.0.2", "127.0.0.1"])
        webhooks = Webhooks(Policy(LOCAL, http=True, resolve=names))
        assert (await webhooks.post(f"http://hooks.test:{receiver.port}/", b"{}", {})).taken
    await webhooks.close()


async def test_what_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    webhooks = Webhooks(Policy(LOCAL, http=True), timeout=0.3)
    async with Receiver(answers=deque([HANG, CLOSE])) as receiver:
        for words in ("no answer within 0.3 s", "no answer: RemoteProtocolError"):
            with pytest.raises(WebhookFailed, match=words) as caught:
                await webhooks.post(receiver.url, b"{}", HEADERS)
            assert "hook" not in str(caught.value)
    with pytest.raises(WebhookFailed, match="no connection"):
        await webhooks.post(receiver.url, b"{}", HEADERS)
    with pytest.raises(DestinationRefused):
        await webhooks.post("http://169.254.169.254/latest/meta-data", b"{}", HEADERS)
    nobody = Webhooks(Policy(resolve=Names([])))
    with pytest.raises(Unresolved):
        await nobody.post("https://hooks.example/", b"{}", HEADERS)
    assert "hush" not in caplog.text
    await nobody.close()
    await webhooks.close()


async def test_an_endless_body_is_not_read() -> None:
    async def endless(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
                await writer.drain()
        except ConnectionError:
            ended.set()

    ended = asyncio.Event()
    server = await asyncio.start_server(endless, "127.0.0.1", 0)
    async with server:
        webhooks = Webhooks(Policy(LOCAL, http=True))
        answer = await webhooks.post(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", b"{}", {})
        assert answer.taken
        await asyncio.wait_for(ended.wait(), 20)
    await webhooks.close()


@pytest.mark.parametrize(
    ("status", "taken", "may_pass"),
    [
        (200, True, False), (204, True, False), (301, False, False), (400, False, False), (404, False, False),
        (408, False, True), (410, False, False), (425, False, True), (429, False, True), (500, False, True),
        (503, False, True),
    ],
)  # fmt: skip
def test_what_an_answer_means(status: int, taken: bool, may_pass: bool) -> None:
    answer = Answer(status)
    assert (answer.taken, answer.may_pass) == (taken, may_pass)


async def test_when_to_come_back() -> None:
    webhooks = Webhooks(Policy(LOCAL, http=True))
    later = format_datetime(datetime.now(UTC) + timedelta(minutes=5), usegmt=True)
    never = "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"
    none = [(value, None, None) for value in ("soon", "-5", never)]
    for value, least, most in (("7", 7, 7), (later, 290, 300), *none):
        async with Receiver(answers=deque([(429, {"Retry-After": value})])) as receiver:
            found = (await webhooks.post(receiver.url, b"{}", {})).retry_after
        if least is None or most is None:
            assert found is None
        else:
            assert found is not None
            assert least <= found <= most
    past = format_datetime(datetime.now(UTC) - timedelta(days=1), usegmt=True)
    async with Receiver(answers=deque([(503, {"Retry-After": past})])) as receiver:
        assert (await webhooks.post(receiver.url, b"{}", {})).retry_after == 0.0
    await webhooks.close()
