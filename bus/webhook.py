"""Posting to a webhook: to the address that was checked and no other, and no further than that.

A connection goes to an address that `bus.destination` has just allowed, while `Host` and the certificate are those of
the name, so that a name which resolves to something else a moment later leads nowhere else. No redirect is followed, no
proxy of the environment is used, no cookie is kept, and nothing of the body of an answer is read.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

from bus.destination import Destination, Policy

TIMEOUT = 10.0
"""Seconds for one attempt, from the name's resolution to the status."""

CONNECT = 5.0
_ADDRESSES = 4
_PASSING = frozenset({408, 425, 429})


class WebhookFailed(Exception):
    """There was no answer; the message says what went wrong, and nothing of what was sent or where. That may pass."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a webhook answered. `retry_after` is how many seconds it asks to be left alone."""

    status: int
    retry_after: float | None = None

    @property
    def taken(self) -> bool:
        """Whether it has what was sent."""
        return 200 <= self.status < 300

    @property
    def may_pass(self) -> bool:
        """Whether the same may be taken later. A redirect is an answer that never is."""
        return self.status >= 500 or self.status in _PASSING


class Webhooks:
    """Posts to webhooks that a policy allows. `tls` is what certificates are checked with, the system's by default."""

    def __init__(self, policy: Policy, *, timeout: float = TIMEOUT, tls: ssl.SSLContext | None = None) -> None:
        self.policy = policy
        self._timeout = timeout
        # No connection is kept: one was made for a name, and the next request to its address may be for another.
        self._transport = httpx.AsyncHTTPTransport(
            verify=tls or ssl.create_default_context(),
            trust_env=False,
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Post once. Raises DestinationRefused, Unresolved, WebhookFailed."""
        try:
            async with asyncio.timeout(self._timeout):
                destination = await self.policy.check(url)
                return await self._post(destination, body, headers)
        except TimeoutError:
            raise WebhookFailed(f"no answer within {self._timeout:g} s") from None

    async def close(self) -> None:
        """Close what is open."""
        await self._transport.aclose()

    async def _post(self, destination: Destination, body: bytes, headers: Mapping[str, str]) -> Answer:
        for address in destination.addresses[:_ADDRESSES]:
            try:
                return await self._post_to(address, destination, body, headers)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                if "CERTIFICATE" in str(error):
                    raise WebhookFailed("its certificate does not hold") from None
            except (httpx.HTTPError, ssl.SSLError, OSError, ValueError) as error:
                raise WebhookFailed(f"no answer: {type(error).__name__}") from None
        raise WebhookFailed("no connection") from None

    async def _post_to(self, address: str, destination: Destination, body: bytes, headers: Mapping[str, str]) -> Answer:
        host = f"[{address}]" if ":" in address else address
        request = httpx.Request(
            "POST",
            f"{destination.scheme}://{host}:{destination.port}{destination.path}",
            headers={**headers, "Host": destination.authority},
            content=body,
            extensions={
                "sni_hostname": destination.host,
                "timeout": {"connect": CONNECT, "read": self._timeout, "write": self._timeout, "pool": self._timeout},
            },
        )
        response = await self._transport.handle_async_request(request)
        await response.aclose()
        return Answer(response.status_code, _seconds(response.headers.get("retry-after")))


def _seconds(value: str | None) -> float | None:
    """What `Retry-After` says, in seconds or as a date (RFC 9110, section 10.2.3)."""
    if value is None:
        return None
    if value.isascii() and value.isdecimal():
        return float(value[:9])
    try:
        when = parsedate_to_datetime(value)
    except (ValueError, OverflowError):  # a year of twenty digits is the second
        return None
    return max((when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds(), 0.0)
