"""Endings without a provider: cancelled, expired, too old, or lost with its workers."""

from __future__ import annotations

from datetime import timedelta

import pytest

from homing import CommandRefused, Reason, Status
from homing.core.routing.breaker import Phase
from homing.providers.local.scripted import HANG, ScriptedProvider
from support.engine_harness import EngineHarness, K, TimedProvider, mail, seconds, status, steady

DAY = 86_400


async def test_cancelled_before_its_attempt_it_is_never_sent(harness: EngineHarness) -> None:
    provider = ScriptedProvider()
    engine = await harness.open({"mail": provider}, working=False)
    id = await mail(engine)
    assert await engine.cancel(id, who="ada", why="typo") is True
    engine.start_worker()
    await seconds(5)
    history = await engine.history(id)
    assert (history.notification.status, history.notification.reason) == (Status.CANCELLED, Reason.OPERATOR)
    (cause,) = history.causes
    assert (cause.name, cause.who, cause.why) == ("cancel", "ada", "typo")
    assert (cause.status_before, cause.status_after) == (Status.PENDING, Status.CANCELLED)
    assert provider.sent == []


async def test_cancelled_between_two_attempts_it_is_not_attempted_again(harness: EngineHarness) -> None:
    provider = TimedProvider(script=[K.TRANSIENT])
    engine = await harness.open({"mail": provider}, rules=steady())
    id = await mail(engine)
    await seconds(2)
    assert await engine.cancel(id) is True
    await seconds(60)
    assert await status(engine, id) is Status.CANCELLED
    assert len(provider.times) == 1


async def test_cancelled_during_an_attempt_that_fails_it_is_not_attempted_again(
    harness: EngineHarness,
) -> None:
    provider = TimedProvider(usual=K.TRANSIENT, latency_ms=5000)
    engine = await harness.open({"mail": provider}, rules=steady())
    id = await mail(engine)
    await seconds(2)
    assert await engine.cancel(id, why="too late?") is False
    assert (await engine.get(id)).cancel_requested
    assert await engine.cancel(id) is False
    await seconds(60)
    history = await engine.history(id)
    assert history.notification.status is Status.CANCELLED
    assert len(history.attempts) == 1
    assert len(provider.times) == 1


async def test_cancelled_during_an_attempt_that_succeeds_it_counts_as_sent(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider(latency_ms=5000)})
    id = await mail(engine)
    await seconds(2)
    assert await engine.cancel(id) is False
    await seconds(5)
    assert await status(engine, id) is Status.SENT
    with pytest.raises(CommandRefused, match=f"cancel is not possible: {id} is sent"):
        await engine.cancel(id)


async def test_it_expires_between_two_attempts(harness: EngineHarness) -> None:
    provider = TimedProvider(usual=K.TRANSIENT)
    engine = await harness.open({"mail": provider}, rules=steady())
    id = await mail(engine, expires_at=timedelta(seconds=25))
    await seconds(60)
    done = await engine.get(id)
    assert (done.status, done.reason) == (Status.EXPIRED, Reason.EXPIRED)
    assert provider.times == pytest.approx([0.0, 10.0, 20.0], abs=0.02)
    assert done.last_error == "timed returned transient"


async def test_it_expires_behind_an_open_breaker(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()})
    await engine.force_breaker("mail", Phase.OPEN, who="ada")
    id = await mail(engine, expires_at=timedelta(minutes=2))
    await seconds(110)
    assert await status(engine, id) is Status.PENDING
    await seconds(20)
    done = await engine.get(id)
    assert (done.status, done.attempt_count) == (Status.EXPIRED, 0)


async def test_behind_an_open_breaker_it_ends_at_its_maximum_age(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, rules=steady(max_age_ms="5m"))
    await engine.force_breaker("mail", Phase.OPEN, who="ada")
    id = await mail(engine)
    later = await mail(engine, send_at=timedelta(minutes=3))
    await seconds(290)
    assert await status(engine, id) is Status.PENDING
    await seconds(20)
    done = await engine.get(id)
    assert (done.status, done.reason) == (Status.FAILED, Reason.PROVIDER_UNAVAILABLE)
    assert done.attempt_count == 0
    assert await status(engine, later) is Status.PENDING
    await seconds(180)
    assert await status(engine, later) is Status.FAILED


async def test_the_default_age_limit_is_two_days(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, working=False)
    await engine.force_breaker("mail", Phase.OPEN, who="ada")
    id = await mail(engine)
    for passed, expected in ((2 * DAY - 60, Status.PENDING), (120, Status.FAILED)):
        await seconds(passed)
        engine.start_worker()
        await seconds(10)
        assert await status(engine, id) is expected
        await engine.stop_worker()


async def test_the_age_limit_applies_while_it_is_retried(harness: EngineHarness) -> None:
    provider = TimedProvider(usual=K.TRANSIENT)
    engine = await harness.open({"mail": provider}, rules=steady(max_age_ms="35s", max_attempts=50))
    id = await mail(engine)
    await seconds(60)
    done = await engine.get(id)
    assert (done.status, done.reason) == (Status.FAILED, Reason.PROVIDER_UNAVAILABLE)
    assert done.attempt_count == len(provider.times) == 4


async def test_a_resent_notification_has_the_policy_s_age_limit_too(harness: EngineHarness) -> None:
    engine = await harness.open(
        {"mail": ScriptedProvider(script=[K.BAD_CONTENT])}, rules=steady(max_age_ms="2m")
    )
    id = await mail(engine)
    await seconds(1)
    await engine.force_breaker("mail", Phase.OPEN, who="ada")
    again = await engine.resend(id)
    await seconds(150)
    done = await engine.get(again)
    assert (done.status, done.reason) == (Status.FAILED, Reason.PROVIDER_UNAVAILABLE)


async def test_a_notification_that_kills_its_worker_each_time_ends_as_a_dead_letter(
    harness: EngineHarness,
) -> None:
    provider = TimedProvider(usual=HANG)
    rules = steady(max_attempts=3, timeout_ms="20s")
    id = await mail(await harness.open({"mail": provider}, rules=rules, working=False))
    for _ in range(8):
        engine = await harness.open({"mail": provider}, rules=rules)
        await seconds(5)
        await engine.stop_worker(hard=True)
        await seconds(60)
    last = await harness.open({"mail": provider}, rules=rules)
    await seconds(60)
    history = await last.history(id)
    assert (history.notification.status, history.notification.reason) == (
        Status.FAILED,
        Reason.RETRIES_EXHAUSTED,
    )
    assert history.notification.attempt_count == 3
    assert [a.outcome for a in history.attempts] == [K.LOST] * 3
    assert history.attempts[0].worker == "w2"
    assert "w2 was lost" in (history.attempts[0].error or "")
    assert len(provider.times) == 3


async def test_a_lost_attempt_can_be_held_for_an_operator(harness: EngineHarness) -> None:
    provider = TimedProvider(usual=HANG)
    engine = await harness.open({"mail": provider}, rules=steady(on_timeout="hold"))
    id = await mail(engine)
    await seconds(2)
    await engine.stop_worker(hard=True)
    engine.start_worker()
    await seconds(90)
    assert await status(engine, id) is Status.IN_DOUBT
    assert len(provider.times) == 1


async def test_an_operator_s_retry_reopens_a_finished_notification(harness: EngineHarness) -> None:
    provider = ScriptedProvider(script=[K.TRANSIENT])
    engine = await harness.open({"mail": provider}, rules=steady(max_attempts=1, max_age_ms="1m"))
    failed = await mail(engine)
    await seconds(1)
    expired = await mail(engine, send_at=timedelta(seconds=5), expires_at=timedelta(seconds=6))
    await engine.force_breaker("mail", Phase.OPEN, who="ada")
    await seconds(120)
    assert [await status(engine, id) for id in (failed, expired)] == [Status.FAILED, Status.EXPIRED]
    await engine.force_breaker("mail", None, who="ada")
    for id in (failed, expired):
        await engine.retry(id, who="ada", why="provider is back")
    await seconds(10)
    assert [await status(engine, id) for id in (failed, expired)] == [Status.SENT, Status.SENT]
