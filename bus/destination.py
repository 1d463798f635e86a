"""Where a webhook's URL leads, and whether anything may be sent there (A2A 1.0, section 13.2).

Whoever registers a webhook makes this host connect somewhere on their behalf, so by default that is the public
internet alone: a name is resolved, and every address that it has must be public.
"""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

MAX_URL = 2048
RESOLVE = 5.0
"""Seconds that a name's resolution may take."""

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Gives the addresses of a name, for a port. Raises OSError."""

# Threads of their own: names that resolve slowly, which anybody can choose, must not hold up what else needs a thread.
_RESOLVERS = ThreadPoolExecutor(8, thread_name_prefix="resolver")

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_URL = re.compile(
    r"(?P<scheme>[A-Za-z]+)://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?"
    r"(?P<path>(/[!-\"$-\[\]-~]*)?(\?[!-\"$-\[\]-~]*)?)"
)
_NAME = re.compile(
    r"(?=.{1,253}$)([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
)
_PORTS = {"https": 443, "http": 80}

# Written out rather than left to `ipaddress`, whose answers differ between Python's releases.
_CLOSED_4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
            "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
            "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
            "168.63.129.16/32",  # the host under every virtual machine of one large cloud, on a public address
        ),
    )
)  # fmt: skip
_OPEN_6 = ipaddress.IPv6Network("2000::/3")
_CLOSED_6 = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "2001::/23",  # special purposes, Teredo among them
            "2001:db8::/32", "3fff::/20",  # documentation
            "2002::/16",  # 6to4, which holds any IPv4 address
        ),
    )
)  # fmt: skip
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class DestinationRefused(Exception):
    """Nothing is sent there; the message says why, and holds nothing of the URL but what is wrong with it."""


class Unresolved(Exception):
    """The name has no address now. That may pass."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A URL in its parts, and the addresses that were found to be allowed: a connection goes to one of these."""

    scheme: str
    host: str
    port: int
    path: str = field(repr=False)
    addresses: tuple[str, ...] = ()

    @property
    def authority(self) -> str:
        """The value of the header `Host`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """The URL without its path, which may hold what only its owner knows: what may be logged."""
        return f"{self.scheme}://{self.authority}"


def is_public(address: str) -> bool:
    """Whether an address is one of the public internet's; an IPv4 address within an IPv6 one is judged itself."""
    try:
        found = _plain(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv4Address):
        return found.is_global and not any(found in network for network in _CLOSED_4)
    return found.is_global and found in _OPEN_6 and not any(found in network for network in _CLOSED_6)


def _plain(address: str) -> _Address:
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv4Address):
        return found
    if found.scope_id is not None:
        raise ValueError("an address with a scope is of one link")
    if found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return ipaddress.IPv4Address(int(found) & 0xFFFFFFFF) if found in _NAT64 else found


def parse(url: str) -> Destination:
    """A URL in its parts; nothing is resolved. Raises DestinationRefused for what is no plain http or https URL."""
    if len(url) > MAX_URL:
        raise DestinationRefused(f"a URL has at most {MAX_URL} characters")
    if "@" in url.partition("://")[2].partition("/")[0].partition("?")[0]:
        raise DestinationRefused("the URL must hold no user and no password: give them as authentication")
    if "#" in url:
        raise DestinationRefused("the URL must have no fragment")
    found = _URL.fullmatch(url)
    if found is None:
        raise DestinationRefused(
            "must be a URL as https://host/path in plain ASCII: a name in its punycode form, anything else as %XX"
        )
    scheme, host = found["scheme"].lower(), found["host"].lower().strip("[]").removesuffix(".")
    if scheme not in _PORTS:
        raise DestinationRefused("the URL must begin with https://")
    port = int(found["port"]) if found["port"] else _PORTS[scheme]
    if not 0 < port < 1 << 16:
        raise DestinationRefused("the URL's port must be 1 to 65535")
    if not _is_address(host) and not _NAME.fullmatch(host):
        # which leaves no other way to write an address, such as 127.1 or 0x7f000001
        raise DestinationRefused("the URL's host must be a name, or an address in its usual form")
    path = found["path"]
    return Destination(scheme, host, port, path if path.startswith("/") else f"/{path}")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def resolve(name: str, port: int) -> Sequence[str]:
    """The addresses that this host's resolver gives for a name."""
    found = await asyncio.get_running_loop().run_in_executor(_RESOLVERS, _look_up, name, port)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def _look_up(name: str, port: int) -> list[tuple[Any, ...]]:
    return list(socket.getaddrinfo(name, port, type=socket.SOCK_STREAM))


class Policy:
    """Which destinations are allowed: https to public addresses, and what the operator says beside.

    `allow` holds names of hosts, addresses and networks that may be reached though they are not public; `http` lets
    the URLs be http as well. Raises ValueError for an entry of `allow` that is none of these.
    """

    def __init__(
        self, allow: Iterable[str] = (), *, http: bool = False, resolve: Resolve = resolve, timeout: float = RESOLVE
    ) -> None:
        self._http = http
        self._resolve = resolve
        self._timeout = timeout
        self._names: set[str] = set()
        self._networks: list[_Network] = []
        for entry in allow:
            kind = allowed(entry)
            if isinstance(kind, str):
                self._names.add(kind)
            else:
                self._networks.append(kind)

    async def check(self, url: str) -> Destination:
        """The destination of a URL, with the addresses that it has now.

        Raises DestinationRefused for what is not allowed, and Unresolved for a name without an address.
        """
        found = parse(url)
        if found.scheme != "https" and not self._http:
            raise DestinationRefused("the URL must begin with https://")
        addresses = [found.host] if _is_address(found.host) else await self._addresses(found)
        if found.host not in self._names and not all(map(self._is_allowed, addresses)):
            raise DestinationRefused(
                "the URL's host has an address that is not public, and this agent may not reach it"
            )
        return Destination(found.scheme, found.host, found.port, found.path, tuple(addresses))

    async def _addresses(self, found: Destination) -> Sequence[str]:
        try:
            async with asyncio.timeout(self._timeout):
                addresses = await self._resolve(found.host, found.port)
        except (OSError, UnicodeError):  # TimeoutError is an OSError
            addresses = ()
        if not addresses:
            raise Unresolved("the URL's host has no address")
        return addresses

    def _is_allowed(self, address: str) -> bool:
        try:
            plain = _plain(address)
        except ValueError:
            return False
        return is_public(address) or any(plain in network for network in self._networks)


def allowed(entry: str) -> str | _Network:
    """What an entry of an allow list is: a name in lower case, or a network. Raises ValueError."""
    try:
        return ipaddress.ip_network(entry)
    except ValueError:
        name = entry.lower().removesuffix(".")
        if not _NAME.fullmatch(name):
            raise ValueError("must be the name of a host, an address, or a network such as 10.1.0.0/16") from None
        return name
