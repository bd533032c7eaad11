"""Firebase Cloud Messaging, HTTP v1: push messages to Android, Apple devices and browsers."""

from __future__ import annotations

import re
from collections.abc import Callable
from time import monotonic

from msgspec.structs import replace

from homing.core.callbacks import Callback, Heard
from homing.core.errors import ConfigError
from homing.core.model import Outcome
from homing.core.ports import Delivery
from homing.providers import fcm_answers
from homing.providers.base_url import checked_base_url
from homing.providers.fcm_callbacks import FcmCallbacks, Secrets
from homing.providers.fcm_message import FcmMessages, Table
from homing.providers.fcm_token import AccessTokens, ServiceAccount
from homing.providers.http import Answer, Failure, Request, Transport, outcome_of
from homing.providers.push import checked_collapse, checked_ttl
from homing.providers.secret import Secret, secret
from homing.providers.wire import HttpProvider, NowMs, Unsendable, inside, wall_clock_ms

_PROJECT = re.compile(r"[a-z0-9.:-]{1,100}")


class FcmProvider(HttpProvider):
    """Sends to a registration token or a Firebase installation id. See docs/reference/providers/fcm.md."""

    channels = ("push",)

    def __init__(
        self,
        transport: Transport,
        *,
        service_account: str | Secret,
        project_id: str = "",
        base_url: str = "https://fcm.googleapis.com",
        token_uri: str = "",
        target: str = "token",
        ttl_seconds: int | None = None,
        collapse: str = "none",
        image_key: str = "image",
        validate_only: bool = False,
        android: Table | None = None,
        apns: Table | None = None,
        webpush: Table | None = None,
        fcm_options: Table | None = None,
        callback_secret: Secrets = (),
        now_ms: NowMs = wall_clock_ms,
    ) -> None:
        super().__init__(transport, now_ms)
        account = ServiceAccount(secret("service_account", service_account))
        project = project_id or account.project_id or ""
        if not _PROJECT.fullmatch(project):
            raise ConfigError(
                "project_id", "must be a Firebase project id, because the key file contains none"
            )
        if target not in ("token", "fid"):
            raise ConfigError("target", f"is {target!r}; use token or fid")
        origin = checked_base_url(base_url)
        self._url = f"{origin}/v1/projects/{project}/messages:send"
        self._check_url = f"{origin}/"
        token_uri = checked_base_url(token_uri or account.token_uri, "token_uri")
        self._tokens = AccessTokens(account, transport, token_uri, now_ms)
        self._messages = FcmMessages(
            target=target,
            image_key=image_key,
            collapse=checked_collapse(collapse),
            ttl_seconds=None if ttl_seconds is None else checked_ttl(ttl_seconds),
            validate_only=validate_only,
            android=android,
            apns=apns,
            webpush=webpush,
            fcm_options=fcm_options,
        )
        self._callbacks = FcmCallbacks(project, callback_secret)

    def build(self, delivery: Delivery, now_ms: int) -> Request:
        """Builds the request without its access token, which `send` adds."""
        return Request(
            url=self._url,
            body=self._messages.body(delivery, now_ms),
            headers=(("Content-Type", "application/json"),),
        )

    def classify(self, answer: Answer, now_ms: int) -> Outcome:
        return fcm_answers.classify(answer, now_ms)

    def hear(self, callback: Callback, now_ms: int) -> Heard:
        """Verifies and reads an app's report about a message."""
        return self._callbacks.hear(callback, now_ms)

    async def send(self, delivery: Delivery) -> Outcome:
        left_ms = _countdown(inside(delivery.timeout_ms))
        try:
            request = self.build(delivery, self._now_ms())
        except Unsendable as refusal:
            return refusal.outcome
        # At most half of the time goes to the token: a timeout while waiting for it is never ambiguous.
        token = await self._tokens.get(left_ms() // 2)
        if isinstance(token, Outcome):
            return token
        answer = await self._transport.send(_authorized(request, token), timeout_ms=left_ms())
        if isinstance(answer, Answer) and fcm_answers.wants_a_new_token(answer):
            token = await self._tokens.replace(token, left_ms() // 2)
            if isinstance(token, Outcome):
                return token
            answer = await self._transport.send(_authorized(request, token), timeout_ms=left_ms())
        if isinstance(answer, Failure):
            return outcome_of(answer)
        return self.classify(answer, self._now_ms())

    async def check(self) -> bool:
        """Returns True if an access token is available and FCM answers."""
        if isinstance(await self._tokens.get(5_000), Outcome):
            return False
        return await super().check()

    def check_request(self) -> Request:
        return Request(url=self._check_url, method="GET")

    def is_up(self, answer: Answer) -> bool:
        """Returns True for any status below 500: a 404 also comes from FCM, as that URL has no content."""
        return answer.status < 500

    async def close(self) -> None:
        await self._tokens.close()


def _authorized(request: Request, token: Secret) -> Request:
    return replace(request, headers=(*request.headers, ("Authorization", f"Bearer {token.reveal()}")))


def _countdown(total_ms: int) -> Callable[[], int]:
    """Returns a function that returns how many milliseconds are left, at least 1."""
    ends_at = monotonic() + total_ms / 1000
    return lambda: max(1, int((ends_at - monotonic()) * 1000))
