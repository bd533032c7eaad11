"""Web Push (RFC 8030): messages to browsers, encrypted end to end, without an account at any service."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from homing.core.errors import ConfigError
from homing.core.model import Outcome, OutcomeKind, Priority
from homing.core.ports import Delivery
from homing.providers.answers import error_table
from homing.providers.base_url import checked_base_url
from homing.providers.http import Answer, Request, Transport
from homing.providers.push import (
    MAX_TTL_S,
    checked_collapse,
    checked_ttl,
    collapse_id,
    push_content,
    ttl_s,
)
from homing.providers.reading import text_of
from homing.providers.refusals import refusal
from homing.providers.retry_after import retry_after_ms
from homing.providers.secret import Secret, secret
from homing.providers.webpush_keys import (
    MAX_PLAINTEXT_BYTES,
    Vapid,
    encrypt,
    new_private_key,
    read_subscription,
)
from homing.providers.wire import HttpProvider, NowMs, wall_clock_ms

_URGENCIES = ("very-low", "low", "normal", "high")
_URGENCY = {
    Priority.CRITICAL: "high",
    Priority.HIGH: "high",
    Priority.MEDIUM: "normal",
    Priority.LOW: "low",
}


class WebPushProvider(HttpProvider):
    """Sends to a browser's subscription, which is the address. See docs/reference/providers/webpush.md."""

    channels = ("push",)

    def __init__(
        self,
        transport: Transport,
        *,
        vapid_private_key: str | Secret,
        vapid_subject: str,
        base_url: str = "",
        ttl_seconds: int = MAX_TTL_S,
        collapse: str = "notification",
        urgency: Mapping[str, str] | None = None,
        image_key: str = "image",
        now_ms: NowMs = wall_clock_ms,
    ) -> None:
        super().__init__(transport, now_ms)
        self._vapid = Vapid(secret("vapid_private_key", vapid_private_key), vapid_subject)
        self._base_url = checked_base_url(base_url) if base_url else ""
        self._ttl_s = checked_ttl(ttl_seconds)
        self._collapse = checked_collapse(collapse)
        self._urgency = {**_URGENCY, **_check_urgency(urgency or {})}
        self._image_key = image_key

    def build(self, delivery: Delivery, now_ms: int) -> Request:
        to = read_subscription(delivery.address, now_ms)
        plaintext = self._plaintext(delivery)
        headers = [
            ("TTL", str(ttl_s(delivery, now_ms, self._ttl_s))),
            ("Urgency", self._urgency[delivery.priority]),
            ("Content-Encoding", "aes128gcm"),
            ("Content-Type", "application/octet-stream"),
            ("Authorization", self._vapid.authorization(to.origin, now_ms)),
        ]
        topic = collapse_id(delivery, self._collapse)
        if topic is not None:
            headers.append(("Topic", topic))
        return Request(
            url=self._base_url + to.path if self._base_url else to.endpoint,
            body=encrypt(plaintext, to, new_private_key(), os.urandom(16)),
            headers=tuple(headers),
            guarded=not self._base_url,  # an endpoint comes from a browser, base_url from the operator
        )

    def classify(self, answer: Answer, now_ms: int) -> Outcome:
        if 200 <= answer.status < 300:
            location = text_of(answer.headers.get("location"))
            return Outcome(OutcomeKind.ACCEPTED, provider_message_id=location)
        # The error omits the body, because a push service may quote the endpoint in it.
        wait_ms = retry_after_ms(answer.headers.get("retry-after"), now_ms)
        outcome = error_table("webpush").outcome(None, answer.status, None, retry_after_ms=wait_ms)
        return replace(outcome, unlisted=False)  # no other provider could use the subscription

    def _plaintext(self, delivery: Delivery) -> bytes:
        """Returns the JSON that the service worker receives with its `push` event."""
        content = push_content(delivery.content, self._image_key)
        payload: dict[str, Any] = {
            "id": delivery.notification_id,
            "type": delivery.type,
            "title": content.title,
            "body": content.body,
            "image": content.image,
            "data": content.data or None,
        }
        if content.silent and not content.data:
            raise refusal("webpush", "empty")
        plaintext = msgspec.json.encode({key: value for key, value in payload.items() if value is not None})
        if len(plaintext) > MAX_PLAINTEXT_BYTES:
            size = f"the payload has {len(plaintext)} bytes; Web Push accepts at most {MAX_PLAINTEXT_BYTES}"
            raise refusal("webpush", "too_large", size)
        return plaintext


def _check_urgency(given: Mapping[str, str]) -> dict[Priority, str]:
    found = {}
    for name, urgency in given.items():
        if name not in tuple(Priority):
            raise ConfigError(f"urgency.{name}", f"is not a priority; use one of {', '.join(Priority)}")
        if urgency not in _URGENCIES:
            raise ConfigError(f"urgency.{name}", f"is {urgency!r}; use one of {', '.join(_URGENCIES)}")
        found[Priority(name)] = urgency
    return found
