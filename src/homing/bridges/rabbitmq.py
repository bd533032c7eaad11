"""A bridge that consumes `RetryMessage`s from RabbitMQ: failed messages to publish to their queues again.

A message is stored as a notification on the channel `queue`, whose recipient is the original queue. The
retries that were made elsewhere count, so the delay, the maximum and the dead letter follow from the
message's own count. Unreadable messages go to a quarantine queue, with the reason in a header.
"""

from __future__ import annotations

import asyncio
import logging
import time
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Unpack
from urllib.parse import quote

from aio_pika import exceptions as amqp

from homing.brokers.rabbitmq import (
    DECLARE_ADVICE,
    NotThere,
    RabbitMqConnection,
    RabbitMqLogin,
    connect,
    describe_refusal,
    diagnose,
    end_quietly,
    read_server,
    reply_code,
    within,
)
from homing.brokers.rabbitmq_publisher import OutgoingMessage, PublishStatus, RabbitMqPublisher
from homing.brokers.retry_message import RetryMessage, decode_retry_message
from homing.core.errors import ConfigError, HomingError, InvalidRequest
from homing.core.notifications import Channel, Content, Recipient
from homing.core.ports.bridges import BridgeMessage, HandledMessage
from homing.core.send_request import SendRequest
from homing.core.times import LONGEST_MS, moment

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

log = logging.getLogger("homing.bridges")

DEFAULTS = {
    "url": "amqp://localhost:5672",
    "queue": "retry.scheduled",
    "manual_review_queue": "manual-review.pending",
}
"""Settings of a retry scheduler that says nothing else."""

MAX_PREFETCH = 500
"""Messages that the broker hands out before they are acknowledged: what the engine stores in one commit."""

_BATCH_BYTES = 16 * 1024 * 1024
"""Number of bytes after which a batch is complete. Its last message may exceed it."""

_LONGEST_ERROR = 2_000
"""Number of characters of `error_reason` that are kept."""

_LONGEST_HEADER = 500

_QUARANTINE_TIMEOUT_MS = 15_000
"""Time for the quarantine of a batch's rejected messages. The engine waits 30 s for an acknowledgement."""

_MAX_QUARANTINES = 16
"""Messages that are being put into quarantine at a time."""

_QUEUE_ARGUMENTS = {"x-queue-type": "quorum"}


def wall_clock_ms() -> int:
    """Returns the time of this machine in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class ConsumerLost(HomingError):
    """Messages cannot arrive any more: the connection broke, or the broker ended the consumer."""

    code = "CONSUMER_LOST"


class RabbitMqBridge:
    """Consumes one queue. Messages that it has not acknowledged are delivered again."""

    def __init__(
        self,
        *,
        url: str = DEFAULTS["url"],
        queue: str = DEFAULTS["queue"],
        quarantine_queue: str = "",
        manual_review_queue: str = DEFAULTS["manual_review_queue"],
        declare: bool = False,
        type: str = "retry",
        priority: str = "medium",
        prefetch: int = MAX_PREFETCH,
        max_bytes: int = 1024 * 1024,
        now_ms: Callable[[], int] = wall_clock_ms,
        **login: Unpack[RabbitMqLogin],
    ) -> None:
        """Creates a bridge. `manual_review_queue` is only checked or declared; a sink publishes to it.

        Raises `ConfigError` if a setting is wrong.
        """
        if not 1 <= prefetch <= MAX_PREFETCH:
            raise ConfigError("prefetch", f"is {prefetch}; it must be between 1 and {MAX_PREFETCH}")
        if max_bytes < 1:
            raise ConfigError("max_bytes", "must be at least 1")
        self._server = read_server(url, "bridge", **login)
        self._queue = queue
        self._quarantine = quarantine_queue or f"{queue}.quarantine"
        names = {"queue": queue, "quarantine_queue": self._quarantine}
        if manual_review_queue:
            names["manual_review_queue"] = manual_review_queue
        for field, name in names.items():
            if not name or len(name.encode("utf-8", "replace")) > 255:
                raise ConfigError(field, "must have between 1 and 255 bytes")
        if len(set(names.values())) < len(names):
            raise ConfigError("queue", "quarantine_queue and manual_review_queue must be different queues")
        self._queues = tuple(names.values())
        self._declare = declare
        self._type = type
        self._priority = priority
        self._prefetch = prefetch
        self._max_bytes = max_bytes
        self._now_ms = now_ms
        self._connection: RabbitMqConnection | None = None
        self._publisher: RabbitMqPublisher | None = None
        self._watch: asyncio.Task[None] | None = None
        self._received: deque[AbstractIncomingMessage] = deque()
        self._changed = asyncio.Event()
        self._ended = ""
        """Why no message can arrive any more. Empty while the bridge consumes."""

    # The bridge ------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connects, makes sure that the queues exist, and consumes. Raises `HomingError` with the reason."""
        self._received.clear()
        self._changed.clear()
        self._ended = ""
        self._connection = connection = await connect(self._server)
        self._publisher = RabbitMqPublisher(self._server)
        for name in self._queues:
            await self._find_queue(connection, name)
        channel = await connection.channel(confirms=False)
        await within(self._server, channel.set_qos(prefetch_count=self._prefetch))
        channel.close_callbacks.add(lambda *_: self._end("the broker has closed the channel"))
        underlay = await channel.get_underlay_channel()
        underlay.on_consumer_cancel_callbacks.add(
            lambda *_: self._end(f"the broker has ended the consumer of {self._queue!r}")
        )
        self._watch = asyncio.create_task(self._watch_connection(connection))
        queue = await channel.get_queue(self._queue, ensure=False)
        try:
            await within(self._server, queue.consume(self._take))
        except amqp.ChannelClosed as error:
            raise NotThere(reply_code(error), describe_refusal("queue", self._queue, error)) from None

    async def receive(self, limit: int) -> Sequence[BridgeMessage]:
        """Waits for messages. Raises `ConsumerLost` if none can arrive any more."""
        while not self._received:
            self._check_consumer()
            self._changed.clear()
            await self._changed.wait()
        self._check_consumer()
        found: list[BridgeMessage] = []
        size = 0
        while self._received and len(found) < limit and size < _BATCH_BYTES:
            message = self._received.popleft()
            size += len(message.body)
            found.append(self._read(message))
        return found

    async def acknowledge(self, handled: Sequence[HandledMessage]) -> None:
        """Puts the rejected messages into quarantine, then acknowledges all of them at once.

        If one cannot be put into quarantine, the others are acknowledged, and an error is raised.
        """
        self._check_consumer()
        rejected = [one for one in handled if one.rejection is not None]
        problems = await self._put_into_quarantine(rejected) if rejected else {}
        if not problems:
            # The broker delivers in the order of its tags, and batches are acknowledged in that order too.
            await handled[-1].message.reference.ack(multiple=True)
            return
        for one in handled:
            if id(one) not in problems:
                await one.message.reference.ack()
        raise next(iter(problems.values()))

    async def check(self) -> None:
        """Raises if the consumer is gone, or if the broker does not answer or has no such queue."""
        self._check_consumer()
        assert self._connection is not None
        await self._connection.check_queue(self._queue)

    async def backlog(self) -> int:
        """Returns the number of messages in the queue, and of those that were received and not read yet."""
        assert self._connection is not None
        return len(self._received) + await self._connection.count_messages(self._queue)

    async def diagnose(self) -> str:
        """Connects, and describes the server and the queues. Raises an error if a queue is missing.

        A bridge that declares its queues needs none of them beforehand.
        """
        queues = () if self._declare else self._queues
        return await diagnose(self._server, queues=queues, if_missing=DECLARE_ADVICE)

    def _check_consumer(self) -> None:
        """Raises `ConsumerLost` if no message can arrive any more."""
        if self._ended:
            raise ConsumerLost(self._ended)

    async def close(self) -> None:
        """Disconnects. The broker then delivers again what was not acknowledged."""
        self._end("the bridge is closed")
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._publisher is not None:
            await self._publisher.close()
        if self._connection is not None:
            await self._connection.close()
        self._connection = self._publisher = self._watch = None
        self._received.clear()

    # Its parts -------------------------------------------------------------------------------------

    async def _take(self, message: AbstractIncomingMessage) -> None:
        self._received.append(message)
        self._changed.set()

    def _end(self, why: str) -> None:
        self._ended = self._ended or why
        self._changed.set()

    async def _watch_connection(self, connection: RabbitMqConnection) -> None:
        await connection.lost.wait()
        self._end(f"the connection to RabbitMQ at {self._server.place} broke")

    async def _find_queue(self, connection: RabbitMqConnection, name: str) -> None:
        """Declares a queue, or makes sure that it exists. Raises `NotThere` with a sentence."""
        if not self._declare:
            try:
                await connection.check_queue(name)
            except NotThere as error:
                if error.reply_code != 404:
                    raise
                raise NotThere(404, f"{error}; {DECLARE_ADVICE}") from None
            return
        channel = await connection.channel(confirms=False)  # of its own: the broker closes it if it refuses
        try:
            await within(self._server, _declare_queue(channel, name))
        except amqp.ChannelClosed as error:
            raise NotThere(reply_code(error), describe_refusal("queue", name, error)) from None
        finally:
            await end_quietly(channel.close())

    def _read(self, message: AbstractIncomingMessage) -> BridgeMessage:
        """Returns a message as a request, or with the error for which it is rejected."""
        try:
            if (size := len(message.body)) > self._max_bytes:
                raise InvalidRequest("message", f"has {size} bytes; at most {self._max_bytes} are allowed")
            found = decode_retry_message(message.body)
            return self._build(found, message)
        except InvalidRequest as error:
            return BridgeMessage(key="unreadable", request=error, reference=message)

    def _build(self, found: RetryMessage, message: AbstractIncomingMessage) -> BridgeMessage:
        send_at, now = None, self._now_ms()
        if found.next_retry_at_ms > now:
            if found.next_retry_at_ms > now + LONGEST_MS:
                raise InvalidRequest("next_retry_at_ms", "is more than 100 years ahead")
            send_at = moment(found.next_retry_at_ms)
        reason = found.error_reason[:_LONGEST_ERROR]
        metadata = {
            "message_id": found.message_id,
            "retry_count": found.retry_count,
            "max_retries": found.max_retries,
        }
        if reason:
            metadata["error_reason"] = reason
        request = SendRequest(
            recipient=Recipient(url=queue_address(found.original_queue)),
            channel=Channel.QUEUE.value,
            type=self._type,
            priority=self._priority,
            content=Content(data={"payload": b64encode(found.original_payload).decode()}),
            send_at=send_at,
            synchronous=False,
            metadata=metadata,
        )
        return BridgeMessage(
            key=f"{found.message_id}:{found.retry_count}",
            request=request,
            reference=message,
            # The original attempt and all retries so far were made elsewhere.
            attempts=found.retry_count + 1,
            max_attempts=found.max_retries + 1 if found.max_retries else None,
            last_error=reason or None,
        )

    async def _put_into_quarantine(self, rejected: Sequence[HandledMessage]) -> dict[int, HomingError]:
        """Publishes rejected messages to the quarantine queue, confirmed.

        Returns why some of them are not there, by the identity of their results.
        """
        publisher, free = self._publisher, asyncio.Semaphore(_MAX_QUARANTINES)
        assert publisher is not None
        problems: dict[int, HomingError] = {}
        until = time.monotonic() + _QUARANTINE_TIMEOUT_MS / 1000

        async def put(one: HandledMessage) -> None:
            async with free:
                left_ms = int((until - time.monotonic()) * 1000)
                result = await publisher.publish(self._quarantined(one), max(1, left_ms))
            if result.status is not PublishStatus.ACKED:
                problems[id(one)] = HomingError(f"quarantine queue {self._quarantine!r}: {result.error}")

        await asyncio.gather(*map(put, rejected))
        return problems

    def _quarantined(self, one: HandledMessage) -> OutgoingMessage:
        message: AbstractIncomingMessage = one.message.reference
        return OutgoingMessage(
            body=message.body,
            routing_key=self._quarantine,
            headers={
                "x-homing-reason": (one.rejection or "")[:_LONGEST_HEADER],
                "x-homing-code": one.code or "",
                "x-homing-queue": self._queue,
            },
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            type=message.type if message.type != "None" else None,
        )


def queue_address(name: str) -> str:
    """Returns the address of a queue, for the provider `rabbitmq`.

    A name that would be read as a URL, or that begins or ends with a blank, is percent-encoded.
    """
    if name.startswith(("queue://", "exchange://")) or name != name.strip():
        return f"queue://{quote(name, safe='')}"
    return name


async def _declare_queue(channel: AbstractChannel, name: str) -> None:
    await channel.declare_queue(name, durable=True, arguments=dict(_QUEUE_ARGUMENTS))
