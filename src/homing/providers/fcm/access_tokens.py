"""Access tokens for FCM, shared by all sends.

They are requested with a service account's key, or come from Google's default credentials.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import urlencode

import google.auth
from google.auth import jwt
from google.auth.crypt import RSASigner
from google.auth.exceptions import DefaultCredentialsError, RefreshError, TransportError
from msgspec import Struct

from homing.core.errors import ConfigError
from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import OutcomeKind
from homing.net.http_messages import HttpRequest, HttpResponse, Transport, TransportFailure
from homing.net.retry_after import parse_retry_after_ms
from homing.net.secrets import Secret
from homing.providers.common.error_tables import load_error_table
from homing.providers.common.http_provider import WallClock
from homing.providers.common.response_parsing import (
    decode_json_object,
    redacted_error_text,
)
from homing.providers.common.shared_credential import (
    FetchedCredential,
    SharedCredential,
    expiring_credential,
)
from homing.providers.common.thread_pool import ThreadPool

SCOPE = "https://www.googleapis.com/auth/firebase.messaging"

AUDIENCE = "https://oauth2.googleapis.com/token"
"""Audience of the signed claims. Google's libraries use it even if `token_uri` differs."""


_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"

_ASSERTION_S = 3600

_FETCH_MS = 10_000

_MAX_LIFETIME_MS = 3_600_000

_DEFAULT_LIFETIME_MS = 60_000

_REFRESH_EARLY_MS = 300_000
"""How long before a token expires the next one is fetched, while the old one is still in use."""

_QUOTA_PROJECT = re.compile(r"[a-zA-Z0-9_.:-]{1,100}")

_BEARER = re.compile(r"[\x21-\x7e]{1,8192}")


class AccessToken(Struct, frozen=True):
    """An access token, and the project whose quota and billing a request with it uses.

    Without a `quota_project`, Google uses the project that the credentials belong to.
    """

    bearer: Secret
    quota_project: str | None = None

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Returns the headers of a request with this token."""
        authorization = ("Authorization", f"Bearer {self.bearer.reveal()}")
        if self.quota_project is None:
            return (authorization,)
        return (authorization, ("x-goog-user-project", self.quota_project))


class ServiceAccount:
    """A service account's key file: the account's properties, and a signer."""

    def __init__(self, key: Secret) -> None:
        info = _key_file(key)
        self.project_id: str | None = info.get("project_id")
        self.token_uri: str = info.get("token_uri") or AUDIENCE
        self._email: str = info["client_email"]
        self._signer = _signer(info)

    def __repr__(self) -> str:
        return "ServiceAccount(…)"

    def assertion(self, now_ms: int) -> str:
        """Returns the signed claims with which a token is requested."""
        issued = now_ms // 1000
        claims = {
            "iat": issued,
            "exp": issued + _ASSERTION_S,
            "iss": self._email,
            "aud": AUDIENCE,
            "scope": SCOPE,
        }
        signed: bytes = jwt.encode(self._signer, claims)  # type: ignore[no-untyped-call]
        return signed.decode("ascii")


class ServiceAccountTokens:
    """Requests access tokens with a service account's key."""

    def __init__(
        self, account: ServiceAccount, transport: Transport, token_uri: str, now_ms: WallClock
    ) -> None:
        self._account = account
        self._transport = transport
        self._uri = token_uri
        self._now_ms = now_ms

    async def fetch(self) -> FetchedCredential[AccessToken] | Outcome:
        asked_at = self._now_ms()
        request = build_token_request(self._uri, self._account.assertion(asked_at))
        answer = await self._transport.send(request, timeout_ms=_FETCH_MS)
        if isinstance(answer, TransportFailure):
            error = f"the token server gave no answer: {answer.error}"
            return Outcome(OutcomeKind.TRANSIENT, error_code=answer.code, error=error)
        return read_token(answer, asked_at)

    async def close(self) -> None:
        """Does nothing: the transport is shared, and its creator closes it."""


class GoogleDefaultTokens:
    """Access tokens of Google's Application Default Credentials.

    google-auth searches for them in the environment, gcloud's files and the metadata server. Its calls block,
    so they run in a thread.
    """

    def __init__(self, now_ms: WallClock) -> None:
        try:
            from google.auth.transport import requests
        except ImportError:
            raise ConfigError("kind", "fcm needs requests: pip install 'homing[fcm]'") from None

        self._request: Any = partial(requests.Request(), timeout=_FETCH_MS / 1000)
        self._now_ms = now_ms
        self._threads: ThreadPool[Any] = ThreadPool("homing-google-auth", 1)

    async def fetch(self) -> FetchedCredential[AccessToken] | Outcome:
        try:
            call = await self._threads.run(self._search, thread_within_ms=_FETCH_MS)
            found = await call
        except Exception as error:  # files, metadata server and token server can fail in any way
            text = redacted_error_text(f"Google's default credentials: {error}") or ""
            return _refused(text) if _is_permanent(error) else _unavailable(text)
        return self._read(found.token, found.expiry, getattr(found, "quota_project_id", None))

    def _read(
        self, text: Any, expiry: datetime | None, quota_project: Any
    ) -> FetchedCredential[AccessToken] | Outcome:
        if not isinstance(text, str) or not _BEARER.fullmatch(text):
            return _unavailable("Google's default credentials have no access token")
        if quota_project is not None and not _QUOTA_PROJECT.fullmatch(str(quota_project)):
            return _refused("Google's default credentials have an invalid quota project")
        token = AccessToken(Secret(text), quota_project)
        if expiry is None:
            return FetchedCredential(token)
        now_ms = self._now_ms()
        expires_ms = int((expiry if expiry.tzinfo else expiry.replace(tzinfo=UTC)).timestamp() * 1000)
        return expiring_credential(token, now_ms, max(0, expires_ms - now_ms), _REFRESH_EARLY_MS)

    def _search(self) -> Any:
        """Blocks. Returns credentials with a new token.

        Each search starts from the beginning, because files and environment may have changed.
        """
        found, _project = google.auth.default(scopes=[SCOPE], request=self._request)
        found.refresh(self._request)  # type: ignore[no-untyped-call]
        return found

    async def close(self) -> None:
        await self._threads.close(within_ms=0)


def _is_permanent(error: Exception) -> bool:
    """Returns True unless the error is one of the network, which may pass."""
    return (
        isinstance(error, (DefaultCredentialsError, RefreshError))
        and not error.retryable
        and not isinstance(error.__cause__, TransportError)
    )


class AccessTokens:
    """Provides the current access token. It is fetched only once, however many sends wait for it."""

    def __init__(self, source: ServiceAccountTokens | GoogleDefaultTokens, now_ms: WallClock) -> None:
        self._source = source
        self._shared = SharedCredential("access token", source.fetch, _unavailable, now_ms)
        self.get = self._shared.get
        self.replace = self._shared.replace

    async def close(self) -> None:
        await self._shared.close()
        await self._source.close()


def build_token_request(uri: str, assertion: str) -> HttpRequest:
    """Returns the request for a token."""
    return HttpRequest(
        url=uri,
        body=urlencode({"grant_type": _GRANT, "assertion": assertion}).encode("ascii"),
        headers=(("Content-Type", "application/x-www-form-urlencoded"),),
    )


def read_token(answer: HttpResponse, asked_at: int) -> FetchedCredential[AccessToken] | Outcome:
    """Returns the token of a response, or the outcome of a failure.

    Never raises, whatever the response is.
    """
    fields = decode_json_object(answer.body)
    if answer.status == 200:
        return _read_granted(fields, asked_at)
    if answer.status in (408, 429) or answer.status >= 500:
        wait_ms = parse_retry_after_ms(answer.headers.get("retry-after"), asked_at)
        return _unavailable(f"the token server answered {answer.status}", wait_ms)
    words = (redacted_error_text(fields.get(name)) for name in ("error", "error_description"))
    return _refused(": ".join([f"the token server answered {answer.status}", *filter(None, words)]))


def _read_granted(fields: dict[str, Any], asked_at: int) -> FetchedCredential[AccessToken] | Outcome:
    token, lasts = fields.get("access_token"), fields.get("expires_in")
    if not isinstance(token, str) or not _BEARER.fullmatch(token):
        return _unavailable("the token server's response contains no token")
    lasts_ms = _DEFAULT_LIFETIME_MS
    if isinstance(lasts, (int, float)) and lasts > 0:
        lasts_ms = int(min(lasts * 1000, _MAX_LIFETIME_MS))
    return expiring_credential(AccessToken(Secret(token)), asked_at, lasts_ms, _REFRESH_EARLY_MS)


def _unavailable(error: str, wait_ms: int | None = None) -> Outcome:
    return load_error_table("fcm").outcome("token_unavailable", 0, error, retry_after_ms=wait_ms)


def _refused(error: str) -> Outcome:
    return load_error_table("fcm").outcome("token_refused", 0, error)


def _key_file(key: Secret) -> dict[str, Any]:
    info = decode_json_object(key.reveal())
    if not info:
        message = "is not JSON; use file:PATH with the key file that Google created"
        raise ConfigError("service_account", message)
    for name in ("client_email", "private_key"):
        if not isinstance(info.get(name), str):
            message = f"has no {name}; it must be the key file of a service account"
            raise ConfigError("service_account", message)
    return info


def _signer(info: dict[str, Any]) -> Any:
    try:
        return RSASigner.from_service_account_info(info)  # type: ignore[no-untyped-call]
    except (ValueError, TypeError):
        raise ConfigError("service_account", "has a private_key that cannot be read") from None
