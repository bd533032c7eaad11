"""The bridge to RabbitMQ, with a real broker: consume, store, acknowledge, quarantine, and what can fail."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from homing import Homing, Notification
from homing.bridges.rabbitmq import RabbitMqBridge, wall_clock_ms
from homing.core.errors import StoreUnavailable
from homing.providers.rabbitmq.provider import RabbitMqProvider
from homing.stores.sqlite import SqliteStore
from support.rabbitmq_server import PrivateRabbitMQ, RabbitQueues, rabbit_queues
from support.retry_messages import field, read_retry, varint, write_retry

PAYLOAD = bytes(range(256))


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("homing.engine.intake.bridges._FIRST_PAUSE_MS", 50)
    monkeypatch.setattr("homing.engine.intake.bridges._MAX_PAUSE_MS", 200)


class Names:
    """Names of the queues of one test."""

    def __init__(self, prefix: str) -> None:
        self.retry = f"{prefix}retry.scheduled"
        self.quarantine = f"{prefix}retry.scheduled.quarantine"
        self.review = f"{prefix}manual-review.pending"
        self.original = f"{prefix}orders"

    @property
    def all(self) -> tuple[str, ...]:
        return (self.retry, self.quarantine, self.review, self.original)


@pytest.fixture
def names(queue_prefix: str) -> Names:
    return Names(queue_prefix)


@pytest_asyncio.fixture
async def queues(rabbitmq_url: str, names: Names) -> AsyncIterator[RabbitQueues]:
    async with rabbit_queues(rabbitmq_url) as found:
        await found.declare(*names.all, x_queue_type="classic")
        yield found
        await found.delete(*names.all)


def bridge_to(url: str, names: Names, **settings: Any) -> RabbitMqBridge:
    return RabbitMqBridge(url=url, queue=names.retry, manual_review_queue=names.review, **settings)


@asynccontextmanager
async def rabbitmq_engine(url: str, names: Names) -> AsyncIterator[Homing]:
    """An engine that consumes, publishes and hands over to manual review, as the command does."""
    async with Homing(
        "homing.db",
        preset="broker",
        providers={"rabbitmq": RabbitMqProvider(url=url)},
        sinks={"manual-review": {"kind": "manual_review", "url": url, "queue": names.review}},
        bridges={"r": bridge_to(url, names)},
    ) as homing:
        homing.bridges.start()
        worker = asyncio.create_task(homing.run_worker())
        try:
            yield homing
        finally:
            await homing.stop_worker()
            await worker


@contextmanager
def store_away() -> Iterator[None]:
    """Makes the store of the engine unavailable."""

    async def refuse(*_: object, **__: object) -> None:
        raise StoreUnavailable("away")

    with pytest.MonkeyPatch.context() as patch:
        for call in ("accept", "now_ms"):
            patch.setattr(SqliteStore, call, refuse)
        yield


async def eventually(holds: Callable[[], Awaitable[bool]], what: str = "") -> None:
    try:
        async with asyncio.timeout(60):
            while not await holds():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(what or "the condition never held") from None


async def stored(homing: Homing, number: int) -> list[Notification]:
    """Waits until this number of notifications are stored, and returns all of them."""
    found: list[Notification] = []

    async def enough() -> bool:
        found[:] = (await homing.list(limit=1_000)).items
        return len(found) >= number

    await eventually(enough, f"{len(found)} of {number} were stored")
    return found


async def test_a_message_becomes_a_task_with_its_own_count_maximum_and_payload(
    rabbitmq_url: str, queues: RabbitQueues, names: Names
) -> None:
    body = write_retry(
        message_id="order 17/ä",
        original_payload=PAYLOAD,
        original_queue=names.original,
        error_reason="timeout\nafter 30 s",
        retry_count=2,
        max_retries=5,
    )
    async with Homing("homing.db", preset="broker", bridges={"r": bridge_to(rabbitmq_url, names)}) as homing:
        homing.bridges.start()
        await queues.put(names.retry, body, body)
        (task,) = await stored(homing, 1)
        await eventually(lambda: _acknowledged(homing, 2))
        assert (task.status, task.attempt_count, task.max_attempts) == ("retrying", 3, 6)
        assert task.channel == "queue"
        assert task.last_error == "timeout after 30 s"
        assert task.metadata == {
            "message_id": "order 17/ä",
            "retry_count": 2,
            "max_retries": 5,
            "error_reason": "timeout\nafter 30 s",
        }
        assert task.content.data is not None
        assert b64decode(task.content.data["payload"]) == PAYLOAD
        assert 8 <= delay_s(task) <= 9  # 2 s × 2² and up to 1 s
        assert homing.snapshot().bridges["r"].duplicates == 1
        assert len((await homing.list()).items) == 1
    assert await queues.count(names.retry) == 0


def delay_s(task: Notification) -> float:
    assert task.next_retry_at is not None
    return (task.next_retry_at - task.created_at).total_seconds()


async def _acknowledged(homing: Homing, number: int) -> bool:
    state = homing.snapshot().bridges["r"]
    return state.accepted + state.duplicates + state.rejected >= number


async def test_the_backlog_is_what_is_in_the_queue_and_what_was_received_and_not_read(
    rabbitmq_url: str, queues: RabbitQueues, names: Names
) -> None:
    await queues.put(names.retry, *(write_retry(message_id=f"m{number}") for number in range(20)))
    bridge = bridge_to(rabbitmq_url, names, prefetch=5)
    await bridge.open()
    try:
        read = await bridge.receive(3)

        async def all_prefetched() -> bool:
            return await bridge.backlog() == 20 - len(read)

        await eventually(all_prefetched)
        assert len(bridge._received) <= 5, "the others are counted in the queue"
    finally:
        await bridge.close()


async def test_without_a_maximum_the_default_applies_and_a_time_in_the_future_wins(
    rabbitmq_url: str, queues: RabbitQueues, names: Names
) -> None:
    later_ms = wall_clock_ms() + 3_600_000
    bodies = [
        write_retry(message_id="plain", original_queue=names.original, original_payload=b"x"),
        write_retry(message_id="later", original_queue=names.original, next_retry_at_ms=later_ms),
        write_retry(message_id="past", original_queue=names.original, next_retry_at_ms=1),
    ]
    async with Homing("homing.db", preset="broker", bridges={"r": bridge_to(rabbitmq_url, names)}) as homing:
        homing.bridges.start()
        await queues.put(names.retry, *bodies)
        tasks = {task.metadata["message_id"]: task for task in await stored(homing, 3)}
        assert all((task.attempt_count, task.max_attempts) == (1, None) for task in tasks.values())
        assert 2 <= delay_s(tasks["plain"]) <= 3
        assert 2 <= delay_s(tasks["past"]) <= 3
        due = tasks["later"].next_retry_at
        assert due is not None
        assert due.timestamp() * 1000 == pytest.approx(later_ms, abs=1)


async def test_the_same_message_with_a_higher_count_is_a_new_task_and_another_body_is_a_contradiction(
    rabbitmq_url: str, queues: RabbitQueues, names: Names
) -> None:
    first = write_retry(message_id="m", original_queue=names.original, original_payload=b"1")
    again = write_retry(message_id="m", original_queue=names.original, original_payload=b"1", retry_count=1)
    other = write_retry(message_id="m", original_queue=names.original, original_payload=b"2")
    async with Homing("homing.db", preset="broker", bridges={"r": bridge_to(rabbitmq_url, names)}) as homing:
        homing.bridges.start()
        await queues.put(names.retry, first, again, other)
        (quarantined,) = await queues.collect(names.quarantine, 1)
        assert quarantined.body == other
        assert quarantined.headers["x-homing-code"] == "IDEMPOTENCY_CONFLICT"
        assert "different request" in quarantined.headers["x-homing-reason"]
        assert {task.metadata["retry_count"] for task in await stored(homing, 2)} == {0, 1}


async def test_a_used_up_message_becomes_a_dead_letter_at_once_and_goes_to_manual_review(
    rabbitmq_url: str, queues: RabbitQueues, names: Names
) -> None:
    later_ms = wall_clock_ms() + 3_600_000
    given: dict[str, Any] = {
        "original_queue": names.original,
        "original_payload": PAYLOAD,
        "error_reason": "no luck",
    }
    bodies = [
        write_retry(message_id="own", retry_count=1, max_retries=1, next_retry_at_ms=later_ms, **given),
        write_retry(message_id="default", retry_count=3, **given),
        write_retry(message_id="above", retry_count=9, max_retries=2, **given),
    ]
    async with rabbitmq_engine(rabbitmq_url, names) as homing:
        await queues.put(names.retry, *bodies)
        found = await queues.collect(names.review, 3)
        tasks = await stored(homing, 3)
        assert {(task.status, task.reason) for task in tasks} == {("failed", "RETRIES_EXHAUSTED")}
        assert all(task.attempt_count == task.attempts_before for task in tasks)
    reviewed = {read_retry(one.body).message_id: one for one in found}
    assert reviewed.keys() == {"own", "default", "above"}
    for name, one in reviewed.items():
        message = read_retry(one.body)
        assert message.original_payload == PAYLOAD
        assert message.original_queue == names.original
        assert message.error_reason == "no luck"
        assert one.headers["x-homing-message-id"] == name
        assert one.headers["x-homing-reason"] == "RETRIES_EXHAUSTED"
        assert one.headers["x-homing-queue"] == names.original
    assert read_retry(reviewed["above"].body).retry_count == 9
    assert await queues.count(names.original) == 0


async def test_a_due_task_is_published_and_one_without_a_queue_goes_to_manual_review(
    rabbitmq_url: str, queues: RabbitQueues, names: Names
) -> None:
    soon_ms = wall_clock_ms() + 500
    bodies = [
        write_retry(
            message_id="m1",
            original_payload=PAYLOAD,
            original_queue=names.original,
            error_reason="busy",
            retry_count=1,
            next_retry_at_ms=soon_ms,
        ),
        write_retry(
            message_id="m2", original_queue=f"{names.original}.gone", next_retry_at_ms=soon_ms, retry_count=1
        ),
    ]
    async with rabbitmq_engine(rabbitmq_url, names) as homing:
        await queues.put(names.retry, *bodies)
        (published,) = await queues.collect(names.original, 1)
        (reviewed,) = await queues.collect(names.review, 1)
        assert published.body == PAYLOAD
        assert published.headers["x-homing-message-id"] == "m1"
        assert published.headers["x-homing-retry-count"] == 2
        assert published.headers["x-homing-reason"] == "busy"
        assert read_retry(reviewed.body).message_id == "m2"
        assert reviewed.headers["x-homing-reason"] == "BAD_RECIPIENT"
        assert "no queue" in read_retry(reviewed.body).error_reason
        statuses = {task.metadata["message_id"]: task.status for task in await stored(homing, 2)}
        assert statuses == {"m1": "sent", "m2": "failed"}


async def test_a_queue_whose_name_looks_like_an_address_is_still_a_queue(
    rabbitmq_url: str, queues: RabbitQueues, names: Names
) -> None:
    odd = f"exchange://amq.fanout/{names.original}"
    await queues.declare(odd, x_queue_type="classic")
    async with rabbitmq_engine(rabbitmq_url, names):
        body = write_retry(message_id="m", original_queue=odd, next_retry_at_ms=wall_clock_ms() + 300)
        await queues.put(names.retry, body)
        assert len(await queues.collect(odd, 1)) == 1
    await queues.delete(odd)


BAD = {
    "empty": (b"", "message: is empty"),
    "not protobuf": (b'{"message_id": "x"}', "protobuf cannot parse it"),
    "cut off": (write_retry(message_id="x", original_queue="q")[:-1], "protobuf cannot parse it"),
    "no id": (write_retry(original_queue="q"), "message_id: is missing"),
    "no queue": (write_retry(message_id="x"), "original_queue: is missing"),
    "not UTF-8": (field(1, b"\xff\xfe") + field(3, "q"), "protobuf cannot parse it"),
    "NUL": (write_retry(message_id="a\x00b", original_queue="q"), "message_id: contains the character NUL"),
    "long id": (write_retry(message_id="x" * 256, original_queue="q"), "message_id: has 256 characters"),
    "long queue": (write_retry(message_id="x", original_queue="q" * 256), "original_queue: has 256 bytes"),
    "two lines": (write_retry(message_id="x", original_queue="a\nb"), "recipient.url"),
    "negative": (write_retry(message_id="x", original_queue="q", retry_count=-1), "retry_count: is -1"),
    "count above the limit": (
        write_retry(message_id="x", original_queue="q", max_retries=1_000),
        "max_retries: is 1000; it must be between 0 and 999",
    ),
    "above int32": (
        write_retry(message_id="x", original_queue="q", retry_count=1 << 32),
        "retry_count: is not an int32",
    ),
    "text as count": (
        write_retry(message_id="x", original_queue="q") + field(5, "1"),
        "retry_count: has the",
    ),
    "count as text": (write_retry(original_queue="q") + field(1, 5), "message_id: has the wrong type"),
    "negative time": (
        write_retry(message_id="x", original_queue="q", next_retry_at_ms=-1),
        "next_retry_at_ms: is negative",
    ),
    "far future": (
        write_retry(message_id="x", original_queue="q", next_retry_at_ms=2**62),
        "next_retry_at_ms: is more than 100 years ahead",
    ),
    "large payload": (
        write_retry(message_id="x", original_queue="q", original_payload=bytes(300_000)),
        "content: has ",
    ),
    "large message": (
        write_retry(message_id="x", original_queue="q", original_payload=bytes(2_000_000)),
        "message: has 2000",
    ),
    "endless number": (field(1, "x") + b"\x28" + b"\x80" * 10 + b"\x01", "protobuf cannot parse it"),
    "group": (varint(3 << 3 | 3), "protobuf cannot parse it"),
}


async def test_what_cannot_be_read_goes_to_quarantine_byte_for_byte_and_blocks_nothing(
    rabbitmq_url: str, queues: RabbitQueues, names: Names
) -> None:
    good = write_retry(message_id="good", original_queue=names.original)
    async with Homing("homing.db", preset="broker", bridges={"r": bridge_to(rabbitmq_url, names)}) as homing:
        homing.bridges.start()
        await queues.put(names.retry, *(body for body, _ in BAD.values()), good)
        found = await queues.collect(names.quarantine, len(BAD))
        (task,) = await stored(homing, 1)
        assert task.metadata["message_id"] == "good"
    reasons = {one.body: one.headers for one in found}
    for what, (body, reason) in BAD.items():
        assert reason in reasons[body]["x-homing-reason"], what
        assert reasons[body]["x-homing-queue"] == names.retry
    assert await queues.count(names.retry) == 0


async def test_a_full_quarantine_keeps_bad_messages_on_their_queue_and_lets_good_ones_pass(
    rabbitmq_url: str, queues: RabbitQueues, names: Names
) -> None:
    await queues.delete(names.quarantine)
    await queues.declare(
        names.quarantine, x_queue_type="classic", x_max_length=1, x_overflow="reject-publish"
    )
    good = [write_retry(message_id=f"m{number}", original_queue=names.original) for number in range(5)]
    async with Homing("homing.db", preset="broker", bridges={"r": bridge_to(rabbitmq_url, names)}) as homing:
        homing.bridges.start()
        await queues.put(names.retry, b"bad 1", b"bad 2", b"bad 3", *good)
        await stored(homing, 5)
        taken: set[bytes] = set()

        async def all_taken() -> bool:
            taken.update(one.body for one in await queues.take_all(names.quarantine))
            return len(taken) == 3

        await eventually(all_taken)
        assert taken == {b"bad 1", b"bad 2", b"bad 3"}
        await eventually(lambda: _is_empty(queues, names.retry))
        assert len((await homing.list()).items) == 5


async def _is_empty(queues: RabbitQueues, name: str) -> bool:
    return bool(await queues.count(name) == 0)


async def test_missing_queues_are_reported_and_declared_only_if_asked(
    rabbitmq_url: str, names: Names
) -> None:
    async with Homing("homing.db", bridges={"r": bridge_to(rabbitmq_url, names)}) as homing:
        homing.bridges.start()
        await eventually(lambda: _has_status(homing, f"the queue {names.retry!r} does not exist"))
        assert not (await homing.readiness()).ready
    async with rabbit_queues(rabbitmq_url) as queues:
        async with Homing("homing.db", bridges={"r": bridge_to(rabbitmq_url, names, declare=True)}) as homing:
            homing.bridges.start()
            await eventually(lambda: _has_status(homing, "ok"))
        await queues.declare(names.retry, names.quarantine, names.review)  # the same arguments: quorum queues
        await queues.delete(names.retry)
        await queues.declare(names.retry, x_queue_type="classic")
        async with Homing("homing.db", bridges={"r": bridge_to(rabbitmq_url, names, declare=True)}) as homing:
            homing.bridges.start()
            await eventually(lambda: _has_status(homing, "has other properties than expected"))
        await queues.delete(*names.all)


async def _has_status(homing: Homing, text: str) -> bool:
    return text in homing.snapshot().bridges["r"].status


async def test_a_deleted_queue_is_noticed_and_used_again_when_it_is_back(
    rabbitmq_url: str, queues: RabbitQueues, names: Names
) -> None:
    async with Homing("homing.db", preset="broker", bridges={"r": bridge_to(rabbitmq_url, names)}) as homing:
        homing.bridges.start()
        await eventually(lambda: _has_status(homing, "ok"))
        await queues.delete(names.retry)
        await eventually(lambda: _has_status(homing, "does not exist"))
        await queues.declare(names.retry, x_queue_type="classic")
        await queues.put(names.retry, write_retry(message_id="m", original_queue=names.original))
        await stored(homing, 1)
        assert (await homing.readiness()).bridges == {"r": "ok"}


async def test_a_broker_that_is_killed_loses_and_doubles_nothing(
    rabbitmq_server: PrivateRabbitMQ, names: Names
) -> None:
    bodies = [write_retry(message_id=f"m{number}", original_queue=names.original) for number in range(300)]
    bridge = bridge_to(rabbitmq_server.url, names, prefetch=50)
    async with Homing("homing.db", preset="broker", bridges={"r": bridge}) as homing:
        homing.bridges.start()
        async with rabbit_queues(rabbitmq_server.url) as queues:
            await queues.declare(*names.all, x_queue_type="classic")
            await queues.put(names.retry, *bodies)
        await asyncio.to_thread(rabbitmq_server.restart)
        await stored(homing, 300)
        async with rabbit_queues(rabbitmq_server.url) as again:
            await eventually(lambda: _is_empty(again, names.retry))
            await eventually(lambda: _has_status(homing, "ok"))
            await again.delete(*names.all)
        found = [one.metadata["message_id"] for one in (await homing.list(limit=1_000)).items]
        assert sorted(found) == sorted(f"m{number}" for number in range(300))


async def test_while_the_store_is_away_messages_stay_at_the_broker(
    rabbitmq_url: str, queues: RabbitQueues, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homing.engine.intake.bridges._HOLD_MS", 100)
    async with Homing("homing.db", preset="broker", bridges={"r": bridge_to(rabbitmq_url, names)}) as homing:
        homing.bridges.start()
        await eventually(lambda: _has_status(homing, "ok"))
        with store_away():
            await queues.put(
                names.retry,
                *(write_retry(message_id="m", original_queue="q", retry_count=n) for n in range(20)),
            )
            await eventually(lambda: _has_status(homing, "waits for the store"))
            await eventually(lambda: _has_count(queues, names.retry, 20))
        found = await stored(homing, 20)
        assert sorted(one.metadata["retry_count"] for one in found) == list(range(20))
        await eventually(lambda: _is_empty(queues, names.retry))
        assert len((await homing.list(limit=1_000)).items) == 20


async def _has_count(queues: RabbitQueues, name: str, number: int) -> bool:
    return bool(await queues.count(name) == number)
