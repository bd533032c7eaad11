"""What waits and what is in flight when the store's clock is set by a day, in both directions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from homing import Homing, Status
from homing.providers.local.scripted import HANG, ScriptedProvider
from support.engine_harness import (
    DAY,
    MINUTE,
    EngineHarness,
    K,
    TimedProvider,
    WatchedStore,
    mail,
    seconds,
    status,
    steady,
)

DAY_MS = 86_400_000


def process_store(harness: EngineHarness) -> WatchedStore:
    """Returns the store object of one process, which notices that the clock was set."""
    return WatchedStore(harness.clock, harness.store._database, checks_clock=True)


async def started(harness: EngineHarness, provider: ScriptedProvider, **settings: Any) -> Homing:
    return await harness.open({"mail": provider}, store=process_store(harness), **settings)


async def test_nothing_becomes_a_dead_letter_while_the_clock_is_a_day_ahead(harness: EngineHarness) -> None:
    provider = TimedProvider(latency_ms=15_000)
    engine = await started(harness, provider, rules=steady(max_age_ms="1h"))
    in_flight = await mail(engine)
    waiting = await mail(engine, send_at=timedelta(minutes=5), expires_at=timedelta(hours=1))
    await seconds(1)
    harness.clock.jump(DAY_MS)
    await seconds(20)
    harness.clock.jump(-DAY_MS)
    await seconds(10)
    history = await engine.history(in_flight)
    assert [attempt.outcome for attempt in history.attempts] == [K.ACCEPTED]
    assert await status(engine, waiting) is Status.PENDING
    await seconds(5 * MINUTE)
    assert provider.times == [0.0, 300.0]
    assert await status(engine, waiting) is Status.SENT


async def test_a_new_time_is_accepted_after_ten_minutes_and_reported_before(harness: EngineHarness) -> None:
    provider = TimedProvider()
    engine = await started(harness, provider)
    await mail(engine, send_at=timedelta(hours=6))
    await seconds(1)
    harness.clock.jump(DAY_MS)
    await seconds(9 * MINUTE)
    assert provider.times == []
    [alert, *_] = harness.alerts("StoreClockStepped")
    assert alert["message"].startswith("the store's clock was set forward by 1d;")
    step = await engine.suspected_clock_step()
    assert step is not None
    assert step.correction_ms == -DAY_MS
    await seconds(2 * MINUTE)
    assert 600 <= provider.times[0] <= 610
    assert await engine.suspected_clock_step() is None


async def test_an_attempt_in_flight_keeps_its_lease_when_a_step_is_accepted(harness: EngineHarness) -> None:
    for jump_ms in (DAY_MS, -DAY_MS):
        provider = TimedProvider(latency_ms=100_000)
        engine = await started(harness, provider, rules=steady(timeout_ms="2m"))
        await started(harness, provider, rules=steady(timeout_ms="2m"))
        await seconds(1)
        harness.clock.jump(jump_ms)
        await seconds(9 * MINUTE)
        id = await mail(engine)
        await seconds(3 * MINUTE)
        history = await engine.history(id)
        assert [attempt.outcome for attempt in history.attempts] == [K.ACCEPTED]
        assert len(provider.times) == 1
        await harness.close()


async def test_leases_are_reclaimed_after_the_clock_was_set_back_and_the_leader_died(
    harness: EngineHarness,
) -> None:
    engine = await started(harness, TimedProvider(script=[HANG]), rules=steady())
    id = await mail(engine)
    await seconds(1)
    await engine.stop_worker(hard=True)
    harness.clock.jump(-DAY_MS)
    other = await started(harness, ScriptedProvider(), rules=steady())
    await seconds(60)
    history = await other.history(id)
    assert [attempt.outcome for attempt in history.attempts] == [K.LOST, K.ACCEPTED]


async def test_processes_that_were_stopped_for_a_day_start_at_once(harness: EngineHarness) -> None:
    engine = await started(harness, ScriptedProvider(), rules=steady(max_age_ms="2d"))
    await engine.stop_worker()
    id = await mail(engine)
    await seconds(DAY)
    harness.clock.jump(3_600_000)  # no process was there to see it
    provider = TimedProvider()
    other = await started(harness, provider, rules=steady(max_age_ms="2d"))
    await seconds(2)
    assert await status(other, id) is Status.SENT
    assert provider.times[0] <= DAY + 1


async def test_a_process_that_starts_goes_by_the_time_of_the_live_ones(harness: EngineHarness) -> None:
    engine = await started(harness, ScriptedProvider())
    id = await mail(engine, send_at=timedelta(hours=1))
    await seconds(1)
    harness.clock.jump(DAY_MS)
    await seconds(11)
    provider = TimedProvider()
    await started(harness, provider)
    await seconds(MINUTE)
    assert provider.times == []
    assert await status(engine, id) is Status.PENDING
