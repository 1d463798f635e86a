"""URLs as settings have them: checked without repeating any of them, and shown without their secrets."""

import re
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from deploy.logs import mask

# What the AMQP library reads from the URL's query as a number, and the largest that there is a use for.
NUMBERS = {"heartbeat": 65_535, "timeout": 86_400, "interleave": 65_535, "happy_eyeballs_delay": 86_400}
SECRET_KEY = re.compile(r"key|token|secret|pass|pwd|credential|auth|bearer|cookie|dsn", re.IGNORECASE)
"""Names of what is not shown."""


def check_amqp_url(url: str) -> None:
    """Raise ValueError, which never repeats any of it, for what is no URL of a message broker."""
    if not re.match(r"amqps?://[^/\s]", url):
        raise ValueError("must begin with amqp:// or amqps:// and name a host")
    if re.search(r"[\x00-\x20\x7f\ud800-\udfff]|%(?![0-9A-Fa-f]{2})", url):
        raise ValueError("must be a URL: a space is written as %20 and a % as %25")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna").decode("idna")  # as resolving it would
        known = "%" not in parts.netloc.rpartition("@")[2] and port != 0
    except ValueError:
        known = False
    if not known:
        raise ValueError(
            "has no valid host and port: write : / ? # @ [ ] within a user or password as %3A %2F %3F %23 %40 %5B %5D"
        )
    if not host:
        raise ValueError("must begin with amqp:// or amqps:// and name a host")
    if "@" in url.partition("://")[2].removeprefix(parts.netloc):
        raise ValueError(
            "has an @ behind its host: write @ / ? # in a user, password or virtual host as %40 %2F %3F %23"
        )
    for name, given in parse_qsl(parts.query, keep_blank_values=True):
        if name in NUMBERS and not _is_number(given, NUMBERS[name], whole=name != "happy_eyeballs_delay"):
            raise ValueError(f"has a query with a {name} that is no number from 0 to {NUMBERS[name]}")


def is_http_url(text: str) -> bool:
    """Whether it names a host that HTTP reaches."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(host) and port != 0 and not re.search(r"[\x00-\x20\x7f]", text)


def _is_number(text: str, most: int, *, whole: bool) -> bool:
    form = r"\d{1,6}" if whole else r"\d{1,6}(\.\d{1,6})?"
    return re.fullmatch(form, text, re.ASCII) is not None and float(text) <= most


def shown_url(url: str) -> str:
    """The URL without its password, and without what its query keeps secret."""
    parts: SplitResult = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if ":" in user:
        user = f"{user.partition(':')[0]}:***"
    query = "&".join(
        f"{name}{equals}{'***' if SECRET_KEY.search(unquote(name)) and not name.endswith('file') else value}"
        for name, equals, value in (pair.partition("=") for pair in parts.query.split("&"))
    )
    return mask(parts._replace(netloc=f"{user}{at}{host}", query=query).geturl())
