"""From attempt to attempt: backoff, failover, Retry-After, ambiguous outcomes, and endings."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from homing import Outcome, OutcomeKind, Reason, Status
from homing.core.errors import DeliveryFailed
from homing.core.lifecycle.commands import CommandName
from homing.core.notifications import Channel, History
from homing.core.ports.providers import Delivery
from homing.core.routing.breaker import BreakerPolicy, Phase
from homing.providers.local.scripted import HANG, ScriptedProvider
from support.engine_harness import (
    ADA,
    EngineHarness,
    K,
    TimedProvider,
    mail,
    seconds,
    serving,
    status,
    steady,
)


def throttled(seconds: float) -> Outcome:
    return Outcome(K.THROTTLED, retry_after_ms=int(seconds * 1000), error_code="429", error="slow down")


async def test_an_accepted_attempt_means_sent(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider("mail")})
    id = await mail(engine)
    await seconds(1)
    done = await engine.get(id)
    assert done.status is Status.SENT
    assert done.sent_at is not None
    assert done.attempt_count == 1
    assert done.provider_names == ("mail",)
    assert done.provider_message_ids == ("mail-1",)
    assert done.next_retry_at is None


async def test_an_attempt_confirmed_by_the_provider_means_delivered(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider(script=[Outcome(K.ACCEPTED, delivered=True)])})
    id = await mail(engine)
    await seconds(1)
    done = await engine.get(id)
    assert done.status is Status.DELIVERED
    assert done.delivered_at == done.sent_at is not None


@pytest.mark.source("001", "107", "117")
@pytest.mark.source("000", "38-42", "61-63", "72", "87-89", "91", "128-132", "134-139", "141")
@pytest.mark.source("003", "42", "44")
async def test_a_transient_failure_is_retried_at_the_only_provider_after_its_backoff(
    harness: EngineHarness,
) -> None:
    provider = TimedProvider(script=[K.TRANSIENT])
    engine = await harness.open({"mail": provider}, rules=steady())
    id = await mail(engine)
    await seconds(5)
    waiting = await engine.get(id)
    assert waiting.status is Status.RETRYING
    assert waiting.next_retry_at is not None
    assert waiting.last_error == "timed returned transient"
    assert waiting.error_code == "transient"
    await seconds(10)
    done = await engine.get(id)
    assert done.status is Status.SENT
    assert done.last_error == "timed returned transient", "it stays after a later success"
    assert done.provider_names == ("mail", "mail")
    assert done.provider_message_ids == (None, "timed-2")
    assert provider.gaps == [10.0]


@pytest.mark.source("001", "11", "15-17", "20", "44-52", "59-74", "82-87")
async def test_the_minutes_of_the_simple_preset_double_and_end_after_three_attempts(
    harness: EngineHarness,
) -> None:
    provider = TimedProvider(usual=K.TRANSIENT)
    engine = await harness.open({"mail": provider}, preset="simple")
    id = await mail(engine)
    await seconds(20 * 60)
    done = await engine.get(id)
    assert provider.gaps == [300.0, 600.0]
    assert done.status is Status.FAILED
    assert done.reason is Reason.RETRIES_EXHAUSTED
    assert done.failed_at is not None
    assert done.attempt_count == 3


@pytest.mark.source("003", "45", "99-104", "107-110", "461")
async def test_the_fixed_schedule_is_kept_by_a_process_that_runs_now_and_then(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider(usual=K.TRANSIENT)}, preset="fixed", working=False)
    id = await mail(engine)
    waits = []
    for _ in range(6):
        assert (await engine.process()).processed == 1
        found = await engine.get(id)
        if found.next_retry_at is None:
            break
        assert found.last_attempt_at is not None
        waits.append(round((found.next_retry_at - found.last_attempt_at).total_seconds() / 60))
        await seconds(waits[-1] * 60)
    assert waits == [1, 5, 15, 60, 360]
    assert await status(engine, id) is Status.FAILED


async def test_after_two_failures_the_next_provider_is_tried_and_after_the_last_the_first(
    harness: EngineHarness,
) -> None:
    one, two = TimedProvider(usual=K.TRANSIENT), TimedProvider(usual=K.TRANSIENT)
    rules = steady(max_attempts=7, failover_after=2, failover_wait="backoff")
    engine = await harness.open({"one": one, "two": two}, rules=rules)
    id = await mail(engine)
    await seconds(100)
    done = await engine.get(id)
    assert done.provider_names == ("one", "one", "two", "two", "one", "one", "two")
    assert (done.status, done.moves) == (Status.FAILED, 0)
    assert done.reason is Reason.RETRIES_EXHAUSTED


@pytest.mark.source("004", "74", "80", "122-123", "154-158", "167-169")
@pytest.mark.parametrize("poll", ["1s", "10s"])
async def test_retries_of_preset_broker_start_at_their_time_whatever_the_poll(
    harness: EngineHarness, tmp_path: Path, poll: str
) -> None:
    """A source with a poll every ten seconds allows five seconds of drift."""

    def sometimes(delivery: Delivery) -> Outcome:
        first_fails = delivery.attempt == 1 and int(delivery.content.body or 0) % 4 == 0
        return Outcome(K.TRANSIENT if first_fails else K.ACCEPTED)

    settings = tmp_path / "poll.toml"
    settings.write_text(f'[worker]\npoll_ms = "{poll}"\n')
    provider = TimedProvider(usual=sometimes)
    engine = await harness.open({"mail": provider}, preset="broker", config_file=settings)
    for number in range(200):
        await mail(engine, body=str(number))
    await seconds(30)
    times: dict[str, list[float]] = {}
    for time, sent in zip(provider.times, provider.sent, strict=True):
        times.setdefault(sent.notification_id, []).append(time)
    waits = [attempts[1] - attempts[0] for attempts in times.values() if len(attempts) > 1]
    assert len(waits) == 50
    assert 2 <= min(waits) <= max(waits) <= 3.1


@pytest.mark.parametrize("preset", ["priority", "simple", "fixed", "broker"])
@pytest.mark.parametrize("priority", ["critical", "high", "medium", "low"])
async def test_a_healthy_second_provider_takes_over_at_once(
    harness: EngineHarness, preset: str, priority: str
) -> None:
    one, two = TimedProvider(usual=Outcome(K.TRANSIENT, error_code="503")), TimedProvider()
    engine = await harness.open({"one": one, "two": two}, preset=preset)
    id = await mail(engine, priority=priority)
    await seconds(1)
    done = await engine.get(id)
    assert (done.status, done.provider_names) == (Status.SENT, ("one", "two"))
    assert two.times[0] - one.times[0] < 1
    assert (done.moves, done.spent) == (1, ("one",))


@pytest.mark.source("002", "247-249", "561-565")
async def test_the_preset_channel_fails_over_after_two_failures_and_the_backoff(
    harness: EngineHarness,
) -> None:
    one, two = TimedProvider(usual=K.AMBIGUOUS), TimedProvider()
    engine = await harness.open({"one": one, "two": two}, preset="channel")
    id = await mail(engine)
    await seconds(60)
    done = await engine.get(id)
    assert done.provider_names == ("one", "one", "two")
    assert 5 <= one.gaps[0] <= 6.1
    assert 10 <= two.times[0] - one.times[1] <= 11.1
    assert done.moves == 0


@pytest.mark.source("002", "253", "435-438", "442-447", "449-450")
async def test_what_has_used_up_the_attempts_of_the_preset_channel_is_kept_as_failed_and_announced(
    harness: EngineHarness,
) -> None:
    """There is no second provider, and the last attempt is the trial of the breaker."""
    engine = await harness.open({"mail": TimedProvider(usual=K.AMBIGUOUS)}, preset="channel")
    id = await mail(engine)
    await seconds(600)
    done = await engine.get(id)
    assert (done.status, done.reason, done.attempt_count) == (Status.FAILED, Reason.RETRIES_EXHAUSTED, 6)
    assert done.failed_at == done.last_attempt_at is not None
    assert done.last_error == "timed returned ambiguous"
    (failed,) = [event.payload for event in harness.events if event.name == "NotificationFailed"]
    assert (failed["notificationId"], failed["attemptCount"]) == (id, 6)


@pytest.mark.no_cover  # tracing eight hours takes long, and the tests above execute the same lines
async def test_two_providers_do_not_shorten_the_time_of_the_fixed_schedule(
    poll_rarely: None, harness: EngineHarness
) -> None:
    one, two = TimedProvider(usual=K.TRANSIENT), TimedProvider(usual=K.TRANSIENT)
    calm = BreakerPolicy(failures=1_000)
    engine = await harness.open(
        {"one": serving("one", one, breaker=calm), "two": serving("two", two, breaker=calm)}, preset="fixed"
    )
    id = await mail(engine)
    await seconds(7 * 3600)
    waiting = await engine.get(id)
    assert (waiting.status, waiting.attempt_count, waiting.moves) == (Status.RETRYING, 10, 5)
    await seconds(3600)
    done = await engine.get(id)
    assert (done.status, done.reason, done.attempt_count) == (Status.FAILED, Reason.RETRIES_EXHAUSTED, 12)
    assert one.gaps == two.gaps == [60.0, 300.0, 900.0, 3600.0, 21600.0]


async def test_a_provider_that_recovers_between_two_rounds_is_used_again_first(
    harness: EngineHarness,
) -> None:
    one, two = TimedProvider(script=[K.TRANSIENT]), TimedProvider(usual=K.TRANSIENT)
    engine = await harness.open({"one": one, "two": two}, rules=steady())
    id = await mail(engine)
    await seconds(15)
    done = await engine.get(id)
    assert (done.provider_names, done.status) == (("one", "two", "one"), Status.SENT)
    assert one.gaps == [10.0]


async def test_a_breaker_that_opens_before_the_move_begins_a_new_round(harness: EngineHarness) -> None:
    one, two = TimedProvider(script=[K.TRANSIENT]), TimedProvider()
    engine = await harness.open({"one": one, "two": two}, rules=steady())
    await engine.force_breaker("two", Phase.OPEN, who="ada")
    id = await mail(engine)
    await seconds(5)
    waiting = await engine.get(id)
    assert (waiting.status, waiting.provider, waiting.spent, waiting.moves) == (Status.RETRYING, "one", (), 0)
    await seconds(10)
    assert (await engine.get(id)).provider_names == ("one", "one")


async def test_a_move_may_be_the_trial_of_a_breaker_that_is_half_open(harness: EngineHarness) -> None:
    one, two = TimedProvider(script=[K.TRANSIENT]), TimedProvider(script=[K.TRANSIENT])
    brief = BreakerPolicy(failures=1, open_ms=20_000, health_every_ms=3_600_000)
    calm = BreakerPolicy(failures=1_000)
    engine = await harness.open(
        {"one": serving("one", one, breaker=calm), "two": serving("two", two, breaker=brief)}, rules=steady()
    )
    with pytest.raises(DeliveryFailed):
        await mail(engine, provider="two", synchronous=True)
    await seconds(30)
    id = await mail(engine)
    await seconds(1)
    done = await engine.get(id)
    assert (done.status, done.provider_names) == (Status.SENT, ("one", "two"))


async def test_a_pinned_notification_of_a_stopped_provider_is_claimed_once_and_sent_when_it_is_released(
    harness: EngineHarness,
) -> None:
    one, two = TimedProvider(), TimedProvider()
    engine = await harness.open({"one": one, "two": two}, rules=steady())
    await engine.force_breaker("one", Phase.OPEN, who="ada")
    id = await mail(engine, provider="one")
    await seconds(5)
    changed = (await engine.get(id)).updated_at
    await seconds(600)
    waiting = await engine.get(id)
    assert (waiting.status, waiting.attempt_count, waiting.updated_at) == (Status.PENDING, 0, changed)
    other = await mail(engine)
    await seconds(5)
    assert (await engine.get(other)).provider_names == ("two",)
    await engine.force_breaker("one", None, who="ada")
    await seconds(30)
    assert (await engine.get(id)).provider_names == ("one",)


async def test_failover_after_can_be_one(harness: EngineHarness) -> None:
    providers = {"one": ScriptedProvider(usual=K.TRANSIENT), "two": ScriptedProvider()}
    engine = await harness.open(providers, rules=steady(failover_after=1))
    id = await mail(engine)
    await seconds(15)
    assert (await engine.get(id)).provider_names == ("one", "two")


async def test_a_provider_fault_fails_over_at_once(harness: EngineHarness) -> None:
    one, two = TimedProvider(script=[K.PROVIDER_FAULT]), TimedProvider()
    engine = await harness.open({"one": one, "two": two}, rules=steady())
    id = await mail(engine)
    await seconds(3)
    assert (await engine.get(id)).provider_names == ("one", "two")
    assert two.times[0] - one.times[0] < 1
    assert [a["alert"] for a in harness.alerts()] == ["ProviderFault"]


async def test_a_provider_fault_without_another_provider_waits_for_its_backoff(
    harness: EngineHarness,
) -> None:
    only = TimedProvider(script=[K.PROVIDER_FAULT])
    engine = await harness.open({"only": only}, rules=steady())
    id = await mail(engine)
    await seconds(15)
    assert await status(engine, id) is Status.SENT
    assert only.gaps == [10.0]


async def test_two_faulty_providers_do_not_alternate_without_waiting(harness: EngineHarness) -> None:
    one, two = TimedProvider(usual=K.PROVIDER_FAULT), TimedProvider(usual=K.PROVIDER_FAULT)
    engine = await harness.open({"one": one, "two": two}, rules=steady(max_attempts=4))
    id = await mail(engine)
    await seconds(9)
    assert (len(one.times), len(two.times)) == (1, 1)
    await seconds(100)
    assert (await engine.get(id)).provider_names == ("one", "two") * 4
    assert one.gaps == two.gaps == [10.0, 10.0, 10.0]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (K.BAD_CONTENT, Reason.BAD_CONTENT),
        (K.BAD_RECIPIENT, Reason.BAD_RECIPIENT),
        (K.DEAD_ADDRESS, Reason.DEAD_ADDRESS),
        (K.OPTED_OUT, Reason.OPTED_OUT),
    ],
)
async def test_a_failure_that_no_retry_can_fix_is_a_dead_letter_at_once(
    harness: EngineHarness, kind: OutcomeKind, reason: Reason
) -> None:
    spare = ScriptedProvider()
    engine = await harness.open({"mail": ScriptedProvider(script=[kind]), "spare": spare})
    id = await mail(engine)
    await seconds(1)
    done = await engine.get(id)
    assert (done.status, done.reason, done.attempt_count) == (Status.FAILED, reason, 1)
    assert spare.sent == []


async def test_retry_after_raises_the_delay_at_that_provider(harness: EngineHarness) -> None:
    provider = TimedProvider(script=[throttled(60)])
    engine = await harness.open({"mail": provider}, rules=steady())
    await mail(engine)
    await seconds(70)
    assert provider.gaps == [60.0]


async def test_retry_after_never_lowers_the_delay(harness: EngineHarness) -> None:
    provider = TimedProvider(script=[throttled(1)])
    engine = await harness.open({"mail": provider}, rules=steady())
    await mail(engine)
    await seconds(15)
    assert provider.gaps == [10.0]


async def test_retry_after_counts_for_at_most_a_day(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider(script=[throttled(90 * 86_400)])}, rules=steady())
    id = await mail(engine)
    await seconds(1)
    found = await engine.get(id)
    assert found.next_retry_at is not None
    assert found.last_attempt_at is not None
    assert found.next_retry_at - found.last_attempt_at == timedelta(hours=24)


async def test_a_retry_after_beyond_the_expiry_fails_over_at_once(harness: EngineHarness) -> None:
    spare = TimedProvider()
    engine = await harness.open(
        {"mail": TimedProvider(script=[throttled(3600)]), "spare": spare}, rules=steady()
    )
    id = await mail(engine, expires_at=timedelta(minutes=10))
    await seconds(1)
    assert (await engine.get(id)).provider_names == ("mail", "spare")


async def test_a_retry_after_beyond_the_expiry_without_another_provider_expires_at_once(
    harness: EngineHarness,
) -> None:
    engine = await harness.open({"mail": ScriptedProvider(script=[throttled(3600)])}, rules=steady())
    id = await mail(engine, expires_at=timedelta(minutes=10))
    await seconds(1)
    done = await engine.get(id)
    assert (done.status, done.reason) == (Status.EXPIRED, Reason.EXPIRED)
    assert done.attempt_count == 1


async def test_a_provider_with_retry_after_is_left_alone_after_the_failover(harness: EngineHarness) -> None:
    one = TimedProvider(script=[throttled(300)])
    two = TimedProvider(script=[K.TRANSIENT, K.TRANSIENT])
    engine = await harness.open({"one": one, "two": two}, rules=steady(failover_after=1, max_attempts=9))
    id = await mail(engine)
    await seconds(120)
    assert (await engine.get(id)).status is Status.SENT
    assert len(one.times) == 1
    assert len(two.times) == 3


async def test_a_pinned_notification_never_fails_over(harness: EngineHarness) -> None:
    providers = {"one": ScriptedProvider(usual=K.PROVIDER_FAULT), "two": ScriptedProvider()}
    engine = await harness.open(providers, rules=steady(max_attempts=3))
    id = await mail(engine, provider="one")
    await seconds(60)
    done = await engine.get(id)
    assert done.pinned
    assert done.provider_names == ("one", "one", "one")
    assert done.status is Status.FAILED


@pytest.mark.parametrize(("on_timeout", "names"), [("retry", ("one", "one")), ("failover", ("one", "two"))])
async def test_an_ambiguous_attempt_is_repeated_as_the_policy_says(
    harness: EngineHarness, on_timeout: str, names: tuple[str, ...]
) -> None:
    providers = {"one": ScriptedProvider(script=[K.AMBIGUOUS]), "two": ScriptedProvider()}
    engine = await harness.open(providers, rules=steady(on_timeout=on_timeout))
    id = await mail(engine)
    await seconds(20)
    assert (await engine.get(id)).provider_names == names


async def test_an_ambiguous_attempt_can_be_held_for_an_operator(harness: EngineHarness) -> None:
    engine = await harness.open(
        {"one": ScriptedProvider(script=[K.AMBIGUOUS])}, rules=steady(on_timeout="hold")
    )
    id = await mail(engine)
    await seconds(600)
    found = await engine.get(id)
    assert (found.status, found.reason) == (Status.IN_DOUBT, Reason.UNCONFIRMED)
    assert found.attempt_count == 1
    await engine.resolve(id, Status.SENT, who="ada", why="it is in their mailbox")
    history = await engine.history(id)
    assert history.notification.status is Status.SENT
    assert history.notification.sent_at is not None
    (cause,) = history.causes
    assert (cause.kind, cause.name, cause.who, cause.why) == (
        "command",
        CommandName.RESOLVE,
        "ada",
        "it is in their mailbox",
    )


async def test_a_notification_in_doubt_can_be_resolved_as_failed_or_retried(harness: EngineHarness) -> None:
    provider = ScriptedProvider(script=[K.AMBIGUOUS, K.AMBIGUOUS])
    engine = await harness.open({"one": provider}, rules=steady(on_timeout="hold"))
    lost, again = await mail(engine), await mail(engine)
    await seconds(1)
    await engine.resolve(lost, Status.FAILED, who="ada")
    assert await status(engine, lost) is Status.FAILED
    await engine.retry(again, who="ada")
    await seconds(1)
    assert await status(engine, again) is Status.SENT


@pytest.mark.source("002", "182")
async def test_no_response_within_the_timeout_is_ambiguous(harness: EngineHarness) -> None:
    provider = TimedProvider(script=[HANG])
    engine = await harness.open({"mail": provider}, rules=steady(timeout_ms="7s"))
    id = await mail(engine)
    await seconds(20)
    history = await engine.history(id)
    first, second = history.attempts
    assert (first.outcome, first.error_code) == (K.AMBIGUOUS, "timeout")
    assert first.error == "no answer within 7000 ms"
    assert first.latency_ms == 7000
    assert second.outcome is K.ACCEPTED


@pytest.mark.source("000", "9", "57-59")
@pytest.mark.source("001", "53-54", "105")
async def test_every_attempt_is_recorded(harness: EngineHarness) -> None:
    script = [Outcome(K.TRANSIENT, error_code="503", error="try later")]
    engine = await harness.open({"mail": ScriptedProvider("m", script, latency_ms=250)}, rules=steady())
    id = await mail(engine)
    await seconds(20)
    first, second = (await engine.history(id)).attempts
    assert (first.number, first.provider, first.worker) == (1, "mail", "w1")
    assert (first.outcome, first.error_code, first.error) == (K.TRANSIENT, "503", "try later")
    assert first.provider_message_id is None
    assert first.latency_ms == 250
    assert first.ended_at - first.started_at == timedelta(milliseconds=250)
    assert (second.number, second.outcome, second.provider_message_id) == (2, K.ACCEPTED, "m-2")
    assert second.error is None
    assert second.started_at - first.ended_at >= timedelta(seconds=10)


async def test_all_attempts_have_the_same_delivery_except_for_the_number(harness: EngineHarness) -> None:
    one = ScriptedProvider(script=[K.TRANSIENT, K.TRANSIENT])
    two = ScriptedProvider()
    engine = await harness.open({"one": one, "two": two}, rules=steady(failover_after=2))
    id = await mail(engine, subject="Order 7", body="On its way", metadata={"entry_id": 7})
    await seconds(60)
    deliveries = [*one.sent, *two.sent]
    assert [d.attempt for d in deliveries] == [1, 2, 3]
    assert {d.idempotency_key for d in deliveries} == {id}
    assert {d.notification_id for d in deliveries} == {id}
    for delivery in deliveries:
        assert delivery.address == ADA
        assert delivery.channel is Channel.EMAIL
        assert (delivery.content.subject, delivery.content.body) == ("Order 7", "On its way")
        assert delivery.metadata == {"entry_id": 7}


async def test_the_channel_preset_gives_each_channel_its_own_backoff(harness: EngineHarness) -> None:
    provider = TimedProvider(usual=K.TRANSIENT)
    engine = await harness.open({"p": provider}, preset="channel")
    sent: Any = await engine.send("+15550100", channel="sms", origin="auth", body="x")
    await seconds(60)
    found = await engine.get(sent.id)
    assert found.status is Status.FAILED
    assert found.attempt_count == 4
    for gap, base in zip(provider.gaps, (3, 6, 12), strict=True):
        assert base <= gap <= base + 1.1


UNLISTED = Outcome(K.BAD_CONTENT, error_code="29999", error="something new", unlisted=True)


def outcomes(history: History) -> list[tuple[str, OutcomeKind]]:
    return [(attempt.provider, attempt.outcome) for attempt in history.attempts]


@pytest.mark.parametrize("jitter", ["none", "full"])
async def test_two_unlisted_errors_end_as_bad_content_however_long_the_second_one_takes(
    harness: EngineHarness, jitter: str
) -> None:
    """The first provider stays excluded: neither a short backoff nor a long queue leads back to it."""
    one, two = TimedProvider(usual=UNLISTED), TimedProvider(usual=UNLISTED, latency_ms=20_000)
    rules = steady(max_attempts=6, base_ms=1, jitter=jitter, timeout_ms="30s")
    engine = await harness.open({"one": one, "two": two}, rules=rules)
    id = await mail(engine)
    await seconds(60)
    history = await engine.history(id)
    assert history.notification.reason is Reason.BAD_CONTENT
    assert outcomes(history) == [("one", K.PROVIDER_FAULT), ("two", K.BAD_CONTENT)]
    assert (len(one.times), len(two.times)) == (1, 1)


async def test_after_an_unlisted_error_of_the_second_provider_it_waits_for_the_first_to_recover(
    harness: EngineHarness,
) -> None:
    one, two = TimedProvider(script=[K.TRANSIENT]), TimedProvider(usual=UNLISTED)
    engine = await harness.open({"one": one, "two": two}, rules=steady(max_attempts=6, failover_after=1))
    id = await mail(engine)
    await seconds(60)
    history = await engine.history(id)
    assert history.notification.status is Status.SENT
    assert outcomes(history) == [("one", K.TRANSIENT), ("two", K.PROVIDER_FAULT), ("one", K.ACCEPTED)]


async def test_a_provider_that_refused_a_notification_is_not_tried_again_while_the_other_fails(
    harness: EngineHarness,
) -> None:
    one, two = TimedProvider(usual=UNLISTED), TimedProvider(script=[K.TRANSIENT] * 3)
    engine = await harness.open({"one": one, "two": two}, rules=steady(max_attempts=6, failover_after=1))
    id = await mail(engine)
    await seconds(60)
    done = await engine.get(id)
    assert (done.status, done.provider_names) == (Status.SENT, ("one", "two", "two", "two", "two"))


async def test_an_operator_s_retry_tries_the_provider_again_that_refused(harness: EngineHarness) -> None:
    one, two = TimedProvider(script=[UNLISTED]), TimedProvider(script=[UNLISTED])
    engine = await harness.open({"one": one, "two": two}, rules=steady())
    id = await mail(engine)
    await seconds(1)
    assert (await engine.get(id)).status is Status.FAILED
    await engine.retry(id, who="ada")
    await seconds(1)
    assert await status(engine, id) is Status.SENT


async def test_a_synchronous_send_with_an_unlisted_error_ends_as_bad_content(harness: EngineHarness) -> None:
    one, two = TimedProvider(usual=UNLISTED), TimedProvider()
    engine = await harness.open({"one": one, "two": two}, rules=steady())
    with pytest.raises(DeliveryFailed) as failed:
        await engine.send(ADA, channel="email", body="now", synchronous=True)
    history = await engine.history(failed.value.notification_id or "")
    assert outcomes(history) == [("one", K.BAD_CONTENT)]
    assert two.times == []


async def test_waiting_for_hours_reads_the_notification_rarely(harness: EngineHarness) -> None:
    engine = await harness.open(
        {"mail": ScriptedProvider(script=[K.TRANSIENT])}, rules=steady(base_ms="3h"), working=False
    )
    id = await mail(engine)
    await engine.process(1)
    harness.store.calls.clear()
    waited = await engine.wait(id, timeout_ms=2 * 3_600_000)
    assert waited.status is Status.RETRYING
    assert harness.store.calls["get"] < 1_000


async def test_a_store_in_memory_of_its_own_is_rarely_polled_and_late_for_nothing(
    harness: EngineHarness,
) -> None:
    provider = TimedProvider(script=[K.TRANSIENT])
    engine = harness.make({"mail": provider}, rules=steady(base_ms="1h"), store="memory:")
    async with engine:
        engine.start_worker()
        id = await mail(engine)
        done = await engine.wait(id, timeout_ms=2 * 3_600_000)
        assert done.status is Status.SENT
        assert provider.gaps == [3_600]
        assert engine.worker.lateness.longest_ms < 20
