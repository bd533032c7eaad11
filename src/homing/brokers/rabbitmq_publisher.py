"""Publishes to RabbitMQ. Each publish has one definite result, whatever happens to the connection."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING
from uuid import uuid4

from aio_pika import DeliveryMode
from aio_pika import exceptions as amqp
from aiormq import Channel as UnderlayChannel
from aiormq import spec
from msgspec import Struct, field

from homing.brokers.rabbitmq import (
    BrokerUnavailable,
    NotThere,
    RabbitMqConnection,
    RabbitMqServer,
    broker_text,
    connect,
    describe_refusal,
    end_quietly,
    reply_code,
    was_cancelled,
)

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel

log = logging.getLogger("homing.rabbitmq")

_FIRST_RETRY_S = 0.1

_LAST_RETRY_S = 1.0

_LAST_LOGIN_RETRY_S = 10.0
"""A login that was refused is repeated less often than a connection that could not be opened."""

_PATIENCE_S = 1.0
"""Time that a publish waits for a connection, before its result is `away`."""

_SMALL_BODY_BYTES = 16_384

_MOST_EXCHANGES = 64
"""Exchanges with an open channel at a time. The broker closes a channel when its exchange does not exist, so
each exchange has a channel of its own."""


class PublishStatus(StrEnum):
    """Everything that can become of a published message."""

    ACKED = "acked"
    """The broker has taken it: every queue that it was routed to has stored it."""
    NACKED = "nacked"
    """The broker has not taken it, for example because the queue is full and rejects messages."""
    RETURNED = "returned"
    """No queue is bound to its address. It is in no queue."""
    REFUSED = "refused"
    """The broker does not accept such a message: its exchange does not exist, the user may not write there,
    or the message is too large. It is in no queue."""
    AWAY = "away"
    """There is no connection, or the broker takes no messages. Nothing was written."""
    AMBIGUOUS = "ambiguous"
    """It was written, and no confirmation came. It may be in a queue, or get there later."""


class OutgoingMessage(Struct, frozen=True, kw_only=True):
    """A message for an exchange. The default exchange, `""`, leads to the queue named by the routing key."""

    body: bytes
    routing_key: str
    exchange: str = ""
    headers: Mapping[str, str | int] = field(default_factory=dict)
    content_type: str | None = None
    content_encoding: str | None = None
    type: str | None = None
    priority: int | None = None
    expiration_ms: int | None = None


class PublishResult(Struct, frozen=True):
    """What became of one message."""

    status: PublishStatus
    code: str | None = None
    """`no_route`, `nacked`, `not_found`, `forbidden`, `too_large`, `unencodable`, `refused`, `timeout`,
    `confirm_lost`, `blocked`, `busy`, or the kind of `BrokerUnavailable`. None if the message was acked."""
    error: str | None = None
    """A sentence for operators. None if the message was acked."""


_ACKED = PublishResult(PublishStatus.ACKED)

_BLOCKED = "takes no messages now: it is short of memory or disk space"

_REFUSAL_CODES = {403: "forbidden", 404: "not_found", 406: "too_large"}


class _Lane:
    """The channel of one exchange, and what is in flight on it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.channel: AbstractChannel | None = None
        self.underlay: UnderlayChannel | None = None
        """The channel below `channel`, on which messages are published. That of aio-pika builds each message
        twice, and publishes the next message only after the one before was written to the socket."""
        self.connection: RabbitMqConnection | None = None
        self.opening = asyncio.Lock()
        self.one_by_one = asyncio.Lock()
        self.in_flight = 0
        self.users = 0
        self.careful = False
        """True if the broker closed the channel while several messages were in flight. Until it answers one,
        messages are published one by one, so that the next refusal belongs to exactly one of them."""
        self.unanswered = False
        """True if a message on this channel timed out. It may still make the broker close the channel."""


class RabbitMqPublisher:
    """Publishes over one connection, which it keeps open and opens again. Many publishes may be in flight.

    The connection opens with the first `publish` or `ready`. While the broker is away, one task tries to
    connect, ever less often. Publishes wait for it a little and then return `away`.
    """

    def __init__(self, server: RabbitMqServer) -> None:
        self._server = server
        self._connection: RabbitMqConnection | None = None
        self._lanes: dict[str, _Lane] = {}
        self._supervisor: asyncio.Task[None] | None = None
        self._connected: asyncio.Event | None = None
        self._changed = asyncio.Event()
        """Set, and replaced, when a connection opens or an attempt to open one fails."""
        self._failures = 0
        self._problem = BrokerUnavailable("unreachable", f"not yet connected to RabbitMQ at {server.place}")
        self._probe: asyncio.Task[None] | None = None
        self._heard_at = 0.0
        self._closed = False

    async def ready(self, timeout_ms: int) -> RabbitMqConnection:
        """Returns the open connection. Raises `BrokerUnavailable` if the next attempt to connect fails.

        It also raises it if that attempt takes longer than `timeout_ms`.
        """
        connection = await self._wait_for_connection(timeout_ms / 1000, attempts=1)
        if connection is None:
            raise self._problem
        return connection

    async def check(self) -> None:
        """Returns if the broker is connected, takes messages, and opens a channel.

        Raises `BrokerUnavailable` with a sentence that says what is wrong.
        """
        connection = await self.ready(self._server.connect_timeout_ms)
        if connection.blocked:
            raise BrokerUnavailable("blocked", f"RabbitMQ at {self._server.place} {_BLOCKED}")
        await end_quietly((await connection.channel()).close())

    async def close(self) -> None:
        """Closes the connection. Publishes that are in flight end as `ambiguous`."""
        self._closed = True
        for task in (self._supervisor, self._probe):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def publish(self, message: OutgoingMessage, timeout_ms: int) -> PublishResult:
        """Publishes one message: persistent, mandatory and confirmed. Raises nothing but a cancellation.

        If this call is cancelled, the message may be published all the same.
        """
        ends_at = time.monotonic() + timeout_ms / 1000
        connection = await self._wait_for_connection(min(_PATIENCE_S, timeout_ms / 1000))
        if connection is None:
            return PublishResult(PublishStatus.AWAY, self._problem.kind, str(self._problem))
        if connection.blocked:
            return self._away("blocked", _BLOCKED)
        lane = self._find_lane(message.exchange)
        if lane is None:
            return self._away("busy", f"has messages in flight to {_MOST_EXCHANGES} other exchanges")
        lane.users += 1
        try:
            if not lane.careful:
                return await self._publish_on(lane, connection, message, ends_at)
            try:
                async with asyncio.timeout(ends_at - time.monotonic()):
                    await lane.one_by_one.acquire()
            except TimeoutError:
                return self._away("busy", "has not answered earlier messages yet")
            try:
                return await self._publish_on(lane, connection, message, ends_at)
            finally:
                lane.one_by_one.release()
        finally:
            lane.users -= 1

    async def _publish_on(
        self, lane: _Lane, connection: RabbitMqConnection, message: OutgoingMessage, ends_at: float
    ) -> PublishResult:
        if lane.connection is not connection or lane.underlay is None:
            try:
                async with asyncio.timeout(ends_at - time.monotonic()):
                    await self._open_lane(lane, connection)
            except TimeoutError:
                return self._away("no_answer", "opened no channel in time")
            except NotThere as error:
                code = _REFUSAL_CODES.get(error.reply_code, "refused")
                return PublishResult(PublishStatus.REFUSED, code, str(error))
            except BrokerUnavailable as error:
                return PublishResult(PublishStatus.AWAY, error.kind, str(error))
        underlay, began_at = lane.underlay, time.monotonic()
        if underlay is None or ends_at <= began_at:
            return self._away("no_answer", "opened no channel in time")
        lane.in_flight += 1
        try:
            await underlay.basic_publish(
                message.body,
                exchange=message.exchange,
                routing_key=message.routing_key,
                properties=_build_properties(message),
                mandatory=True,
                timeout=ends_at - began_at,
                # What is in flight is in memory until it is written, so large bodies are written one by one.
                wait=len(message.body) > _SMALL_BODY_BYTES,
            )
        except BaseException as error:
            return self._explain(error, lane, underlay, connection, message, began_at)
        finally:
            lane.in_flight -= 1
        self._note_answer(lane)
        return _ACKED

    def _note_answer(self, lane: _Lane) -> None:
        self._heard_at = time.monotonic()
        lane.careful = False

    def _explain(
        self,
        error: BaseException,
        lane: _Lane,
        underlay: UnderlayChannel,
        connection: RabbitMqConnection,
        message: OutgoingMessage,
        began_at: float,
    ) -> PublishResult:
        """Returns the result of a publish that raised. Passes on the cancellation of this task."""
        if isinstance(error, amqp.PublishError):
            self._note_answer(lane)
            where = (
                f"there is no queue {message.routing_key!r}"
                if not message.exchange
                else f"exchange {message.exchange!r} has no queue for {message.routing_key!r}"
            )
            return PublishResult(PublishStatus.RETURNED, "no_route", where)
        if isinstance(error, amqp.DeliveryError):
            self._note_answer(lane)
            return PublishResult(
                PublishStatus.NACKED, "nacked", "RabbitMQ did not take the message; its queue may be full"
            )
        if isinstance(error, asyncio.CancelledError) and was_cancelled():
            lane.unanswered = True
            raise error
        if isinstance(error, amqp.ChannelInvalidStateError):  # raised before anything is written
            self._drop_channel(lane, underlay)
            return self._away("unreachable", "closed the channel")
        if isinstance(error, (ValueError, TypeError)):  # raised when the frames are built
            return _unencodable(error)
        if isinstance(error, TimeoutError):
            lane.unanswered = True
            if self._heard_at < began_at and not connection.blocked:
                self._probe_connection(connection)
            return PublishResult(
                PublishStatus.AMBIGUOUS,
                "timeout",
                f"RabbitMQ at {self._server.place} did not confirm in time",
            )
        if isinstance(error, amqp.ChannelClosed) and (code := reply_code(error)):
            self._heard_at = time.monotonic()
            # Those that come second find that the channel was dropped by the first.
            alone = lane.underlay is underlay and lane.in_flight == 1 and not lane.unanswered
            self._drop_channel(lane, underlay)
            if alone:
                return PublishResult(
                    PublishStatus.REFUSED,
                    _REFUSAL_CODES.get(code, "refused"),
                    _describe(message, code, error),
                )
            lane.careful = True
            return PublishResult(
                PublishStatus.AMBIGUOUS,
                "confirm_lost",
                f"RabbitMQ closed the channel because of this or another message: {broker_text(error)}",
            )
        self._drop_channel(lane, underlay)
        return PublishResult(
            PublishStatus.AMBIGUOUS,
            "confirm_lost",
            f"the connection to RabbitMQ broke: {type(error).__name__}",
        )

    def _away(self, code: str, what: str) -> PublishResult:
        return PublishResult(PublishStatus.AWAY, code, f"RabbitMQ at {self._server.place} {what}")

    # Channels --------------------------------------------------------------------------------------

    def _find_lane(self, exchange: str) -> _Lane | None:
        lane = self._lanes.get(exchange)
        if lane is None:
            if len(self._lanes) > _MOST_EXCHANGES and not self._forget_idle_lane():
                return None
            lane = self._lanes[exchange] = _Lane(exchange)
        return lane

    def _forget_idle_lane(self) -> bool:
        for name, lane in self._lanes.items():
            if name and not lane.users:
                del self._lanes[name]
                if lane.channel is not None:
                    _close_later(lane.channel)
                return True
        return False

    async def _open_lane(self, lane: _Lane, connection: RabbitMqConnection) -> None:
        async with lane.opening:
            if lane.connection is connection and lane.underlay is not None:
                return
            # Asked on a channel of its own, so that a missing exchange has a definite answer.
            await connection.check_exchange(lane.name)
            channel = await connection.channel()
            underlay = await channel.get_underlay_channel()
            assert isinstance(underlay, UnderlayChannel)
            lane.underlay = underlay
            lane.channel, lane.connection, lane.unanswered = channel, connection, False

    def _drop_channel(self, lane: _Lane, underlay: UnderlayChannel) -> None:
        if lane.underlay is underlay:  # not a newer one
            lane.channel = lane.underlay = lane.connection = None

    # The connection --------------------------------------------------------------------------------

    async def _wait_for_connection(self, wait_s: float, attempts: int = 0) -> RabbitMqConnection | None:
        """Returns the connection, or None if there is none in time or after this many failed attempts.

        With 0 `attempts`, only the time counts.
        """
        connection = self._connection
        if connection is not None and not connection.lost.is_set():
            return connection
        if self._closed:
            return None
        if self._supervisor is None:
            self._connected = asyncio.Event()
            self._supervisor = asyncio.create_task(self._keep_connected(self._connected))
        assert self._connected is not None
        if connection is not None:  # lost, and the supervisor has not run yet
            self._connected.clear()
        most = self._failures + attempts
        try:
            async with asyncio.timeout(wait_s):
                while not self._connected.is_set() and (not attempts or self._failures < most):
                    await self._changed.wait()
        except TimeoutError:
            return None
        return self._connection if self._connected.is_set() else None

    def _note_change(self) -> None:
        """Wakes everything that waits for a connection."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _keep_connected(self, connected: asyncio.Event) -> None:
        wait_s, not_yet = _FIRST_RETRY_S, self._problem
        while True:
            try:
                connection = await connect(self._server)
            except BrokerUnavailable as error:
                if str(error) != str(self._problem):
                    log.warning("%s: %s", self._server.name, error)
                self._problem = error
                self._failures += 1
                self._note_change()
                longest_s = _LAST_LOGIN_RETRY_S if error.kind in ("login", "vhost", "tls") else _LAST_RETRY_S
                await asyncio.sleep(wait_s * random.uniform(0.8, 1.2))
                wait_s = min(wait_s * 2, longest_s)
                continue
            wait_s = _FIRST_RETRY_S
            if self._problem is not not_yet:
                log.info("%s: connected to RabbitMQ at %s again", self._server.name, self._server.place)
            self._connection = connection
            connected.set()
            self._note_change()
            await connection.lost.wait()
            connected.clear()
            self._problem = BrokerUnavailable(
                "unreachable", f"the connection to RabbitMQ at {self._server.place} broke"
            )
            log.warning("%s: %s", self._server.name, self._problem)
            self._connection = None
            await connection.close()

    def _probe_connection(self, connection: RabbitMqConnection) -> None:
        """Closes the connection unless the broker answers on it.

        A message to a queue without a majority of its servers times out too, although the broker answers.
        """
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._close_unless_answering(connection))

    async def _close_unless_answering(self, connection: RabbitMqConnection) -> None:
        try:
            await end_quietly((await connection.channel(confirms=False)).close())
        except BrokerUnavailable:
            if not connection.blocked:
                connection.lost.set()  # the supervisor closes it and opens the next one


def _build_properties(message: OutgoingMessage) -> spec.Basic.Properties:
    return spec.Basic.Properties(
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        headers=dict(message.headers),
        delivery_mode=DeliveryMode.PERSISTENT,
        priority=message.priority,
        expiration=None if message.expiration_ms is None else str(message.expiration_ms),
        # The library finds the publish that a returned message belongs to by this id, so it is never reused.
        message_id=uuid4().hex,
        timestamp=datetime.now(UTC),
        message_type=message.type,
        app_id="homing",
    )


def _unencodable(error: Exception) -> PublishResult:
    return PublishResult(
        PublishStatus.REFUSED, "unencodable", f"AMQP cannot carry the message: {error}"[:300]
    )


def _describe(message: OutgoingMessage, code: int, error: BaseException) -> str:
    if code == 406:
        return f"RabbitMQ refused the message: {broker_text(error)}"
    return describe_refusal(
        "exchange" if message.exchange else "queue", message.exchange or message.routing_key, error
    )


_closing: set[asyncio.Task[None]] = set()
"""Keeps the tasks that close channels from being collected."""


def _close_later(channel: AbstractChannel) -> None:
    task = asyncio.get_running_loop().create_task(end_quietly(channel.close()))
    _closing.add(task)
    task.add_done_callback(_closing.discard)
