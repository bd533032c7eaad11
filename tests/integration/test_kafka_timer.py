"""The Kafka timer against a real broker: workers are woken, and a lost or restarted broker loses nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from homing import Delivery, Homing, Outcome, OutcomeKind, Status
from homing.brokers.kafka import UnknownTopic
from homing.core.lifecycle.due_times import DueTime
from homing.core.notifications import Priority
from homing.settings import load_settings
from homing.timers.kafka import KafkaTimer
from support.kafka_broker import KafkaBroker

EMAIL: dict[str, Any] = {"channel": "email", "subject": "Hi", "body": "Hello", "priority": "low"}
STEPS = ("0s", "3s", "1h")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def topics(kafka: KafkaBroker, partitions: int = 2) -> str:
    """Creates the topics of a timer, and returns the beginning of their names."""
    prefix = kafka.new_topic("timer", partitions)
    for step in STEPS:
        kafka.create_topic(f"{prefix}.{step}", partitions)
    return prefix


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


class Listener:
    """A process that listens to the timer. It records the due times, and how early it got them."""

    def __init__(self, kafka: KafkaBroker, prefix: str, **options: Any) -> None:
        self.timer = KafkaTimer(kafka.address, topic=prefix, steps=STEPS, group=f"group-{prefix}", **options)
        self.woken: list[tuple[int, int]] = []

    def wake(self, due_at: int = 0) -> None:
        self.woken.append((due_at, due_at - now_ms()))

    @property
    def due(self) -> set[int]:
        """The due times so far. Raises the error with which listening has ended, if it has."""
        if self.failure is not None:
            raise self.failure
        return {due_at for due_at, _ in self.woken}

    async def start(self) -> None:
        await self.timer.open(now_ms)
        self.listen()

    def listen(self) -> None:
        self._listening = asyncio.create_task(self.timer.listen(self.wake))

    async def stop(self) -> None:
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        await self.timer.close()

    @property
    def failure(self) -> BaseException | None:
        ended = self._listening.done() and not self._listening.cancelled()
        return self._listening.exception() if ended else None


@asynccontextmanager
async def listening(*listeners: Listener) -> AsyncIterator[None]:
    for one in listeners:
        await one.start()
    try:
        yield
    finally:
        for one in listeners:
            await one.stop()


def due_times(delays_ms: Sequence[int]) -> list[DueTime]:
    now = now_ms()
    return [DueTime(f"n-{number}", now + ms, Priority.LOW) for number, ms in enumerate(delays_ms)]


async def test_records_wait_in_the_topic_of_their_step_and_are_committed_after_the_wake_up(
    kafka: KafkaBroker,
) -> None:
    prefix = topics(kafka)
    one = Listener(kafka, prefix)
    async with listening(one):
        batch = due_times([0, 500, 3_000, 3_500, 4_000, 7_200_000])
        await one.timer.schedule(batch)
        assert [len(kafka.records(f"{prefix}.{step}")) for step in STEPS] == [2, 3, 1]
        await eventually(lambda: one.due >= {due.due_at for due in batch[:5]})
        assert kafka.committed(f"group-{prefix}", f"{prefix}.3s") <= 3
        await eventually(lambda: kafka.committed(f"group-{prefix}", f"{prefix}.3s") == 3)
    assert batch[5].due_at not in one.due, "an hour is not over"
    assert kafka.committed(f"group-{prefix}", f"{prefix}.1h") == 0
    early = [before for due_at, before in one.woken if due_at in {due.due_at for due in batch[2:5]}]
    assert max(early) <= 4_000, "the record waited for its step, less two seconds"


async def test_a_partition_that_goes_to_another_process_and_comes_back_is_read_again(
    kafka: KafkaBroker,
) -> None:
    """A pause outlives a revocation, so the timer must resume what it is assigned."""
    prefix = topics(kafka)
    first, second = Listener(kafka, prefix), Listener(kafka, prefix)
    async with listening(first):
        waiting = due_times([4_000] * 8)
        await first.timer.schedule(waiting)
        await asyncio.sleep(0.3)  # first has paused its partitions by now
        async with listening(second):
            early = due_times([0, 1] * 4)
            await eventually(lambda: bool(second.woken))
            await second.timer.schedule(early)
            await eventually(lambda: {due.due_at for due in early} <= first.due | second.due)
        late = due_times([2, 3_100])
        await first.timer.schedule(late)
        await eventually(lambda: {due.due_at for due in late} <= first.due)
        await eventually(lambda: {due.due_at for due in waiting} <= first.due | second.due)
        given = {due.due_at for due in (*waiting, *early, *late)}
        assert first.due | second.due == {0, *given}, "nothing but what was scheduled, and the first wake-up"
        assert first.failure is None


async def test_a_process_that_stops_while_it_joins_leaves_no_member_behind(kafka: KafkaBroker) -> None:
    """Such a member would keep its partitions and never read them."""
    prefix = topics(kafka)
    gone, stays = Listener(kafka, prefix), Listener(kafka, prefix)
    async with listening(gone):
        while not gone.due:  # the first wake-up comes just before it joins  # noqa: ASYNC110
            await asyncio.sleep(0)
    async with listening(stays):
        batch = due_times(range(8))
        await stays.timer.schedule(batch)
        await eventually(lambda: {due.due_at for due in batch} <= stays.due)


async def test_a_broker_that_is_killed_and_comes_back_keeps_what_waits(kafka: KafkaBroker) -> None:
    prefix = topics(kafka)
    one = Listener(kafka, prefix)
    async with listening(one):
        await one.timer.schedule(due_times([0]))
        await eventually(lambda: len(one.woken) > 1)
        waiting = due_times([3_500, 3_600])
        await one.timer.schedule(waiting)
        await asyncio.to_thread(kafka.restart)
        now = due_times([0, 1])
        await one.timer.schedule(now)
        await eventually(lambda: {due.due_at for due in (*waiting, *now)} <= one.due)
        assert one.failure is None
        await eventually(lambda: kafka.committed(f"group-{prefix}", f"{prefix}.3s") == 2)
    assert len(kafka.records(f"{prefix}.3s")) == 2, "each is in its topic once"


async def test_records_of_other_programs_are_passed_over(kafka: KafkaBroker) -> None:
    prefix = topics(kafka, partitions=1)
    kafka.produce(f"{prefix}.0s", b"{", None, b"x" * 10_000, b'{"dueAt": "soon"}')
    one = Listener(kafka, prefix)
    async with listening(one):
        (due,) = due_times([0])
        await one.timer.schedule([due])
        await eventually(lambda: due.due_at in one.due)
        await eventually(lambda: kafka.committed(f"group-{prefix}", f"{prefix}.0s") == 5)
        assert (one.due, one.failure) == ({0, due.due_at}, None), "the others wake no worker"


async def test_missing_topics_are_named(kafka: KafkaBroker) -> None:
    timer = KafkaTimer(kafka.address, topic="nowhere", steps=STEPS)
    with pytest.raises(UnknownTopic, match=r"the topics nowhere\.0s, nowhere\.3s, nowhere\.1h do not exist"):
        await timer.open(now_ms)


async def test_a_worker_that_polls_every_ten_minutes_sends_what_another_engine_accepts(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    prefix, sent_at = topics(kafka), dict[str, float]()

    async def send(delivery: Delivery) -> Outcome:
        sent_at[delivery.notification_id] = time.time()
        return Outcome(OutcomeKind.ACCEPTED)

    table = {"bootstrap_servers": kafka.address, "topic": prefix, "steps": list(STEPS), "group": prefix}
    settings = load_settings(
        flags={
            "store": str(tmp_path / "homing.db"),
            "worker": {"poll_ms": 600_000},
            "timers": {"medium": "kafka", "low": "kafka", "kafka": table},
        }
    )
    sender, worker = (
        Homing(providers={"p": send}, worker=works, loaded_settings=settings) for works in (False, True)
    )
    async with sender, worker:
        first = await worker.send("ada@example.org", **EMAIL)
        await eventually(lambda: first.id in sent_at)  # the worker waits now
        due = time.time() + 3.5
        later = await sender.send("ada@example.org", send_at=timedelta(seconds=3.5), **EMAIL)
        now = await sender.send("ada@example.org", **EMAIL)
        await eventually(lambda: now.id in sent_at and later.id in sent_at)
        assert sent_at[later.id] >= due - 0.01
        assert sender.snapshot().timers["kafka"].connected
        for one in (first, later, now):
            assert (await sender.wait(one.id, timeout_ms=60_000)).status is Status.SENT
