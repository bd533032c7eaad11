"""Signed webhooks to any endpoint, following Standard Webhooks 1.0.0."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import ClassVar
from urllib.parse import urlsplit

import msgspec

from homing.core.errors import ConfigError
from homing.core.ids import id_time_ms
from homing.core.lifecycle.events import format_time
from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import Channel, OutcomeKind
from homing.core.ports.providers import Delivery
from homing.net.endpoint_settings import check_base_url, read_extra_headers
from homing.net.http_messages import HttpRequest, HttpResponse, Transport
from homing.net.retry_after import parse_retry_after_ms
from homing.net.secrets import Secret
from homing.net.standard_webhooks import build_signature_header, read_signing_keys
from homing.providers.common.error_tables import build_refusal, load_error_table
from homing.providers.common.http_provider import HttpProvider, WallClock, wall_clock_ms

_TEXTS = ("subject", "title", "body", "text", "html")

_texts = attrgetter(*_TEXTS)

_TIMESTAMP_CHARS = 13
"""Leading characters of a UUIDv7 that encode its time."""

_IS_JSON = ("content-type", "application/json")

_DELIVERED = Outcome(OutcomeKind.ACCEPTED, delivered=True)

_encode = msgspec.json.Encoder().encode

_NOT_IN_A_TYPE = re.compile(r"[^a-zA-Z0-9_.]")


class WebhookProvider(HttpProvider):
    """Posts `{type, timestamp, data}` to the recipient's URL, signed with each of the secrets."""

    channels: ClassVar[tuple[Channel, ...]] = (Channel.WEBHOOK,)
    host_slots: ClassVar[int] = 64

    def __init__(
        self,
        transport: Transport,
        *,
        secret: str | Secret = "",
        secrets: Sequence[str | Secret] = (),
        headers: Mapping[str, str] | None = None,
        recipient_hosts: Sequence[str] = (),
        base_url: str = "",
        now_ms: WallClock = wall_clock_ms,
    ) -> None:
        super().__init__(transport, now_ms)
        self._keys = read_signing_keys(secret, secrets)
        self._headers = read_extra_headers(headers or {})
        self._hosts = frozenset(host.strip().lower() for host in recipient_hosts)
        self._base_url = check_base_url(base_url) if base_url else ""
        if self._headers and not self._hosts and not base_url:
            problem = "is missing; headers are sent only to the hosts that it lists"
            raise ConfigError("recipient_hosts", problem)

    def build(self, delivery: Delivery, now_ms: int) -> HttpRequest:
        body = build_webhook_body(delivery)
        timestamp_s = now_ms // 1000
        # Receivers recognize repeated messages by this id, and no receipt can report a failure to them.
        id_ = delivery.notification_id
        if self._hosts:
            self._check_host(delivery.address)
        return HttpRequest(
            self._url(delivery.address) if self._base_url else delivery.address,
            body,
            (
                _IS_JSON,
                ("webhook-id", id_),
                ("webhook-timestamp", str(timestamp_s)),
                ("webhook-signature", build_signature_header(self._keys, id_, timestamp_s, body)),
                *self._headers,
            ),
            "POST",
            not self._base_url,
        )

    def classify(self, answer: HttpResponse, now_ms: int) -> Outcome:
        if 200 <= answer.status < 300:
            return _DELIVERED
        wait_ms = parse_retry_after_ms(answer.headers.get("retry-after"), now_ms)
        return load_error_table("webhook").outcome(None, answer.status, None, retry_after_ms=wait_ms)

    def _check_host(self, address: str) -> None:
        """Raises `Unsendable` if the recipient's host is not one of `recipient_hosts`."""
        try:
            parts = urlsplit(address)
            port = "" if parts.port is None else f":{parts.port}"
        except ValueError:
            raise build_refusal("webhook", "url") from None
        # The whole authority is compared, so that no other reading of the URL leads to another host.
        if parts.hostname not in self._hosts or parts.netloc.lower() != f"{parts.hostname}{port}":
            raise build_refusal("webhook", "host")

    def _url(self, address: str) -> str:
        """Returns the `base_url` with the path and query of the recipient's URL."""
        try:
            parts = urlsplit(address)
        except ValueError:
            raise build_refusal("webhook", "url") from None
        return f"{self._base_url}{parts.path}{'?' if parts.query else ''}{parts.query}"


def build_webhook_body(delivery: Delivery) -> bytes:
    """Returns the body, the same bytes for every attempt.

    Members of `data` override texts of the same name.
    """
    content = delivery.content
    texts, data = _texts(content), content.data or {}
    if any(texts):
        data = {**{name: text for name, text in zip(_TEXTS, texts, strict=True) if text}, **data}
    return b"%b%b}" % (_opening(delivery.type, delivery.notification_id[:_TIMESTAMP_CHARS]), _encode(data))


@lru_cache(1_024)
def _opening(type_: str, time_prefix: str) -> bytes:
    """Returns the payload up to `data`, cached by type and by the time prefix of the id.

    Notifications that were accepted in the same millisecond share that prefix.
    """
    envelope = {"type": _NOT_IN_A_TYPE.sub("_", type_), "timestamp": format_time(id_time_ms(time_prefix))}
    return _encode(envelope)[:-1] + b',"data":'
