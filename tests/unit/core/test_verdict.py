"""The verdict about the state of deliveries, and the figures per channel."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone

import pytest
from msgspec.structs import replace

from homing.core.notifications import Channel, Reason
from homing.core.overview import (
    ChannelNow,
    TroubledProvider,
    VerdictLevel,
    build_channel,
    build_points,
    give_verdict,
)
from homing.core.routing.breaker import Phase
from homing.core.statistics import (
    LATENESS_BOUNDS_MS,
    LATENESS_BUCKETS,
    MinuteRollUp,
    WaitingGroup,
    lateness_bucket,
    lateness_quantile,
)

NOW = datetime(2026, 11, 18, 2, 47, 30, tzinfo=UTC)

TWILIO = TroubledProvider(
    provider="twilio",
    phase=Phase.OPEN,
    since=datetime(2026, 11, 18, 2, 41, tzinfo=UTC),
    failed_over_to="sns",
)


TWILIO_OPEN = "twilio open since 02:41, failed over to sns"


def a_channel(channel: Channel = Channel.SMS, **fields: object) -> ChannelNow:
    usual: dict[str, object] = {
        "channel": channel,
        "per_minute": 0.0,
        "success_rate": None,
        "p99_late_ms": None,
        "waiting": 1,
        "late": 0,
        "oldest_at": None,
        "complete": True,
    }
    return ChannelNow(**{**usual, **fields})  # type: ignore[arg-type]


def late_one(minutes: int = 6, channel: Channel = Channel.SMS, **fields: object) -> ChannelNow:
    oldest_at = NOW - timedelta(minutes=minutes)
    return a_channel(channel, waiting=312, late=312, oldest_at=oldest_at, **fields)


def verdict_of(*channels: ChannelNow, workers: int = 1, failed: int = 0) -> tuple[VerdictLevel, str]:
    return give_verdict(NOW, channels, live_workers=workers, failed_last_hour=failed)


def a_minute(minutes_ago: int, *, late_ms: int = 0, **counts: int) -> MinuteRollUp:
    buckets = [0] * LATENESS_BUCKETS
    buckets[lateness_bucket(late_ms)] = counts.get("sent", 0)
    at = NOW.replace(second=0) - timedelta(minutes=minutes_ago)
    return MinuteRollUp(
        minute_at=at, tenant="a", channel=Channel.SMS, provider="twilio", lateness=tuple(buckets), **counts
    )


def a_group(count: int, late: int = 0, oldest_ago: int | None = None, **fields: object) -> WaitingGroup:
    oldest_at = None if oldest_ago is None else NOW - timedelta(seconds=oldest_ago)
    return WaitingGroup(
        lane="standard.sms",
        channel=Channel.SMS,
        provider="twilio",
        count=count,
        late=late,
        oldest_at=oldest_at,
        **fields,  # type: ignore[arg-type]
    )


def test_a_late_channel_is_named_with_its_causes() -> None:
    assert verdict_of(late_one(troubles=(TWILIO,)), a_channel(Channel.EMAIL)) == (
        VerdictLevel.PROBLEM,
        f"SMS is 6 min late: {TWILIO_OPEN}, 312 waiting, oldest 6 min",
    )


def test_the_latest_channel_comes_first() -> None:
    _, text = verdict_of(late_one(2), late_one(9, Channel.EMAIL))
    assert (
        text == "Email is 9 min late: 312 waiting, oldest 9 min; SMS is 2 min late: 312 waiting, oldest 2 min"
    )


def test_what_was_sent_late_counts_even_if_nothing_waits() -> None:
    assert verdict_of(a_channel(p99_late_ms=125_000)) == (VerdictLevel.PROBLEM, "SMS is 2 min late")


def test_a_count_that_is_not_complete_is_a_lower_bound() -> None:
    _, text = verdict_of(late_one(complete=False))
    assert "more than 312 waiting" in text


def test_without_a_live_worker_that_is_the_verdict() -> None:
    assert verdict_of(late_one(troubles=(TWILIO,)), workers=0) == (
        VerdictLevel.PROBLEM,
        "No worker is live: 312 waiting, oldest 6 min",
    )
    level, text = verdict_of(a_channel(), workers=0)
    assert (level, text) == (VerdictLevel.WARNING, "No worker is live, and nothing is due")


def test_without_a_live_worker_what_has_been_due_for_seconds_is_a_warning() -> None:
    since = NOW - timedelta(seconds=50)
    due = a_channel(waiting=6, late=6, oldest_at=since, p99_late_ms=30_000)
    assert verdict_of(due, workers=0) == (
        VerdictLevel.WARNING,
        "No worker is live: 6 waiting, oldest 50 s",
    )
    _, text = verdict_of(replace(due, p99_late_ms=240_000), workers=0)
    assert text == "No worker is live: 6 waiting, oldest 50 s", "not as late as what was sent before"


def test_an_open_breaker_without_late_notifications_is_a_warning() -> None:
    assert verdict_of(a_channel(troubles=(TWILIO,)), failed=1) == (
        VerdictLevel.WARNING,
        f"SMS is delivered in time: {TWILIO_OPEN}; 1 dead letter in the last hour",
    )


def test_a_channel_without_a_working_provider_is_a_problem_before_anything_is_late() -> None:
    alone = TroubledProvider(provider="twilio", phase=Phase.OPEN, since=NOW - timedelta(minutes=1))
    waiting = a_channel(troubles=(alone,), waiting=9, late=9, oldest_at=NOW - timedelta(seconds=15))
    sentence = "SMS has no working provider: twilio open since 02:46, 9 waiting, oldest 15 s"
    assert verdict_of(waiting) == (VerdictLevel.PROBLEM, sentence)
    assert verdict_of(waiting, failed=1)[1] == f"{sentence}; 1 dead letter in the last hour"
    assert verdict_of(late_one(troubles=(alone,)))[1].startswith("SMS is 6 min late: twilio open")


def test_of_the_channels_without_a_working_provider_the_one_with_most_that_waits_comes_first() -> None:
    alone = TroubledProvider(provider="mail", phase=Phase.OPEN)
    few, many = (
        a_channel(channel, troubles=(alone,), late=late, oldest_at=NOW - timedelta(seconds=9))
        for channel, late in ((Channel.SMS, 2), (Channel.EMAIL, 30))
    )
    _, text = verdict_of(few, many)
    assert [part.partition(" ")[0] for part in text.split("; ")] == ["Email", "SMS"]


def test_a_channel_whose_providers_are_only_on_trial_is_a_problem_once_notifications_wait() -> None:
    trial = TroubledProvider(provider="twilio", phase=Phase.HALF_OPEN, since=NOW - timedelta(minutes=1))
    waiting = a_channel(troubles=(trial,), waiting=9, late=9, oldest_at=NOW - timedelta(seconds=15))
    assert verdict_of(waiting) == (
        VerdictLevel.PROBLEM,
        "SMS has no working provider: twilio half-open since 02:46, 9 waiting, oldest 15 s",
    )
    level, text = verdict_of(a_channel(troubles=(trial,), late=1, oldest_at=NOW - timedelta(seconds=1)))
    assert (level, text) == (
        VerdictLevel.WARNING,
        "SMS is delivered in time: twilio half-open since 02:46",
    )


def test_a_forced_breaker_is_named_as_such_and_an_old_one_with_its_date() -> None:
    forced = TroubledProvider(
        provider="sns", phase=Phase.CLOSED, forced=True, since=NOW - timedelta(days=2), failed_over_to="acs"
    )
    _, text = verdict_of(a_channel(troubles=(forced,)))
    assert text == "SMS is delivered in time: sns forced closed since 2026-11-16 02:47"
    _, text = verdict_of(a_channel(troubles=(TroubledProvider(provider="x", phase=Phase.HALF_OPEN),)))
    assert text == "SMS is delivered in time: x half-open"


def test_channels_with_the_same_trouble_share_one_text() -> None:
    sms, email, push = (
        a_channel(channel, troubles=(TWILIO,)) for channel in (Channel.SMS, Channel.EMAIL, Channel.PUSH)
    )
    chat = a_channel(Channel.CHAT, troubles=(TroubledProvider(provider="x", phase=Phase.HALF_OPEN),))
    assert verdict_of(sms, email)[1] == f"SMS and email are delivered in time: {TWILIO_OPEN}"
    assert verdict_of(email, chat, sms, push)[1] == (
        f"Email, SMS and push are delivered in time: {TWILIO_OPEN}; Chat is delivered in time: x half-open"
    )


def test_an_open_breaker_of_a_channel_that_nobody_uses_is_not_worth_a_warning() -> None:
    level, _ = verdict_of(a_channel(troubles=(TWILIO,), waiting=0, last_day=()))
    assert level is VerdictLevel.OK


def test_times_of_day_are_in_the_given_time_zone() -> None:
    _, text = give_verdict(
        NOW,
        [a_channel(troubles=(TWILIO,))],
        live_workers=1,
        failed_last_hour=0,
        zone=timezone(timedelta(hours=2)),
    )
    assert "since 04:41" in text


def test_dead_letters_alone_are_a_warning_and_nothing_wrong_is_ok() -> None:
    assert verdict_of(a_channel(), failed=1_200) == (
        VerdictLevel.WARNING,
        "1,200 dead letters in the last hour",
    )
    calm = a_channel(
        last_hour=build_points([a_minute(1, sent=7)], now=NOW, step=timedelta(minutes=1), number=60)
    )
    assert verdict_of(calm) == (
        VerdictLevel.OK,
        "All is well: 7 sent in the last hour, and nothing is late",
    )


def test_the_age_of_the_oldest_is_known_for_the_past_from_what_was_sent_since_and_what_waits_now() -> None:
    def ages(*minutes: MinuteRollUp, waits_ms: int | None) -> list[int | None]:
        points = build_points(minutes, now=NOW, step=timedelta(minutes=1), number=8, waits_ms=waits_ms)
        return [point.oldest_ms for point in points]

    # Half a minute of the newest step is over.
    assert ages(waits_ms=150_000) == [0, 0, 0, 0, 0, 60_000, 120_000, 150_000]
    sent_late = a_minute(2, sent=3, late_ms=290_000)  # counted up to 300 s
    assert ages(sent_late, waits_ms=0) == [0, 60_000, 120_000, 180_000, 240_000, 300_000, 0, 0]
    assert ages(sent_late, waits_ms=150_000)[-3:] == [300_000, 120_000, 150_000]
    assert ages(sent_late, waits_ms=None) == [None] * 8, "points of providers"


def test_dead_letters_that_are_all_acknowledged_need_no_attention() -> None:
    def verdict(*channels: ChannelNow, unacknowledged: int) -> tuple[VerdictLevel, str]:
        return give_verdict(NOW, channels, live_workers=1, failed_last_hour=25, unacknowledged=unacknowledged)

    calm = "All is well: 0 sent in the last hour, and nothing is late"
    assert verdict(a_channel(), unacknowledged=0) == (
        VerdictLevel.OK,
        f"{calm}; 25 dead letters in the last hour are acknowledged",
    )
    assert verdict(a_channel(), unacknowledged=1)[0] is VerdictLevel.WARNING
    assert verdict(late_one(), unacknowledged=0)[1] == "SMS is 6 min late: 312 waiting, oldest 6 min"


def test_a_channel_has_its_rate_success_lateness_and_series() -> None:
    minutes = [a_minute(1, sent=10, late_ms=90), a_minute(30, sent=5, failed=5, late_ms=70_000)]
    made = build_channel(
        Channel.SMS,
        now=NOW,
        minutes=minutes,
        quarters=[],
        waiting=[a_group(4, 3, 90), a_group(2, 2, 9_999, reason=Reason.QUIET_HOURS), a_group(1)],
        complete=True,
        troubles=(),
    )
    assert (made.per_minute, made.success_rate) == (2.0, 75.0)
    assert made.p99_late_ms is not None
    assert made.p99_late_ms <= 100
    assert (made.waiting, made.late, made.oldest_at) == (7, 3, NOW - timedelta(seconds=90))
    assert (len(made.last_hour), len(made.last_day)) == (60, 96)
    assert [point.sent for point in made.last_hour if point.sent] == [5, 10]
    assert made.last_hour[-1].at == NOW.replace(second=0)
    assert made.last_hour[-1].p99_late_ms is None
    assert (made.last_hour[-31].failed, made.last_hour[-2].sent) == (5, 10)


def works(
    minutes: Sequence[MinuteRollUp],
    *,
    waiting: Sequence[WaitingGroup] = (),
    troubles: Sequence[TroubledProvider] = (),
) -> bool:
    made = build_channel(
        Channel.SMS,
        now=NOW,
        minutes=minutes,
        quarters=[],
        waiting=waiting,
        complete=True,
        troubles=troubles,
    )
    return made.works


def test_a_channel_works_if_most_attempts_of_the_last_minutes_succeed_in_time_and_what_is_due_is_sent() -> (
    None
):
    good, bad = a_minute(1, sent=10, attempts=11, retried=1), a_minute(2, attempts=20, retried=20)
    alone = replace(TWILIO, failed_over_to=None)
    retry = a_group(9, 9, 1_200, due_from=NOW + timedelta(minutes=5))
    assert works([good], waiting=[retry])
    assert works([good], waiting=[retry, a_group(2, 2, 1_200)]), "two are sent in a minute"
    assert not works([good], waiting=[a_group(3, 3, 1_200)])
    assert works([good], waiting=[a_group(3, 3, 1_200, reason=Reason.QUIET_HOURS)])
    assert works([good], troubles=[TWILIO]), "another provider works"
    assert not works([good, bad]), "most attempts fail"
    assert works([good, a_minute(30, attempts=20, retried=20)]), "the failures were earlier"
    assert not works([a_minute(1, attempts=1, retried=1), a_minute(30, sent=9, attempts=9)])
    assert works([a_minute(30, sent=9, attempts=9)]), "nothing was tried in the last minutes"
    assert not works([]), "nothing shows that it works"
    assert not works([a_minute(1, sent=9, attempts=9, late_ms=70_000)]), "what is sent is late"
    assert not works([good], troubles=[alone])


def test_single_notifications_that_wait_for_a_retry_are_no_trouble_of_their_channel() -> None:
    hour = build_points([a_minute(1, sent=500)], now=NOW, step=timedelta(minutes=1), number=60)
    few = replace(late_one(20), works=True, late=5, last_hour=hour, last_day=hour)
    assert verdict_of(few) == (
        VerdictLevel.OK,
        "All is well: 500 sent in the last hour; SMS has 5 waiting for a retry, oldest 20 min",
    )
    assert verdict_of(few, failed=2) == (VerdictLevel.WARNING, "2 dead letters in the last hour")
    assert verdict_of(replace(few, late=6)) == (
        VerdictLevel.WARNING,
        "SMS has 6 waiting for a retry, oldest 20 min",
    )
    assert verdict_of(replace(few, works=False))[0] is VerdictLevel.PROBLEM
    assert verdict_of(few, workers=0)[1] == "No worker is live: 5 waiting, oldest 20 min"


def test_a_channel_without_any_figures_has_none() -> None:
    made = build_channel(
        Channel.SMS, now=NOW, minutes=[], quarters=[], waiting=[], complete=True, troubles=()
    )
    assert (made.success_rate, made.p99_late_ms, made.oldest_at, made.late_ms(NOW)) == (None, None, None, 0)


@pytest.mark.parametrize("bound", LATENESS_BOUNDS_MS)
def test_a_lateness_bucket_includes_its_upper_bound(bound: int) -> None:
    assert LATENESS_BOUNDS_MS[lateness_bucket(bound)] == bound
    assert lateness_bucket(bound + 1) == lateness_bucket(bound) + 1


def test_a_quantile_lies_within_the_bucket_that_holds_it() -> None:
    buckets = [0] * LATENESS_BUCKETS
    assert lateness_quantile(buckets, 0.99) is None
    buckets[0], buckets[3] = 98, 2
    assert lateness_quantile(buckets, 0.5) == 51
    late_ms = lateness_quantile(buckets, 0.99)
    assert late_ms is not None
    assert LATENESS_BOUNDS_MS[2] < late_ms <= LATENESS_BOUNDS_MS[3]
    buckets[-1] = 1_000
    assert lateness_quantile(buckets, 0.99) == LATENESS_BOUNDS_MS[-1]
