"""Guards against server-side request forgery (SSRF): decides where a URL from outside may lead.

This module resolves no names. It first checks the text of a URL. The check of the resolved address is the
decisive one: the transport runs it when a connection is opened, and again for every request over a pooled
connection. A name that later resolves to another address is therefore rejected as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from msgspec import Struct

from homing.core.errors import ConfigError

Network = IPv4Network | IPv6Network


_CLOSED_V4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network, unspecified
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT, some metadata services
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's platform address
        "169.254.0.0/16",  # link-local, metadata services
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments, some metadata services
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarking
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)

_OPEN_V6 = IPv6Network("2000::/3")

_CLOSED_V6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments: Teredo, ORCHID, benchmarking
        "2001:db8::/32",  # documentation
        "3fff::/20",  # documentation
    )
)

_CARRIES_V4 = tuple(
    (IPv6Network(network), shift)
    for network, shift in (
        ("::ffff:0:0/96", 0),  # mapped
        ("::ffff:0:0:0/96", 0),  # translated (SIIT)
        ("64:ff9b::/96", 0),  # NAT64
        ("2002::/16", 80),  # 6to4
    )
)
"""IPv6 networks that embed an IPv4 address, and the number of bits to the right of that address."""


_NAME = re.compile(
    r"(?=.{1,253}\.?\Z)(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_-]{1,63}\.?", re.IGNORECASE
)

_LOOKS_NUMERIC = re.compile(r"(?:.*\.)?(?:0x[0-9a-f]*|\d+)\.?", re.IGNORECASE)

_USUAL_PORTS = (80, 443)


class AddressGuard(Struct, frozen=True, kw_only=True):
    """The rules for URLs and addresses that come from outside, and the exceptions to these rules."""

    networks: tuple[Network, ...] = ()
    """Networks that are allowed although they are not public, for tests and private installations."""
    http: bool = False
    """True if URLs without TLS are allowed."""
    ports: tuple[int, ...] = ()
    """The only allowed ports. If empty, 80, 443 and all ports from 1024 on are allowed."""

    def refusal(self, url: str) -> str | None:
        """Returns why this URL is not allowed, judging by its text alone, or None if it is allowed."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            return "it is not a URL"
        if parts.scheme != "https" and not (parts.scheme == "http" and self.http):
            return "it must start with https://"
        if not host or parts.netloc.endswith(":"):
            return "it has no host"
        if "@" in parts.netloc:
            return "it contains a user name or password"
        if not self._port_open(port or (443 if parts.scheme == "https" else 80)):
            return f"port {port} is not allowed"
        return self._host_refusal(host)

    def allows(self, address: str, port: int) -> bool:
        """Returns True if connecting to this resolved address is allowed."""
        try:
            found = ip_address(address)
        except ValueError:
            return False
        return self._port_open(port) and self._address_open(found)

    def _host_refusal(self, host: str) -> str | None:
        if "%" in host:
            return "its address has a zone index"
        try:
            literal = ip_address(host)
        except ValueError:
            odd = _LOOKS_NUMERIC.fullmatch(host) or not _NAME.fullmatch(host)
            return "its host is neither a name nor an address in the usual notation" if odd else None
        return None if self._address_open(literal) else "its address is not public"

    def _port_open(self, port: int) -> bool:
        return port in self.ports if self.ports else port in _USUAL_PORTS or port >= 1024

    def _address_open(self, address: IPv4Address | IPv6Address) -> bool:
        if any(address.version == network.version and address in network for network in self.networks):
            return True
        if isinstance(address, IPv4Address):
            return not any(address in network for network in _CLOSED_V4)
        for network, shift in _CARRIES_V4:
            if address in network:
                return self._address_open(IPv4Address((int(address) >> shift) & 0xFFFFFFFF))
        return address in _OPEN_V6 and not any(address in network for network in _CLOSED_V6)


_ORIGIN = re.compile(r"[^:/?#]*://[^/?#]*")

_CACHE_SIZE = 4_096


class CachedAddressGuard:
    """A guard with a cache, because the same hosts and addresses are used again and again."""

    def __init__(self, guard: AddressGuard) -> None:
        self._refusal = lru_cache(_CACHE_SIZE)(guard.refusal)
        self.allows: Callable[[str, int], bool] = lru_cache(_CACHE_SIZE)(guard.allows)

    def refusal(self, url: str) -> str | None:
        """Returns why the URL is not allowed, or None if it is allowed. Only scheme, host and port matter."""
        origin = _ORIGIN.match(url)
        return self._refusal(origin[0] if origin else url)


def parse_networks(names: Iterable[str], where: str) -> tuple[Network, ...]:
    """Parses networks from the settings, such as `10.0.0.0/8` or a single address."""
    found: list[Network] = []
    for name in names:
        try:
            found.append(ip_network(name))
        except ValueError:
            raise ConfigError(where, f"contains {name!r}; use networks like 10.0.0.0/8 or fd00::/8") from None
    return tuple(found)
