"""Firebase Cloud Messaging, HTTP v1: push messages to Android, Apple devices and browsers."""

from __future__ import annotations

import re
from collections.abc import Callable
from os import environ
from time import monotonic

from msgspec.structs import replace

from homing.core.errors import ConfigError
from homing.core.lifecycle.outcomes import Outcome
from homing.core.lifecycle.receipts import Callback, ParsedCallback
from homing.core.ports.providers import Delivery
from homing.net.endpoint_settings import check_base_url
from homing.net.http_messages import (
    HttpRequest,
    HttpResponse,
    Transport,
    TransportFailure,
    transport_failure_outcome,
)
from homing.net.secrets import Secret, SecretSetting, read_secret
from homing.providers.common.http_provider import (
    CheckFailed,
    HttpProvider,
    Unsendable,
    WallClock,
    wall_clock_ms,
)
from homing.providers.common.push_content import check_collapse, check_ttl_seconds
from homing.providers.fcm import answers
from homing.providers.fcm.access_tokens import (
    AccessToken,
    AccessTokens,
    GoogleDefaultTokens,
    ServiceAccount,
    ServiceAccountTokens,
)
from homing.providers.fcm.callbacks import FcmCallbacks
from homing.providers.fcm.message import FcmMessageBuilder, JsonTable

_PROJECT = re.compile(r"[a-z0-9.:-]{1,100}")


class FcmProvider(HttpProvider):
    """Sends to a registration token or a Firebase installation id. See docs/reference/providers/fcm.md."""

    channels = ("push",)

    def __init__(
        self,
        transport: Transport,
        *,
        service_account: str | Secret = "",
        project_id: str = "",
        base_url: str = "https://fcm.googleapis.com",
        token_uri: str = "",
        target: str = "token",
        ttl_seconds: int | None = None,
        collapse: str = "none",
        image_key: str = "image",
        validate_only: bool = False,
        android: JsonTable | None = None,
        apns: JsonTable | None = None,
        webpush: JsonTable | None = None,
        fcm_options: JsonTable | None = None,
        callback_secret: SecretSetting = (),
        now_ms: WallClock = wall_clock_ms,
    ) -> None:
        super().__init__(transport, now_ms)
        source, project = _token_source(service_account, project_id, token_uri, transport, now_ms)
        if target not in ("token", "fid"):
            raise ConfigError("target", f"is {target!r}; use token or fid")
        origin = check_base_url(base_url)
        self._url = f"{origin}/v1/projects/{project}/messages:send"
        self._check_url = f"{origin}/"
        self._tokens = AccessTokens(source, now_ms)
        self._messages = FcmMessageBuilder(
            target=target,
            image_key=image_key,
            collapse=check_collapse(collapse),
            ttl_seconds=None if ttl_seconds is None else check_ttl_seconds(ttl_seconds),
            validate_only=validate_only,
            android=android,
            apns=apns,
            webpush=webpush,
            fcm_options=fcm_options,
        )
        self._callbacks = FcmCallbacks(project, callback_secret)

    def build(self, delivery: Delivery, now_ms: int) -> HttpRequest:
        """Builds the request without its access token, which `send` adds."""
        return HttpRequest(
            url=self._url,
            body=self._messages.body(delivery, now_ms),
            headers=(("Content-Type", "application/json"),),
        )

    def classify(self, answer: HttpResponse, now_ms: int) -> Outcome:
        return answers.classify(answer, now_ms)

    def handle_callback(self, callback: Callback, now_ms: int) -> ParsedCallback:
        """Verifies and reads an app's report about a message."""
        return self._callbacks.handle_callback(callback, now_ms)

    async def send(self, delivery: Delivery) -> Outcome:
        left_ms = _countdown(delivery.timeout_ms)
        try:
            request = self.build(delivery, self._now_ms())
        except Unsendable as refusal:
            return refusal.outcome
        # At most half of the time goes to the token: a timeout while waiting for it is never ambiguous.
        token = await self._tokens.get(left_ms() // 2)
        if isinstance(token, Outcome):
            return token
        answer = await self._transport.send(_authorized(request, token), timeout_ms=left_ms())
        if isinstance(answer, HttpResponse) and answers.is_token_rejected(answer):
            token = await self._tokens.replace(token, left_ms() // 2)
            if isinstance(token, Outcome):
                return token
            answer = await self._transport.send(_authorized(request, token), timeout_ms=left_ms())
        if isinstance(answer, TransportFailure):
            return transport_failure_outcome(answer)
        return self.classify(answer, self._now_ms())

    async def examine(self) -> None:
        """Checks that an access token is available and that FCM answers."""
        token = await self._tokens.get(5_000)
        if isinstance(token, Outcome):
            raise CheckFailed.of(token, "access token")
        await super().examine()

    def check_request(self) -> HttpRequest:
        return HttpRequest(url=self._check_url, method="GET")

    def is_up(self, answer: HttpResponse) -> bool:
        """Returns True for any status below 500. FCM answers the checked URL with 404 even if all is well."""
        return answer.status < 500

    async def close(self) -> None:
        await self._tokens.close()


def _token_source(
    service_account: str | Secret, project_id: str, token_uri: str, transport: Transport, now_ms: WallClock
) -> tuple[ServiceAccountTokens | GoogleDefaultTokens, str]:
    """Returns where access tokens come from, and the project."""
    if service_account:
        account = ServiceAccount(read_secret("service_account", service_account))
        uri = check_base_url(token_uri or account.token_uri, "token_uri")
        project = _check_project(project_id or account.project_id or "")
        return ServiceAccountTokens(account, transport, uri, now_ms), project
    if token_uri:
        raise ConfigError("token_uri", "is used only with service_account")
    project = project_id or environ.get("GOOGLE_CLOUD_PROJECT", "")
    if not project:
        raise ConfigError(
            "service_account", "is missing; to use Google's default credentials, set project_id instead"
        )
    return GoogleDefaultTokens(now_ms), _check_project(project)


def _check_project(project: str) -> str:
    if not _PROJECT.fullmatch(project):
        raise ConfigError(
            "project_id", "must be a Firebase project id; omit it only if the key file contains one"
        )
    return project


def _authorized(request: HttpRequest, token: AccessToken) -> HttpRequest:
    return replace(request, headers=(*request.headers, *token.headers()))


def _countdown(total_ms: int) -> Callable[[], int]:
    """Returns a function that returns how many milliseconds are left, at least 1."""
    ends_at = monotonic() + total_ms / 1000
    return lambda: max(1, int((ends_at - monotonic()) * 1000))
