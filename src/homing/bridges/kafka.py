"""A bridge that brings requests in from a Kafka topic: JSON send requests, one per record."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Message
from msgspec import DecodeError, json

from homing.brokers.kafka import (
    BrokersUnavailable,
    KafkaConnection,
    KafkaConsumer,
    KafkaProducer,
    Record,
    RecordRefused,
    check_topic,
    read_protocol,
)
from homing.core.errors import ConfigError, InvalidRequest
from homing.core.ports.bridges import BridgeMessage, HandledMessage

ID_HEADER = "homing-message-id"
"""Header that identifies a message, for producers that may write the same message twice."""

_MAX_ID_BYTES = 255
_MAX_RECORD_BYTES = 1_048_576
_MAX_REASON_CHARACTERS = 500
_REPORT_TIMEOUT_S = 10
_OWN_HEADERS = "homing-rejection"


class KafkaBridge:
    """Reads requests from a topic. Offsets are committed after the requests were stored.

    A record that is not a valid request goes to the quarantine topic, with the reason in its headers, before
    its offset is committed. So it neither blocks its partition nor vanishes.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        topic: str = "homing.requests",
        quarantine_topic: str = "homing.requests-quarantine",
        group: str = "homing",
        group_protocol: str = "auto",
        tenant: str = "",
        client_id: str = "homing",
        security: Mapping[str, str] | None = None,
        create_topics: bool = False,
    ) -> None:
        self._connection = KafkaConnection(bootstrap_servers, client_id, security)
        self._topic = check_topic("topic", topic)
        self._quarantine_topic = check_topic("quarantine_topic", quarantine_topic)
        if self._topic == self._quarantine_topic:
            raise ConfigError("quarantine_topic", "must be another topic than the one that is read")
        self._group = check_topic("group", group)
        self._protocol = read_protocol(group_protocol)
        self._tenant = tenant or None
        self._create_topics = create_topics
        self._consumer: KafkaConsumer | None = None
        self._producer = KafkaProducer(self._connection, timeout_s=_REPORT_TIMEOUT_S)
        self._read: deque[Message] = deque()
        """Records that were read and not returned yet. The consumer's thread adds to it."""

    async def open(self) -> None:
        """Checks that both topics exist, and joins the group."""
        await self._connection.require_topics(self._topics, create=self._create_topics)
        await self._producer.open()
        self._read.clear()
        self._consumer = KafkaConsumer(self._connection, self._group, [self._topic], protocol=self._protocol)
        await self._consumer.__aenter__()

    async def close(self) -> None:
        """Leaves the group. Another member, or this one after `open`, reads what was not committed."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.close()
        await self._producer.close()

    async def receive(self, limit: int) -> Sequence[BridgeMessage]:
        """Waits for records, and returns those that have arrived."""
        consumer = self._joined()
        while not self._read:
            await consumer.call(self._poll, consumer, limit)
        taken = [self._read.popleft() for _ in range(min(limit, len(self._read)))]
        return [self._message(one) for one in taken]

    async def acknowledge(self, handled: Sequence[HandledMessage]) -> None:
        """Puts rejected records into the quarantine topic, and then commits the offsets of all records."""
        rejected = [one for one in handled if one.rejection is not None]
        await self._quarantine(rejected)
        offsets: dict[tuple[str, int], int] = {}
        for one in handled:
            place, offset = _place(one.message.reference)
            offsets[place] = max(offset + 1, offsets.get(place, 0))
        await self._joined().commit(offsets)

    async def check(self) -> None:
        """Raises if the brokers do not answer, or if the topic was deleted."""
        await self._joined().check()

    async def backlog(self) -> int:
        """Returns the number of records of this member's partitions that have not become notifications."""
        return len(self._read) + await self._joined().backlog()

    async def diagnose(self) -> str:
        """Checks that the brokers answer and that both topics exist."""
        return await self._connection.diagnose(self._topics, may_create=self._create_topics)

    @property
    def _topics(self) -> list[str]:
        return [self._topic, self._quarantine_topic]

    def _joined(self) -> KafkaConsumer:
        if self._consumer is None:
            raise BrokersUnavailable("the bridge is not open")
        return self._consumer

    def _poll(self, consumer: KafkaConsumer, limit: int) -> None:
        """Reads once, on the consumer's thread, so that a cancelled `receive` loses nothing."""
        self._read.extend(consumer.poll(limit))

    def _message(self, message: Message) -> BridgeMessage:
        return BridgeMessage(
            key=_key(message), request=_request(message), reference=message, tenant=self._tenant
        )

    async def _quarantine(self, rejected: Sequence[HandledMessage]) -> None:
        """Writes records to the quarantine topic. Raises if one is not confirmed.

        A record that is too large with the added headers is written without its content. The headers say
        where the content is.
        """
        records = [self._quarantined(one) for one in rejected]
        for place, failure in enumerate(await self._producer.send(records)):
            if isinstance(failure, RecordRefused):
                (failure,) = await self._producer.send([records[place]])
            if isinstance(failure, RecordRefused):
                (failure,) = await self._producer.send([self._quarantined(rejected[place], content=False)])
            if failure is not None:
                raise failure

    def _quarantined(self, one: HandledMessage, *, content: bool = True) -> Record:
        message: Message = one.message.reference
        (topic, partition), offset = _place(message)
        reason = (one.rejection or "")[:_MAX_REASON_CHARACTERS]
        added = {
            _OWN_HEADERS: reason,
            f"{_OWN_HEADERS}-code": one.code or "",
            f"{_OWN_HEADERS}-topic": topic,
            f"{_OWN_HEADERS}-partition": str(partition),
            f"{_OWN_HEADERS}-offset": str(offset),
        }
        if not content:
            added[f"{_OWN_HEADERS}-cut"] = "the content is too large; it is only in the original topic"
        own = [(name, text.encode("utf-8", "backslashreplace")) for name, text in added.items()]
        headers = [(name, value or b"") for name, value in _headers(message)] if content else []
        value, key = (message.value(), message.key()) if content else (None, None)
        return Record(self._quarantine_topic, value, key, [*headers, *own])


def _place(message: Message) -> tuple[tuple[str, int], int]:
    return (message.topic() or "", message.partition() or 0), message.offset() or 0


def _headers(message: Message) -> list[tuple[str, bytes | None]]:
    found: Any = message.headers() or []
    return [
        (name, value.encode("utf-8", "backslashreplace") if isinstance(value, str) else value)
        for name, value in found
    ]


def _key(message: Message) -> str:
    """Returns the header with the message's id, or else the record's place in the log.

    The time of the record is part of it, because a topic that was deleted and created again has the same
    offsets again.
    """
    for name, value in reversed(_headers(message)):
        if name == ID_HEADER and value and len(value) <= _MAX_ID_BYTES:
            return f"id:{value.decode('utf-8', 'backslashreplace')}"
    (topic, partition), offset = _place(message)
    return f"{topic}/{partition}/{offset}@{message.timestamp()[1]}"


def _request(message: Message) -> Mapping[str, Any] | InvalidRequest:
    value = message.value()
    if not value:
        return InvalidRequest("request", "is empty; each record must be a JSON object")
    if len(value) > _MAX_RECORD_BYTES:
        return InvalidRequest("request", f"has {len(value)} bytes; at most {_MAX_RECORD_BYTES} are allowed")
    try:
        found = json.decode(value)
    except (DecodeError, ValueError, RecursionError):
        return InvalidRequest("request", "is not valid JSON")
    if not isinstance(found, dict):
        return InvalidRequest("request", "is not a JSON object")
    return found
