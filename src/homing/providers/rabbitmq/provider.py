"""RabbitMQ: publishes notifications of the channel `queue`, each confirmed by the broker."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Unpack
from urllib.parse import unquote

import msgspec

from homing.brokers.rabbitmq import RabbitMqLogin, diagnose, read_server
from homing.brokers.rabbitmq_publisher import (
    OutgoingMessage,
    PublishResult,
    PublishStatus,
    RabbitMqPublisher,
)
from homing.core.errors import ConfigError
from homing.core.lifecycle.outcomes import Outcome
from homing.core.notifications import Channel, Content, OutcomeKind
from homing.core.ports.providers import Delivery
from homing.core.routing.breaker import BreakerPolicy
from homing.net.secrets import Secret
from homing.providers.common.error_tables import build_refusal, load_error_table
from homing.providers.common.http_provider import Unsendable, WallClock, wall_clock_ms

_LONGEST_NAME_BYTES = 255
"""Maximum length of names of queues and exchanges and of routing keys, by AMQP."""

_LONGEST_HEADER = 1_024
"""Maximum number of characters of a header. All headers of a message must fit into one frame."""

_LONGEST_EXPIRATION_MS = 2**32 - 1

_IN_ADDRESS = re.compile(r"exchange://([^/]*)/(.*)", re.DOTALL)

_QUEUE_PREFIX = "queue://"

_TRACE_HEADERS = ("traceparent", "tracestate")

_ACCEPTED = Outcome(OutcomeKind.ACCEPTED)


class RabbitMqProvider:
    """Publishes to the queue or exchange in the recipient's URL."""

    channels: ClassVar[tuple[Channel, ...]] = (Channel.QUEUE,)
    ends_in_time: ClassVar[bool] = True
    max_in_flight: ClassVar[int] = 1_024
    # The connection itself notices quickly that the broker is back, and the broker takes a backlog at once.
    breaker: ClassVar[BreakerPolicy] = BreakerPolicy(
        failures=10, open_ms=5_000, health_every_ms=1_000, ramp_ms=0
    )

    def __init__(
        self,
        *,
        url: str | Secret,
        content_type: str = "",
        priority: int | None = None,
        expiration_ms: int | None = None,
        now_ms: WallClock = wall_clock_ms,
        **login: Unpack[RabbitMqLogin],
    ) -> None:
        if priority is not None and not 0 <= priority <= 255:
            raise ConfigError("priority", f"is {priority}; it must be 0 to 255")
        if expiration_ms is not None and not 0 <= expiration_ms <= _LONGEST_EXPIRATION_MS:
            raise ConfigError("expiration_ms", f"must be 0 to {_LONGEST_EXPIRATION_MS}")
        if not content_type.isascii() or len(content_type) > _LONGEST_NAME_BYTES:
            raise ConfigError("content_type", "must be at most 255 ASCII characters")
        self._server = read_server(url, "provider", **login)
        self._publisher = RabbitMqPublisher(self._server)
        self._content_type = content_type
        self._priority = priority
        self._expiration_ms = expiration_ms
        self._now_ms = now_ms

    def build(self, delivery: Delivery, now_ms: int) -> OutgoingMessage:
        """Builds the message of this attempt. Raises `Unsendable` if that is impossible."""
        exchange, routing_key = parse_address(delivery.address)
        body, content_type = build_body(delivery.content)
        return OutgoingMessage(
            body=body,
            exchange=exchange,
            routing_key=routing_key,
            headers=build_headers(delivery),
            content_type=self._content_type or content_type,
            priority=self._priority,
            expiration_ms=self._remaining_ms(delivery, now_ms),
            type=_cut(delivery.type, _LONGEST_NAME_BYTES) or None,
        )

    async def send(self, delivery: Delivery) -> Outcome:
        try:
            message = self.build(delivery, self._now_ms())
        except Unsendable as refusal:
            return refusal.outcome
        result = await self._publisher.publish(message, delivery.timeout_ms)
        return _ACCEPTED if result.status is PublishStatus.ACKED else classify(result, message)

    async def check(self) -> bool:
        """Returns True if the broker is connected, takes messages, and opens a channel.

        Otherwise raises `BrokerUnavailable`, whose text tells operators what is wrong.
        """
        await self._publisher.check()
        return True

    async def diagnose(self) -> str:
        """Connects and describes the server. Raises an error that says what is wrong."""
        return await diagnose(self._server)

    async def close(self) -> None:
        await self._publisher.close()

    def _remaining_ms(self, delivery: Delivery, now_ms: int) -> int | None:
        """Returns how long the message may wait in its queue, or None if it may wait for ever."""
        if delivery.expires_at is None:
            return self._expiration_ms
        left_ms = min(max(0, delivery.expires_at - now_ms), _LONGEST_EXPIRATION_MS)
        return left_ms if self._expiration_ms is None else min(left_ms, self._expiration_ms)


def classify(result: PublishResult, message: OutgoingMessage) -> Outcome:
    """Returns the outcome of a publish that was not acked."""
    code = result.code or "refused"
    if code == "forbidden" and message.exchange:
        code = "forbidden_exchange"  # concerns this address alone
    return load_error_table("rabbitmq").outcome(code, 0, result.error)


def parse_address(address: str) -> tuple[str, str]:
    """Returns exchange and routing key of an address.

    `NAME` and `queue://NAME` are a queue, which the default exchange leads to. `exchange://NAME/KEY` is an
    exchange with a routing key, which may be empty. In the URLs, special characters may be percent-encoded.
    Raises `Unsendable`.
    """
    if found := _IN_ADDRESS.fullmatch(address):
        exchange, routing_key = unquote(found[1]), unquote(found[2])
        fine = bool(exchange)
    else:
        exchange = ""
        is_url = address.startswith(_QUEUE_PREFIX)
        routing_key = unquote(address[len(_QUEUE_PREFIX) :]) if is_url else address
        fine = bool(routing_key) and not address.startswith("exchange://")
    if not fine or max(len(exchange.encode()), len(routing_key.encode())) > _LONGEST_NAME_BYTES:
        raise build_refusal("rabbitmq", "address")
    return exchange, routing_key


def build_body(content: Content) -> tuple[bytes, str]:
    """Returns the body of the message and its content type. Raises `Unsendable`.

    `data` with nothing but `payload` is that payload, decoded from base64. Other data are JSON.
    """
    data = content.data
    if not data:
        return (content.body or content.text or "").encode(), "text/plain; charset=utf-8"
    if data.keys() != {"payload"} or not isinstance(payload := data["payload"], str):
        return msgspec.json.encode(data), "application/json"
    try:
        return base64.b64decode(payload, validate=True), "application/octet-stream"
    except (binascii.Error, ValueError):
        raise build_refusal("rabbitmq", "payload") from None


def build_headers(delivery: Delivery) -> dict[str, str | int]:
    """Returns the headers of the message, by which a consumer can recognize it.

    `message_id`, `retry_count` and `error_reason` in the metadata are those of a message that came in through
    a bridge.
    """
    metadata: Mapping[str, Any] = delivery.metadata
    headers: dict[str, str | int] = {
        "x-homing-message-id": _text(metadata.get("message_id")) or delivery.notification_id,
        "x-homing-notification-id": delivery.notification_id,
    }
    count = metadata.get("retry_count")
    if type(count) is int and 0 <= count < 2**31 - 1:
        headers["x-homing-retry-count"] = count + 1
    if reason := _text(metadata.get("error_reason")):
        headers["x-homing-reason"] = reason
    for name in _TRACE_HEADERS:
        if value := _text(metadata.get(name)):
            headers[name] = value
    return headers


def _text(value: Any) -> str:
    return _cut(value, _LONGEST_HEADER) if isinstance(value, str) else ""


def _cut(text: str, longest_bytes: int) -> str:
    """Returns the text, cut to a number of bytes in UTF-8 and without unpaired surrogates."""
    encoded = text.encode("utf-8", "replace")
    return text if len(encoded) <= longest_bytes else encoded[:longest_bytes].decode("utf-8", "ignore")
