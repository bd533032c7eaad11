"""Signature Version 4 by botocore, with the derived signing key cached for a day."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from botocore.auth import SigV4Auth  # type: ignore[import-untyped]

from homing.net.http_messages import Headers
from homing.providers.common.error_tables import build_refusal
from homing.providers.sns.credentials import AwsCredentialSource


class SigV4Signer:
    """Signs requests to one service in one region."""

    def __init__(self, keys: AwsCredentialSource, service: str, region: str) -> None:
        self._keys = keys
        self._service, self._region = service, region
        self._auth: _DailyKeyAuth | None = None

    def sign(self, method: str, url: str, body: bytes, headers: Headers, now_ms: int) -> Headers:
        """Returns the headers plus date, session token and signature.

        Raises `Unsendable` if there are no credentials.
        """
        credentials = self._keys.credentials
        if credentials is None:
            raise build_refusal("sns", "credentials_unavailable")
        if self._auth is None or self._auth.credentials is not credentials:
            self._auth = _DailyKeyAuth(credentials, self._service, self._region)
        auth, token = self._auth, credentials.token
        stamp = datetime.fromtimestamp(now_ms // 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
        dated = {**dict(headers), "X-Amz-Date": stamp, **({"X-Amz-Security-Token": token} if token else {})}
        request = _Signable(method, url, body, dated, stamp)
        to_sign = auth.string_to_sign(request, auth.canonical_request(request))
        names = auth.signed_headers(auth.headers_to_sign(request))
        signature = auth.signature(to_sign, request)
        authorization = (
            f"AWS4-HMAC-SHA256 Credential={auth.scope(request)}, SignedHeaders={names}, Signature={signature}"
        )
        return (*dated.items(), ("Authorization", authorization))


class _Signable:
    """The parts of a request that botocore reads.

    botocore's `AWSRequest` would be prepared again for each body.
    """

    __slots__ = ("body", "context", "headers", "method", "params", "url")

    def __init__(self, method: str, url: str, body: bytes, headers: Mapping[str, str], stamp: str) -> None:
        self.method, self.url, self.body, self.headers = method, url, body, headers
        self.params: Mapping[str, str] = {}
        self.context: dict[str, Any] = {"timestamp": stamp}


class _DailyKeyAuth(SigV4Auth):  # type: ignore[misc]
    """botocore's signer with a cached key. The original derives the key again for each request."""

    _day = ""
    _key = b""

    def signature(self, string_to_sign: str, request: _Signable) -> str:
        day = request.context["timestamp"][:8]
        if day != self._day:
            key = f"AWS4{self.credentials.secret_key}".encode()
            for part in (day, self._region_name, self._service_name, "aws4_request"):
                key = self._sign(key, part)
            self._day, self._key = day, key
        signature: str = self._sign(self._key, string_to_sign, hex=True)
        return signature
