"""One request to a web service that answers in JSON: bounded in time and size, and with errors that hold no secret."""

import asyncio
import json
import ssl
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import httpx

from ..redaction import Redactor
from .backends import BackendError, Unconfigured

SECONDS = 15.0
CONNECT_SECONDS = 5.0  # of them, for the connection: a handshake that is cut off from outside would leave it open
MAX_BYTES = 2 << 20  # of an answer
MAX_WAIT = 86_400.0  # seconds that an answer may ask to wait
MAX_REASON = 100  # characters of what it says beside its status
RETRYABLE = frozenset({408, 425, 429, 500, 502, 503, 504})
NO_SECRET = Redactor(())


def check_url(url: str, setting: str) -> str:
    """The URL, without a slash at its end. Raises Unconfigured for what is no URL of a web service."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        known = False
    if not known or parts.query or parts.fragment or parts.username is not None or parts.password is not None:
        raise Unconfigured(f"{setting} must be a URL: http:// or https://, a host, and no user, query or fragment")
    return url.rstrip("/")


async def ask(
    method: str, url: str, *, redactor: Redactor = NO_SECRET, advice: Mapping[int, str] | None = None, **sent: Any
) -> Any:
    """The JSON value that `url` answers with. Raises BackendError.

    `redactor` takes out of the answer what the service was given and repeats, however it writes it; `advice` says what
    a status may mean.
    """
    status, reason, headers, body = await _exchange(method, url, **sent)
    if status >= 300:
        told = (advice or {}).get(status)
        wait = _wait(headers.get("retry-after", "")) if status in RETRYABLE else None
        text = f"HTTP Error {status}: {redactor.text(reason)[:MAX_REASON]}" + (f" ({told})" if told else "")
        text += f"; retry after {wait:g} s" if wait is not None else ""
        raise BackendError(text, retryable=status in RETRYABLE, retry_after=wait)
    if headers.get("content-encoding", "identity") != "identity":
        raise BackendError("the answer is compressed, which was not asked for")
    try:
        text = body.decode("utf-8", "replace").removeprefix("\ufeff")
        return redactor.json(json.loads(text))
    except json.JSONDecodeError as error:
        raise BackendError(str(error)) from None
    except (ValueError, RecursionError):
        raise BackendError("the answer is no JSON that can be read") from None


async def _exchange(method: str, url: str, **sent: Any) -> tuple[int, str, Mapping[str, str], bytes]:
    headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "skillbus"}
    limits = httpx.Timeout(SECONDS, connect=min(CONNECT_SECONDS, SECONDS))
    body = bytearray()
    try:
        async with (
            asyncio.timeout(SECONDS),
            httpx.AsyncClient(timeout=limits, verify=_trust(), headers=headers) as client,
            client.stream(method, url, **sent) as response,
        ):
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise BackendError(f"the answer is larger than {MAX_BYTES} bytes")
    except (TimeoutError, httpx.TimeoutException):
        raise BackendError("timed out", retryable=True) from None
    except httpx.ConnectError as error:
        # A certificate that is not trusted stays so.
        certificate = "certificate" in str(error).lower()
        text = "the certificate of the service is not trusted" if certificate else "the service can't be reached"
        raise BackendError(text, retryable=not certificate) from None
    except (httpx.NetworkError, httpx.RemoteProtocolError):
        raise BackendError("the connection was lost", retryable=True) from None
    except httpx.HTTPError as error:
        raise BackendError(f"the request failed ({type(error).__name__})") from None
    reason = "".join(filter(str.isprintable, response.reason_phrase))
    return response.status_code, reason, response.headers, bytes(body)


@cache
def _trust() -> ssl.SSLContext:
    return httpx.create_ssl_context()  # which takes its time


def _wait(value: str) -> float | None:
    """The seconds of a Retry-After header, a number or a date (RFC 9110, section 10.2.3)."""
    value = value.strip()
    if value.isascii() and value.isdigit() and len(value) < 10:
        return min(float(value), MAX_WAIT)
    try:
        return max(0.0, min(round(parsedate_to_datetime(value).timestamp() - time.time()), MAX_WAIT))
    except (TypeError, ValueError, OverflowError):
        return None
