"""A sink that publishes events to an exchange or queue of RabbitMQ, each confirmed by the broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import ClassVar, Unpack

from homing.brokers.rabbitmq import RabbitMqLogin, diagnose, read_server
from homing.brokers.rabbitmq_publisher import (
    OutgoingMessage,
    PublishResult,
    PublishStatus,
    RabbitMqPublisher,
)
from homing.core.errors import ConfigError, EventsRefused, SinkUnavailable
from homing.core.lifecycle.events import Event, event_body, event_headers
from homing.net.secrets import Secret

_LONGEST_KEY_BYTES = 255

_EVENT_AT_FAULT = frozenset({"too_large", "unencodable", "refused"})
"""Codes of results that concern the event alone."""


class RabbitMqSink:
    """Publishes to an exchange, with the event's name as routing key, or to a queue.

    Events of different notifications are published side by side, those of one notification one after another:
    an event is written only after the one before it was confirmed.
    """

    if_missing: ClassVar[str] = ""
    """Advice of `homing doctor` if the exchange or queue does not exist. If it is empty, the usual one."""

    def __init__(
        self,
        *,
        url: str | Secret,
        exchange: str = "",
        queue: str = "",
        routing_key: str = "{event}",
        timeout_ms: int = 10_000,
        **login: Unpack[RabbitMqLogin],
    ) -> None:
        if bool(exchange) == bool(queue):
            raise ConfigError("exchange", "or queue must be set, and only one of them")
        for field, name in (("exchange", exchange), ("queue", queue), ("routing_key", routing_key)):
            if len(name.encode("utf-8", "replace")) > _LONGEST_KEY_BYTES:
                raise ConfigError(field, f"is longer than {_LONGEST_KEY_BYTES} bytes")
        if not 1 <= timeout_ms <= 15_000:
            raise ConfigError("timeout_ms", "must be between 1 and 15000, because the relay waits for 20 s")
        self._server = read_server(url, "sink", **login)
        self._publisher = RabbitMqPublisher(self._server)
        self._timeout_ms = timeout_ms
        self._exchange = exchange
        self._queue = queue
        self._routing_key = routing_key

    async def open(self) -> None:
        """Connects, and checks that the exchange or queue exists. Raises `HomingError` with the reason."""
        connection = await self._publisher.ready(self._server.connect_timeout_ms)
        if self._queue:
            await connection.check_queue(self._queue)
        else:
            await connection.check_exchange(self._exchange)

    async def diagnose(self) -> str:
        """Connects, and describes the server and the exchange or queue. Raises an error if one is missing."""
        queues = [self._queue] if self._queue else []
        return await diagnose(
            self._server, queues=queues, exchange=self._exchange, if_missing=self.if_missing
        )

    async def close(self) -> None:
        """Disconnects."""
        await self._publisher.close()

    async def publish(self, events: Sequence[Event]) -> None:
        """Publishes events. Returns if RabbitMQ has confirmed all of them.

        Otherwise raises `EventsRefused` if RabbitMQ does not accept some events, whenever they are published,
        and `SinkUnavailable` if it has not taken some of them now. Both say which events were confirmed.
        """
        ends_at = time.monotonic() + self._timeout_ms / 1000
        chains: dict[str | None, list[Event]] = {}
        for event in events:
            chains.setdefault(event.notification_id, []).append(event)
        published: list[str] = []
        failures = [
            failure
            for failure in await asyncio.gather(
                *(self._publish_chain(chain, ends_at, published) for chain in chains.values())
            )
            if failure is not None
        ]
        if not failures:
            return
        refused = {event.id for event, result in failures if self._is_at_fault(result)}
        if len(refused) == len(failures):
            raise EventsRefused(failures[0][1].error, refused=refused, published=published)
        away = next(result for event, result in failures if event.id not in refused)
        raise SinkUnavailable(away.error, published=published)

    async def _publish_chain(
        self, chain: Sequence[Event], ends_at: float, published: list[str]
    ) -> tuple[Event, PublishResult] | None:
        """Publishes events one after another. Returns the first that is not confirmed, with the result."""
        for event in chain:
            left_ms = max(1, int((ends_at - time.monotonic()) * 1000))
            result = await self._publisher.publish(self.build(event), left_ms)
            if result.status is not PublishStatus.ACKED:
                return event, result
            published.append(event.id)
        return None

    def _is_at_fault(self, result: PublishResult) -> bool:
        """Returns True if the event is at fault, and not the broker.

        An exchange may have no queue for the routing key of some events. A queue that is gone concerns all.
        """
        return result.code in _EVENT_AT_FAULT or (result.code == "no_route" and not self._queue)

    def build(self, event: Event) -> OutgoingMessage:
        """Returns the message for an event."""
        return OutgoingMessage(
            body=event_body(event),
            exchange=self._exchange,
            routing_key=self._queue or self._key(event),
            headers=event_headers(event),
            content_type="application/json",
            type=event.name,
        )

    def _key(self, event: Event) -> str:
        key = self._routing_key.replace("{event}", event.name).replace("{tenant}", event.tenant)
        return key.encode("utf-8", "replace")[:_LONGEST_KEY_BYTES].decode("utf-8", "ignore")
