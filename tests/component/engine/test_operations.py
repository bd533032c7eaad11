"""The queue operations, as defined by source 001."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from homing import (
    Channel,
    Homing,
    InvalidRequest,
    MatchKeys,
    NotFound,
    OutcomeKind,
    PolicyPatch,
    Priority,
    Rule,
    Status,
)
from homing.core.ports.stores import Retention
from homing.core.statistics import AttemptStatistics, AttemptSuccess, HealthMetrics, RetryInfo
from homing.providers.local.scripted import ScriptedProvider
from support.engine_harness import EngineHarness, FailingProvider, K, TimedProvider, mail, seconds, steady

FIVE = timedelta(minutes=5)


async def failing(harness: EngineHarness, **settings: Any) -> Homing:
    """Opens an engine with source 001's settings and a provider that always fails."""
    return await harness.open({"mail": ScriptedProvider(usual=K.TRANSIENT)}, preset="simple", **settings)


async def mixed(harness: EngineHarness) -> Homing:
    """Ten: 4 sent at once, 2 after a retry, 1 dead after 3 attempts, 1 refused, 2 in backoff."""
    provider = ScriptedProvider()
    engine = await harness.open({"mail": provider}, preset="simple", working=False)

    async def then(number: int, *script: OutcomeKind) -> None:
        provider.script.extend(script)
        for _ in range(number):
            await mail(engine)
        await engine.process()

    await then(4)
    await then(2, K.TRANSIENT, K.TRANSIENT)
    await seconds(301)
    await then(0)
    await then(1, K.TRANSIENT)
    for wait in (301, 601):
        await seconds(wait)
        await then(0, K.TRANSIENT)
    await seconds(3600)
    await then(1, K.BAD_RECIPIENT)
    await then(2, K.TRANSIENT, K.TRANSIENT)
    return engine


# Arithmetic --------------------------------------------------------------------------------------------


@pytest.mark.source("001", "141-146")
@pytest.mark.parametrize(("attempt", "minutes"), [(-1, 0), (0, 0), (1, 5), (2, 10), (3, 20), (4, 40)])
async def test_the_delay_doubles_from_the_given_one(
    harness: EngineHarness, attempt: int, minutes: int
) -> None:
    engine = await harness.open(working=False)
    assert engine.calculate_delay(attempt, FIVE) == timedelta(minutes=minutes)


SECOND = timedelta(seconds=1)
BY_PRIORITY = [
    ("critical", 10, 10 * SECOND, 300 * SECOND),
    ("high", 8, 30 * SECOND, 900 * SECOND),
    ("medium", 5, 120 * SECOND, 3_600 * SECOND),
    ("low", 3, 300 * SECOND, 7_200 * SECOND),
]
"""Priority, retries, base and cap of preset `priority`."""


@pytest.mark.source("000", "24-31", "102-103", "106-121", "151-172", "179-189", "192-216")
@pytest.mark.parametrize(("priority", "retries", "base", "cap"), BY_PRIORITY)
async def test_delay_jitter_and_number_of_retries_by_priority(
    harness: EngineHarness, priority: str, retries: int, base: timedelta, cap: timedelta
) -> None:
    engine = await harness.open(working=False)
    for attempt in range(1, 20):
        delay = min(base * 2 ** (attempt - 1), cap)
        assert engine.calculate_delay(attempt, priority=priority) == delay
        drawn = [engine.calculate_delay(attempt, priority=priority, jitter=True) for _ in range(50)]
        assert delay <= min(drawn) < max(drawn) <= 1.3 * delay, "the cap applies before the jitter"
        assert engine.should_retry(attempt, priority=priority) is (attempt <= retries)
    assert engine.calculate_delay(1, priority=priority.upper()) == base


async def test_without_arguments_the_delay_is_that_of_an_ordinary_notification(
    harness: EngineHarness,
) -> None:
    engine = await harness.open(working=False)
    assert engine.calculate_delay(2) == engine.calculate_delay(2, priority="normal") == timedelta(minutes=4)
    simple = await harness.open(working=False, preset="simple")
    assert simple.calculate_delay(2, type="incident") == timedelta(minutes=20)
    assert [simple.should_retry(n, type="photo") for n in (1, 2)] == [True, False]
    channel = await harness.open(working=False, preset="channel")
    assert channel.calculate_delay(1, origin="auth", channel="sms") == 3 * SECOND
    fitting = [channel.should_retry(n, channel="webhook", priority="high") for n in (2, 3)]
    assert fitting == [True, False], "the mode's three attempts"


async def test_waiting_shows_the_due_times_of_a_given_delay(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": FailingProvider()}, rules=steady(), working=False)
    id = await mail(engine)
    await engine.process(1)
    (stored,), (computed,) = await engine.waiting(), await engine.waiting(timedelta(hours=1))
    assert stored.id == computed.id == id
    assert stored.last_attempt_at is not None
    assert computed.next_retry_at == stored.last_attempt_at + timedelta(hours=1)


async def test_the_delay_can_be_computed_by_policy(harness: EngineHarness) -> None:
    engine = await harness.open(working=False, preset="simple")
    keys = MatchKeys("default", "incident", "", Channel.EMAIL, Priority.MEDIUM)
    assert engine.calculate_delay(2, keys=keys) == timedelta(minutes=20)


async def test_a_negative_delay_is_refused(harness: EngineHarness) -> None:
    engine = await harness.open(working=False)
    with pytest.raises(InvalidRequest) as caught:
        engine.calculate_delay(1, -FIVE)
    assert caught.value.field == "delay"


# One notification --------------------------------------------------------------------------------------


@pytest.mark.source("001", "166-188", "264-268", "428-433")
async def test_retry_info_has_the_twelve_fields_and_what_failover_did(harness: EngineHarness) -> None:
    engine = await failing(harness)
    id = await mail(engine)
    await seconds(310)
    found = await engine.get(id)
    assert found.last_attempt_at is not None
    info = await engine.retry_info(id)
    assert info == RetryInfo(
        notification_id=id,
        current_attempts=2,
        max_attempts=3,
        retries_remaining=1,
        has_more_retries=True,
        last_attempt_at=found.last_attempt_at,
        next_retry_at=found.last_attempt_at + timedelta(minutes=10),
        is_ready_for_retry=False,
        status=Status.RETRYING,
        error_message="scripted returned transient",
        current_delay_minutes=10,
        next_delay_minutes=20,
        moves=0,
        spent=(),
    )
    assert len(msgspec.to_builtins(info)) == 14


async def test_retry_info_does_not_count_moves_at_once(harness: EngineHarness) -> None:
    providers = {"one": ScriptedProvider(usual=K.TRANSIENT), "two": ScriptedProvider(usual=K.TRANSIENT)}
    engine = await harness.open(providers, preset="simple")
    id = await mail(engine)
    await seconds(1)
    info = await engine.retry_info(id)
    assert (info.current_attempts, info.moves, info.spent) == (2, 1, ())
    assert (info.max_attempts, info.retries_remaining, info.has_more_retries) == (3, 2, True)
    assert (info.current_delay_minutes, info.next_delay_minutes) == (5, 10)


@pytest.mark.source("001", "307-319")
async def test_retry_info_accepts_other_settings_and_changes_nothing(harness: EngineHarness) -> None:
    engine = await failing(harness)
    id = await mail(engine)
    await seconds(310)
    before = await engine.history(id)
    info = await engine.retry_info(id, 9, timedelta(seconds=3))
    assert (info.max_attempts, info.retries_remaining) == (9, 7)
    assert (info.current_delay_minutes, info.next_delay_minutes) == (0.1, 0.2)
    assert (info.next_retry_at, info.is_ready_for_retry) == (None, True)
    assert await engine.history(id) == before


async def test_retry_info_of_a_finished_notification(poll_rarely: None, harness: EngineHarness) -> None:
    engine = await failing(harness)
    id = await mail(engine, type="photo")
    await seconds(16 * 60)
    info = await engine.retry_info(id)
    assert (info.status, info.current_attempts, info.max_attempts) == (Status.FAILED, 2, 2)
    assert (info.retries_remaining, info.has_more_retries) == (0, False)
    assert (info.next_retry_at, info.is_ready_for_retry) == (None, False)


async def test_retry_info_counts_attempts_granted_by_an_operator(harness: EngineHarness) -> None:
    engine = await failing(harness, rules=steady(max_attempts=1))
    id = await mail(engine)
    await seconds(1)
    await engine.stop_worker()
    await engine.retry(id)
    info = await engine.retry_info(id)
    assert (info.current_attempts, info.max_attempts, info.retries_remaining) == (1, 2, 1)
    assert info.has_more_retries
    assert "attempt 2 of 2" in (await engine.explain(id)).next_step


@pytest.mark.source("001", "148-164", "253-262")
async def test_readiness_follows_the_engine_s_clock(harness: EngineHarness) -> None:
    engine = await failing(harness)
    id = await mail(engine)
    await seconds(2)
    waiting = await engine.get(id)
    assert waiting.last_attempt_at is not None
    assert not engine.is_ready(waiting)
    assert engine.next_retry_time(waiting) == waiting.last_attempt_at + FIVE
    assert engine.is_ready(waiting, timedelta(seconds=1))
    assert engine.next_retry_time(waiting, timedelta(minutes=1)) == waiting.last_attempt_at + FIVE / 5
    assert engine.next_retry_time(waiting, timedelta(seconds=1)) is None
    await engine.cancel(id)
    gone = await engine.get(id)
    assert not engine.is_ready(gone)
    assert engine.next_retry_time(gone) is None


async def test_a_scheduled_notification_is_not_ready_whatever_the_delay(harness: EngineHarness) -> None:
    engine = await failing(harness, working=False)
    id = await mail(engine, send_at=timedelta(hours=1))
    later = await engine.get(id)
    for delay in (None, timedelta(0), FIVE):
        assert not engine.is_ready(later, delay)
        assert engine.next_retry_time(later, delay) == later.send_at
        assert await engine.select_pending(delay=delay) == ()


@pytest.mark.parametrize("ask", ["get", "history", "explain", "retry_info"])
async def test_an_unknown_notification_is_not_found(harness: EngineHarness, ask: str) -> None:
    engine = await harness.open(working=False)
    with pytest.raises(NotFound, match="no notification 017"):
        await getattr(engine, ask)("017")


# The queue ---------------------------------------------------------------------------------------------


@pytest.mark.source("001", "64", "123-137")
async def test_select_pending_returns_what_may_be_attempted_now_oldest_first(harness: EngineHarness) -> None:
    engine = await failing(harness, working=False)
    first = await mail(engine)
    await engine.process()
    second, third = await mail(engine), await mail(engine)
    await mail(engine, send_at=timedelta(minutes=1))
    assert [n.id for n in await engine.select_pending()] == [second, third]
    assert [n.id for n in await engine.select_pending(1)] == [second]
    await seconds(310)
    assert first in [n.id for n in await engine.select_pending()]


async def test_with_other_settings_the_soonest_of_very_many_are_found(harness: EngineHarness) -> None:
    engine = await harness.open(working=False)
    ids = [await mail(engine) for _ in range(800)]
    found = await engine.select_pending(20, 3, FIVE)
    assert [n.id for n in found] == sorted(ids)[:20]


@pytest.mark.source("001", "297-306")
async def test_select_pending_accepts_other_settings_and_changes_nothing(
    harness: EngineHarness,
) -> None:
    engine = await failing(harness, working=False)
    id = await mail(engine)
    await engine.process()
    fresh = await mail(engine)
    await seconds(70)
    before = await harness.store.tallies(None)
    assert [n.id for n in await engine.select_pending()] == [fresh]
    minute = timedelta(minutes=1)
    assert {n.id for n in await engine.select_pending(delay=minute)} == {id, fresh}
    assert [n.id for n in await engine.select_pending(50, 1, minute)] == [fresh]
    assert len(await engine.select_pending(1, 9, minute)) == 1
    assert await harness.store.tallies(None) == before
    assert await engine.select_pending() == await engine.select_pending()


@pytest.mark.parametrize("limit", [0, -1, 10_001])
async def test_a_limit_is_between_one_and_ten_thousand(harness: EngineHarness, limit: int) -> None:
    engine = await harness.open(working=False)
    for ask in (
        engine.select_pending(limit),
        engine.select_pending(limit, 5, FIVE),
        engine.waiting(limit=limit),
        engine.waiting(FIVE, limit=limit),
        engine.error_groups(limit),
        engine.list(limit=limit),
    ):
        with pytest.raises(InvalidRequest, match=r"limit: is .*; it must be between 1 and 10000"):
            await ask


@pytest.mark.source("001", "205-217")
async def test_select_waiting_returns_notifications_in_backoff_soonest_first(harness: EngineHarness) -> None:
    engine = await failing(harness)
    late = await mail(engine, type="incident")
    await seconds(1)
    soon = await mail(engine)
    for minutes in (1, 2, 3):
        await mail(engine, send_at=timedelta(minutes=minutes))
    await seconds(1)
    assert [n.id for n in await engine.waiting()] == [soon, late]
    assert [n.id for n in await engine.waiting(limit=1)] == [soon]
    hour = timedelta(hours=1)
    assert [n.id for n in await engine.waiting(hour)] == [late, soon]
    assert [n.id for n in await engine.waiting(hour, limit=1)] == [late]
    assert await engine.waiting(timedelta(milliseconds=1)) == ()


async def test_an_unknown_order_of_waiting_notifications_is_refused(harness: EngineHarness) -> None:
    engine = await failing(harness)
    with pytest.raises(InvalidRequest, match="by: is 'newest'; it must be due or last-attempt"):
        await engine.waiting(by="newest")  # type: ignore[arg-type]


@pytest.mark.source("001", "190-203")
async def test_the_numbers_of_a_mixed_queue(harness: EngineHarness) -> None:
    engine = await mixed(harness)
    assert await engine.queue_counts() == {
        **{status.value: 0 for status in Status},
        "sent": 6,
        "failed": 2,
        "retrying": 2,
    }
    assert await engine.retry_statistics() == (
        AttemptStatistics(attempts=1, count=3, pending_count=2, failed_count=1),
        AttemptStatistics(attempts=3, count=1, pending_count=0, failed_count=1),
    )
    assert await engine.success_by_attempt() == (
        AttemptSuccess(attempts=1, total=7, succeeded=4, failed=1, success_rate=57.14),
        AttemptSuccess(attempts=2, total=2, succeeded=2, failed=0, success_rate=100.0),
        AttemptSuccess(attempts=3, total=1, succeeded=0, failed=1, success_rate=0.0),
    )


@pytest.mark.source("001", "407-416")
async def test_the_success_rate_divides_by_all_that_have_made_that_many_attempts(
    harness: EngineHarness,
) -> None:
    """Source 001's query divides so: 45 sent, 1 failed and 4 waiting are 90.00 percent, not 97.83."""
    script = [K.ACCEPTED] * 45 + [K.BAD_CONTENT] + [K.TRANSIENT] * 4
    engine = await harness.open({"mail": ScriptedProvider(script=script)}, rules=steady(base_ms="2h"))
    for _ in range(50):
        await mail(engine)
    await seconds(5)
    (row,) = await engine.success_by_attempt()
    assert (row.total, row.succeeded, row.failed, row.success_rate) == (50, 45, 1, 90.0)


@pytest.mark.source("003", "442")
@pytest.mark.source("001", "219-242", "273", "281-284", "376-380")
async def test_health_metrics_has_all_thirteen_numbers(harness: EngineHarness) -> None:
    engine = await mixed(harness)
    retrying = [n for n in (await engine.list()).items if n.status is Status.RETRYING]
    metrics = await engine.health_metrics()
    assert metrics == HealthMetrics(
        total_retrying=3,
        avg_attempts=1.7,
        max_attempts=3,
        oldest_retry=min(n.first_failed_at for n in retrying if n.first_failed_at),
        pending_retry_count=2,
        permanently_failed_count=1,
        total_notifications=10,
        sent_count=6,
        failed_count=2,
        recovered_by_retry_count=2,
        success_rate=60.0,
        failure_rate=20.0,
        retry_recovery_rate=33.3,
    )
    assert len(msgspec.to_builtins(metrics)) == 13


async def test_an_empty_queue_has_numbers_too(harness: EngineHarness) -> None:
    engine = await harness.open(working=False)
    metrics = await engine.health_metrics()
    assert set(msgspec.to_builtins(metrics).values()) == {0, None}
    assert await engine.retry_statistics() == ()
    assert await engine.success_by_attempt() == ()
    assert await engine.error_groups() == ()


async def test_a_purge_does_not_change_the_rates(harness: EngineHarness) -> None:
    engine = await mixed(harness)
    before = await engine.health_metrics()
    await engine.purge(Retention(delivered_ms=0, sent_ms=0, others_ms=0, keys_ms=0))
    after = await engine.health_metrics()
    for name in ("total_notifications", "sent_count", "failed_count", "success_rate", "retry_recovery_rate"):
        assert getattr(after, name) == getattr(before, name)
    assert (await engine.queue_counts())["sent"] == 0
    assert [row.succeeded for row in await engine.success_by_attempt()] == [4, 2, 0]


@pytest.mark.source("001", "454-460", "538")
async def test_dead_letters_are_grouped_by_their_reason(harness: EngineHarness) -> None:
    engine = await mixed(harness)
    groups = {(g.reason, g.error_code, g.count, g.unacknowledged) for g in await engine.error_groups()}
    assert groups == {
        ("RETRIES_EXHAUSTED", "transient", 1, 1),
        ("BAD_RECIPIENT", "bad_recipient", 1, 1),
    }
    assert len(await engine.error_groups(1)) == 1


async def test_roll_ups_sum_up_the_hours(harness: EngineHarness) -> None:
    engine = await mixed(harness)
    sums = await engine.roll_ups()
    assert sum(hour.accepted for hour in sums) == 10
    assert sum(hour.sent for hour in sums) == 6
    assert sum(hour.failed for hour in sums) == 2
    assert sum(hour.attempts for hour in sums) == 4 + 4 + 3 + 1 + 2
    assert sum(hour.retried for hour in sums) == 2 + 2 + 2
    assert len({hour.hour_at for hour in sums}) > 1
    recent = await engine.roll_ups(timedelta(minutes=1))
    assert 0 < len(recent) < len(sums)


async def test_lists_are_newest_first_and_continue_at_their_cursor(harness: EngineHarness) -> None:
    engine = await failing(harness, working=False)
    ids = []
    for _ in range(7):
        ids.append(await mail(engine))
        await seconds(1)
    page = await engine.list(limit=3)
    more = await engine.list(limit=9, cursor=page.cursor)
    assert [n.id for n in (*page.items, *more.items)] == ids[::-1]
    assert more.cursor is None


async def test_wait_returns_at_the_end_or_after_its_timeout(harness: EngineHarness) -> None:
    provider = TimedProvider(latency_ms=3000)
    engine = await harness.open({"mail": provider})
    id = await mail(engine)
    assert (await engine.wait(id, timeout_ms=1000)).status is Status.SENDING
    assert (await engine.wait(id)).status is Status.SENT
    held = await harness.open({"mail": ScriptedProvider(usual=K.AMBIGUOUS)}, rules=steady(on_timeout="hold"))
    await engine.stop_worker()
    assert (await held.wait(await mail(held))).status is Status.IN_DOUBT


LONE = "a\ud800b"


@pytest.mark.parametrize(
    ("what", "call"),
    [
        ("who", lambda engine: engine.policies.set(Rule(name="r", policy=PolicyPatch()), who=LONE)),
        ("why", lambda engine: engine.policies.set(Rule(name="r", policy=PolicyPatch()), who="a", why=LONE)),
        ("name", lambda engine: engine.policies.set(Rule(name=LONE, policy=PolicyPatch()), who="a")),
        (
            "type",
            lambda engine: engine.policies.set(Rule(name="r", type=LONE, policy=PolicyPatch()), who="a"),
        ),
        ("who", lambda engine: engine.force_breaker("mail", "open", who=LONE)),
        ("why", lambda engine: engine.force_breaker("mail", "open", who="a", why=LONE)),
        ("who", lambda engine: engine.jobs.start("default", "resend", {}, who=LONE)),
        ("why", lambda engine: engine.jobs.start("default", "resend", {}, who="a", why=LONE)),
        ("job", lambda engine: engine.jobs.get("default", LONE)),
        ("notification", lambda engine: engine.wait(LONE)),
    ],
)
async def test_a_text_with_an_unpaired_surrogate_is_refused_with_its_place(
    harness: EngineHarness, what: str, call: Callable[[Homing], Awaitable[object]]
) -> None:
    engine = await harness.open(working=False)
    with pytest.raises((InvalidRequest, NotFound), match=what):
        await call(engine)
