import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from skills import PackContext
from skills.host import Outgoing, bind, send_reply
from skills.host.smtp import Smtp, is_address, message_id
from tests.skills.host.asking import ask
from tests.skills.host.post import PASSWORD, USER, Trust, post_office, silent

LETTER = {"to": "ada@example.com", "body": "Dear Ada,\n.\nFrom here on: é☕東\0\x1b[31m " + "x" * 2_000}


HEADERS = sorted(
    b"From To Subject Date Message-ID Auto-Submitted Content-Type MIME-Version Content-Transfer-Encoding".split()
)


def context(server: int, /, **options: str) -> PackContext:
    environ = {
        "SKILLBUS_MAIL_BACKEND": "smtp",
        "SKILLBUS_MAIL_HOST": "localhost",
        "SKILLBUS_MAIL_PORT": str(server),
        "SKILLBUS_MAIL_SENDER": "desk@shop.example",
        "SKILLBUS_MAIL_SECURITY": "none",
    }
    return PackContext({}, environ | {f"SKILLBUS_MAIL_{name.upper()}": value for name, value in options.items()})


async def send(port: int, arguments: Mapping[str, Any] = LETTER, **options: str) -> Any:
    binding = bind("mail", context(port, **options))
    assert binding.tier == "live"
    return await ask(send_reply(binding), arguments)


async def send_within(seconds: float, port: int) -> Any:
    backend = bind("mail", context(port)).backend
    return await backend.send(Outgoing(LETTER["to"], LETTER["body"], "key", seconds))


async def test_a_message_arrives_as_it_was_written() -> None:
    async with post_office() as post:
        output = await send(post.port, subject="Your request")
    (letter,), (envelope,) = post.letters, post.envelopes
    assert (envelope.mail_from, envelope.rcpt_tos) == ("desk@shop.example", ["ada@example.com"])
    assert (letter["From"], letter["To"], letter["Subject"]) == ("desk@shop.example", "ada@example.com", "Your request")
    assert letter.get_content().replace("\r\n", "\n").rstrip("\n") == LETTER["body"]
    assert letter["Auto-Submitted"] == "auto-generated"
    assert (output["sent"], output["stub"], output["delivery"], output["error"]) == (True, False, "smtp", None)
    assert letter["Message-ID"] in output["note"]
    assert output["chars"] == len(LETTER["body"])


async def test_the_same_call_has_the_same_message_id() -> None:
    async with post_office() as post:
        skill = send_reply(bind("mail", context(post.port)))
        for invocation in ("a2a:ep1:t1", "a2a:ep1:t1", "a2a:ep1:t2"):
            await ask(skill, LETTER, invocation=invocation)
    first, again, other = (letter["Message-ID"] for letter in post.letters)
    assert first == again == message_id("a2a:ep1:t1", "desk@shop.example")
    assert other != first
    assert "ep1" not in first


@pytest.mark.parametrize("security", ["starttls", "tls"])
async def test_it_logs_in_over_tls(security: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    trust = Trust.make(tmp_path)
    secret = tmp_path / "password"
    secret.write_text(f"{PASSWORD}\n")
    async with post_office(security=security, trust=trust, login=security == "starttls") as post:
        options = {"security": security, "ca_file": str(trust.file)}
        if security == "starttls":
            options |= {"username": USER, "password_file": str(secret)}
        binding = bind("mail", context(post.port, **options))
        output = await ask(send_reply(binding), LETTER)
    assert (output["error"], output["sent"]) == (None, True)
    assert post.logins == ([True] if security == "starttls" else [])
    assert PASSWORD not in repr(binding) + repr(output) + caplog.text


async def test_a_wrong_password_is_not_told(tmp_path: Path) -> None:
    trust = Trust.make(tmp_path)
    async with post_office(security="starttls", trust=trust, login=True) as post:
        output = await send(
            post.port, security="starttls", ca_file=str(trust.file), username=USER, password="wrong-wrong"
        )
    assert (output["sent"], output["retryable"]) == (False, False)
    assert output["error"] == "the server refused the login (535)"
    assert not any(post.logins)
    assert post.letters == []


async def test_a_certificate_that_is_not_trusted_gets_nothing(tmp_path: Path) -> None:
    trust = Trust.make(tmp_path)
    (tmp_path / "other").mkdir()
    other = Trust.make(tmp_path / "other", "mail.example")
    for security in ("starttls", "tls"):
        async with post_office(security=security, trust=trust) as post:
            output = await send(post.port, security=security, ca_file=str(other.file), username=USER, password=PASSWORD)
            assert output["error"] == "the certificate of the mail server is not trusted"
            assert (output["sent"], output["retryable"]) == (False, False)
            assert post.letters == []


async def test_a_server_without_tls_gets_nothing() -> None:
    async with post_office() as post:
        output = await send(post.port, security="starttls", username=USER, password=PASSWORD)
    assert (output["sent"], post.letters, post.logins) == (False, [], [])
    assert output["error"] == "the mail server offers no STARTTLS"


@pytest.mark.parametrize("step", ["MAIL", "RCPT", "DATA"])
@pytest.mark.parametrize(
    ("reply", "retryable"),
    [("450 4.2.1 come back later", True), ("550 5.1.1 no such user", False)],
)
async def test_a_refusal_is_told_and_a_passing_one_is_retryable(step: str, reply: str, retryable: bool) -> None:
    async with post_office() as post:
        post.instead[step] = reply
        output = await send(post.port)
    assert (output["error"], output["retryable"]) == (reply, retryable)
    assert (output["sent"], output["recorded"], output["stub"]) == (False, False, False)
    assert post.letters == []


async def test_a_server_that_takes_nobody_now_is_retryable() -> None:
    async with silent(b"421 4.3.2 too busy") as port:
        output = await send(port)
    assert (output["error"], output["retryable"], output["sent"]) == ("421 4.3.2 too busy", True, False)


async def test_nobody_listens() -> None:
    async with silent() as port:
        pass
    output = await send(port)
    assert (output["error"], output["retryable"]) == ("the mail server can't be reached", True)


@pytest.mark.parametrize("lines", [(), (b"220 ready",), (b"220 ready", b"250 hello", b"250 OK")])
async def test_a_server_that_falls_silent_before_the_message_is_a_time_out(lines: tuple[bytes, ...]) -> None:
    async with silent(*lines) as port:
        output = await send_within(0.2, port)
    assert (output["error"], output["retryable"], output["sent"]) == ("timed out", True, False)


@pytest.mark.parametrize(
    "repeats", [f"550 {'x' * 290} {PASSWORD}", f"550-{PASSWORD[:6]}\r\n550 {PASSWORD[6:]}", f"550 no {PASSWORD}!"]
)
async def test_a_password_that_the_server_repeats_is_not_told(repeats: str) -> None:
    async with silent(b"220 ready", b"250-hello\r\n250 AUTH PLAIN", b"235 OK", repeats.encode()) as port:
        backend = Smtp("localhost", port, "desk@shop.example", "none", USER, SecretStr(PASSWORD))
        told = await backend.send(Outgoing(LETTER["to"], LETTER["body"], "key", 5.0))
    assert told["error"].startswith("550 ")
    assert PASSWORD[:6] not in told["error"]


@pytest.mark.parametrize("reply", [b"354 more", b"199 well", b"hello"])
async def test_an_answer_that_is_no_refusal_says_that_nobody_knows(reply: bytes) -> None:
    async with silent(b"220 ready", b"250 hello", b"250 OK", b"250 OK", b"354 go on", reply) as port:
        output = await send(port)
    assert "it may have been sent" in output["error"]
    assert (output["sent"], output["retryable"]) == (False, False)


@pytest.mark.parametrize("then_close", [False, True])
async def test_silence_after_the_message_says_that_nobody_knows(then_close: bool) -> None:
    lines = (b"220 ready", b"250 hello", b"250 OK", b"250 OK", b"354 go on")
    async with silent(*lines, then_close=then_close) as port:
        output = await send_within(0.2, port)
    assert "it may have been sent" in output["error"]
    assert (output["sent"], output["retryable"]) == (False, False)


async def test_a_cancel_goes_through() -> None:
    async with silent(b"220 ready") as port:
        task = asyncio.create_task(send(port))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize(
    "to",
    [
        "ada",
        "ada@",
        "a@b.example, c@d.example",
        "ada@example.com\r\nBcc: all@example.com",
        "ada@example.com\nX: y",
        "Ada <ada@example.com>",
        "ada@exämple.com",
        "a@-b.example",
        "a@b..example",
        "\u202eada@example.com",
    ],
)
async def test_what_is_not_one_address_gets_nothing(to: str) -> None:
    async with post_office() as post:
        output = await send(post.port, {"to": to, "body": "hello"})
    assert "is not one e-mail address" in output["error"]
    assert (output["sent"], output["retryable"], post.envelopes) == (False, False, [])


async def test_nobody_named_is_the_default_address() -> None:
    async with post_office() as post:
        assert "give `to` an e-mail address" in (await send(post.port, {"body": "hello"}))["error"]
        output = await send(post.port, {"body": "hello"}, default_to="queue@shop.example")
    assert (output["to"], output["sent"]) == ("customer", True)
    assert post.envelopes[0].rcpt_tos == ["queue@shop.example"]


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300), st.text(max_size=40))
def test_no_body_makes_a_header(body: str, key: str) -> None:
    backend = Smtp("localhost", 25, "desk@shop.example")
    letter = backend._letter("ada@example.com", Outgoing("ada@example.com", body, key, 1.0))
    head, _, rest = letter.as_bytes().partition(b"\r\n\r\n")
    names = [line.partition(b":")[0] for line in head.split(b"\r\n") if not line.startswith(b" ")]
    assert sorted(names) == HEADERS
    assert all(byte in b"\r\n\t" or 32 <= byte < 127 for byte in rest)
    assert all(len(line) < 998 for line in rest.split(b"\r\n"))


@given(st.text(max_size=60))
def test_an_address_holds_nothing_that_ends_a_line(text: str) -> None:
    if is_address(text):
        assert text.isascii()
        assert text.isprintable()
        assert text.count("@") == 1
        assert not set(text) & set(' <>,;:"()[]\\')


def test_a_long_address_is_looked_at_once() -> None:
    assert not is_address("a@" + "a" * 100_000 + "!")
    assert not is_address("a@" + "a." * 50_000 + "!")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"host": ""}, "HOST"),
        ({"host": "a b"}, "HOST"),
        ({"sender": "nobody"}, "SENDER"),
        ({"sender": "a@b.example\nBcc: c@d.example"}, "SENDER"),
        ({"security": "maybe"}, "SECURITY"),
        ({"port": "0"}, "PORT"),
        ({"port": "65536"}, "PORT"),
        ({"port": "mail"}, "PORT"),
        ({"subject": "a\nb"}, "SUBJECT"),
        ({"default_to": "customer"}, "DEFAULT_TO"),
        ({"username": "me"}, "PASSWORD"),
        ({"password": "hush"}, "USERNAME"),
        ({"username": "me", "password": "hush"}, "a login needs"),
        ({"username": "me", "password_file": "/nowhere/hush"}, "password_file can't be read"),
        ({"security": "tls", "ca_file": "/nowhere/ca.pem"}, "CA_FILE"),
        ({"security": "tls", "ca_file": "~nobody-here/ca.pem"}, "CA_FILE"),
    ],
)
def test_a_wrong_setting_is_told_and_nothing_is_half_bound(
    options: dict[str, str], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    binding = bind("mail", context(25, **options))
    assert (binding.tier, binding.name) == ("stub", "stub")
    assert says in caplog.text
    assert "hush" not in caplog.text.replace("/nowhere/hush", "")


def test_the_port_follows_from_the_security() -> None:
    ports = {}
    for security in ("starttls", "tls", "none"):
        backend = bind("mail", context(25, security=security, port="")).backend
        ports[security] = backend.port
    assert ports == {"starttls": 587, "tls": 465, "none": 25}
