"""Access tokens for FCM: requested with the service account's key and shared by all sends."""

from __future__ import annotations

import asyncio
import re
from typing import Any
from urllib.parse import urlencode

from google.auth import jwt
from google.auth.crypt import RSASigner
from msgspec import Struct

from homing.core.errors import ConfigError
from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import OutcomeKind
from homing.net.http_messages import HttpRequest, HttpResponse, Transport, TransportFailure
from homing.providers.common.error_tables import load_error_table
from homing.providers.common.http_provider import WallClock
from homing.providers.common.response_parsing import (
    decode_json_object,
    parse_retry_after_ms,
    redacted_error_text,
)
from homing.providers.common.secrets import Secret

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

_RETRY_PAUSE_MS = 10_000

_BEARER = re.compile(r"[\x21-\x7e]{1,8192}")


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


class _CachedToken(Struct, frozen=True):
    """An access token and when, in epoch milliseconds, to refresh it and to stop using it."""

    token: Secret
    refresh_at: int
    useless_at: int


class AccessTokens:
    """Provides the current access token. It is fetched only once, however many sends wait for it."""

    def __init__(
        self, account: ServiceAccount, transport: Transport, token_uri: str, now_ms: WallClock
    ) -> None:
        self._account = account
        self._transport = transport
        self._uri = token_uri
        self._now_ms = now_ms
        self._current: _CachedToken | None = None
        self._fetching: asyncio.Task[Outcome | None] | None = None
        self._next_try_at = 0

    async def get(self, within_ms: int) -> Secret | Outcome:
        """Returns a token that is not about to expire, or the attempt's outcome if no token is available.

        The outcome is never ambiguous, because no message was sent yet.
        """
        current, now = self._current, self._now_ms()
        if current is None or now >= current.useless_at:
            return await self._fetch_and_wait(within_ms)
        if now >= current.refresh_at and now >= self._next_try_at:
            self._next_try_at = now + _RETRY_PAUSE_MS
            self._fetch_once()
        return current.token

    async def replace(self, refused: Secret, within_ms: int) -> Secret | Outcome:
        """Returns a token other than the rejected one. Another send may already have fetched it."""
        if self._current is not None and self._current.token is not refused:
            return self._current.token
        self._current = None
        return await self._fetch_and_wait(within_ms)

    async def close(self) -> None:
        """Cancels the fetch in progress, if any."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait({self._fetching})

    async def _fetch_and_wait(self, within_ms: int) -> Secret | Outcome:
        task = self._fetch_once()
        # A send that stops waiting does not cancel the fetch, because others may wait for it.
        await asyncio.wait({task}, timeout=within_ms / 1000)
        if not task.done() or task.cancelled():
            return _unavailable(f"no access token within {within_ms} ms")
        failure = task.result()
        if failure is not None:
            return failure
        return (
            self._current.token
            if self._current is not None
            else _unavailable("the access token was rejected")
        )

    def _fetch_once(self) -> asyncio.Task[Outcome | None]:
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.get_running_loop().create_task(self._fetch())
        return self._fetching

    async def _fetch(self) -> Outcome | None:
        asked_at = self._now_ms()
        request = build_token_request(self._uri, self._account.assertion(asked_at))
        answer = await self._transport.send(request, timeout_ms=_FETCH_MS)
        if isinstance(answer, TransportFailure):
            error = f"the token server gave no answer: {answer.error}"
            return Outcome(OutcomeKind.TRANSIENT, error_code=answer.code, error=error)
        found = read_token(answer, asked_at)
        if isinstance(found, Outcome):
            return found
        self._current = found
        return None


def build_token_request(uri: str, assertion: str) -> HttpRequest:
    """Returns the request for a token."""
    return HttpRequest(
        url=uri,
        body=urlencode({"grant_type": _GRANT, "assertion": assertion}).encode("ascii"),
        headers=(("Content-Type", "application/x-www-form-urlencoded"),),
    )


def read_token(answer: HttpResponse, asked_at: int) -> _CachedToken | Outcome:
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


def _read_granted(fields: dict[str, Any], asked_at: int) -> _CachedToken | Outcome:
    token, lasts = fields.get("access_token"), fields.get("expires_in")
    if not isinstance(token, str) or not _BEARER.fullmatch(token):
        return _unavailable("the token server's response contains no token")
    lasts_ms = _DEFAULT_LIFETIME_MS
    if isinstance(lasts, (int, float)) and lasts > 0:
        lasts_ms = int(min(lasts * 1000, _MAX_LIFETIME_MS))
    return _CachedToken(
        Secret(token),
        refresh_at=asked_at + lasts_ms - min(_REFRESH_EARLY_MS, lasts_ms // 4),
        useless_at=asked_at + lasts_ms - min(_RETRY_PAUSE_MS, lasts_ms // 10),
    )


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
