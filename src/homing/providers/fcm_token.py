"""Access tokens for FCM: signed for with the service account's key, fetched once, shared by all sends."""

from __future__ import annotations

import asyncio
import re
from typing import Any
from urllib.parse import urlencode

from google.auth import jwt
from google.auth.crypt import RSASigner
from msgspec import Struct

from homing.core.errors import ConfigError
from homing.core.model import Outcome, OutcomeKind
from homing.providers.answers import error_table
from homing.providers.http import Answer, Failure, Request, Transport
from homing.providers.reading import error_text, json_object
from homing.providers.retry_after import retry_after_ms
from homing.providers.secret import Secret
from homing.providers.wire import NowMs

SCOPE = "https://www.googleapis.com/auth/firebase.messaging"
AUDIENCE = "https://oauth2.googleapis.com/token"
"""Google's libraries write it wherever `token_uri` points to."""

_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_ASSERTION_S = 3600
_FETCH_MS = 10_000
_LONGEST_MS = 3_600_000
_USUAL_MS = 60_000
_EARLY_MS = 300_000
"""So long before a token's end the next one is fetched, while the old one still serves."""
_PAUSE_MS = 10_000
_BEARER = re.compile(r"[\x21-\x7e]{1,8192}")


class ServiceAccount:
    """A service account's key: what it may say about itself, and a signer."""

    def __init__(self, key: Secret) -> None:
        info = _key_file(key)
        self.project_id: str | None = info.get("project_id")
        self.token_uri: str = info.get("token_uri") or AUDIENCE
        self._email: str = info["client_email"]
        self._signer = _signer(info)

    def __repr__(self) -> str:
        return "ServiceAccount(…)"

    def assertion(self, now_ms: int) -> str:
        """The signed claim that a token is asked for with."""
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


class _Held(Struct, frozen=True):
    token: Secret
    refresh_at: int
    useless_at: int


class AccessTokens:
    """The current access token. However many sends wait for one, it is asked for once."""

    def __init__(self, account: ServiceAccount, transport: Transport, token_uri: str, now_ms: NowMs) -> None:
        self._account = account
        self._transport = transport
        self._uri = token_uri
        self._now_ms = now_ms
        self._held: _Held | None = None
        self._fetching: asyncio.Task[Outcome | None] | None = None
        self._next_try_at = 0

    async def get(self, within_ms: int) -> Secret | Outcome:
        """A token that is good for a while, or why there is none. No message was written: never ambiguous."""
        held, now = self._held, self._now_ms()
        if held is None or now >= held.useless_at:
            return await self._fetched(within_ms)
        if now >= held.refresh_at and now >= self._next_try_at:
            self._next_try_at = now + _PAUSE_MS
            self._fetch_once()
        return held.token

    async def replace(self, refused: Secret, within_ms: int) -> Secret | Outcome:
        """Another token than the one that was refused. One that came meanwhile will do."""
        if self._held is not None and self._held.token is not refused:
            return self._held.token
        self._held = None
        return await self._fetched(within_ms)

    async def close(self) -> None:
        """Gives up what is under way."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait({self._fetching})

    async def _fetched(self, within_ms: int) -> Secret | Outcome:
        task = self._fetch_once()
        # A send that gives up leaves the fetch to the others.
        await asyncio.wait({task}, timeout=within_ms / 1000)
        if not task.done() or task.cancelled():
            return _unavailable(f"no access token within {within_ms} ms")
        failure = task.result()
        if failure is not None:
            return failure
        return self._held.token if self._held is not None else _unavailable("the access token was refused")

    def _fetch_once(self) -> asyncio.Task[Outcome | None]:
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.get_running_loop().create_task(self._fetch())
        return self._fetching

    async def _fetch(self) -> Outcome | None:
        asked_at = self._now_ms()
        request = token_request(self._uri, self._account.assertion(asked_at))
        answer = await self._transport.send(request, timeout_ms=_FETCH_MS)
        if isinstance(answer, Failure):
            error = f"the token server gave no answer: {answer.error}"
            return Outcome(OutcomeKind.TRANSIENT, error_code=answer.code, error=error)
        found = read_token(answer, asked_at)
        if isinstance(found, Outcome):
            return found
        self._held = found
        return None


def token_request(uri: str, assertion: str) -> Request:
    """What a token is asked for with."""
    return Request(
        url=uri,
        body=urlencode({"grant_type": _GRANT, "assertion": assertion}).encode("ascii"),
        headers=(("Content-Type", "application/x-www-form-urlencoded"),),
    )


def read_token(answer: Answer, asked_at: int) -> _Held | Outcome:
    """The token of an answer, or what became of the question. Any bytes at all: never raises."""
    fields = json_object(answer.body)
    if answer.status == 200:
        return _granted(fields, asked_at)
    if answer.status in (408, 429) or answer.status >= 500:
        wait_ms = retry_after_ms(answer.headers.get("retry-after"), asked_at)
        return _unavailable(f"the token server answered {answer.status}", wait_ms)
    words = (error_text(fields.get(name)) for name in ("error", "error_description"))
    return _refused(": ".join([f"the token server answered {answer.status}", *filter(None, words)]))


def _granted(fields: dict[str, Any], asked_at: int) -> _Held | Outcome:
    token, lasts = fields.get("access_token"), fields.get("expires_in")
    if not isinstance(token, str) or not _BEARER.fullmatch(token):
        return _unavailable("the token server's answer has no token in it")
    lasts_ms = _USUAL_MS
    if isinstance(lasts, (int, float)) and lasts > 0:
        lasts_ms = int(min(lasts * 1000, _LONGEST_MS))
    return _Held(
        Secret(token),
        refresh_at=asked_at + lasts_ms - min(_EARLY_MS, lasts_ms // 4),
        useless_at=asked_at + lasts_ms - min(_PAUSE_MS, lasts_ms // 10),
    )


def _unavailable(error: str, wait_ms: int | None = None) -> Outcome:
    return error_table("fcm").outcome("token_unavailable", 0, error, retry_after_ms=wait_ms)


def _refused(error: str) -> Outcome:
    return error_table("fcm").outcome("token_refused", 0, error)


def _key_file(key: Secret) -> dict[str, Any]:
    info = json_object(key.reveal())
    if not info:
        raise ConfigError("service_account", "is not JSON; give file:PATH of the key file that Google made")
    for name in ("client_email", "private_key"):
        if not isinstance(info.get(name), str):
            raise ConfigError("service_account", f"has no {name}; is it the key file of a service account?")
    return info


def _signer(info: dict[str, Any]) -> Any:
    try:
        return RSASigner.from_service_account_info(info)  # type: ignore[no-untyped-call]
    except (ValueError, TypeError):
        raise ConfigError("service_account", "has a private_key that cannot be read") from None
