import asyncio
import ipaddress
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.destination import MAX_URL, DestinationRefused, Policy, Unresolved, allowed, is_public, parse

PUBLIC = "93.184.215.14"


class Names:
    """A resolver with its answers, one after the other; the last one stays."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers: list[Sequence[str]] = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, name: str, port: int) -> Sequence[str]:
        self.asked.append((name, port))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.mark.parametrize(
    ("url", "authority", "path"),
    [
        ("https://hooks.example", "hooks.example", "/"),
        ("HTTPS://Hooks.Example:443/a/b?c=d&e=%20", "hooks.example", "/a/b?c=d&e=%20"),
        ("https://hooks.example.:8443?x", "hooks.example:8443", "/?x"),
        ("http://hooks.example:443/", "hooks.example:443", "/"),
        ("https://93.184.215.14/x", "93.184.215.14", "/x"),
        ("https://[2606:4700::1]:444/x", "[2606:4700::1]:444", "/x"),
        ("https://xn--bcher-kva.example/", "xn--bcher-kva.example", "/"),
    ],
)
def test_what_a_url_names(url: str, authority: str, path: str) -> None:
    found = parse(url)
    assert (found.authority, found.path) == (authority, path)
    assert path == "/" or path not in repr(found)


@pytest.mark.parametrize(
    "url",
    [
        "", "hooks.example", "//hooks.example/", "ftp://hooks.example/", "file:///etc/passwd", "https:///x",
        "gopher://hooks.example/", "javascript://hooks.example/%0a", "https:hooks.example", "https://",
        "https://user@hooks.example/", "https://user:hush@hooks.example/", "https://:hush@hooks.example/",
        "https://hooks.example@127.0.0.1/", "https://hooks.example\\@127.0.0.1/", "https://127.0.0.1#@hooks.example/",
        "https://hooks.example/#fragment", "https://hooks.example/a b", "https://hooks.example/\r\nHost: x",
        "https://hooks.example/\x00", "https://hooks.example/\u202e", " https://hooks.example/",
        "https://hooks.example/\n", "https://hooks.example:0/", "https://hooks.example:65536/",
        "https://hooks.example:99999999/", "https://hooks.example:-1/", "https://hooks.example:８０/",
        "https://bücher.example/", "https://①②⑦.⓪.⓪.①/", "https://127。0。0。1/", "https://%31%32%37.0.0.1/",
        "https://127.1/", "https://2130706433/", "https://0x7f000001/", "https://0x7f.0.0.1/", "https://0177.0.0.1/",
        "https://127.0.0.1.5/", "https://1.2.3.4.5/", "https://example.0x1/", "https://[::1/", "https://::1/",
        "https://[fe80::1%25eth0]/", "https://[fe80::1%eth0]/", "https://[::ffff:127.0.0.1]x/", "https://..example/",
        "https://-/", "https://.../", f"https://{'a' * 64}.example/", f"https://{'a.' * 130}example/",
        "https://hooks.example/" + "x" * MAX_URL,
    ],
)  # fmt: skip
def test_what_is_no_url_to_post_to(url: str) -> None:
    with pytest.raises(DestinationRefused) as caught:
        parse(url)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0", "0.1.2.3", "10.1.2.3", "100.64.0.1", "100.100.100.200", "100.127.255.255", "127.0.0.1", "127.9.9.9",
        "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.1.1",
        "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
        "168.63.129.16", "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254",
        "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2002:a9fe:a9fe::1", "2001::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:db8::1", "3fff::1", "fc00::1", "fd00:ec2::254", "fe80::1",
        "fe80::1%eth0", "fec0::1", "ff02::1", "100::1", "5f00::1", "nonsense", "",
    ],
)  # fmt: skip
def test_what_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1",
        PUBLIC,
        "100.63.255.255",
        "100.128.0.0",
        "172.32.0.1",
        "2606:4700::1111",
        "64:ff9b::101:101",
        "2a00::1",
    ],
)
def test_what_is_public(address: str) -> None:
    assert is_public(address)
    assert is_public(f"::ffff:{address}") or ":" in address


@settings(deadline=None)
@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_judged_the_same_in_each_dress(address: ipaddress.IPv4Address) -> None:
    packed = f"{int(address) >> 16:x}:{int(address) & 0xFFFF:x}"
    public = is_public(str(address))
    assert is_public(f"::ffff:{packed}") == is_public(f"64:ff9b::{packed}") == public
    assert not is_public(f"2002:{packed}::1")
    assert not is_public(f"::{packed}")
    assert not public or (address.is_global and not address.is_multicast)


@settings(deadline=None)
@given(st.ip_addresses(v=6))
def test_no_special_ipv6_address_is_public(address: ipaddress.IPv6Address) -> None:
    special = (
        address.is_private or address.is_loopback or address.is_link_local or address.is_multicast
        or address.is_unspecified or address.is_site_local
    )  # fmt: skip
    if special and address.ipv4_mapped is None and address not in ipaddress.IPv6Network("64:ff9b::/96"):
        assert not is_public(str(address))


async def test_a_name_is_allowed_when_each_of_its_addresses_is() -> None:
    names = Names([PUBLIC, "2606:4700::1111"], [PUBLIC, "10.0.0.1"])
    policy = Policy(resolve=names)
    found = await policy.check("https://hooks.example/secret-path")
    assert found.addresses == (PUBLIC, "2606:4700::1111")
    assert found.origin == "https://hooks.example"
    with pytest.raises(DestinationRefused) as caught:
        await policy.check("https://hooks.example/secret-path")
    assert "10.0.0.1" not in str(caught.value)
    assert "secret-path" not in str(caught.value)
    assert names.asked == [("hooks.example", 443)] * 2


async def test_an_address_needs_no_resolver() -> None:
    names = Names([])
    policy = Policy(resolve=names)
    assert (await policy.check(f"https://{PUBLIC}/")).addresses == (PUBLIC,)
    for host in ("127.0.0.1", "[::1]", "[::ffff:7f00:1]", "[::ffff:169.254.169.254]"):
        with pytest.raises(DestinationRefused, match="not public"):
            await policy.check(f"https://{host}/")
    assert names.asked == []


async def test_http_has_to_be_allowed() -> None:
    names = Names([PUBLIC])
    with pytest.raises(DestinationRefused, match="https://"):
        await Policy(resolve=names).check("http://hooks.example/")
    assert (await Policy(resolve=names, http=True).check("http://hooks.example/")).port == 80


async def test_what_the_operator_allows() -> None:
    inner = Names(["10.1.2.3"])
    for allow in (["Hooks.Internal."], ["10.1.0.0/16"], ["10.1.2.3"], ["fd00::/8", "10.1.2.3/32"]):
        found = await Policy(allow, resolve=inner).check("https://hooks.internal/")
        assert found.addresses == ("10.1.2.3",)
    for allow in ([], ["other.internal"], ["internal"], ["10.2.0.0/16"], ["fd00::/8"]):
        with pytest.raises(DestinationRefused):
            await Policy(allow, resolve=inner).check("https://hooks.internal/")
    with pytest.raises(DestinationRefused):
        await Policy(["10.1.0.0/16"], resolve=Names(["10.1.2.3", "10.2.0.1"])).check("https://hooks.internal/")
    assert (await Policy(["127.0.0.0/8"]).check("https://[::ffff:127.0.0.1]/")).addresses == ("::ffff:127.0.0.1",)


@pytest.mark.parametrize(
    "entry", ["", "10.1.0.1/16", "10.0.0.0/33", "*.example", "http://hooks/", "a b", "127.1", "h:80"]
)
def test_what_cannot_be_allowed(entry: str) -> None:
    with pytest.raises(ValueError, match="must be the name"):
        allowed(entry)


async def test_a_name_without_an_address() -> None:
    async def nobody(_name: str, _port: int) -> Sequence[str]:
        raise OSError("no such name")

    async def silent(_name: str, _port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    for policy in (Policy(resolve=nobody), Policy(resolve=Names([])), Policy(resolve=silent, timeout=0.01)):
        with pytest.raises(Unresolved):
            await policy.check("https://hooks.example/")


async def test_the_resolver_of_this_machine() -> None:
    with pytest.raises(DestinationRefused, match="not public"):
        await Policy().check("https://localhost/")
