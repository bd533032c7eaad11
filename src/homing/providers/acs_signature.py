"""The access-key signature of Azure Communication Services (HMAC-SHA256)."""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from email.utils import formatdate
from hashlib import sha256
from urllib.parse import urlsplit

from homing.core.errors import ConfigError
from homing.providers.http import Headers

_USUAL_PORT = {"https": 443, "http": 80}


class AcsSigner:
    """Signs requests to one endpoint. The key is decoded once; each request is dated and signed anew."""

    def __init__(self, access_key: str, host: str) -> None:
        try:
            self._key = b64decode(access_key, validate=True)
        except (NotBase64, ValueError):
            raise ConfigError("access_key", "is not base64; copy the key as the portal shows it") from None
        self._host = host

    def headers(self, method: str, target: str, body: bytes, now_ms: int) -> Headers:
        """`target` is the path with its query, as it stands in the request line."""
        date = formatdate(now_ms // 1000, usegmt=True)
        digest = b64encode(sha256(body).digest()).decode()
        signed = f"{method}\n{target}\n{date};{self._host};{digest}"
        signature = b64encode(hmac.digest(self._key, signed.encode(), "sha256")).decode()
        return (
            ("x-ms-date", date),
            ("x-ms-content-sha256", digest),
            (
                "Authorization",
                f"HMAC-SHA256 SignedHeaders=x-ms-date;host;x-ms-content-sha256&Signature={signature}",
            ),
        )


def signed_host(base_url: str) -> str:
    """The Host header of requests to it: with its port, unless that is the usual one."""
    parts = urlsplit(base_url)
    host, port = parts.hostname or "", parts.port
    shown = f"[{host}]" if ":" in host else host
    return shown if port in (None, _USUAL_PORT[parts.scheme]) else f"{shown}:{port}"
