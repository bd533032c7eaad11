"""Firebase Cloud Messaging, HTTP v1: push to Android, Apple devices and browsers."""

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
            raise ConfigError("project_id", "is not a Firebase project's id; the key file has none either")
        if target not in ("token", "fid"):
            raise ConfigError("target", f"is {target!r}; allowed are token, fid")
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
        """The request but for its access token, which only a send has."""
        return Request(
            url=self._url,
            body=self._messages.body(delivery, now_ms),
            headers=(("Content-Type", "application/json"),),
        )

    def classify(self, answer: Answer, now_ms: int) -> Outcome:
        return fcm_answers.classify(answer, now_ms)

    def hear(self, callback: Callback, now_ms: int) -> Heard:
        """An app's report of what it got."""
        return self._callbacks.hear(callback, now_ms)

    async def send(self, delivery: Delivery) -> Outcome:
        left_ms = _countdown(inside(delivery.timeout_ms))
        try:
            request = self.build(delivery, self._now_ms())
        except Unsendable as refusal:
            return refusal.outcome
        # Half of the time at most for a token: what ends while it waits was certainly not sent.
        token = await self._tokens.get(left_ms() // 2)
        if isinstance(token, Outcome):
            return token
        answer = await self._transport.send(_authorised(request, token), timeout_ms=left_ms())
        if isinstance(answer, Answer) and fcm_answers.wants_a_new_token(answer):
            token = await self._tokens.replace(token, left_ms() // 2)
            if isinstance(token, Outcome):
                return token
            answer = await self._transport.send(_authorised(request, token), timeout_ms=left_ms())
        if isinstance(answer, Failure):
            return outcome_of(answer)
        return self.classify(answer, self._now_ms())

    async def check(self) -> bool:
        """Up: there is an access token, and FCM answers."""
        if isinstance(await self._tokens.get(5_000), Outcome):
            return False
        return await super().check()

    def check_request(self) -> Request:
        return Request(url=self._check_url, method="GET")

    def is_up(self, answer: Answer) -> bool:
        """There is nothing at that address: a 404 is FCM's."""
        return answer.status < 500

    async def close(self) -> None:
        await self._tokens.close()


def _authorised(request: Request, token: Secret) -> Request:
    return replace(request, headers=(*request.headers, ("Authorization", f"Bearer {token.reveal()}")))


def _countdown(total_ms: int) -> Callable[[], int]:
    """How much of the time for the whole attempt is left; never nothing."""
    ends_at = monotonic() + total_ms / 1000
    return lambda: max(1, int((ends_at - monotonic()) * 1000))
