"""Signed webhooks to anybody's endpoint, as Standard Webhooks 1.0.0 has them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import ClassVar
from urllib.parse import urlsplit

import msgspec

from homing.core.breaker import BreakerPolicy
from homing.core.errors import ConfigError
from homing.core.events import iso
from homing.core.ids import made_at
from homing.core.model import Channel, Outcome, OutcomeKind
from homing.core.ports import Delivery
from homing.providers.answers import error_table
from homing.providers.base_url import checked_base_url
from homing.providers.http import Answer, Request, Transport
from homing.providers.refusals import refusal
from homing.providers.retry_after import retry_after_ms
from homing.providers.secret import Secret, secret
from homing.providers.standard_webhooks import SigningKey, signature
from homing.providers.wire import HttpProvider, NowMs, wall_clock_ms

_TEXTS = ("subject", "title", "body", "text", "html")
_texts = attrgetter(*_TEXTS)
_TIME = 13
"""So much of an id is its time."""
_IS_JSON = ("content-type", "application/json")
_ARRIVED = Outcome(OutcomeKind.ACCEPTED, delivered=True)
_encode = msgspec.json.Encoder().encode
_NOT_IN_A_TYPE = re.compile(r"[^a-zA-Z0-9_.]")


class WebhookProvider(HttpProvider):
    """Posts `{type, timestamp, data}` to the recipient's URL, signed with each of the secrets."""

    channels: ClassVar[tuple[Channel, ...]] = (Channel.WEBHOOK,)
    host_slots: ClassVar[int] = 8
    breaker: ClassVar[BreakerPolicy] = BreakerPolicy(failures=1_000_000)
    """One endpoint's failures are its own: they must not stop the webhooks to all others."""

    def __init__(
        self,
        transport: Transport,
        *,
        secret: str | Secret = "",
        secrets: Sequence[str | Secret] = (),
        base_url: str = "",
        now_ms: NowMs = wall_clock_ms,
    ) -> None:
        super().__init__(transport, now_ms)
        self._keys = _keys(secret, secrets)
        self._base_url = checked_base_url(base_url) if base_url else ""

    def build(self, delivery: Delivery, now_ms: int) -> Request:
        body = payload(delivery)
        timestamp_s = now_ms // 1000
        id_ = delivery.idempotency_key
        return Request(
            self._url(delivery.address) if self._base_url else delivery.address,
            body,
            (
                _IS_JSON,
                ("webhook-id", id_),
                ("webhook-timestamp", str(timestamp_s)),
                ("webhook-signature", signature(self._keys, id_, timestamp_s, body)),
            ),
            "POST",
            not self._base_url,
        )

    def classify(self, answer: Answer, now_ms: int) -> Outcome:
        if 200 <= answer.status < 300:
            return _ARRIVED
        wait_ms = retry_after_ms(answer.headers.get("retry-after"), now_ms)
        return error_table("webhook").outcome(None, answer.status, None, retry_after_ms=wait_ms)

    def _url(self, address: str) -> str:
        """The recipient's path, at the `base_url`."""
        try:
            parts = urlsplit(address)
        except ValueError:
            raise refusal("webhook", "url") from None
        return f"{self._base_url}{parts.path}{'?' if parts.query else ''}{parts.query}"


def payload(delivery: Delivery) -> bytes:
    """The same bytes for every attempt. What `data` has goes over the texts of the same name."""
    content = delivery.content
    texts, data = _texts(content), content.data or {}
    if any(texts):
        data = {**{name: text for name, text in zip(_TEXTS, texts, strict=True) if text}, **data}
    return b"%b%b}" % (_opening(delivery.type, delivery.notification_id[:_TIME]), _encode(data))


@lru_cache(1_024)
def _opening(type_: str, beginning: str) -> bytes:
    """Up to the data; by how an id begins: those that were accepted together have it in common."""
    told = {"type": _NOT_IN_A_TYPE.sub("_", type_), "timestamp": iso(made_at(beginning))}
    return _encode(told)[:-1] + b',"data":'


def _keys(first: str | Secret, more: Sequence[str | Secret]) -> list[SigningKey]:
    given = [("secret", first)] if first else []
    given += [(f"secrets[{number}]", one) for number, one in enumerate(more)]
    if not given:
        raise ConfigError("secret", "is missing; give whsec_… or env:NAME, or several as secrets")
    return [_signing_key(field, one) for field, one in given]


def _signing_key(field: str, given: str | Secret) -> SigningKey:
    key = SigningKey(secret(field, given), field)
    if not key.signs:
        raise ConfigError(field, "is a public key (whpk_); give the one that signs (whsk_)")
    return key
