"""Settings of the HTTP client. Settings can be loaded without the client, which needs libcurl."""

from __future__ import annotations

from msgspec import Struct

from homing.core.bounds import PositiveCount, PositiveDurationMs


class HttpSettings(Struct, frozen=True, kw_only=True):
    """Settings of the HTTP client that all providers share."""

    connect_timeout_ms: PositiveDurationMs = 5_000
    max_connections: PositiveCount = 512
    max_host_connections: PositiveCount = 128
    ca_file: str = ""
    """File with certificates that replace the system's. If empty, the system's are used."""
    allow_networks: tuple[str, ...] = ()
    """Networks that webhooks may connect to although they are not public."""
    allow_http: bool = False
    """True if webhooks may use URLs without TLS."""
    allow_ports: tuple[int, ...] = ()
    """The only ports that webhooks may connect to. If empty, 80, 443 and all ports from 1024 on."""
