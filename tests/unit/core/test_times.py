"""Times and durations from outside have limits; stored numbers are always readable."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from homing.core.errors import ConfigError, InvalidRequest
from homing.core.lifecycle.events import format_time
from homing.core.notifications import Filter
from homing.core.ports.stores import Retention
from homing.core.request_decoding import read_filter
from homing.core.retry.policy import PolicyPatch, RetryPolicy, Rule, clamp_durations
from homing.core.routing.breaker import BreakerPolicy
from homing.core.times import DAY_MS, LONGEST_MS, check_zone, epoch_ms, moment, span_ms

NOW = 1_770_000_000_000
OFFSETS = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
TIMES = st.datetimes(timezones=st.one_of(OFFSETS, st.just(UTC), st.just(ZoneInfo("Asia/Tokyo"))))


@given(st.integers(-(2**70), 2**70))
@example(2**63 - 1)
@example(-(2**63))
@example(253_402_343_999_000)  # 9999-12-31T23:59:59-12:00
def test_any_stored_number_can_be_shown_in_any_time_zone(at: int) -> None:
    shown = moment(at)
    for hours in (-23, 0, 23):
        shown.astimezone(timezone(timedelta(hours=hours))).isoformat()
    assert shown + timedelta(days=14) > shown > shown - timedelta(days=14)
    assert format_time(at).endswith("Z")


@given(st.integers(0, 200_000_000_000_000))
def test_a_common_moment_is_exact(at: int) -> None:
    assert (moment(at) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1) == at


@given(TIMES)
@example(datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))))
@example(datetime.min.replace(tzinfo=timezone(timedelta(hours=12))))
@example(datetime.max.replace(tzinfo=ZoneInfo("America/New_York")))
@example(datetime.min.replace(tzinfo=ZoneInfo("Asia/Tokyo")))
def test_a_time_is_accepted_within_its_limits_and_refused_by_name_outside(at: datetime) -> None:
    found: int | None = None
    with suppress(InvalidRequest):
        found = epoch_ms(at, "sendAt", NOW)
    if found is None:
        with pytest.raises(InvalidRequest, match=r"^sendAt: .* between 1970-01-01 and 2126-"):
            epoch_ms(at, "sendAt", NOW)
        naive = at.replace(tzinfo=UTC)
        assert naive < moment(DAY_MS) or naive > moment(NOW + LONGEST_MS - DAY_MS)
        return
    assert 0 <= found <= NOW + LONGEST_MS
    assert timedelta(0) <= at - moment(found) < timedelta(milliseconds=1)


def test_the_limits_of_a_time_are_included() -> None:
    last = moment(NOW + LONGEST_MS)
    assert epoch_ms(last, "sendAt", NOW) == NOW + LONGEST_MS
    assert epoch_ms(moment(0), "sendAt", NOW) == 0
    for wrong in (last + timedelta(milliseconds=1), moment(-1)):
        with pytest.raises(InvalidRequest, match=r"^sendAt: "):
            epoch_ms(wrong, "sendAt", NOW)


class Broken(tzinfo):
    """A time zone without an offset."""

    def utcoffset(self, at: datetime | None) -> timedelta | None:
        return None

    def dst(self, at: datetime | None) -> timedelta | None:
        return None

    def tzname(self, at: datetime | None) -> str | None:
        return None


@pytest.mark.parametrize("at", [datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=Broken())])
def test_a_time_without_a_time_zone_is_refused(at: datetime) -> None:
    with pytest.raises(InvalidRequest, match=r"^sendAt: has no time zone"):
        epoch_ms(at, "sendAt", NOW)


def test_a_date_is_not_a_time() -> None:
    with pytest.raises(InvalidRequest, match=r"^createdFrom: is date"):
        check_zone(date(2026, 1, 1), "createdFrom")


@pytest.mark.parametrize(
    ("delay", "problem"),
    [
        (timedelta.max, "100 years"),
        (timedelta(milliseconds=LONGEST_MS + 1), "100 years"),
        (timedelta(milliseconds=-1), "negative"),
        (timedelta.min, "negative"),
        (cast("timedelta", 5), "is int"),
    ],
)
def test_a_delay_has_limits(delay: timedelta, problem: str) -> None:
    assert span_ms(timedelta(milliseconds=LONGEST_MS), "delay") == LONGEST_MS
    with pytest.raises(InvalidRequest, match=f"^delay: .*{problem}"):
        span_ms(delay, "delay")


@pytest.mark.parametrize("field", ["base_ms", "cap_ms", "jitter_ms", "timeout_ms", "max_age_ms", "steps_ms"])
@pytest.mark.parametrize("ms", [2**63, 2**63 - 1, LONGEST_MS + 1])
def test_no_duration_of_a_policy_is_too_long_to_be_added_to_a_time(field: str, ms: int) -> None:
    value: Any = (ms,) if field == "steps_ms" else ms
    with pytest.raises(ConfigError, match=f"^{field}: is {ms}; at most"):
        RetryPolicy(**{field: value})


def test_an_attempt_takes_at_most_a_day() -> None:
    RetryPolicy(timeout_ms=DAY_MS)
    with pytest.raises(ConfigError, match=r"^timeout_ms: .*one day"):
        RetryPolicy(timeout_ms=DAY_MS + 1, max_age_ms=2 * DAY_MS)


def test_a_rule_of_an_older_release_is_cut_to_the_limits() -> None:
    patch = PolicyPatch(timeout_ms=2**63, max_age_ms=2**63, steps_ms=(5, 2**63), base_ms=7)
    cut = clamp_durations(Rule(name="old", policy=patch)).policy
    assert (cut.timeout_ms, cut.max_age_ms, cut.steps_ms, cut.base_ms) == (
        DAY_MS,
        LONGEST_MS,
        (5, LONGEST_MS),
        7,
    )
    usual = Rule(name="usual", policy=PolicyPatch(base_ms=7))
    assert clamp_durations(usual) is usual


@pytest.mark.parametrize("ms", [-1, 2**63, LONGEST_MS + 1])
def test_ages_and_breaker_times_have_limits(ms: int) -> None:
    with pytest.raises(ConfigError, match=r"^retention\.sent_ms: "):
        Retention(sent_ms=ms)
    with pytest.raises(ConfigError, match=r"^breaker\.open_ms: "):
        BreakerPolicy(open_ms=ms)


def test_a_filter_accepts_any_time_with_a_time_zone() -> None:
    read_filter(Filter(created_from=datetime.min.replace(tzinfo=UTC)))
    read_filter(Filter(created_until=datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))))
    with pytest.raises(InvalidRequest, match=r"^createdFrom: has no time zone"):
        read_filter(Filter(created_from=datetime(2026, 1, 1)))
    with pytest.raises(InvalidRequest, match=r"^type: .*surrogate"):
        read_filter(Filter(type="\ud800"))
