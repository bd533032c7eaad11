"""A timer that lets due times wait in Kafka: one topic per step of delay."""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import Message
from msgspec import DecodeError, Struct, field, json

from homing.brokers.kafka import (
    KafkaConnection,
    KafkaConsumer,
    KafkaProducer,
    Record,
    check_topic,
    read_protocol,
)
from homing.core.durations import parse_duration
from homing.core.errors import ConfigError
from homing.core.lifecycle.due_times import DueTime
from homing.core.ports.timers import Wake

log = logging.getLogger("homing.kafka")

_STEPS = ("0s", "10s", "1m", "5m", "30m", "2h")
_MAX_STEPS = 20
_LEAD_MS = 2_000
"""Time before the end of a step at which its records are read. Reading a topic again after a pause takes up
to a second, so a record is read before its notification is due, and the worker gets the due time."""

_READ = 500
"""Maximum number of records per read."""

_REPORT_TIMEOUT_S = 4
"""Shorter than the five seconds after which the engine gives up a call of `schedule`."""

_MAX_VALUE_BYTES = 200


class WaitingRecord(Struct, frozen=True, rename="camel"):
    """The value of a record. Its key is the notification's id."""

    due_at: int
    """Epoch milliseconds by the store's clock."""
    scheduled_at: int
    """Time at which the due time was written to Kafka, by the same clock."""


_DECODER = json.Decoder(WaitingRecord)

Place = tuple[str, int]
"""A topic and a partition."""


class _Read(Struct):
    """What one read has found."""

    due: list[int] = field(default_factory=list)
    """Due times to pass on to the worker."""
    offsets: dict[Place, int] = field(default_factory=dict)
    """The next offsets to read. They are committed once the worker has the due times."""


class KafkaTimer:
    """Writes due times to topics and wakes a worker when they have come.

    A record waits in the topic of the longest step that is not longer than its delay. Two seconds before the
    end of that step, the process of a worker reads the record, passes the due time on to its worker, and
    commits the offset. All workers are one consumer group, so that each record wakes one of them. If a
    process ends before it has committed, another one reads its records.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        topic: str = "homing.timers",
        steps: Sequence[str] = _STEPS,
        group: str = "homing-timers",
        group_protocol: str = "auto",
        client_id: str = "homing",
        security: Mapping[str, str] | None = None,
        create_topics: bool = False,
    ) -> None:
        self._connection = KafkaConnection(bootstrap_servers, client_id, security)
        self._steps_ms = _read_steps(steps)
        self._topics = [check_topic("topic", f"{topic}.{step}") for step in steps]
        self._step_of = dict(zip(self._topics, self._steps_ms, strict=True))
        self._group = check_topic("group", group)
        self._protocol = read_protocol(group_protocol)
        self._create_topics = create_topics
        self._producer = KafkaProducer(self._connection, timeout_s=_REPORT_TIMEOUT_S, idempotent=False)
        self._paused: dict[Place, float] = {}
        """Partition → monotonic time at which it is read again."""

    async def open(self, store_now_ms: Callable[[], int]) -> None:
        """Starts the producer, and checks that the topics exist."""
        self._store_now_ms = store_now_ms
        await self._connection.require_topics(self._topics, create=self._create_topics)
        await self._producer.open()

    async def close(self) -> None:
        """Ends the producer."""
        await self._producer.close()

    async def schedule(self, batch: Sequence[DueTime]) -> None:
        """Writes due times to the topics of their delays, and waits until the brokers have confirmed them."""
        now = self._store_now_ms()
        for failure in await self._producer.send([self._record(one, now) for one in batch]):
            if failure is not None:
                raise failure

    async def listen(self, wake: Wake) -> None:
        """Reads what is almost due, passes it on to the worker, and commits it, until cancelled."""
        await self._connection.require_topics(self._topics, create=self._create_topics)
        self._paused.clear()
        wake()
        consumer = KafkaConsumer(
            self._connection, self._group, self._topics, protocol=self._protocol, buffer_kbytes=2_048
        )
        async with consumer:
            while True:
                found = await consumer.call(self._read, consumer)
                for due_at in found.due:
                    wake(due_at)
                await consumer.commit(found.offsets)

    async def diagnose(self) -> str:
        """Checks that the brokers answer and that the topics exist."""
        return await self._connection.diagnose(self._topics, may_create=self._create_topics)

    def _record(self, due: DueTime, now: int) -> Record:
        delay = max(0, due.due_at - now)
        topic = self._topics[bisect_right(self._steps_ms, delay) - 1]
        return Record(topic, json.encode(WaitingRecord(due.due_at, now)), due.id.encode())

    def _read(self, consumer: KafkaConsumer) -> _Read:
        """Reads once. Runs on the consumer's thread."""
        now_s = time.monotonic()
        if ended := [place for place, until in self._paused.items() if until <= now_s]:
            consumer.resume(ended)
            for place in ended:
                del self._paused[place]
        wait_s = min([0.5, *(until - now_s for until in self._paused.values())])
        messages = consumer.poll(_READ, max(0.0, wait_s))
        for place in [place for place in self._paused if place not in consumer.assigned]:
            del self._paused[place]
        return self._sort(consumer, messages)

    def _sort(self, consumer: KafkaConsumer, messages: Sequence[Message]) -> _Read:
        """Separates the records whose step has almost passed from the others, which stay in Kafka.

        Records of a partition are in the order in which they were written, so all records behind one that
        must wait also wait.
        """
        found, now = _Read(), self._store_now_ms()
        waiting: dict[Place, int] = {}
        for message in messages:
            place, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
            if place in waiting:
                continue
            record = _decode(message)
            if record is not None:
                wait_ms = record.scheduled_at + self._step_of.get(place[0], 0) - _LEAD_MS - now
                if wait_ms > 0 and record.due_at - now > _LEAD_MS:
                    waiting[place] = offset
                    # A clock that was set back must not make a partition wait longer than its step.
                    wait_ms = min(wait_ms, self._step_of.get(place[0], 0))
                    self._paused[place] = time.monotonic() + wait_ms / 1000
                    continue
                found.due.append(record.due_at)
            found.offsets[place] = offset + 1
        consumer.pause(waiting)
        return found


def _read_steps(given: Sequence[str]) -> list[int]:
    steps = [parse_duration(one, "steps") for one in given]
    if not steps or steps[0] != 0 or steps != sorted(set(steps)) or len(steps) > _MAX_STEPS:
        raise ConfigError("steps", f'must begin with "0s" and rise, with at most {_MAX_STEPS} steps')
    return steps


def _decode(message: Message) -> WaitingRecord | None:
    """Returns the value of a record, or None if something else has written it."""
    value = message.value()
    try:
        if value is None or len(value) > _MAX_VALUE_BYTES:
            raise ValueError
        return _DECODER.decode(value)
    except (DecodeError, ValueError):
        log.warning("a record in the timer topic %s is not Homing's and is passed over", message.topic())
        return None
