"""Tests of the heartbeats of workers."""

from __future__ import annotations

from msgspec.structs import replace

from homing.core.ports.stores import (
    DEAD_AFTER_MS,
    FORGOTTEN_AFTER_MS,
    HEARTBEAT_MS,
    Backend,
    Retention,
    SeenWorker,
    WorkerHeartbeat,
)
from homing.testing.builders import MINUTE_MS
from homing.testing.store_suite.harness import Harness

BEAT = WorkerHeartbeat(
    name="host:1",
    version="0.1.0",
    lanes={"priority.email": 128, "bulk.sms": 64},
    providers=("sendgrid", "twilio"),
    running_ms=MINUTE_MS,
)


class WorkerTests:
    """Tests of `worker_seen`, `worker_gone` and `workers`."""

    async def test_a_worker_is_listed_with_what_its_heartbeat_says(self, harness: Harness) -> None:
        store = harness.store
        assert await store.workers() == ()
        before = await store.now_ms()
        await store.worker_seen(BEAT)
        [worker] = await (await harness.second()).workers()
        assert (worker.name, worker.version) == ("host:1", "0.1.0")
        assert worker.lanes == BEAT.lanes
        assert worker.providers == BEAT.providers
        assert not worker.draining
        assert before <= worker.seen_at <= await store.now_ms()
        assert worker.started_at == worker.seen_at - MINUTE_MS
        assert worker.is_live(await store.now_ms())

    async def test_a_heartbeat_replaces_the_last_one(self, harness: Harness) -> None:
        store = harness.store
        await store.worker_seen(BEAT)
        first = await _worker(store)
        await harness.advance(HEARTBEAT_MS)
        await store.worker_seen(replace(BEAT, providers=(), lanes={}, version="0.2.0", draining=True))
        worker = await _worker(store)
        assert (worker.version, worker.lanes, worker.providers) == ("0.2.0", {}, ())
        assert worker.draining
        assert worker.seen_at >= first.seen_at + HEARTBEAT_MS

    async def test_a_worker_without_heartbeats_is_dead_after_a_while(self, harness: Harness) -> None:
        store = harness.store
        await store.worker_seen(BEAT)
        await harness.advance(DEAD_AFTER_MS)
        await store.worker_seen(replace(BEAT, name="host:2"))
        now = await store.now_ms()
        assert {one.name: one.is_live(now) for one in await store.workers()} == {
            "host:1": False,
            "host:2": True,
        }

    async def test_a_worker_that_stops_is_removed(self, harness: Harness) -> None:
        store = harness.store
        for name in ("host:2", "host:1", "host:3"):
            await store.worker_seen(replace(BEAT, name=name))
        await store.worker_gone("host:2")
        await store.worker_gone("host:2")
        assert [one.name for one in await store.workers()] == ["host:1", "host:3"]

    async def test_workers_that_died_long_ago_are_pruned(self, harness: Harness) -> None:
        store = harness.store
        await store.worker_seen(BEAT)
        await harness.advance(FORGOTTEN_AFTER_MS - MINUTE_MS)
        await store.worker_seen(replace(BEAT, name="host:2"))
        await store.prune(Retention(), 10)
        assert [one.name for one in await store.workers()] == ["host:1", "host:2"]
        await harness.advance(MINUTE_MS)
        await store.prune(Retention(), 10)
        assert [one.name for one in await store.workers()] == ["host:2"]


async def _worker(store: Backend) -> SeenWorker:
    [worker] = await store.workers()
    return worker
