"""Periodic work, done by one worker for all: thresholds, purges, lost leases."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from homing import Homing, Outcome, Reason, Status
from homing.core.errors import StoreRejected
from homing.core.ports.stores import Retention, SinkRegistration
from homing.core.routing.breaker import BREAKER_OFF, Phase
from homing.providers.local.scripted import HANG, ScriptedProvider
from homing.testing.builders import a_claim_request, a_notification, a_submission
from support.engine_harness import (
    HOUR,
    EngineHarness,
    FailingProvider,
    K,
    TimedProvider,
    mail,
    seconds,
    serving,
    status,
    steady,
)

LOOK = 65

DEAD_SINK = SinkRegistration(name="dead", kind="kafka", events=frozenset({"StatusChanged"}))
"""A sink that no process has."""


async def failing(harness: EngineHarness, **settings: Any) -> tuple[Homing, ScriptedProvider]:
    provider = ScriptedProvider(usual=K.TRANSIENT)
    return await harness.open({"mail": provider}, rules=steady(base_ms="2h"), **settings), provider


def told(harness: EngineHarness, *names: str) -> list[str]:
    return [a["alert"] for a in harness.alerts() if a["alert"] in names]


@pytest.mark.source("001", "275-279", "361-367", "531")
async def test_a_backlog_of_retries_raises_one_alert_until_it_has_recovered(harness: EngineHarness) -> None:
    engine, provider = await failing(harness, thresholds={"retry_backlog": 3})
    await engine.force_breaker("mail", Phase.CLOSED, who="a")
    for _ in range(3):
        await mail(engine)
    await seconds(LOOK)
    assert told(harness, "RetryBacklog") == []
    fourth = await mail(engine)
    await seconds(4 * LOOK)
    assert told(harness, "RetryBacklog") == ["RetryBacklog"]
    await engine.cancel(fourth)
    await seconds(LOOK)
    provider.usual = K.TRANSIENT
    await mail(engine)
    await seconds(2 * LOOK)
    assert told(harness, "RetryBacklog") == ["RetryBacklog"] * 2


@pytest.mark.source("001", "369-374", "530")
async def test_too_many_failures_in_an_hour_raise_an_alert(harness: EngineHarness) -> None:
    provider = ScriptedProvider(usual=K.ACCEPTED)
    engine = await harness.open({"mail": provider})
    for _ in range(19):
        await mail(engine)
    await seconds(5)
    provider.script.append(K.BAD_CONTENT)
    await mail(engine)
    await seconds(LOOK)
    assert told(harness, "FailureRate") == []
    provider.script.append(K.BAD_CONTENT)
    await mail(engine)
    await seconds(LOOK)
    assert told(harness, "FailureRate") == ["FailureRate"]
    assert "9.5 % of 21" in harness.alerts("FailureRate")[0]["message"]


async def test_a_failure_rate_of_very_few_raises_no_alert(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider(usual=K.BAD_CONTENT)})
    for _ in range(9):
        await mail(engine)
    await seconds(LOOK)
    assert told(harness, "FailureRate") == []


async def test_a_first_attempt_delivery_counts_as_a_success(harness: EngineHarness) -> None:
    provider = ScriptedProvider(script=[K.BAD_CONTENT], usual=Outcome(K.ACCEPTED, delivered=True))
    engine = await harness.open({"mail": provider}, thresholds={"failure_rate_of": 1})
    for _ in range(50):
        await mail(engine)
    await seconds(LOOK)
    assert told(harness, "FailureRate") == []


async def test_a_retry_that_has_waited_too_long_raises_an_alert(harness: EngineHarness) -> None:
    engine, _ = await failing(harness, thresholds={"oldest_retry_ms": "2m"})
    await mail(engine)
    await seconds(100)
    assert told(harness, "OldestRetry") == []
    await seconds(100)
    assert told(harness, "OldestRetry") == ["OldestRetry"]


@pytest.mark.source("001", "286-293", "382-389")
async def test_by_default_a_retry_older_than_a_day_raises_the_alert_before_its_age_ends_it(
    harness: EngineHarness,
) -> None:
    """It is attempted every hour, and its age counts from the first failure nevertheless."""
    rules = [{"name": "hourly", "max_attempts": 99, "base_ms": "1h", "factor": 1.0, "jitter": "none"}]
    listed = serving("mail", FailingProvider(), breaker=BREAKER_OFF)
    engine = await harness.open({"mail": listed}, rules=rules, working=False)

    async def attempt_hourly(hours: int) -> list[str]:
        for _ in range(hours):
            engine.start_worker()  # which also checks the thresholds
            await seconds(10)
            await engine.stop_worker()
            await seconds(HOUR - 9)
        engine.start_worker()
        await seconds(LOOK)
        await engine.stop_worker()
        return told(harness, "OldestRetry")

    id = await mail(engine)
    assert await attempt_hourly(23) == []
    assert await attempt_hourly(1) == ["OldestRetry"]
    found, health = await engine.get(id), await engine.health_metrics()
    assert (found.status, found.attempt_count >= 24) == (Status.RETRYING, True)
    first = (await engine.history(id)).attempts[0].ended_at
    assert found.first_failed_at is not None
    assert health.oldest_retry == found.first_failed_at
    assert abs(found.first_failed_at - first) < timedelta(seconds=1)
    await attempt_hourly(25)
    found = await engine.get(id)
    assert (found.status, found.reason) == (Status.FAILED, Reason.PROVIDER_UNAVAILABLE)


@pytest.mark.source("003", "440")
async def test_a_growing_number_of_dead_letters_raises_an_alert(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider(usual=K.BAD_CONTENT)})
    await seconds(5)
    for _ in range(10):
        await mail(engine)
    await seconds(LOOK)
    assert told(harness, "DeadLettersGrowing") == []
    await mail(engine)
    await seconds(LOOK)
    assert told(harness, "DeadLettersGrowing") == ["DeadLettersGrowing"]
    (alert,) = harness.alerts("DeadLettersGrowing")
    assert alert["message"].startswith("11 dead letters this hour, 0 the hour before")
    assert (alert["metric"], alert["value"], alert["limit"]) == ("newDeadLettersAgainstHourBefore", 11, 10)


async def test_as_many_dead_letters_as_in_the_hour_before_raise_no_further_alert(
    harness: EngineHarness,
) -> None:
    engine = await harness.open({"mail": ScriptedProvider(usual=K.BAD_CONTENT)})
    for _ in range(3):
        for _ in range(15):
            await mail(engine)
        await seconds(3600)
    assert told(harness, "DeadLettersGrowing") == ["DeadLettersGrowing"]


async def test_unacknowledged_dead_letters_raise_alerts_by_number_and_by_age(harness: EngineHarness) -> None:
    limits = {"unacknowledged": 2, "oldest_dead_letter_ms": "1h"}
    engine = await harness.open({"mail": ScriptedProvider(usual=K.BAD_CONTENT)}, thresholds=limits)
    ids = [await mail(engine) for _ in range(3)]
    await seconds(LOOK)
    assert told(harness, "UnacknowledgedDeadLetters", "OldestDeadLetter") == ["UnacknowledgedDeadLetters"]
    for id in ids[:2]:
        await engine.acknowledge(id, who="ada")
    await seconds(3600)
    assert told(harness, "OldestDeadLetter") == ["OldestDeadLetter"]
    await engine.acknowledge(ids[2], who="ada")
    found = {check.name: check for check in (await engine.health()).thresholds}
    assert not found["UnacknowledgedDeadLetters"].exceeded
    assert (found["OldestDeadLetter"].exceeded, found["OldestDeadLetter"].value) == (False, 0)


@pytest.mark.source("002", "63-68")
async def test_notifications_sent_later_than_the_goal_of_their_mode_raise_an_alert(
    harness: EngineHarness,
) -> None:
    provider = ScriptedProvider(script=[K.TRANSIENT] * 2, usual=K.ACCEPTED)
    limits = {"within_goal": 90.0, "within_goal_of": 10}
    engine = await harness.open({"mail": provider}, preset="simple", thresholds=limits)
    for priority in ("high", "medium"):
        for _ in range(10):
            await mail(engine, priority=priority)
    await seconds(LOOK)
    assert told(harness, "LatencyGoal") == []
    await seconds(900)  # two of the priority mode were sent after the backoff
    (alert,) = harness.alerts("LatencyGoal")
    assert (alert["metric"], alert["value"], alert["limit"]) == ("withinGoalPriority", 80.0, 90.0)
    assert alert["message"].startswith("2 of 10 priority notifications were sent later than 5s")
    health = await engine.health()
    shares = {check.metric: check.value for check in health.thresholds if check.name == "LatencyGoal"}
    assert shares == {"within_goal_priority": 80.0, "within_goal_standard": 100.0}
    assert not health.healthy


async def test_health_and_alerts_compare_the_same_figures(harness: EngineHarness) -> None:
    provider = ScriptedProvider(usual=K.ACCEPTED)
    engine = await harness.open({"mail": provider})
    for _ in range(100):
        await mail(engine)
    await seconds(3 * 3600)
    provider.script.extend([K.BAD_CONTENT] * 2)
    for _ in range(20):
        await mail(engine)
    await seconds(LOOK)
    assert "10.0 % of 20" in harness.alerts("FailureRate")[0]["message"]
    (check,) = [one for one in (await engine.health()).thresholds if one.name == "FailureRate"]
    assert (check.value, check.exceeded) == (10.0, True), "what was sent three hours ago does not count"


async def test_one_worker_checks_for_all(harness: EngineHarness) -> None:
    for _ in range(3):
        engine, _ = await failing(harness, thresholds={"retry_backlog": 0})
    await mail(engine)
    await seconds(3 * LOOK)
    assert told(harness, "RetryBacklog") == ["RetryBacklog"]


async def test_when_that_worker_is_gone_another_one_checks(harness: EngineHarness) -> None:
    first, _ = await failing(harness, thresholds={"retry_backlog": 0})
    second, _ = await failing(harness, thresholds={"retry_backlog": 0})
    await first.stop_worker(hard=True)
    await mail(second)
    await seconds(2 * LOOK)
    assert told(harness, "RetryBacklog") == ["RetryBacklog"]


async def test_old_notifications_are_purged_each_at_its_age(harness: EngineHarness) -> None:
    script: list[Any] = [Outcome(K.ACCEPTED, delivered=True), K.ACCEPTED, K.BAD_CONTENT]
    settings = {"delivered_ms": "2m", "sent_ms": "5m", "others_ms": "8m"}
    engine = await harness.open({"mail": ScriptedProvider(script=script)}, retention=settings)
    for _ in range(3):
        await mail(engine)
    left = []
    for _ in range(4):
        await seconds(181)
        left.append({n.status for n in (await engine.list()).items})
    assert left == [{Status.SENT, Status.FAILED}, {Status.FAILED}, set(), set()]


async def test_the_ages_are_a_day_a_week_and_a_month(harness: EngineHarness) -> None:
    assert Retention() == Retention(
        delivered_ms=86_400_000, sent_ms=7 * 86_400_000, others_ms=30 * 86_400_000, keys_ms=7 * 86_400_000
    )
    script: list[Any] = [Outcome(K.ACCEPTED, delivered=True), K.ACCEPTED, K.BAD_CONTENT]
    engine = await harness.open({"mail": ScriptedProvider(script=script)}, working=False)
    for _ in range(3):
        await mail(engine)
    await engine.process()
    left = []
    for days in (0.9, 0.2, 5.8, 0.2, 22.8, 0.2):
        await seconds(days * 86_400)
        await engine.purge()
        left.append(len((await engine.list()).items))
    assert left == [3, 2, 2, 1, 1, 0]


async def test_a_purge_runs_in_small_steps_and_reports_its_progress(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, working=False)
    async for _ in engine.send_many(
        {"recipient": f"p{n}@example.org", "channel": "email", "content": {"body": "x"}} for n in range(1200)
    ):
        pass
    while (await engine.process(500)).processed:
        pass
    steps: list[int] = []
    nothing_is_young = Retention(delivered_ms=0, sent_ms=0, others_ms=0, keys_ms=0)
    removed = await engine.purge(nothing_is_young, lambda so_far: steps.append(so_far["notifications"]))
    assert removed["notifications"] == 1200
    assert steps == [500, 1000, 1200]


async def test_a_dry_run_of_a_purge_counts_all_tenants_and_statuses_and_may_be_ended(
    harness: EngineHarness,
) -> None:
    script: list[Any] = [Outcome(K.ACCEPTED, delivered=True), K.ACCEPTED, K.BAD_CONTENT] * 2
    provider = ScriptedProvider(script=script)
    for tenant in ("one", "two"):
        engine = await harness.open({"mail": provider}, working=False, tenant=tenant)
        for _ in range(3):
            await mail(engine)
        await engine.process()
    nothing_is_young = Retention(delivered_ms=0, sent_ms=0, others_ms=0, keys_ms=0)
    assert await engine.purge(nothing_is_young, dry_run=True) == {"notifications": 6}
    ended = await engine.purge(nothing_is_young, lambda so_far: so_far["notifications"] >= 2, dry_run=True)
    assert ended == {"notifications": 2}
    assert len((await engine.list()).items) == 3


async def test_an_unfinished_notification_is_never_purged(harness: EngineHarness) -> None:
    engine = await harness.open(
        {"mail": ScriptedProvider(usual=K.AMBIGUOUS)}, rules=steady(on_timeout="hold")
    )
    held = await mail(engine)
    later = await mail(engine, send_at=timedelta(days=90))
    await seconds(3)
    await engine.stop_worker()
    await seconds(40 * 86_400)
    await engine.purge()
    assert [await status(engine, id) for id in (held, later)] == [Status.IN_DOUBT, Status.PENDING]


async def test_idempotency_keys_are_kept_for_a_week(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, working=False)
    first = await mail(engine, idempotency_key="k")
    await seconds(6.9 * 86_400)
    await engine.purge()
    assert await mail(engine, idempotency_key="k") == first
    await seconds(0.2 * 86_400)
    assert (await engine.purge())["keys"] == 1
    assert await mail(engine, idempotency_key="k") != first


@pytest.mark.source("003", "449")
async def test_any_number_of_lost_leases_is_handled(harness: EngineHarness) -> None:
    provider = TimedProvider(usual=HANG)
    engine = await harness.open({"mail": provider}, rules=steady(), slots={"standard": 500})
    for _ in range(90):
        await mail(engine)
    await seconds(1)
    await engine.stop_worker(hard=True)
    assert (await engine.queue_counts())["sending"] == 90
    provider.usual = K.ACCEPTED
    engine.start_worker()
    await seconds(60)
    assert (await engine.queue_counts())["sent"] == 90


async def test_one_round_of_upkeep_handles_all_lost_leases(harness: EngineHarness) -> None:
    """More leases expire at once than one call of `reclaim` returns."""
    engine = await harness.open({"mail": ScriptedProvider()}, working=False)
    calls: list[str] = []

    async def record(operation: str) -> None:
        if operation in ("lead", "reclaim"):
            calls.append(operation)

    await harness.store.accept([a_submission(a_notification()) for _ in range(450)])
    leased = 0
    while claims := (await harness.store.claim(a_claim_request())).claims:
        leased += len(claims)
    assert leased == 450
    await seconds(3_600)
    harness.store.on_call = record
    engine.start_worker()
    await seconds(30)
    assert calls[:5] == ["lead", "reclaim", "reclaim", "reclaim", "lead"]


async def test_a_lost_attempt_is_settled_by_the_store_s_time_even_before_the_first_claim(
    harness: EngineHarness,
) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, working=False)
    new = a_notification()
    await harness.store.accept([a_submission(new)])
    await harness.store.claim(a_claim_request(lease_ms=10_000))
    await seconds(60)
    harness.store.away |= {"breakers", "claim", "now_ms"}
    engine.start_worker()
    await seconds(1)
    [lost] = (await engine.history(new.id)).attempts
    assert (lost.outcome, lost.latency_ms // 1_000) == (K.LOST, 60)


@pytest.mark.parametrize("call", ["lead", "reclaim"])
async def test_upkeep_waits_for_an_unavailable_store(harness: EngineHarness, call: str) -> None:
    engine, _ = await failing(harness, thresholds={"retry_backlog": 0})
    harness.store.away.add(call)
    await mail(engine)
    await seconds(2 * LOOK)
    assert told(harness, "RetryBacklog") == []
    harness.store.away.clear()
    await seconds(LOOK)
    assert told(harness, "RetryBacklog") == ["RetryBacklog"]


async def test_an_alert_that_could_not_be_written_is_raised_later(harness: EngineHarness) -> None:
    engine, _ = await failing(harness, thresholds={"retry_backlog": 0})
    harness.store.away.add("emit")
    await mail(engine)
    await seconds(2 * LOOK)
    harness.store.away.clear()
    await seconds(2 * LOOK)
    assert told(harness, "RetryBacklog") == ["RetryBacklog"]


async def test_a_local_sink_that_no_process_uses_is_removed_with_its_events(
    poll_rarely: None, harness: EngineHarness
) -> None:
    engine = await harness.open({"mail": ScriptedProvider()})
    gone = SinkRegistration(name="gone", kind="log", events=frozenset({"StatusChanged"}), durable=False)
    await harness.store.register_sink(gone)
    await mail(engine)
    await seconds(3_500)
    assert "gone" in {sink.name for sink in await harness.store.sinks()}
    await seconds(300)
    assert "gone" not in {sink.name for sink in await harness.store.sinks()}
    assert "callback" in {sink.name for sink in await harness.store.sinks()}


async def test_a_durable_sink_that_no_process_uses_raises_an_alert(
    poll_rarely: None, harness: EngineHarness
) -> None:
    engine = await harness.open({"mail": ScriptedProvider()})
    gone = SinkRegistration(name="gone", kind="kafka", events=frozenset({"StatusChanged"}))
    await harness.store.register_sink(gone)
    await mail(engine)
    await seconds(3_900)
    alerts = [event.payload for event in harness.events if event.payload.get("alert") == "SinkUnseen"]
    assert {(alert["sink"], alert["waiting"]) for alert in alerts} == {("gone", 2)}
    assert "gone" in {sink.name for sink in await harness.store.sinks()}


async def test_a_sink_with_too_many_waiting_events_raises_one_alert_until_it_has_caught_up(
    poll_rarely: None, harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, thresholds={"sink_backlog": 3})
    await harness.store.register_sink(DEAD_SINK)
    await mail(engine)
    await seconds(2 * LOOK)
    assert told(harness, "SinkBacklog", "SinkLag") == [], "two events are within the threshold"
    await mail(engine)
    await seconds(4 * LOOK)
    (alert,) = [one for one in harness.alerts() if one["alert"] == "SinkBacklog"]
    assert (alert["sink"], alert["metric"], alert["limit"]) == ("dead", "sinkBacklog", 3)
    assert alert["value"] > 3
    assert "events of the sink dead are not published" in caplog.text
    waiting = await harness.store.outbox("dead", "w", 1_000, 1_000)
    await harness.store.published("dead", waiting)
    await seconds(2 * LOOK)
    for _ in range(4):
        await mail(engine)
    await seconds(2 * LOOK)
    assert told(harness, "SinkBacklog") == ["SinkBacklog"] * 2


async def test_an_event_that_waits_for_a_sink_too_long_raises_an_alert_at_the_others(
    poll_rarely: None, harness: EngineHarness
) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, thresholds={"sink_lag_ms": "10m"})
    await harness.store.register_sink(DEAD_SINK)
    await mail(engine)
    await seconds(540)
    assert told(harness, "SinkLag") == []
    await seconds(180)
    (alert,) = [one for one in harness.alerts() if one["alert"] == "SinkLag"]
    assert (alert["sink"], alert["metric"], alert["limit"]) == ("dead", "sinkLagMs", 600_000)
    await seconds(1_200)
    assert told(harness, "SinkLag") == ["SinkLag"]


async def test_parked_events_count_towards_the_backlog(poll_rarely: None, harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()}, thresholds={"sink_backlog": 1})
    await harness.store.register_sink(DEAD_SINK)
    await mail(engine)
    await seconds(5)
    await harness.store.park_events("dead", await harness.store.outbox("dead", "w", 10, 1_000))
    await seconds(2 * LOOK)
    assert told(harness, "SinkBacklog") == ["SinkBacklog"]


async def test_an_alert_about_a_sink_that_could_not_be_written_is_written_later_and_once(
    poll_rarely: None, harness: EngineHarness
) -> None:
    failing_now = True

    async def refuse(operation: str) -> None:
        if operation == "emit" and failing_now:
            raise StoreRejected

    engine = await harness.open({"mail": ScriptedProvider()}, thresholds={"sink_backlog": 0})
    await harness.store.register_sink(DEAD_SINK)
    await mail(engine)
    harness.store.on_call = refuse
    await seconds(3 * LOOK)
    assert told(harness, "SinkBacklog") == []
    failing_now = False
    await seconds(3 * LOOK)
    assert told(harness, "SinkBacklog") == ["SinkBacklog"]


async def test_an_upkeep_task_that_fails_does_not_stop_the_others(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(operation: str) -> None:
        if operation in ("reclaim", "prune"):
            raise StoreRejected

    engine, _ = await failing(harness, thresholds={"retry_backlog": 0})
    harness.store.on_call = refuse
    await mail(engine)
    await seconds(2 * LOOK)
    assert "the upkeep task reclaim failed" in caplog.text
    assert "the upkeep task purge failed" in caplog.text
    assert told(harness, "RetryBacklog") != []
