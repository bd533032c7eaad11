"""Web Push (RFC 8030): messages to browsers, encrypted end to end, without an account at any service."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from homing.core.errors import ConfigError
from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import OutcomeKind, Priority
from homing.core.ports.providers import Delivery
from homing.net.endpoint_settings import check_base_url
from homing.net.http_messages import HttpRequest, HttpResponse, Transport
from homing.net.retry_after import parse_retry_after_ms
from homing.net.secrets import Secret, read_secret
from homing.providers.common.error_tables import build_refusal, load_error_table
from homing.providers.common.http_provider import HttpProvider, WallClock, wall_clock_ms
from homing.providers.common.push_content import (
    MAX_TTL_S,
    check_collapse,
    check_ttl_seconds,
    collapse_id,
    read_push_content,
    remaining_ttl_s,
)
from homing.providers.common.response_parsing import short_text_or_none
from homing.providers.webpush.encryption import (
    MAX_PLAINTEXT_BYTES,
    VapidSigner,
    encrypt,
    generate_private_key,
    read_subscription,
)

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
    host_slots = 64

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
        now_ms: WallClock = wall_clock_ms,
    ) -> None:
        super().__init__(transport, now_ms)
        self._vapid = VapidSigner(read_secret("vapid_private_key", vapid_private_key), vapid_subject)
        self._base_url = check_base_url(base_url) if base_url else ""
        self._ttl_s = check_ttl_seconds(ttl_seconds)
        self._collapse = check_collapse(collapse)
        self._urgency = {**_URGENCY, **_check_urgency(urgency or {})}
        self._image_key = image_key

    def build(self, delivery: Delivery, now_ms: int) -> HttpRequest:
        to = read_subscription(delivery.address, now_ms)
        plaintext = self._plaintext(delivery)
        headers = [
            ("TTL", str(remaining_ttl_s(delivery, now_ms, self._ttl_s))),
            ("Urgency", self._urgency[delivery.priority]),
            ("Content-Encoding", "aes128gcm"),
            ("Content-Type", "application/octet-stream"),
            ("Authorization", self._vapid.authorization(to.origin, now_ms)),
        ]
        topic = collapse_id(delivery, self._collapse)
        if topic is not None:
            headers.append(("Topic", topic))
        return HttpRequest(
            url=self._base_url + to.path if self._base_url else to.endpoint,
            body=encrypt(plaintext, to, generate_private_key(), os.urandom(16)),
            headers=tuple(headers),
            guarded=not self._base_url,  # an endpoint comes from a browser, base_url from the operator
        )

    def classify(self, answer: HttpResponse, now_ms: int) -> Outcome:
        if 200 <= answer.status < 300:
            location = short_text_or_none(answer.headers.get("location"))
            return Outcome(OutcomeKind.ACCEPTED, provider_message_id=location)
        # The error omits the body, because a push service may quote the endpoint in it.
        wait_ms = parse_retry_after_ms(answer.headers.get("retry-after"), now_ms)
        outcome = load_error_table("webpush").outcome(None, answer.status, None, retry_after_ms=wait_ms)
        return replace(outcome, unlisted=False)  # no other provider could use the subscription

    def _plaintext(self, delivery: Delivery) -> bytes:
        """Returns the JSON that the service worker receives with its `push` event."""
        content = read_push_content(delivery.content, self._image_key)
        payload: dict[str, Any] = {
            "id": delivery.notification_id,
            "type": delivery.type,
            "title": content.title,
            "body": content.body,
            "image": content.image,
            "data": content.data or None,
        }
        if content.silent and not content.data:
            raise build_refusal("webpush", "empty")
        plaintext = msgspec.json.encode({key: value for key, value in payload.items() if value is not None})
        if len(plaintext) > MAX_PLAINTEXT_BYTES:
            size = f"the payload has {len(plaintext)} bytes; Web Push accepts at most {MAX_PLAINTEXT_BYTES}"
            raise build_refusal("webpush", "too_large", size)
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
