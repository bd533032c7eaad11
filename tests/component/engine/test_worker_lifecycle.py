"""The life of a worker: claiming, sleeping, waking, draining, hard stops, and store outages."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from homing import Status
from homing.core.lifecycle.claims import Claim
from homing.core.lifecycle.outcomes import Settlement
from homing.core.notifications import Priority
from homing.core.ports.timers import AssignedTimer
from homing.core.retry.decide import RecipientFacts
from homing.engine.delivery.worker import LATENESS_BUCKETS_MS, Lateness
from homing.engine.settings import WorkerSettings
from homing.providers.local.scripted import HANG, ScriptedProvider
from support.engine_harness import (
    EngineHarness,
    K,
    RecipientHook,
    TimedProvider,
    WatchedStore,
    mail,
    seconds,
    serving,
    status,
    steady,
    text,
)
from support.heap_timer import HeapTimer


async def hears_nothing(store: WatchedStore, wake: object, wake_inbox: object) -> None:
    """A store that announces rows accepted elsewhere, although there are none."""


async def waits(store: WatchedStore, wake: object, wake_inbox: object) -> None:
    await asyncio.Event().wait()


async def test_an_idle_worker_claims_at_most_once_per_poll(harness: EngineHarness) -> None:
    await harness.open({"mail": ScriptedProvider()}, worker_name="w")
    await seconds(10)
    before = harness.store.calls["claim"]
    await seconds(60)
    assert harness.store.calls["claim"] - before <= 60


async def test_with_a_slower_poll_a_send_still_wakes_the_worker(
    harness: EngineHarness, tmp_path: Path
) -> None:
    settings = tmp_path / "slow.toml"
    settings.write_text('[worker]\npoll_ms = "5m"\n')
    provider = TimedProvider()
    engine = await harness.open({"mail": provider}, config_file=settings)
    await seconds(100)
    assert harness.store.calls["claim"] == 1
    await mail(engine)
    await seconds(1)
    assert provider.times == [100.0]


async def test_a_retry_is_not_late_even_if_nothing_wakes_the_worker(harness: EngineHarness) -> None:
    provider = TimedProvider(script=[K.TRANSIENT])
    engine = await harness.open({"mail": provider}, rules=steady(base_ms="5m"))
    await mail(engine)
    await seconds(310)
    assert provider.gaps == [300.0]


async def test_lateness_is_recorded(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, working=False)
    await mail(engine)
    await seconds(7)
    engine.start_worker()
    await seconds(1)
    await mail(engine)
    await seconds(1)
    late = engine.worker.lateness
    assert late.seen == 2
    assert 7000 <= late.longest_ms < 7100
    assert late.counts[LATENESS_BUCKETS_MS.index(30_000)] == 1
    assert sum(late.counts) == 2
    assert (
        late.total_ms == late.longest_ms
    )  # the second one was claimed in the millisecond in which it was due


async def test_lateness_beyond_all_buckets_is_recorded_too() -> None:
    lateness = Lateness()
    lateness.note([10**9])
    assert lateness.counts[-1] == 1


async def test_draining_finishes_attempts_in_flight_and_claims_nothing_new(harness: EngineHarness) -> None:
    provider = TimedProvider(latency_ms=5000)
    engine = await harness.open({"mail": serving("mail", provider, max_in_flight=4)})
    ids = [await mail(engine) for _ in range(6)]
    await seconds(1)
    await engine.stop_worker()
    states = Counter([await status(engine, id) for id in ids])
    assert states == {Status.SENT: 2, Status.PENDING: 4}
    assert engine.worker.in_flight == 0


async def test_a_hard_stop_leaves_leases_that_another_worker_takes_over(harness: EngineHarness) -> None:
    provider = TimedProvider(script=[HANG])
    engine = await harness.open({"mail": provider}, rules=steady())
    id = await mail(engine)
    await seconds(1)
    await engine.stop_worker(hard=True)
    assert await status(engine, id) is Status.SENDING
    other = await harness.open({"mail": provider}, rules=steady())
    await seconds(120)
    history = await other.history(id)
    assert history.notification.status is Status.SENT
    assert [a.outcome for a in history.attempts] == [K.LOST, K.ACCEPTED]
    assert history.attempts[0].worker == "w1"
    assert history.attempts[1].worker == "w2"


async def test_a_hard_stop_ends_attempts_that_still_wait_for_the_recipient_service(
    harness: EngineHarness,
) -> None:
    """Otherwise their sends would start after the stop."""
    provider = ScriptedProvider()

    async def slow_facts(claims: Sequence[Claim]) -> dict[str, RecipientFacts]:
        await seconds(5)
        return {}

    engine = await harness.open({"mail": provider}, directory=RecipientHook(slow_facts))
    id = await mail(engine)
    await seconds(1)
    await engine.stop_worker(hard=True)
    await seconds(10)
    assert provider.sent == []
    assert await status(engine, id) is Status.SENDING


async def test_a_drained_worker_keeps_a_call_of_the_store_that_ignores_its_cancellation(
    harness: EngineHarness,
) -> None:
    engine = await harness.open({"mail": ScriptedProvider(latency_ms=20_000)}, rules=steady())
    waiting: list[weakref.ref[asyncio.Future[None]]] = []
    ended: list[str] = []

    async def ignores_its_cancellation(name: str) -> None:
        if name != "extend":
            return
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            rest: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting.append(weakref.ref(rest))
            await rest
            ended.append(name)

    harness.store.on_call = ignores_its_cancellation
    await mail(engine)
    await seconds(15)
    await engine.stop_worker()
    gc.collect()  # the event loop alone keeps no task
    (rest,) = [one() for one in waiting]
    assert rest is not None
    rest.set_result(None)
    await seconds(1)
    assert ended == ["extend"]


async def test_a_hard_stop_aborts_a_graceful_one(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider(usual=HANG)}, rules=steady(timeout_ms="1h"))
    await mail(engine)
    await seconds(1)
    graceful = asyncio.create_task(engine.stop_worker())
    await seconds(60)
    assert not graceful.done()
    await engine.stop_worker(hard=True)
    await graceful


async def test_it_can_be_started_again(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()})
    await engine.stop_worker()
    id = await mail(engine)
    await seconds(5)
    assert await status(engine, id) is Status.PENDING
    engine.start_worker()
    engine.start_worker()
    await seconds(1)
    assert await status(engine, id) is Status.SENT


async def test_run_worker_runs_until_it_is_cancelled(harness: EngineHarness) -> None:
    provider = ScriptedProvider()
    engine = await harness.open({"mail": provider}, working=False)
    work = asyncio.create_task(engine.run_worker())
    first = await mail(engine)
    await seconds(1)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    second = await mail(engine)
    await seconds(10)
    assert [await status(engine, id) for id in (first, second)] == [Status.SENT, Status.PENDING]


async def test_run_worker_runs_until_it_is_drained(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, working=False)
    work = asyncio.create_task(engine.run_worker())
    await seconds(1)
    engine.worker.drain()
    await work


@pytest.mark.parametrize("call", ["claim", "settle", "extend", "reclaim", "breakers", "outbox", "emit"])
async def test_a_store_outage_loses_nothing(harness: EngineHarness, call: str) -> None:
    provider = TimedProvider(script=[K.TRANSIENT], latency_ms=500)
    engine = await harness.open({"mail": provider}, rules=steady())
    before = [await mail(engine) for _ in range(5)]
    await seconds(0.2)
    harness.store.away.add(call)
    during = [await mail(engine) for _ in range(5)]
    await seconds(20)
    harness.store.away.clear()
    await seconds(40)
    assert {await status(engine, id) for id in before + during} == {Status.SENT}
    assert len(provider.times) == 11


async def test_occasional_store_errors_lose_nothing(harness: EngineHarness) -> None:
    provider = TimedProvider()
    engine = await harness.open({"mail": provider}, rules=steady())
    ids = []
    for n in range(30):
        ids.append(await mail(engine))
        harness.store.stumbles[("claim", "settle", "breakers")[n % 3]] += 1
        await seconds(0.3)
    await seconds(10)
    assert {await status(engine, id) for id in ids} == {Status.SENT}
    assert len(provider.times) == 30


async def test_a_settlement_after_a_long_outage_still_counts(harness: EngineHarness) -> None:
    provider = TimedProvider()
    engine = await harness.open({"mail": provider}, rules=steady())
    harness.store.away.add("settle")
    id = await mail(engine)
    await seconds(25)
    assert await status(engine, id) is Status.SENDING
    harness.store.away.clear()
    await seconds(5)
    assert await status(engine, id) is Status.SENT
    assert len(provider.times) == 1


async def test_a_settlement_of_a_lease_that_was_taken_over_changes_nothing(harness: EngineHarness) -> None:
    provider = TimedProvider()
    cut_off = harness.store.twin()
    one = await harness.open({"mail": provider}, rules=steady(), store=cut_off)
    two = await harness.open({"mail": provider}, rules=steady())
    cut_off.away.add("settle")
    id = await mail(one)
    await seconds(0.5)
    cut_off.away.add("everything")
    await seconds(120)
    history = await two.history(id)
    assert [a.outcome for a in history.attempts] == [K.LOST, K.ACCEPTED]
    cut_off.away.clear()
    await seconds(10)
    assert one.worker.stale == 1
    assert await two.history(id) == history


async def test_a_long_send_keeps_its_lease(harness: EngineHarness) -> None:
    provider = TimedProvider(latency_ms=100_000)
    rules = steady(timeout_ms="2m")
    engine = await harness.open({"mail": provider}, rules=rules)
    await harness.open({"mail": provider}, rules=rules)
    id = await mail(engine)
    await seconds(150)
    found = await engine.get(id)
    assert (found.status, found.attempt_count) == (Status.SENT, 1)
    assert len(provider.times) == 1


async def test_every_settlement_is_reported_to_listeners(harness: EngineHarness) -> None:
    told: list[tuple[Settlement, bool]] = []
    engine = await harness.open({"mail": ScriptedProvider(script=[K.TRANSIENT])}, rules=steady())
    engine.on_settled = lambda settlement, applied: told.append((settlement, applied))
    await mail(engine)
    await seconds(15)
    assert [(s.status, applied) for s, applied in told] == [(Status.RETRYING, True), (Status.SENT, True)]


async def test_a_listener_that_raises_stops_nothing(harness: EngineHarness) -> None:
    def listen(settlement: Settlement, applied: bool) -> None:
        raise RuntimeError("oops")

    engine = await harness.open({"mail": ScriptedProvider()})
    engine.on_settled = listen
    ids = []
    for _ in range(3):
        ids.append(await mail(engine))
        await seconds(2)
    assert {await status(engine, id) for id in ids} == {Status.SENT}


async def test_a_backlog_of_settlements_pauses_claiming(harness: EngineHarness) -> None:
    provider = TimedProvider()
    engine = await harness.open({"mail": serving("mail", provider, max_in_flight=4)}, working=False)
    engine.settings = replace(engine.settings, worker=WorkerSettings(settle_backlog=10))
    engine.start_worker()
    harness.store.away.add("settle")
    for _ in range(50):
        await mail(engine)
    await seconds(20)
    assert 10 < len(provider.times) <= 14
    harness.store.away.clear()
    await seconds(10)
    assert len(provider.times) == 50


async def test_processing_once_returns_what_was_done(harness: EngineHarness) -> None:
    script: list[Any] = [K.ACCEPTED, K.TRANSIENT, K.BAD_CONTENT]
    engine = await harness.open({"mail": ScriptedProvider(script=script)}, rules=steady(), working=False)
    for _ in range(3):
        await mail(engine)
    done = await engine.process()
    assert (done.processed, done.succeeded, done.retried, done.failed, done.other) == (3, 1, 1, 1, 0)


async def test_processing_once_settles_lost_leases_and_overdue_rows(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider(script=[HANG])}, rules=steady())
    lost = await mail(engine)
    await seconds(1)
    await engine.stop_worker(hard=True)
    overdue = await mail(engine, expires_at=timedelta(seconds=30))
    await seconds(60)
    fresh = await harness.open({"mail": ScriptedProvider()}, rules=steady(), working=False)
    done = await fresh.process()
    assert (done.retried, done.other) == (1, 1)
    assert await status(fresh, overdue) is Status.EXPIRED
    await seconds(11)
    assert (await fresh.process()).succeeded == 1
    (attempt, _) = (await fresh.history(lost)).attempts
    assert attempt.outcome is K.LOST
    assert attempt.latency_ms >= 40_000


async def test_a_closing_engine_settles_its_attempts_in_flight(harness: EngineHarness) -> None:
    provider = ScriptedProvider(latency_ms=3000)
    engine = await harness.open({"mail": provider})
    id = await mail(engine)
    await seconds(1)
    await engine.close()
    history = await harness.store.get("default", id)
    assert history is not None
    assert history.notification.status is Status.SENT


async def test_a_slot_that_becomes_free_is_used_at_once_even_after_an_empty_claim(
    harness: EngineHarness, tmp_path: Path
) -> None:
    settings = tmp_path / "homing.toml"
    settings.write_text('[worker]\npoll_ms = "5m"\n')
    slow = ScriptedProvider(latency_ms=1000)
    engine = await harness.open(
        {
            "slow": serving("slow", slow, "email", max_in_flight=1),
            "free": serving("free", ScriptedProvider(), "sms"),
        },
        config_file=settings,
    )
    first = await mail(engine)
    await seconds(0.2)
    second = await mail(engine)  # wakes the worker, which has no capacity for it
    await seconds(5)
    assert [await status(engine, id) for id in (first, second)] == [Status.SENT, Status.SENT]


async def test_the_end_of_an_attempt_causes_no_claim_if_nothing_was_left(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WatchedStore, "listen", hears_nothing, raising=False)
    monkeypatch.setattr(WatchedStore, "hears", True, raising=False)
    engine = await harness.open({"mail": ScriptedProvider(latency_ms=100)})
    ids = [await mail(engine) for _ in range(5)]
    await seconds(0.05)
    before = harness.store.calls["claim"]
    await seconds(0.5)
    assert [await status(engine, id) for id in ids] == [Status.SENT] * 5
    assert harness.store.calls["claim"] == before


@pytest.mark.parametrize(("most", "looks"), [(128, 1), (1, 2)])
async def test_an_attempt_that_ends_during_a_claim_causes_another_one_only_if_rows_were_left(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch, most: int, looks: int
) -> None:
    monkeypatch.setattr(WatchedStore, "listen", hears_nothing, raising=False)
    monkeypatch.setattr(WatchedStore, "hears", True, raising=False)
    provider = serving("mail", ScriptedProvider(latency_ms=100), "email", max_in_flight=most)
    other = serving("other", ScriptedProvider(), "sms")
    engine = await harness.open({"mail": provider, "other": other})
    await mail(engine)
    await seconds(0.05)

    async def slow(name: str) -> None:
        if name == "claim":
            await asyncio.sleep(0.2)

    harness.store.on_call = slow
    before = harness.store.calls["claim"]
    await text(engine)  # wakes the worker: the first attempt ends while it claims this one
    await seconds(0.6)
    assert harness.store.calls["claim"] - before == looks


@pytest.mark.parametrize("behind_a_pooler", [False, True])
async def test_a_worker_without_announcements_of_other_processes_polls_while_it_is_busy(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch, behind_a_pooler: bool
) -> None:
    if behind_a_pooler:
        monkeypatch.setattr(WatchedStore, "listen", hears_nothing, raising=False)
        monkeypatch.setattr(WatchedStore, "hears", False, raising=False)
    engine = await harness.open({"mail": ScriptedProvider(latency_ms=100)})
    await mail(engine)
    await seconds(0.05)
    before = harness.store.calls["claim"]
    await seconds(0.5)
    assert harness.store.calls["claim"] > before


@pytest.mark.parametrize(
    ("is_notified", "served", "claims"),
    [(True, (), 10), (False, (), 50), (False, (Priority.LOW,), 50), (False, tuple(Priority), 10)],
)
async def test_an_idle_worker_polls_five_times_as_often_if_nothing_reports_new_work(
    harness: EngineHarness,
    monkeypatch: pytest.MonkeyPatch,
    is_notified: bool,
    served: tuple[Priority, ...],
    claims: int,
) -> None:
    monkeypatch.setattr(WatchedStore, "listen", waits, raising=False)
    monkeypatch.setattr(WatchedStore, "hears", is_notified, raising=False)
    timers = {"heap": AssignedTimer(HeapTimer(), frozenset(served))} if served else {}
    await harness.open({"mail": ScriptedProvider()}, timers=timers)
    await seconds(10)
    before = harness.store.calls["claim"]
    await seconds(10)
    assert harness.store.calls["claim"] - before == claims
    monkeypatch.setattr(WatchedStore, "hears", True, raising=False)
    await seconds(10)
    before = harness.store.calls["claim"]
    await seconds(10)
    assert harness.store.calls["claim"] - before == 10


async def test_a_timer_that_does_not_listen_is_no_reason_to_poll_rarely(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WatchedStore, "listen", waits, raising=False)
    monkeypatch.setattr(WatchedStore, "hears", False, raising=False)
    timer = HeapTimer()
    timer.fails.add("listen")
    await harness.open({"mail": ScriptedProvider()}, timers={"heap": timer})
    await seconds(10)
    before = harness.store.calls["claim"]
    await seconds(10)
    assert harness.store.calls["claim"] - before == 50


@pytest.mark.parametrize(("most", "lefts"), [(2, 3), (5, 1)])
async def test_rows_left_for_lack_of_capacity_are_claimed_when_there_is_some(
    harness: EngineHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, lefts: int
) -> None:
    monkeypatch.setattr(WatchedStore, "listen", hears_nothing, raising=False)
    monkeypatch.setattr(WatchedStore, "hears", True, raising=False)
    settings = tmp_path / "homing.toml"
    settings.write_text('[worker]\npoll_ms = "5m"\n')
    slow = serving("mail", ScriptedProvider(latency_ms=100), "email", max_in_flight=most)
    engine = await harness.open({"mail": slow}, config_file=settings)
    ids = [await mail(engine) for _ in range(most + lefts)]
    await seconds(1)
    assert {await status(engine, id) for id in ids} == {Status.SENT}
