"""A sink that publishes events to Kafka, and dead letters to a topic of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from homing.brokers.kafka import (
    KafkaConnection,
    KafkaFailure,
    KafkaProducer,
    Record,
    RecordRefused,
    check_topic,
)
from homing.core.errors import EventsRefused, SinkUnavailable
from homing.core.lifecycle.events import NOTIFICATION_FAILED, Event, event_body, event_headers


class KafkaSink:
    """Publishes `NotificationFailed` to the dead-letter topic, and all other events to `topic`.

    The key of a record is the notification's id, so the events of a notification are in one partition, in
    order. `publish` returns when all replicas have confirmed all records. If the brokers do not answer in
    time, records may have been written nevertheless, and are published again: consumers deduplicate by the
    header `homing-event-id`.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        topic: str = "homing.events",
        dead_letter_topic: str = "homing.dead-letters",
        client_id: str = "homing",
        security: Mapping[str, str] | None = None,
        create_topics: bool = False,
    ) -> None:
        self._connection = KafkaConnection(bootstrap_servers, client_id, security)
        self._topic = check_topic("topic", topic)
        self._dead_letter_topic = check_topic("dead_letter_topic", dead_letter_topic)
        self._create_topics = create_topics
        self._producer = KafkaProducer(self._connection)
        self._usable: set[str] = set()
        """Topics that are known to exist."""
        self._wanted: set[str] = set()
        """Topics that a call has missed. All calls fail until they exist."""

    async def open(self) -> None:
        """Starts the producer. It connects by itself."""
        await self._producer.open()

    async def close(self) -> None:
        """Ends the producer."""
        await self._producer.close()

    async def publish(self, events: Sequence[Event]) -> None:
        """Publishes events, and returns when all replicas have them.

        Raises `SinkUnavailable` or `EventsRefused`, which say what was published nevertheless.
        """
        published: list[str] = []
        try:
            await self._require_topics({self._topic_of(event) for event in events})
            for wave in _waves(events):
                results = dict(zip([event.id for event in wave], await self._write(wave), strict=True))
                published += [id for id, failure in results.items() if failure is None]
                _raise_failures(results, published)
        except KafkaFailure as failure:
            self._usable.clear()  # a topic may have been deleted
            raise SinkUnavailable(str(failure), published=published) from failure

    async def diagnose(self) -> str:
        """Checks that the brokers answer and that both topics exist."""
        return await self._connection.diagnose(
            [self._topic, self._dead_letter_topic], may_create=self._create_topics
        )

    def _topic_of(self, event: Event) -> str:
        return self._dead_letter_topic if event.name == NOTIFICATION_FAILED else self._topic

    async def _require_topics(self, names: set[str]) -> None:
        """Raises `UnknownTopic` if a topic of this call, or of an earlier one, does not exist.

        A missing topic stops the whole sink. If the sink took other events, the relay would put those for
        the missing topic aside after a while.
        """
        self._wanted |= names - self._usable
        if not self._wanted:
            return
        if missing := await self._producer.missing(self._wanted):
            await self._connection.require_topics(missing, create=self._create_topics)
        self._usable |= self._wanted
        self._wanted.clear()

    async def _write(self, events: Sequence[Event]) -> list[KafkaFailure | None]:
        """Writes events of different notifications, and returns the failure of each, or None.

        A record that is too large fails its whole batch, so its neighbours are written again, one by one.
        """
        records = [self._record(event) for event in events]
        results = await self._producer.send(records)
        if sum(isinstance(one, RecordRefused) for one in results) > 1:
            for place, one in enumerate(results):
                if isinstance(one, RecordRefused):
                    (results[place],) = await self._producer.send([records[place]])
        return results

    def _record(self, event: Event) -> Record:
        headers = [(name, value.encode()) for name, value in event_headers(event).items()]
        key = event.notification_id
        return Record(self._topic_of(event), event_body(event), key.encode() if key else None, headers)


def _raise_failures(results: Mapping[str, KafkaFailure | None], published: Sequence[str]) -> None:
    """Raises if a wave was not written completely. Later events of a notification must then wait."""
    refused = {id: failure for id, failure in results.items() if isinstance(failure, RecordRefused)}
    for failure in results.values():
        if failure is not None and not isinstance(failure, RecordRefused):
            raise failure
    if refused:
        raise EventsRefused(str(next(iter(refused.values()))), refused=refused, published=published)


def _waves(events: Sequence[Event]) -> Iterator[list[Event]]:
    """Splits events into parts that have at most one event per notification each, in order.

    An event is written after the one before it was confirmed. Otherwise a later event could be written
    although an earlier one was refused.
    """
    waves: list[list[Event]] = []
    number: dict[str, int] = {}
    for event in events:
        place = 0
        if event.notification_id is not None:
            place = number.get(event.notification_id, 0)
            number[event.notification_id] = place + 1
        if place == len(waves):
            waves.append([])
        waves[place].append(event)
    yield from waves
