import base64
import html
import json
import re
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from skills import Done, Failed
from skills.redaction import Redactor, Secret
from skills.redaction.redactor import MASKS

KEY = "sk-live/9+Z\"'<&é ~x%"
PEM = "-----BEGIN KEY-----\n" + "\n".join(f"{n:02}abcdefghijklmnop+/ABCDEFG" for n in range(9)) + "\n-----END KEY-----"


def redactor(*values: str) -> Redactor:
    return Redactor(Secret(f"S{n}", value) for n, value in enumerate(values))


def as_go(text: str) -> str:
    encoded = json.dumps(text, ensure_ascii=False)[1:-1]
    return encoded.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


ESCAPES: dict[str, Callable[[str], str]] = {
    "as it is": lambda text: text,
    "JSON": lambda text: json.dumps(text)[1:-1],
    "JSON in UTF-8": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    "JSON of PHP": lambda text: json.dumps(text)[1:-1].replace("/", "\\/"),
    "JSON of Go": as_go,
    "JSON in JSON": lambda text: json.dumps(json.dumps(text)[1:-1])[1:-1],
    "repr": lambda text: repr(text)[1:-1],
    "repr of bytes": lambda text: repr(text.encode())[2:-1],
    "URL in URL": lambda text: quote(quote(text, safe=""), safe=""),
    "URL": lambda text: quote(text, safe=""),
    "URL with slashes": quote,
    "URL in small letters": lambda text: re.sub("%..", lambda found: found[0].lower(), quote(text, safe="")),
    "encodeURIComponent": lambda text: quote(text, safe="!~*'()"),
    "form": quote_plus,
    "HTML": html.escape,
    "HTML of &#39;": lambda text: html.escape(text).replace("&#x27;", "&#39;"),
    "hex": lambda text: text.encode().hex(),
    "HEX": lambda text: text.encode().hex().upper(),
    "hex with colons": lambda text: text.encode().hex(":"),
}


def unbased(text: str) -> str:
    """All that base64 in the text could mean, from whichever character it is read."""
    meant = b""
    for run in re.findall("[A-Za-z0-9+/]{4,}", text.replace("-", "+").replace("_", "/")):
        for start in range(4):
            part = run[start:]
            meant += base64.b64decode(part + "A" * (-len(part) % 4)) + b"\n"
    return meant.decode(errors="replace")


@pytest.mark.parametrize("lead", range(3))
@pytest.mark.parametrize("ascii_only", [True, False])
def test_base64_of_a_json_text_hides_no_value(ascii_only: bool, lead: int) -> None:
    for value in (KEY, PEM):
        text = "-" * lead + json.dumps({"auths": {"key": value}}, ensure_ascii=ascii_only)
        redacted = redactor(value).text(base64.b64encode(text.encode()).decode())
        assert json.dumps(value)[1:-1] not in unbased(redacted)
        assert any(mask in redacted for mask in MASKS)


@pytest.mark.parametrize("way", ESCAPES)
@given(value=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=4), around=st.text(max_size=9))
def test_no_escaping_hides_a_value(way: str, value: str, around: str) -> None:
    assume(value.strip())
    planted = ESCAPES[way](value)
    assume(len(planted) >= 4)
    redacted = redactor(value).text(f"{around} {planted}{around}")
    assert planted not in redacted
    assert any(mask in redacted for mask in MASKS)


@given(
    value=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=4),
    before=st.binary(max_size=7),
    after=st.binary(max_size=7),
    encode=st.sampled_from([base64.b64encode, base64.urlsafe_b64encode]),
    padded=st.booleans(),
)
def test_no_base64_hides_a_value(
    value: str, before: bytes, after: bytes, encode: Callable[[bytes], bytes], padded: bool
) -> None:
    planted = encode(before + value.encode() + after).decode()
    redacted = redactor(value).text(f"x {planted if padded else planted.rstrip('=')} y")
    assert value not in unbased(redacted.replace("[secret]", " "))


@given(
    values=st.lists(st.text('abAB01+/ \n"%', min_size=4, max_size=12), min_size=1, max_size=4),
    pieces=st.lists(st.one_of(st.integers(0, 3), st.text('abAB01+/ \n"%', max_size=6)), max_size=12),
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
def test_a_stream_says_no_value_wherever_it_is_cut(values: list[str], pieces: list[int | str], cuts: list[int]) -> None:
    values = [value for value in values if value.strip()] or ["abAB"]
    text = "".join(values[piece % len(values)] if isinstance(piece, int) else piece for piece in pieces)
    whole = redactor(*values)
    stream, said, last = whole.stream(), "", 0
    for cut in sorted(min(cut, len(text)) for cut in cuts):
        said += stream.feed(text[last:cut])
        last = cut
    said += stream.feed(text[last:]) + stream.end()
    assert not [value for value in values if value in said]
    assert not whole.holds(said)
    assert not whole.holds(whole.text(text))


def test_a_stream_holds_back_no_more_than_it_must() -> None:
    stream = redactor("hunter2!").stream()
    assert stream.feed("the password is hun") == "the password is "
    assert stream.feed("gry") == "hungry"
    assert stream.feed(" hunter2") == " "
    assert stream.feed("!.") == "[secret]."
    assert stream.feed("hunt") + stream.end() == "hunt"


def test_values_of_many_lines_are_found_line_by_line() -> None:
    redact = redactor(PEM)
    lines = PEM.splitlines()
    for line in lines[1:-1]:
        assert redact.text(f"> {line} <") == "> [secret] <"
    assert redact.text("-----BEGIN KEY-----") == "-----BEGIN KEY-----"
    assert redact.text(PEM.replace("\n", "\r\n")) == "[secret]"
    assert redact.text(json.dumps({"k": PEM})) == '{"k": "[secret]"}'


def test_an_encoding_that_is_broken_into_lines() -> None:
    value = "a long value of a secret, one that the base64 program breaks into lines of 76 characters" * 2
    redact = redactor(value)
    planted = base64.encodebytes(b"user:" + value.encode()).decode()
    assert len(planted.splitlines()) > 2
    for text in (planted, planted.replace("\n", "\r\n"), json.dumps(planted)):
        redacted = redact.text(f"see: {text}")
        assert "secret" not in unbased(redacted.replace("[secret]", " ").replace("\\n", "").replace("\n", ""))
    stream = redact.stream()
    said = "".join(map(stream.feed, planted)) + stream.end()
    assert "secret" not in unbased(said.replace("[secret]", " ").replace("\n", ""))


def test_parts_that_give_a_value_away() -> None:
    account = json.dumps({"type": "service_account", "private_key": PEM, "n": ["a-long-token-in-a-list"]})
    assert redactor(account).text(PEM) == "***"
    assert redactor(account).text("a-long-token-in-a-list") == "***"
    url = "postgres://app:p%40ss/word@db/x"
    assert redactor(url).text("password p@ss/word or p%40ss/word") == "password [secret] or [secret]"
    assert redactor("  padded  ").text("it was padded.") == "it was [secret]."


def test_json_is_redacted_in_keys_numbers_and_depth() -> None:
    redact = redactor("12345678", KEY)
    given = {KEY: 1, f"{KEY}.": [{"deep": (f"a {KEY} b", True, None)}], "n": 9123456780, "f": 12345678.5, "ok": 1.5}
    assert redact.json(given) == {
        "[secret]": 1,
        "[secret].": [{"deep": ["a [secret] b", True, None]}],
        "n": "9[secret]0",
        "f": "[secret].5",
        "ok": 1.5,
    }
    assert redactor("abcd", "efgh").json({"abcd": 1, "efgh": 2, "[secret]": 3}) == {
        "[secret]": 1, "[secret] 2": 2, "[secret] 3": 3,
    }  # fmt: skip


def test_outcomes() -> None:
    redact = redactor(KEY)
    assert redact.outcome(Done({"a": KEY})) == Done({"a": "[secret]"})
    assert redact.outcome(Failed(f"no {KEY}", retryable=True)) == Failed("no [secret]", retryable=True)
    odd = redactor('a","b')
    assert odd.outcome(Done({"x": ["a", "b"]})) == Failed(
        "the output holds the value of a secret in a way that can't be taken out"
    )
    assert isinstance(redact.outcome(Done({"a": object()})), Failed)


@pytest.mark.parametrize("value", ["secret", "[secret]", "]abc", "{}[]", "***secret]}", "•••*]}"])
def test_the_mask_is_never_taken_for_a_value(value: str) -> None:
    redact = redactor(value, "other value")
    assert value not in redact.text(f"other value{value}abc other value")


def test_texts_told_one_by_one() -> None:
    redact = redactor("hunter2!")
    said, before = [], ""
    for text in ("at hun", "ter", "2! done", "fine", "hunter2!"):
        told, before = redact.after(before, text)
        said.append(told)
    assert said == ["at hun", "ter", "[secret] done", "fine", "[secret]"]


def test_a_redactor_shows_nothing() -> None:
    assert "hunter" not in repr(redactor("hunter2!"))
    assert redactor().text("anything") == "anything"
    assert redactor().json({"a": 1}) == {"a": 1}


def test_the_time_grows_with_the_text_alone() -> None:
    """Texts and values that make patterns slow; the bound is far from what it takes, and far from quadratic time."""
    started = time.process_time()
    for value in ("a" * 4000, "a" * 2000 + "b", "ab" * 2000):
        redact = redactor(value)
        for text in ("a" * 400_000, "ab" * 200_000, ("a" * 1999 + "c") * 200, value * 100):
            redact.text(text)
            redact.open_end(text)
    redactor("abcd").json({f"abcd{'x' * n}"[: 4 + n % 2]: n for n in range(2)})
    assert time.process_time() - started < 30


def test_however_deep_an_output_is_it_has_an_outcome() -> None:
    output: dict[str, Any] = {"a": "sesame"}
    for depth in range(1000):
        output = {"a": output}
        if depth > 400:
            found = redactor("sesame").outcome(Done(output))
            assert isinstance(found, Done) or "deep" in found.reason
    assert isinstance(found, Failed)
