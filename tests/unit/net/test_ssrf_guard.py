"""Which addresses given from outside may be connected to."""

from __future__ import annotations

import pytest

from homing.core.errors import ConfigError
from homing.net.ssrf_guard import AddressGuard, parse_networks

GUARD = AddressGuard()

CLOSED = [
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.0.1",
    "169.254.169.254",
    "169.254.0.1",
    "100.64.0.1",
    "100.127.255.254",
    "100.100.100.200",
    "192.0.0.192",
    "192.0.0.1",
    "192.0.2.1",
    "198.51.100.7",
    "203.0.113.9",
    "198.18.0.1",
    "198.19.255.255",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "168.63.129.16",
    "192.88.99.1",
    "::",
    "::1",
    "fe80::1",
    "fec0::1",
    "fc00::1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "ff02::1",
    "100::1",
    "2001:db8::1",
    "3fff::1",
    "2001::1",
    "2001:2::1",
    "2001:10::1",
    "5f00::1",
    "4000::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "::127.0.0.1",
    "::ffff:0:127.0.0.1",
    "::ffff:0:192.168.1.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b::10.0.0.1",
    "64:ff9b:1::8.8.8.8",
    "2002:7f00:1::",
    "2002:c0a8:101::",
    "2002:a9fe:a9fe::1",
    "nonsense",
    "1.2.3",
    "1.2.3.4.5",
]

OPEN = [
    "8.8.8.8",
    "1.1.1.1",
    "100.63.255.255",
    "100.128.0.1",
    "172.15.255.255",
    "172.32.0.1",
    "192.0.1.1",
    "198.17.255.255",
    "198.20.0.1",
    "11.0.0.1",
    "223.255.255.255",
    "2606:4700:4700::1111",
    "2a00:1450:4001::1",
    "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",
    "2002:808:808::1",
]


@pytest.mark.parametrize("address", CLOSED)
def test_a_non_public_address_is_refused(address: str) -> None:
    assert not GUARD.allows(address, 443)


@pytest.mark.parametrize("address", OPEN)
def test_a_public_address_is_allowed(address: str) -> None:
    assert GUARD.allows(address, 443)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/",
        "ftp://example.org/",
        "//example.org/",
        "https:///path",
        "https://",
        "https://user@example.org/",
        "https://user:word@example.org/",
        "https://@example.org/",
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[fe80::1%25eth0]/",
        "https://[fe80::1%eth0]/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0x7f.0.0.1/",
        "https://0177.0.0.1/",
        "https://127.1/",
        "https://127.0.0.1./",
        "https://1.1.1.0x1/",
        "https://169.254.169.254/latest/meta-data/",
        "https://exa_mple..org/",
        "https://example.org:22/",
        "https://example.org:25/",
        "https://example.org:99999/",
        "https://example.org:/",
        "https://①②⑦.⓪.⓪.①/",
        "https://[::1/",
    ],
)
def test_obviously_wrong_urls_are_refused_with_a_reason(url: str) -> None:
    assert GUARD.refusal(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/hook?x=1",
        "https://EXAMPLE.org./",
        "https://example.org:8443/",
        "https://8.8.8.8/",
        "https://[2606:4700:4700::1111]:443/",
        "https://localhost.example.org/",
        "https://xn--bcher-kva.example/",
        "https://hooks_1.example.org/",
    ],
)
def test_common_urls_are_accepted(url: str) -> None:
    assert GUARD.refusal(url) is None


def test_networks_http_and_ports_can_be_allowed() -> None:
    guard = AddressGuard(networks=parse_networks(["10.1.0.0/16", "::1/128"], "x"), http=True, ports=(8080,))
    assert guard.refusal("http://10.1.2.3:8080/") is None
    assert guard.allows("10.1.2.3", 8080)
    assert guard.allows("::1", 8080)
    assert guard.allows("::ffff:10.1.2.3", 8080)
    assert not guard.allows("10.2.0.1", 8080)
    assert not guard.allows("10.1.2.3", 443)
    assert guard.refusal("http://10.1.2.3/")
    assert guard.refusal("gopher://10.1.2.3:8080/")
    assert guard.refusal("http://0x0a010203:8080/"), "an odd form stays odd wherever it leads"


def test_an_invalid_network_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match=r"http\.allow_networks: contains 'intranet'; use networks like"):
        parse_networks(["intranet"], "http.allow_networks")
