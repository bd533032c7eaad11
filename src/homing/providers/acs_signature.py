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

_DEFAULT_PORT = {"https": 443, "http": 80}


class AcsSigner:
    """Signs requests to one endpoint.

    The key is decoded once; each request gets its own date and signature.
    """

    def __init__(self, access_key: str, host: str) -> None:
        try:
            self._key = b64decode(access_key, validate=True)
        except (NotBase64, ValueError):
            message = "is not valid base64; copy the key as the portal shows it"
            raise ConfigError("access_key", message) from None
        self._host = host

    def headers(self, method: str, target: str, body: bytes, now_ms: int) -> Headers:
        """Returns the signature headers. `target` is the path with its query, as in the request line."""
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
    """Returns the Host header for this URL, which includes the port unless it is the default one."""
    parts = urlsplit(base_url)
    host, port = parts.hostname or "", parts.port
    shown = f"[{host}]" if ":" in host else host
    return shown if port in (None, _DEFAULT_PORT[parts.scheme]) else f"{shown}:{port}"
