"""The token bucket: never more than its rate and burst, and exact waiting times."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.core.clock_steps import SET_BACK_MS
from homing.core.errors import ConfigError
from homing.core.routing.rate_limits import RateLimit, TokenBucket, full_bucket, refill, take_from_bucket
from support.core_builders import DAY, NOW, SECOND

rates = st.floats(0.001, 10_000)
limits = st.builds(RateLimit, rates, st.integers(1, 1_000))
visits = st.lists(st.tuples(st.integers(0, 5 * SECOND), st.integers(0, 200)), min_size=1, max_size=60)
jumps = st.lists(st.tuples(st.integers(-SECOND, 5 * SECOND), st.integers(0, 200)), min_size=1, max_size=59)
"""Together, the steps back stay below the minute after which a bucket counts as one of another time."""


def grants(limit: RateLimit, steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """For each visit: the highest clock value so far, and the number of tokens taken."""
    bucket, now, latest, found = full_bucket(limit, NOW), NOW, NOW, []
    for step_ms, want in steps:
        now += step_ms
        latest = max(latest, now)
        bucket, granted, _ = take_from_bucket(bucket, limit, now, want)
        assert 0 <= granted <= want
        found.append((latest, granted))
    return found


@given(limits, visits)
def test_no_time_window_grants_more_than_the_burst_plus_the_rate(
    limit: RateLimit, steps: list[tuple[int, int]]
) -> None:
    found = grants(limit, steps)
    for first in range(len(found)):
        for last in range(first, len(found)):
            window_ms = found[last][0] - found[first][0]
            taken = sum(granted for _, granted in found[first : last + 1])
            assert taken <= limit.burst + limit.per_second * window_ms / 1000 + 1e-6


@given(limits, jumps)
def test_a_clock_that_goes_back_grants_no_token_twice(limit: RateLimit, steps: list[tuple[int, int]]) -> None:
    found = grants(limit, steps)
    passed_ms = found[-1][0] - NOW
    total = sum(granted for _, granted in found)
    assert total <= limit.burst + limit.per_second * passed_ms / 1000 + 1e-6


@given(limits, st.integers(1, DAY))
def test_a_clock_that_goes_back_takes_no_token_away(limit: RateLimit, back_ms: int) -> None:
    bucket = TokenBucket(limit.burst / 2, NOW)
    refilled = refill(bucket, limit, NOW - back_ms)
    assert refilled == TokenBucket(bucket.tokens, NOW if back_ms <= SET_BACK_MS else NOW - back_ms)


@given(limits, st.integers(1, 10 * DAY))
def test_a_full_bucket_never_exceeds_its_burst(limit: RateLimit, rest_ms: int) -> None:
    rested = refill(full_bucket(limit, NOW), limit, NOW + rest_ms)
    assert (rested.tokens, rested.at) == (limit.burst, NOW + rest_ms)


@given(limits, visits)
def test_after_the_returned_wait_one_more_token_is_available(
    limit: RateLimit, steps: list[tuple[int, int]]
) -> None:
    bucket, now = full_bucket(limit, NOW), NOW
    for step_ms, want in steps:
        now += step_ms
        bucket, _, wait_ms = take_from_bucket(bucket, limit, now, want)
        _, granted, _ = take_from_bucket(bucket, limit, now + wait_ms, 1)
        assert granted == 1


@given(limits, visits)
def test_the_returned_wait_is_not_a_millisecond_too_long(
    limit: RateLimit, steps: list[tuple[int, int]]
) -> None:
    bucket, now = full_bucket(limit, NOW), NOW
    for step_ms, want in steps:
        now += step_ms
        bucket, _, wait_ms = take_from_bucket(bucket, limit, now, want)
        if wait_ms > 0:
            assert take_from_bucket(bucket, limit, now + wait_ms - 1, 1)[1] == 0


@pytest.mark.parametrize(
    ("limit", "want", "granted", "wait_ms"),
    [
        (RateLimit(10, 5), 3, 3, 0),
        (RateLimit(10, 5), 5, 5, 100),
        (RateLimit(10, 5), 9, 5, 100),
        (RateLimit(3, 1), 1, 1, 334),
        (RateLimit(5_000, 1), 1, 1, 1),
        (RateLimit(0.5, 1), 1, 1, 2_000),
        (RateLimit(10, 5), 0, 0, 0),
        (RateLimit(10, 5), -3, 0, 0),
    ],
)
def test_a_full_bucket_grants_and_returns_the_wait_for_the_next_token(
    limit: RateLimit, want: int, granted: int, wait_ms: int
) -> None:
    _, found, wait = take_from_bucket(full_bucket(limit, NOW), limit, NOW, want)
    assert (found, wait) == (granted, wait_ms)


@given(limits, st.integers(1, 10 * SECOND))
def test_the_returned_wait_is_correct_for_a_clock_that_went_back(limit: RateLimit, back_ms: int) -> None:
    bucket, _, _ = take_from_bucket(full_bucket(limit, NOW), limit, NOW, limit.burst)
    behind = NOW - back_ms
    bucket, _, wait_ms = take_from_bucket(bucket, limit, behind, 1)
    assert take_from_bucket(bucket, limit, behind + wait_ms, 1)[1] == 1


def test_fractions_of_a_token_count_next_time() -> None:
    limit = RateLimit(1, 3)
    bucket, granted, _ = take_from_bucket(full_bucket(limit, NOW), limit, NOW, 3)
    bucket, more, wait_ms = take_from_bucket(bucket, limit, NOW + 700, 1)
    assert (granted, more, wait_ms) == (3, 0, 300)
    assert take_from_bucket(bucket, limit, NOW + 1_000, 1)[1] == 1


@pytest.mark.parametrize(
    ("per_second", "burst", "field"),
    [
        (0, 1, "per_second"),
        (-1, 1, "per_second"),
        (math.nan, 1, "per_second"),
        (1, 0, "burst"),
        (1, -2, "burst"),
    ],
)
def test_a_limit_that_grants_nothing_is_refused(per_second: float, burst: int, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RateLimit(per_second, burst)
    assert caught.value.field == field
