"""Source 000's Notification Service as its user runs it: one settings file, hours in virtual time.

The retries of a failed push by priority, its end as a dead letter, and the words of its diagrams. What an
inactive device means is in tests/component/engine/test_pre_send_checks.py, and the formula of the delays in
test_operations.py.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from homing import Homing, Reason, Status
from homing.core.lifecycle.events import Event
from homing.core.notifications import Filter, History, Notification
from homing.rehearsal.virtual_time import VirtualLoop
from homing.telemetry.metrics import Metrics
from homing.testing import VirtualClock, run_virtual
from support.cli_driver import Cli
from support.kafka_broker import KafkaBroker
from support.mongo_server import PrivateMongo
from support.redis_server import RedisServer

SETTINGS = """\
store = "{store}"
preset = "priority"
[providers.fcm]
kind = "scripted"
channels = ["push"]
breaker = "off"
script = {script}
usual = "{usual}"
"""
"""The source has no circuit breaker, so its settings turn it off."""

DAY_MS = 86_400_000

SECONDS = {"critical": (10, 10, 300), "high": (8, 30, 900), "medium": (5, 120, 3_600), "low": (3, 300, 7_200)}
"""Priority → maximum number of retries, base and cap of the delay in seconds, as in the source's table."""


class Life(NamedTuple):
    """What became of one notification."""

    after_first: Notification
    """The notification a second after it was sent."""
    waiting: tuple[Notification, ...]
    history: History
    dead_letters: tuple[Notification, ...]
    metrics: dict[tuple[str, str], float]
    """(name, value of the label `status` or "") → value of a metric of the notification's queue."""
    events: list[Event]


def settings(folder: Path, *, script: str = "[]", usual: str = "transient", store: str = "memory:") -> Path:
    file = folder / "homing.toml"
    file.write_text(SETTINGS.format(store=store, script=script, usual=usual))
    return file


def live(file: Path, priority: str, meanwhile: Callable[[Homing, str], Any] | None = None) -> Life:
    """Sends a push in virtual time, and waits until it has ended."""
    events: list[Event] = []

    async def scenario(loop: VirtualLoop) -> Life:
        metrics = Metrics()
        clock = VirtualClock(loop)
        async with Homing(
            config_file=file, worker=True, clock=clock, observers=[metrics], on_event=events.append
        ) as homing:
            metrics.watch(homing)
            sent = await homing.send(
                {"deviceToken": "token-1"}, channel="push", priority=priority, title="Gate changed"
            )
            await asyncio.sleep(1)
            after_first, waiting = await homing.get(sent.id), await homing.waiting()
            if meanwhile is not None:
                await meanwhile(homing, sent.id)
            await homing.wait(sent.id, timeout_ms=DAY_MS)
            await asyncio.sleep(1)
            dead = (await homing.list(Filter(statuses=("failed",)))).items  # type: ignore[arg-type]
            history = await homing.history(sent.id)
            return Life(after_first, waiting, history, dead, numbers(await metrics.page()), events)

    return run_virtual(scenario)


def numbers(page: bytes) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            key = (sample.name, sample.labels.get("status", ""))
            found[key] = found.get(key, 0.0) + sample.value
    return found


@pytest.mark.source(
    "000",
    "9-17",
    "24-25",
    "38",
    "41-42",
    "57",
    "61",
    "65",
    "67",
    "70-72",
    "77",
    "86",
    "90-91",
    "128-137",
    "139",
)
@pytest.mark.parametrize("priority", SECONDS)
def test_a_push_is_retried_by_its_priority_and_then_a_dead_letter(priority: str, tmp_path: Path) -> None:
    retries, base, cap = SECONDS[priority]
    life = live(settings(tmp_path), priority)
    assert (life.after_first.status, life.after_first.attempt_count) == (Status.RETRYING, 1)
    assert [one.id for one in life.waiting] == [life.after_first.id]
    done, attempts = life.history.notification, life.history.attempts
    assert [one.number for one in attempts] == list(range(1, retries + 2)), "each failure is on record"
    assert {one.outcome.value for one in attempts} == {"transient"}
    for number, (one, next_one) in enumerate(pairwise(attempts), 1):
        delay = min(base * 2 ** (number - 1), cap)
        waited = (next_one.started_at - one.ended_at).total_seconds()
        assert delay <= waited <= 1.3 * delay + 1, "exponential, capped, then 0 to 30 % of jitter"
    assert (done.status, done.reason) == (Status.FAILED, Reason.RETRIES_EXHAUSTED)
    assert [one.id for one in life.dead_letters] == [done.id]
    assert done.next_retry_at is None, "no more retries"
    (failed,) = [event.payload for event in life.events if event.name == "NotificationFailed"]
    assert (failed["notificationId"], failed["attemptCount"]) == (done.id, retries + 1)
    metrics = life.metrics
    assert metrics["retries_scheduled_total", ""] == retries
    assert metrics["retries_executed_total", "failed"] == retries
    assert (metrics["retries_exhausted_total", ""], metrics["retry_queue_depth", ""]) == (1, 0)


@pytest.mark.source("000", "138", "140-142")
def test_a_retry_that_succeeds_ends_the_retries(tmp_path: Path) -> None:
    script = '["transient", "transient"]'
    life = live(settings(tmp_path, script=script, usual="accepted"), "critical")
    done = life.history.notification
    assert [one.outcome.value for one in life.history.attempts] == ["transient", "transient", "accepted"]
    assert (done.status, done.attempt_count) == (Status.SENT, 3)
    assert life.dead_letters == ()
    assert life.metrics["retries_executed_total", "success"] == 1
    assert life.metrics["retries_exhausted_total", ""] == 0


@pytest.mark.source("000", "18-22", "73-76", "92-95")
def test_a_device_that_became_inactive_is_not_retried(tmp_path: Path) -> None:
    """The app reports it while the retry waits; before the attempt, the device is asked for."""

    async def uninstall(homing: Homing, id: str) -> None:
        device = {"token": "token-1", "active": False}
        await homing.recipients.put({"id": "ada", "devices": [device]}, who="app")

    life = live(settings(tmp_path), "critical", uninstall)
    done = life.history.notification
    assert (done.status, done.reason, done.attempt_count) == (Status.SKIPPED, Reason.DEVICE_INACTIVE, 1)
    assert life.dead_letters == ()


REDIS = """
[timers]
critical = "redis"
high = "redis"
[timers.redis]
url = "{url}"
"""
"""What remains for Kafka: the timer of medium and low (35-36, 82-84), and the dead-letter topic (69)."""


@pytest.mark.source("000", "33-34", "52", "79-81", "85")
async def test_retries_of_critical_and_high_notifications_are_scheduled_with_redis(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """The store keeps every retry. Redis has the due times of two priorities, and wakes workers."""
    file = settings(tmp_path, store=str(tmp_path / "homing.db"))
    file.write_text(file.read_text() + REDIS.format(url=redis_server.url))
    waiting: dict[str, Notification] = {}
    async with Homing(config_file=file, worker=True) as homing:
        for priority in SECONDS:
            sent = await homing.send(
                {"deviceToken": f"token-{priority}"}, channel="push", priority=priority, title="Gate changed"
            )
            async with asyncio.timeout(60):
                while (await homing.get(sent.id)).status is not Status.RETRYING:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            waiting[priority] = await homing.get(sent.id)
        async with redis_server.client() as client, asyncio.timeout(60):
            scheduled: dict[bytes, float] = {}
            while len(scheduled) < 2:
                await asyncio.sleep(0.01)
                scheduled = dict(await client.zrangebyscore("homing:due", 0, "+inf", withscores=True))
        state = homing.snapshot().timers["redis"]
    for priority in ("critical", "high"):
        one = waiting[priority]
        assert one.next_retry_at is not None
        at_ms = scheduled.pop(one.id.encode())
        assert abs(at_ms - one.next_retry_at.timestamp() * 1000) <= 1_000, "the due time that is stored"
    assert scheduled == {}, "the store alone schedules the others"
    assert {one.attempt_count for one in waiting.values()} == {1}
    assert (state.connected, state.discarded) == (True, 0), "Redis has confirmed the scheduling"


@pytest.mark.source("000", "27-31", "101-103", "106-121", "151-172", "179-189", "192-217")
def test_the_command_line_has_the_table_of_the_source(tmp_path: Path) -> None:
    settings(tmp_path, store="homing.db")
    rows = Cli(tmp_path).ok("policy", "table", "priority", "--json").json
    for priority, (retries, base, cap) in SECONDS.items():
        delays = [min(base * 2**n, cap) * 1_000 for n in range(retries)]
        mine = [row for row in rows if row["policy"] == f"priority/{priority}"]
        assert [row["minMs"] for row in mine] == delays
        assert [row["maxMs"] for row in mine] == [int(1.3 * delay) for delay in delays]


# Kafka ----------------------------------------------------------------------------------------------

WITH_KAFKA = """
[timers]
medium = "kafka"
low = "kafka"
[timers.kafka]
bootstrap_servers = "{address}"
topic = "{prefix}.timers"
group = "{prefix}"
create_topics = true

[sinks.kafka]
bootstrap_servers = "{address}"
topic = "{prefix}.events"
dead_letter_topic = "{prefix}.dead-letters"
create_topics = true

[[rules]]
name = "an end within seconds, for the test"
type = "alarm"
max_attempts = 2
base_ms = "100ms"
"""


@asynccontextmanager
async def with_kafka(kafka: KafkaBroker, folder: Path, prefix: str) -> AsyncIterator[tuple[Homing, Metrics]]:
    """Runs an engine with the source's timers and dead-letter topic, in real time."""
    file = settings(folder, store=f"{folder}/homing.db")
    with file.open("a") as more:
        more.write(WITH_KAFKA.format(address=kafka.address, prefix=prefix))
    metrics = Metrics()
    async with Homing(config_file=file, worker=True, observers=[metrics]) as homing:
        metrics.watch(homing)
        yield homing, metrics


@asynccontextmanager
async def whole_picture(
    mongo: PrivateMongo, redis: RedisServer, kafka: KafkaBroker, folder: Path
) -> AsyncIterator[tuple[Homing, str]]:
    """Runs an engine with all systems of the source: MongoDB, both timers, and the dead-letter topic."""
    prefix = kafka.new_topic("source-000")
    file = settings(folder, store=mongo.database_url(f"source_000_{os.getpid()}"))
    with_redis = REDIS.partition("[timers.redis]")
    with file.open("a") as more:
        more.write(with_redis[0])
        more.write(WITH_KAFKA.format(address=kafka.address, prefix=prefix).replace("[timers]\n", ""))
        more.write(f'[timers.redis]\nurl = "{redis.url}"\nprefix = "{prefix}"\n')
    async with Homing(config_file=file, worker=True) as homing:
        yield homing, prefix


@pytest.mark.source("000", "33-36", "52", "68-70", "79-85")
async def test_with_mongodb_redis_schedules_two_priorities_and_kafka_the_others(
    mongo_server: PrivateMongo, redis_server: RedisServer, kafka: KafkaBroker, tmp_path: Path
) -> None:
    async with whole_picture(mongo_server, redis_server, kafka, tmp_path) as (homing, prefix):
        ids = {}
        for priority in SECONDS:
            sent = await homing.send({"deviceToken": "t"}, channel="push", priority=priority, title="Gate")
            ids[priority] = sent.id
        lost = await homing.send(
            {"deviceToken": "t"}, channel="push", priority="low", type="alarm", title="Gate changed"
        )
        given_up = await homing.wait(lost.id, timeout_ms=60_000)
        async with redis_server.client() as client, asyncio.timeout(60):
            in_redis: set[str] = set()
            while len(in_redis) < 2:
                await asyncio.sleep(0.01)
                in_redis = {one.decode() for one in await client.zrangebyscore(f"{prefix}:due", 0, "+inf")}
        dead_letters = f"{prefix}.dead-letters"
        await until(lambda: dead_letters in kafka.admin.list_topics(timeout=5).topics)
        await until(lambda: kafka.records(dead_letters))
        waiting = {one.id: one for one in await homing.waiting()}

        def in_kafka() -> set[str]:
            later = [record for step in ("1m", "5m") for record in kafka.records(f"{prefix}.timers.{step}")]
            return {(record.key() or b"").decode() for record in later}

        await until(lambda: len(in_kafka()) >= 2)
    assert in_redis == {ids["critical"], ids["high"]}
    assert in_kafka() == {ids["medium"], ids["low"]}
    assert waiting.keys() == set(ids.values()), "the store has all of them"
    assert {one.attempt_count for one in waiting.values()} == {1}
    assert (given_up.status, given_up.reason) == (Status.FAILED, Reason.RETRIES_EXHAUSTED)
    [letter] = kafka.records(dead_letters)
    assert letter.key() == lost.id.encode()


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(holds):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


@pytest.mark.source("000", "35-36", "82-85")
async def test_retries_of_medium_and_low_priority_are_scheduled_with_kafka(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    prefix = kafka.new_topic("source-000")
    async with with_kafka(kafka, tmp_path, prefix) as (homing, _):
        ids = {}
        for priority in SECONDS:
            sent = await homing.send({"deviceToken": "t"}, channel="push", priority=priority, title="Gate")
            ids[priority] = sent.id
        # Each is scheduled twice: for its first attempt, and after that has failed.
        await until(lambda: homing.snapshot().timers["kafka"].scheduled >= 4)
        due = {one: (await homing.get(ids[one])).next_retry_at for one in ("medium", "low")}
        confirmed = {
            (step, (record.key() or b"").decode()): msgspec.json.decode(record.value() or b"")["dueAt"]
            for step in ("0s", "10s", "1m", "5m", "30m", "2h")
            for record in kafka.records(f"{prefix}.timers.{step}")
        }
    assert set(confirmed) == {
        ("0s", ids["medium"]),
        ("0s", ids["low"]),
        ("1m", ids["medium"]),  # after 120 to 156 s
        ("5m", ids["low"]),  # after 300 to 390 s
    }, "critical and high do not wait in Kafka"
    for priority, step in (("medium", "1m"), ("low", "5m")):
        at = due[priority]
        assert at is not None
        assert abs(confirmed[step, ids[priority]] - at.timestamp() * 1000) < 1_000


@pytest.mark.source("000", "68-70")
async def test_what_is_given_up_goes_to_the_dead_letter_topic_and_to_the_metrics(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    prefix = kafka.new_topic("source-000")
    async with with_kafka(kafka, tmp_path, prefix) as (homing, metrics):
        sent = await homing.send(
            {"deviceToken": "t"}, channel="push", priority="low", type="alarm", title="Gate changed"
        )
        done = await homing.wait(sent.id, timeout_ms=60_000)
        dead_letters = f"{prefix}.dead-letters"
        await until(lambda: dead_letters in kafka.admin.list_topics(timeout=5).topics)
        await until(lambda: kafka.records(dead_letters))
        page = numbers(await metrics.page())
    assert (done.status, done.reason) == (Status.FAILED, Reason.RETRIES_EXHAUSTED)
    (letter,) = kafka.records(dead_letters)
    body = msgspec.json.decode(letter.value() or b"")
    assert letter.key() == sent.id.encode()
    assert (body["notificationId"], body["reason"], body["attemptCount"]) == (
        sent.id,
        "RETRIES_EXHAUSTED",
        2,
    )
    assert page["retries_exhausted_total", ""] == 1
