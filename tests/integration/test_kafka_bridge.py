"""The Kafka bridge against a real broker: nothing is lost or doubled, and no record blocks its partition."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Message, TopicPartition

from homing import Homing
from homing.bridges.kafka import KafkaBridge
from homing.brokers.kafka import KafkaConnection, KafkaConsumer, UnknownTopic
from support.kafka_broker import KafkaBroker


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("homing.engine.intake.bridges._FIRST_PAUSE_MS", 20)


def mail(number: int = 0, **fields: Any) -> bytes:
    request = {"recipient": f"user-{number}@example.org", "channel": "email", "content": {"body": "Hi"}}
    return msgspec.json.encode({**request, **fields})


def new_topics(kafka: KafkaBroker, partitions: int = 1, **config: str) -> str:
    topic = kafka.new_topic("requests", partitions)
    kafka.create_topic(f"{topic}.quarantine", 1, **config)
    return topic


def bridge(kafka: KafkaBroker, topic: str, **options: Any) -> KafkaBridge:
    return KafkaBridge(
        kafka.address, topic=topic, quarantine_topic=f"{topic}.quarantine", group=topic, **options
    )


@asynccontextmanager
async def running(*bridges: KafkaBridge, store: str = "homing.db") -> AsyncIterator[list[Homing]]:
    """Runs an engine per bridge, all on the same store."""
    engines = [Homing(store, bridges={"kafka": one}) for one in bridges]
    for one in engines:
        await one.open()
        one.bridges.start()
    try:
        yield engines
    finally:
        for one in engines:
            await one.close()


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(holds):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def recipients(homing: Homing) -> list[str]:
    return sorted(one.recipient.email or "" for one in (await homing.list(limit=1_000)).items)


def rejections(records: list[Message]) -> list[tuple[str, bytes | None]]:
    return [(dict(one.headers() or [])["homing-rejection"].decode(), one.value()) for one in records]  # type: ignore[union-attr]


async def test_requests_are_stored_then_committed_and_bad_records_go_to_quarantine(
    kafka: KafkaBroker,
) -> None:
    topic = new_topics(kafka)
    bad = [b"{", b"[]", b"{}", None, b"\xff\xfe", b"[" * 5_000, mail(recipient=7), mail(colour="red")]
    kafka.produce(topic, mail(1), *bad, mail(2), key=b"k", headers={"origin": b"shop"})
    async with running(bridge(kafka, topic)) as (homing,):
        await eventually(lambda: kafka.committed(topic, topic) == 10)
        assert await recipients(homing) == ["user-1@example.org", "user-2@example.org"]
        await eventually(lambda: homing.snapshot().bridges["kafka"].rejected == 8)
    found = kafka.records(f"{topic}.quarantine")
    assert [value for _, value in rejections(found)] == bad
    reasons = [reason for reason, _ in rejections(found)]
    assert reasons[:2] == ["request: is not valid JSON", "request: is not a JSON object"]
    assert all(reasons)
    headers = dict(found[0].headers() or [])
    assert (found[0].key(), headers["origin"]) == (b"k", b"shop")
    assert (headers["homing-rejection-topic"], headers["homing-rejection-offset"]) == (topic.encode(), b"1")


async def test_the_backlog_is_what_this_member_has_not_read_yet(kafka: KafkaBroker) -> None:
    topic = new_topics(kafka)
    kafka.produce(topic, *[mail(number) for number in range(20)])
    one = bridge(kafka, topic)
    await one.open()
    try:
        read = list(await one.receive(5))
        while len(read) < 5:
            read += await one.receive(5 - len(read))
        assert await one.backlog() == 15
        while len(read) < 20:
            read += await one.receive(20)
        assert await one.backlog() == 0
        kafka.produce(topic, mail(20))
        await eventually_async(one, 1)
    finally:
        await one.close()


async def test_what_was_accepted_before_a_restart_is_no_backlog(kafka: KafkaBroker) -> None:
    topic = new_topics(kafka)
    kafka.produce(topic, *[mail(number) for number in range(20)])
    async with running(bridge(kafka, topic)):
        await eventually(lambda: kafka.committed(topic, topic) == 20)
    again = bridge(kafka, topic)
    await again.open()
    receiving = asyncio.create_task(again.receive(5))
    try:
        await eventually(lambda: newest_offset(again, topic) == 20)
        assert await again.backlog() == 0
        assert not receiving.done(), "nothing is read again"
    finally:
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        await again.close()


def newest_offset(one: KafkaBridge, topic: str) -> int:
    """Returns the offset after the newest record, as far as the consumer knows. It is negative at first."""
    consumer = one._joined()
    if not consumer.assigned:
        return -1
    offsets: tuple[int, int] = consumer._joined().get_watermark_offsets(TopicPartition(topic, 0), cached=True)
    return offsets[1]


async def eventually_async(one: KafkaBridge, expected: int) -> None:
    """Waits until the consumer has heard of the newest records."""
    async with asyncio.timeout(60):
        while await one.backlog() != expected:  # noqa: ASYNC110 (the backlog is as recent as the last fetch)
            await asyncio.sleep(0.1)


async def test_a_record_that_the_quarantine_topic_refuses_leaves_its_place_there(kafka: KafkaBroker) -> None:
    topic = new_topics(kafka, max_message_bytes="2000")
    kafka.produce(topic, b"x" * 1_900, b"{", mail(1))
    async with running(bridge(kafka, topic)) as (homing,):
        await eventually(lambda: kafka.committed(topic, topic) == 3)
        assert await recipients(homing) == ["user-1@example.org"]
    found = kafka.records(f"{topic}.quarantine")
    assert sorted(one.value() or b"" for one in found) == [b"", b"{"]
    (cut,) = [one for one in found if not one.value()]
    assert dict(cut.headers() or [])["homing-rejection-offset"] == b"0"
    assert b"original topic" in dict(cut.headers() or [])["homing-rejection-cut"]  # type: ignore[operator]


async def test_a_record_with_an_id_is_accepted_once_however_often_it_is_written(kafka: KafkaBroker) -> None:
    topic = new_topics(kafka)
    kafka.produce(topic, mail(1), mail(1), headers={"homing-message-id": b"order-7"})
    kafka.produce(topic, mail(2), mail(2))
    async with running(bridge(kafka, topic)) as (homing,):
        await eventually(lambda: kafka.committed(topic, topic) == 4)
        assert await recipients(homing) == [
            "user-1@example.org",
            "user-2@example.org",
            "user-2@example.org",
        ]
        await eventually(lambda: homing.snapshot().bridges["kafka"].duplicates == 1)


async def test_a_topic_that_was_created_again_brings_new_requests(kafka: KafkaBroker) -> None:
    """Its records have the offsets of the old ones, and are not mistaken for these."""
    topic = new_topics(kafka)
    kafka.produce(topic, mail(1))
    async with running(bridge(kafka, topic)) as (homing,):
        await eventually(lambda: kafka.committed(topic, topic) == 1)
    kafka.delete_topic(topic)
    await asyncio.sleep(0.5)
    kafka.create_topic(topic)
    kafka.produce(topic, mail(2))
    other = KafkaBridge(
        kafka.address, topic=topic, quarantine_topic=f"{topic}.quarantine", group=f"{topic}.2"
    )
    async with running(other) as (homing,):
        await eventually(lambda: kafka.committed(f"{topic}.2", topic) == 1)
        assert await recipients(homing) == ["user-1@example.org", "user-2@example.org"]


async def test_two_bridges_share_the_partitions_and_hand_them_over(kafka: KafkaBroker) -> None:
    topic = new_topics(kafka, partitions=4)
    first, second = bridge(kafka, topic), bridge(kafka, topic)

    def produce(start: int) -> None:
        for number in range(start, start + 100):
            kafka.produce(topic, mail(number), partition=number % 4)

    async with running(first) as (homing,):
        await asyncio.to_thread(produce, 0)
        async with running(second) as (other,):
            writing = asyncio.create_task(asyncio.to_thread(produce, 100))
            await eventually(lambda: second._consumer is not None and len(second._consumer.assigned) == 2)
            await writing
            await asyncio.to_thread(produce, 200)
            await eventually(lambda: other.snapshot().bridges["kafka"].accepted > 0)
        await asyncio.to_thread(produce, 300)
        await eventually(lambda: kafka.committed(topic, topic) == 400)
        assert await recipients(homing) == sorted(f"user-{number}@example.org" for number in range(400))


async def test_a_killed_broker_loses_and_doubles_nothing(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homing.brokers.kafka._METADATA_TIMEOUT_S", 1)
    topic = new_topics(kafka)
    one = bridge(kafka, topic)
    async with running(one) as (homing,):
        kafka.produce(topic, *(mail(number) for number in range(100)))
        await eventually(lambda: homing.snapshot().bridges["kafka"].accepted > 0)
        await asyncio.to_thread(kafka.kill)
        await one.check()  # it waits for the broker
        await asyncio.to_thread(kafka.start)
        kafka.produce(topic, *(mail(number) for number in range(100, 200)))
        await eventually(lambda: kafka.committed(topic, topic) == 200)
        assert await recipients(homing) == sorted(f"user-{number}@example.org" for number in range(200))


async def test_a_broker_that_stays_away_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homing.brokers.kafka._PATIENCE_S", 0)
    monkeypatch.setattr("homing.brokers.kafka._METADATA_TIMEOUT_S", 0.5)
    consumer = KafkaConsumer(KafkaConnection("127.0.0.1:1"), "group", ["topic"])
    async with consumer:
        with pytest.raises(ConnectionError, match="no broker has confirmed"):
            await consumer.check()
        with pytest.raises(ConnectionError):
            await consumer.call(consumer.poll, 10)


async def test_a_missing_topic_is_reported_with_its_name_until_it_exists(
    kafka: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka.new_topic("requests")
    kafka.produce(topic, mail(1))
    async with running(bridge(kafka, topic)) as (homing,):
        problem = f"the topic {topic}.quarantine does not exist; create it, or set create_topics = true"
        await eventually(lambda: problem in homing.snapshot().bridges["kafka"].status)
        assert problem in caplog.text
        kafka.create_topic(f"{topic}.quarantine")
        await eventually(lambda: kafka.committed(topic, topic) == 1)
        assert await recipients(homing) == ["user-1@example.org"]


async def test_records_that_were_stored_but_not_committed_are_recognized(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topics(kafka)
    kafka.produce(topic, mail(1), b"{")
    first, failures = bridge(kafka, topic), 0
    acknowledge = first.acknowledge

    async def fail_once(handled: Any) -> None:
        nonlocal failures
        failures += 1
        if failures == 1:
            raise ConnectionError("the process died here")
        await acknowledge(handled)

    monkeypatch.setattr(first, "acknowledge", fail_once)
    async with running(first) as (homing,):
        await eventually(lambda: kafka.committed(topic, topic) == 2)
        assert failures > 1
        assert await recipients(homing) == ["user-1@example.org"]
    assert len(kafka.records(f"{topic}.quarantine")) == 1


async def test_missing_topics_are_named(kafka: KafkaBroker) -> None:
    topic = kafka.new_topic("requests")
    with pytest.raises(UnknownTopic, match=f"the topic {topic}.quarantine does not exist"):
        await bridge(kafka, topic).open()
    with pytest.raises(UnknownTopic, match="does not exist"):
        await bridge(kafka, topic).diagnose()
    made = bridge(kafka, topic, create_topics=True)
    await made.open()
    await made.check()
    await made.close()
    assert kafka.records(f"{topic}.quarantine") == []
