"""The forms in which a value may stand in a text: as it is, escaped, encoded, and in parts that give enough away."""

import base64
import json
import re
from collections.abc import Iterable, Iterator
from html import escape
from typing import Any
from urllib.parse import quote, quote_plus, unquote

MIN_FORM = 4
MIN_LINE = 8
"""Characters of a line of a value that is looked for on its own."""

MIN_LEAF = 16
"""Characters of a text within a value that is JSON, which is looked for on its own."""

WRAPPED = 57
"""An encoding longer than this may be broken into lines."""

_URL_SAFE = ("", "/", "!~*'()", ";,/?:@&=+$-_.!~*'()#", "*")


def parts_of(value: str) -> set[str]:
    """The value, and what of it is secret on its own: its lines, the texts in it if it is JSON, a URL's password."""
    password = _password(value)
    parts = {value, value.strip(), password, unquote(password)}
    for text in (value, *_leaves(value)):
        parts.add(text)
        lines = [line.strip() for line in text.splitlines()]
        if len(lines) > 1:
            parts |= {line for line in lines if len(line) >= MIN_LINE and not line.startswith("-----")}
    return {part for part in parts if len(part) >= MIN_FORM}


def plain_forms(part: str) -> set[str]:
    """The part in each escaping that leaves most characters as they are."""
    forms = {part, part.replace("\n", "\r\n")}
    for ascii_only in (True, False):
        once = json.dumps(part, ensure_ascii=ascii_only)[1:-1]
        forms |= {once, once.replace("/", "\\/"), json.dumps(once, ensure_ascii=ascii_only)[1:-1]}
    forms |= {repr(part)[1:-1], repr(part.encode())[2:-1], part.encode("unicode_escape").decode()}
    forms |= {again for form in set(_urls(part)) for again in (form, quote(form, safe=""))}
    named = escape(part)
    forms |= {named, escape(part, quote=False)}
    forms.add(named.replace("&#x27;", "&#39;"))
    forms.add(named.replace("&#x27;", "&apos;"))
    forms.add(named.replace("&quot;", "&#34;").replace("&#x27;", "&#39;"))
    # JSON for a page, as Go writes it
    forms.add("".join(f"\\u{ord(c):04x}" if c in "<>&" else c for c in json.dumps(part, ensure_ascii=False)[1:-1]))
    # each escape in both cases of its digits
    forms.add(part.encode("ascii", "xmlcharrefreplace").decode())
    return {form for form in forms | {_turned(form) for form in forms} if len(form) >= MIN_FORM}


def base64_forms(part: str) -> set[str]:
    """What any base64 that contains the part, or a JSON text with it, contains, wherever the part begins in it."""
    return set().union(*(_base64(each) for each in {part, *_escaped(part)}))


def _escaped(part: str) -> Iterator[str]:
    for ascii_only in (True, False):
        yield json.dumps(part, ensure_ascii=ascii_only)[1:-1]


def _base64(part: str) -> set[str]:
    forms = set()
    data = part.encode()
    for lead in range(3):
        whole = base64.b64encode(b"\0" * lead + data).decode()
        core = whole[(0, 2, 3)[lead] : (lead + len(data)) * 8 // 6]
        forms |= {core, core.translate(_FOR_URLS), *_urls(core)}
    return {form for form in forms if len(form) >= MIN_FORM}


def hex_forms(part: str) -> set[str]:
    """The part in hexadecimal, with and without what often stands between two digits of it."""
    data = part.encode()
    forms = {data.hex(), *(data.hex(between) for between in ":- "), "".join(f"\\x{byte:02x}" for byte in data)}
    forms.add("%" + data.hex("%"))
    return forms | {form.upper() for form in forms} | {form.upper().replace("\\X", "\\x") for form in forms}


_PERCENT = re.compile("%[0-9A-F]{2}")
_USER = re.compile(r"://[^:@/\s]*:(\S+)@")
_UNICODE = re.compile(r"\\u([0-9a-f]{4})")
_FOR_URLS = str.maketrans("+/", "-_")


def _urls(part: str) -> Iterator[str]:
    for safe in _URL_SAFE:
        form = quote(part, safe=safe)
        yield from (form, _turned(form))
    form = quote_plus(part)
    for each in (form, form.replace("~", "%7E")):
        yield from (each, _turned(each))


def _turned(form: str) -> str:
    """The same with the digits of `%2F` small, and those of `\\u00e9` large."""
    form = _PERCENT.sub(lambda found: found[0].lower(), form)
    return _UNICODE.sub(lambda found: f"\\u{found[1].upper()}", form)


def _leaves(value: str) -> Iterable[str]:
    if not value.lstrip().startswith(("{", "[")):
        return ()
    try:
        return [text for text in _texts(json.loads(value)) if len(text) >= MIN_LEAF]
    except (ValueError, RecursionError):
        return ()


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _password(value: str) -> str:
    """The password in a URL, even one whose slashes were not escaped."""
    found = _USER.search(value)
    return found[1] if found else ""
