"""The Kafka sink against a real broker: order, confirmations, refusals, and a broker that is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Message

from homing import Homing
from homing.core.errors import EventsRefused, SinkUnavailable
from homing.core.lifecycle.events import ALERT, NOTIFICATION_FAILED, STATUS_CHANGED, Event
from homing.settings import load_settings
from homing.sinks.kafka import KafkaSink
from support.kafka_broker import KafkaBroker


def event(number: int, name: str = STATUS_CHANGED, about: str | None = "n-1", **payload: Any) -> Event:
    return Event(id=f"e-{number}", name=name, tenant="acme", at=1, notification_id=about, payload=payload)


@asynccontextmanager
async def opened(broker: KafkaBroker, **options: Any) -> AsyncIterator[KafkaSink]:
    sink = KafkaSink(broker.address, **options)
    await sink.open()
    try:
        yield sink
    finally:
        await sink.close()


def ids(messages: list[Message]) -> list[str]:
    return [dict(one.headers() or [])["homing-event-id"].decode() for one in messages]  # type: ignore[union-attr]


async def test_events_arrive_in_order_per_notification_and_dead_letters_in_their_own_topic(
    kafka: KafkaBroker,
) -> None:
    topic, dead = kafka.new_topic("events", partitions=3), kafka.new_topic("dead")
    events = [event(number, about=f"n-{number % 7}") for number in range(200)]
    failed = event(1_000, NOTIFICATION_FAILED, "n-3", reason="RETRIES_EXHAUSTED", notificationId="n-3")
    alert = event(1_001, ALERT, None, alert="queue-depth")
    async with opened(kafka, topic=topic, dead_letter_topic=dead) as sink:
        await sink.publish([*events, failed, alert])
        found = kafka.records(topic)
        for about in {one.notification_id for one in events}:
            own = [one for one in found if one.key() == (about or "").encode()]
            assert len({one.partition() for one in own}) == 1
            assert ids(own) == [one.id for one in events if one.notification_id == about]
        assert ids([one for one in found if one.key() is None]) == ["e-1001"]
        (letter,) = kafka.records(dead)
    assert letter.key() == b"n-3"
    assert msgspec.json.decode(letter.value() or b"") == {
        "eventId": "e-1000",
        "schemaVersion": 1,
        "tenantId": "acme",
        "reason": "RETRIES_EXHAUSTED",
        "notificationId": "n-3",
    }
    assert dict(letter.headers() or [])["homing-reason"] == b"RETRIES_EXHAUSTED"


async def test_a_record_that_is_too_large_is_refused_alone(kafka: KafkaBroker) -> None:
    topic = kafka.new_topic("events", max_message_bytes="2000")
    events = [event(number, about=f"n-{number}") for number in range(20)]
    events[7] = event(7, about="n-7", text="x" * 3_000)
    events.append(event(20, about="n-7"))
    async with opened(kafka, topic=topic) as sink:
        with pytest.raises(EventsRefused) as caught:
            await sink.publish(events)
        others = [one.id for one in events[:20] if one.id != "e-7"]
        assert caught.value.refused == {"e-7"}
        assert caught.value.published == set(others), "the later event of n-7 waits for the refused one"
        assert sorted(ids(kafka.records(topic))) == sorted(others)
        with pytest.raises(EventsRefused, match="refuse a record"):  # larger than librdkafka itself allows
            await sink.publish([event(30, text="x" * 2_000_000)])


async def test_an_unknown_topic_stops_the_sink_with_a_sentence_until_it_exists(kafka: KafkaBroker) -> None:
    topic = kafka.new_topic("events")
    dead = f"{topic}.dead"
    async with opened(kafka, topic=topic, dead_letter_topic=dead) as sink:
        with pytest.raises(SinkUnavailable, match=f"the topic {dead} does not exist; create it"):
            await sink.publish([event(1), event(2, NOTIFICATION_FAILED)])
        with pytest.raises(SinkUnavailable):
            await sink.publish([event(1)])  # otherwise the relay would put the dead letter aside
        kafka.create_topic(dead)
        await sink.publish([event(1)])
        await sink.publish([event(2, NOTIFICATION_FAILED)])
        assert (ids(kafka.records(topic)), ids(kafka.records(dead))) == (["e-1"], ["e-2"])


async def test_a_topic_that_was_deleted_is_noticed_and_may_be_created(kafka: KafkaBroker) -> None:
    topic = kafka.new_topic("events")
    async with opened(kafka, topic=topic, create_topics=True) as sink:
        await sink.publish([event(1)])
        kafka.delete_topic(topic)
        async with asyncio.timeout(60):
            while True:
                try:
                    await sink.publish([event(2)])
                    break
                except SinkUnavailable:
                    await asyncio.sleep(0.1)
        assert "e-2" in ids(kafka.records(topic))


async def test_more_events_than_the_producer_holds_wait_for_room(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.new_topic("events")
    sink = KafkaSink(kafka.address, topic=topic)
    sink._producer._options["queue.buffering.max.messages"] = 10
    await sink.open()
    await sink.publish([event(number, about=f"n-{number}") for number in range(200)])
    await sink.close()
    assert len(kafka.records(topic)) == 200


async def test_events_that_were_published_survive_a_kill_and_none_is_written_twice(
    kafka: KafkaBroker,
) -> None:
    topic = kafka.new_topic("events")
    async with opened(kafka, topic=topic) as sink:
        await sink.publish([event(number) for number in range(3)])
        restarting = asyncio.create_task(asyncio.to_thread(kafka.restart))
        published, ambiguous = 3, set[str]()
        async with asyncio.timeout(60):
            while published < 40 or not restarting.done():
                batch = [event(published)]
                try:
                    await sink.publish(batch)
                    published += 1
                except SinkUnavailable:
                    ambiguous.add(batch[0].id)
        await restarting
        found = ids(kafka.records(topic))
    assert list(dict.fromkeys(found)) == [f"e-{number}" for number in range(published)]
    assert {one for one in found if found.count(one) > 1} <= ambiguous


async def publish_in_the_end(sink: KafkaSink, one: Event) -> None:
    """Publishes an event, again if the broker of a busy machine has not confirmed it within the timeout."""
    async with asyncio.timeout(60):
        while True:
            with suppress(SinkUnavailable):
                return await sink.publish([one])


async def test_a_broker_that_hangs_is_reported_without_blocking_the_event_loop(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.new_topic("events")
    sink = KafkaSink(kafka.address, topic=topic)
    sink._producer._options["message.timeout.ms"] = 1_000
    await sink.open()
    await publish_in_the_end(sink, event(0))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.01)

    counting = asyncio.create_task(count())
    kafka.freeze()
    try:
        with pytest.raises(SinkUnavailable, match="no broker has confirmed"):
            await sink.publish([event(1)])
    finally:
        kafka.thaw()
    counting.cancel()
    assert turns > 10
    await publish_in_the_end(sink, event(2))
    await sink.close()
    assert ids(kafka.records(topic))[-1] == "e-2"


async def test_an_engine_publishes_its_dead_letters_to_the_topic(kafka: KafkaBroker, tmp_path: Path) -> None:
    dead = kafka.new_topic("dead")
    table = {"bootstrap_servers": kafka.address, "dead_letter_topic": dead, "events": ["NotificationFailed"]}
    settings = load_settings(
        flags={
            "store": str(tmp_path / "homing.db"),
            "providers": {"p": {"kind": "scripted", "channels": ["email"], "usual": "bad_recipient"}},
            "sinks": {"kafka": table},
        }
    )
    async with Homing(loaded_settings=settings, worker=True) as homing:
        sent = await homing.send("ada@example.org", channel="email", subject="Hi", body="Hello")
        async with asyncio.timeout(60):
            while not (letters := await asyncio.to_thread(kafka.records, dead)):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    assert [one.key() for one in letters] == [sent.id.encode()]
    assert msgspec.json.decode(letters[0].value() or b"")["eventType"] == "NotificationFailed"


async def test_diagnose_names_brokers_and_topics_and_what_is_missing(kafka: KafkaBroker) -> None:
    topic = kafka.new_topic("events")
    assert await KafkaSink(kafka.address, topic=topic, dead_letter_topic=topic).diagnose() == (
        f"1 broker, {topic}, {topic}"
    )
    with pytest.raises(Exception, match="the topic nowhere does not exist"):
        await KafkaSink(kafka.address, topic=topic, dead_letter_topic="nowhere").diagnose()
    with pytest.raises(ConnectionError, match="no broker"):
        await KafkaSink("127.0.0.1:1", topic=topic).diagnose()
