"""The engine on a real file: restarts, two engines, and joined transactions."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from homing import (
    Delivery,
    Homing,
    IdempotencyConflict,
    InvalidRequest,
    NotFound,
    Outcome,
    OutcomeKind,
    SendResult,
    Status,
    SyncHoming,
)
from homing.core.errors import StoreError
from homing.core.routing.breaker import Phase
from homing.providers.local.scripted import HANG, ScriptedProvider

K = OutcomeKind
FAST: list[dict[str, Any]] = [
    {"name": "fast", "base_ms": 5, "factor": 1.0, "cap_ms": 0, "jitter": "none", "max_attempts": 20}
]


class HangingProvider(ScriptedProvider):
    """Never answers, but signals that it was called."""

    def __init__(self) -> None:
        super().__init__(usual=HANG)
        self.asked = asyncio.Event()

    async def send(self, delivery: Delivery) -> Outcome:
        self.asked.set()
        return await super().send(delivery)


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


async def until_quiet(engine: Homing, number: int) -> Counter[str]:
    """Waits until this many have ended, and returns the number per status."""
    async with asyncio.timeout(120):
        while True:
            counts = Counter(await engine.queue_counts())
            if sum(counts[s] for s in ("sent", "failed", "delivered")) >= number:
                return +counts
            await asyncio.sleep(0.01)


def letters(number: int) -> list[dict[str, Any]]:
    return [
        {"recipient": f"p{n}@example.org", "channel": "email", "content": {"body": "x"}}
        for n in range(number)
    ]


async def test_with_a_flaky_provider_everything_is_sent_once() -> None:
    dice = random.Random(5)
    landed: Counter[str] = Counter()

    async def flaky(delivery: Delivery) -> Outcome:
        await asyncio.sleep(0)
        if dice.random() < 0.3:
            return Outcome(K.TRANSIENT, error_code="503")
        landed[delivery.notification_id] += 1
        return Outcome(K.ACCEPTED, provider_message_id=delivery.idempotency_key)

    async with Homing("homing.db", providers={"mail": flaky}, worker=True, rules=FAST) as engine:
        await engine.force_breaker("mail", Phase.CLOSED, who="test")
        async for _ in engine.send_many(letters(200)):
            pass
        assert await until_quiet(engine, 200) == {"sent": 200}
        metrics = await engine.health_metrics()
    assert len(landed) == 200
    assert set(landed.values()) == {1}
    assert metrics.recovered_by_retry_count > 0
    assert metrics.success_rate == 100.0


async def test_two_engines_on_one_file_share_the_work_without_duplicates() -> None:
    landed: Counter[str] = Counter()
    active_workers: set[str] = set()
    both_work = asyncio.Event()

    def options(name: str) -> dict[str, Any]:
        """The provider answers once both engines have something to deliver."""

        async def slow(delivery: Delivery) -> None:
            landed[delivery.notification_id] += 1
            active_workers.add(name)
            if len(active_workers) == 2:
                both_work.set()
            await both_work.wait()

        return {"worker_name": name, "providers": {"mail": slow}, "slots": {"standard": 4}, "rules": FAST}

    async with Homing("homing.db", **options("one")) as one:
        async for _ in one.send_many(letters(100)):
            pass
        async with Homing("homing.db", **options("two")) as two:
            one.start_worker()
            two.start_worker()
            assert await until_quiet(one, 100) == {"sent": 100}
            workers = Counter(
                [(await one.history(n.id)).attempts[0].worker for n in (await one.list(limit=100)).items]
            )
    assert set(landed.values()) == {1}
    assert set(workers) == {"one", "two"}


async def test_accepted_notifications_survive_a_restart() -> None:
    async with Homing("homing.db", providers={"mail": ScriptedProvider()}) as engine:
        sent = await engine.send("a@example.org", channel="email", body="x", idempotency_key="k")
    async with Homing("homing.db", providers={"mail": ScriptedProvider()}, worker=True) as engine:
        assert (await engine.wait(sent.id, timeout_ms=60_000)).status is Status.SENT
        again = await engine.send("a@example.org", channel="email", body="x", idempotency_key="k")
        assert (again.id, again.duplicate) == (sent.id, True)
        with pytest.raises(IdempotencyConflict):
            await engine.send("a@example.org", channel="email", body="y", idempotency_key="k")


async def test_work_interrupted_by_a_hard_stop_is_finished_by_the_next_process() -> None:
    hanging = HangingProvider()
    async with Homing("homing.db", providers={"mail": hanging}, rules=FAST) as engine:
        sent = await engine.send("a@example.org", channel="email", body="x")
        engine.start_worker()
        await hanging.asked.wait()
        await engine.stop_worker(hard=True)
        assert (await engine.get(sent.id)).status is Status.SENDING
    with closing(sqlite3.connect("homing.db", timeout=60)) as connection, connection:
        connection.execute("UPDATE homing_notifications SET lease_until = 1")  # it has expired
    async with Homing("homing.db", providers={"mail": ScriptedProvider()}, rules=FAST, worker=True) as engine:
        done = await engine.wait(sent.id, timeout_ms=60_000)
        outcomes = [attempt.outcome for attempt in (await engine.history(sent.id)).attempts]
    assert done.status is Status.SENT
    assert outcomes == [K.LOST, K.ACCEPTED]


async def test_a_send_can_join_the_caller_s_transaction() -> None:
    async with Homing("homing.db", providers={"mail": ScriptedProvider()}) as engine:
        connection = sqlite3.connect("homing.db", timeout=60)
        try:
            connection.execute("CREATE TABLE orders (id INTEGER)")
            connection.execute("INSERT INTO orders VALUES (7)")
            gone = await engine.send("a@example.org", channel="email", body="x", connection=connection)
            connection.rollback()
            connection.execute("INSERT INTO orders VALUES (8)")
            kept = await engine.send("a@example.org", channel="email", body="x", connection=connection)
            connection.commit()
        finally:
            connection.close()
        assert (await engine.get(kept.id)).status is Status.PENDING
        assert (await engine.list()).items[0].id == kept.id
        assert len((await engine.list()).items) == 1
        assert gone.id != kept.id
        with pytest.raises(StoreError, match=r"sqlite3\.Connection"):
            await engine.send("a@example.org", channel="email", body="x", connection=object())


async def test_a_synchronous_send_cannot_join_a_transaction() -> None:
    async with Homing("homing.db", providers={"mail": ScriptedProvider()}) as engine:
        connection = sqlite3.connect("homing.db", timeout=60)
        try:
            with pytest.raises(InvalidRequest, match="connection"):
                await engine.send(
                    "a@example.org", channel="email", body="x", synchronous=True, connection=connection
                )
        finally:
            connection.close()


async def test_a_synchronous_send_is_answered_and_recorded() -> None:
    async with Homing("homing.db", providers={"mail": ScriptedProvider("mail")}) as engine:
        sent = await engine.send("a@example.org", channel="email", body="x", synchronous=True)
        assert (sent.status, sent.provider_message_id) == ("sent", "mail-1")
        assert (await engine.get(sent.id)).attempt_count == 1


def test_threads_share_one_file() -> None:
    with SyncHoming("homing.db", providers={"mail": lambda delivery: None}) as sync:
        sent = sync.send("a@example.org", channel="email", body="x")
        assert sync.process().succeeded == 1
    with SyncHoming("homing.db") as sync:
        assert sync.get(sent.id).status is Status.SENT


def test_the_synchronous_class_uses_the_connection_on_the_caller_s_thread() -> None:
    with SyncHoming("homing.db", providers={"mail": lambda delivery: None}) as sync:
        connection = sqlite3.connect("homing.db", timeout=60)
        try:
            gone = sync.send("a@example.org", channel="email", body="x", connection=connection)
            connection.rollback()
            kept = list(
                sync.send_many(
                    [{"recipient": "a@example.org", "channel": "email", "content": {"body": "x"}}],
                    connection=connection,
                )
            )
            connection.commit()
        finally:
            connection.close()
        with pytest.raises(NotFound):
            sync.get(gone.id)
        assert isinstance(kept[0], SendResult)
        assert sync.get(kept[0].id).status is Status.PENDING
