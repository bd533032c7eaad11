"""Backoff arithmetic: growth, cap, jitter and their bounds."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.core.retry.backoff import LONGEST_DELAY_MS, base_delay_ms, base_delays_ms, bounds_ms, delay_ms
from homing.core.retry.policy import BACKOFF_FIELDS, Backoff, Jitter, RetryPolicy
from support.core_builders import DAY, MINUTE, SECOND

ALMOST_ONE = math.nextafter(1.0, 0.0)

rng = st.floats(0, 1, exclude_max=True)
attempts = st.integers(1, 2_000)
growths = st.sampled_from([Backoff.EXPONENTIAL, Backoff.LINEAR, Backoff.FIBONACCI, Backoff.FIXED])


@st.composite
def policies(draw: st.DrawFn, backoff: Backoff | None = None, jitter: Jitter | None = None) -> RetryPolicy:
    """Any valid policy without a callable."""
    kind = backoff or draw(growths)
    base_ms = draw(st.integers(1, 2 * DAY))
    cap_ms = draw(st.one_of(st.just(0), st.integers(base_ms, 10 * DAY)))
    return RetryPolicy(
        backoff=kind,
        base_ms=base_ms,
        factor=draw(st.floats(1, 100)),
        cap_ms=cap_ms,
        steps_ms=tuple(draw(st.lists(st.integers(0, 10 * DAY), min_size=1, max_size=8))),
        jitter=jitter or draw(st.sampled_from(list(Jitter))),
        jitter_ratio=draw(st.floats(0, 1)),
        jitter_ms=draw(st.integers(0, DAY)),
    )


def ceiling_ms(policy: RetryPolicy) -> int:
    return min(policy.cap_ms or LONGEST_DELAY_MS, LONGEST_DELAY_MS)


@given(policies(), attempts, rng, st.integers(0, 10 * DAY))
def test_every_delay_is_within_its_bounds(
    policy: RetryPolicy, attempt: int, u: float, last_delay_ms: int
) -> None:
    low, high = bounds_ms(policy, attempt, last_delay_ms)
    assert 0 <= low <= delay_ms(policy, attempt, u, last_delay_ms) <= high


@given(policies(), st.integers(0, 50))
def test_a_list_has_the_delay_of_each_attempt(policy: RetryPolicy, number: int) -> None:
    expected = tuple(base_delay_ms(policy, attempt) for attempt in range(1, number + 1))
    assert base_delays_ms(policy, number) == expected


def test_a_list_calls_a_users_function_for_each_attempt() -> None:
    policy = RetryPolicy(backoff=Backoff.CALLABLE, call=lambda attempt: 10 * DAY if attempt == 2 else attempt)
    assert base_delays_ms(policy, 4) == (1, LONGEST_DELAY_MS, 3, 4)


@given(policies(), attempts, st.integers(0, 10 * DAY))
def test_jitter_reaches_both_ends_of_its_bounds(
    policy: RetryPolicy, attempt: int, last_delay_ms: int
) -> None:
    low, high = bounds_ms(policy, attempt, last_delay_ms)
    assert delay_ms(policy, attempt, 0.0, last_delay_ms) == low
    assert high - 1 <= delay_ms(policy, attempt, ALMOST_ONE, last_delay_ms) <= high


@given(policies(), attempts, rng, rng)
def test_a_larger_random_number_never_shortens_the_delay(
    policy: RetryPolicy, attempt: int, u: float, v: float
) -> None:
    assert delay_ms(policy, attempt, min(u, v)) <= delay_ms(policy, attempt, max(u, v))


@pytest.mark.parametrize("jitter", list(Jitter))
def test_a_cap_of_more_than_seven_days_counts_as_seven_days(jitter: Jitter) -> None:
    policy = RetryPolicy(
        base_ms=DAY, factor=10.0, cap_ms=30 * DAY, jitter=jitter, jitter_ratio=0, jitter_ms=0
    )
    assert base_delay_ms(policy, 9) == LONGEST_DELAY_MS
    assert bounds_ms(policy, 9, last_delay_ms=20 * DAY)[1] == LONGEST_DELAY_MS


@given(policies(), attempts)
def test_no_base_delay_exceeds_the_cap_or_seven_days(policy: RetryPolicy, attempt: int) -> None:
    assert 0 <= base_delay_ms(policy, attempt) <= ceiling_ms(policy)


@given(
    st.sampled_from([Backoff.EXPONENTIAL, Backoff.LINEAR, Backoff.FIBONACCI]).flatmap(policies),
    st.integers(1, 1_500),
)
def test_the_base_delay_never_decreases_from_one_attempt_to_the_next(
    policy: RetryPolicy, attempt: int
) -> None:
    assert base_delay_ms(policy, attempt) <= base_delay_ms(policy, attempt + 1)


@given(policies(jitter=Jitter.PROPORTIONAL), attempts, rng)
def test_proportional_jitter_is_added_to_the_capped_delay(
    policy: RetryPolicy, attempt: int, u: float
) -> None:
    base = base_delay_ms(policy, attempt)
    assert base <= delay_ms(policy, attempt, u) <= base * (1 + policy.jitter_ratio)


@pytest.mark.source("002", "183-184")
@given(policies(jitter=Jitter.ADDITIVE), attempts, rng)
def test_additive_jitter_is_added_to_the_capped_delay(policy: RetryPolicy, attempt: int, u: float) -> None:
    base = base_delay_ms(policy, attempt)
    assert base <= delay_ms(policy, attempt, u) <= base + policy.jitter_ms


@given(policies(jitter=Jitter.FULL), attempts, rng)
def test_full_jitter_is_anything_between_zero_and_the_capped_delay(
    policy: RetryPolicy, attempt: int, u: float
) -> None:
    assert 0 <= delay_ms(policy, attempt, u) <= base_delay_ms(policy, attempt)


@given(policies(jitter=Jitter.EQUAL), attempts, rng)
def test_equal_jitter_keeps_at_least_half_of_the_delay(policy: RetryPolicy, attempt: int, u: float) -> None:
    base = base_delay_ms(policy, attempt)
    assert base // 2 <= delay_ms(policy, attempt, u) <= base


@given(policies(jitter=Jitter.DECORRELATED), attempts, rng, st.integers(0, 10 * DAY))
def test_decorrelated_jitter_grows_from_the_previous_delay_and_stays_below_the_cap(
    policy: RetryPolicy, attempt: int, u: float, last_delay_ms: int
) -> None:
    first = base_delay_ms(policy, 1)
    found = delay_ms(policy, attempt, u, last_delay_ms)
    assert first <= found <= max(first, min(ceiling_ms(policy), 3 * max(first, last_delay_ms)))


def test_the_cap_applies_before_the_jitter() -> None:
    policy = RetryPolicy(
        base_ms=10 * SECOND, cap_ms=15 * SECOND, jitter=Jitter.ADDITIVE, jitter_ms=5 * SECOND
    )
    assert bounds_ms(policy, 2) == (15 * SECOND, 20 * SECOND)
    assert delay_ms(policy, 2, 0.5) == 17_500


@pytest.mark.parametrize(
    ("jitter", "bounds"),
    [
        (Jitter.NONE, (40_000, 40_000)),
        (Jitter.PROPORTIONAL, (40_000, 52_000)),
        (Jitter.ADDITIVE, (40_000, 41_000)),
        (Jitter.FULL, (0, 40_000)),
        (Jitter.EQUAL, (20_000, 40_000)),
        (Jitter.DECORRELATED, (10_000, 75_000)),
    ],
)
def test_each_jitter_has_its_own_bounds(jitter: Jitter, bounds: tuple[int, int]) -> None:
    policy = RetryPolicy(base_ms=10 * SECOND, jitter=jitter, jitter_ratio=0.3, jitter_ms=1_000)
    assert bounds_ms(policy, 3, last_delay_ms=25 * SECOND) == bounds


def test_each_growth_has_its_own_curve() -> None:
    def curve(**fields: Any) -> list[int]:
        policy = RetryPolicy(base_ms=1_000, **fields)
        return [base_delay_ms(policy, attempt) for attempt in range(1, 9)]

    assert curve(factor=3.0) == [1_000, 3_000, 9_000, 27_000, 81_000, 243_000, 729_000, 2_187_000]
    assert curve(backoff=Backoff.LINEAR) == [1_000 * n for n in range(1, 9)]
    assert curve(backoff=Backoff.FIBONACCI) == [1_000 * n for n in (1, 2, 3, 5, 8, 13, 13, 13)]
    assert curve(backoff=Backoff.FIXED, steps_ms=(7, 8, 9)) == [7, 8, 9, 9, 9, 9, 9, 9]


def test_the_delay_of_a_callable_is_limited_to_zero_and_the_cap() -> None:
    def square(attempt: int) -> float:
        return 100.9 * attempt**2 if attempt < 9 else -5.0

    policy = RetryPolicy(backoff=Backoff.CALLABLE, call=square, base_ms=0, cap_ms=1_000)
    assert [base_delay_ms(policy, n) for n in (1, 2, 3, 4, 9)] == [100, 403, 908, 1_000, 0]


def test_a_callable_that_returns_infinity_gets_the_cap() -> None:
    policy = RetryPolicy(backoff=Backoff.CALLABLE, call=lambda attempt: math.inf, cap_ms=MINUTE)
    assert base_delay_ms(policy, 1) == MINUTE


@pytest.mark.parametrize("answer", [None, "soon", [], ZeroDivisionError, SystemExit])
def test_a_callable_that_raises_does_not_stop_the_delivery(answer: Any) -> None:
    def broken(attempt: int) -> float:
        if isinstance(answer, type):
            raise answer
        return answer  # type: ignore[no-any-return]

    policy = RetryPolicy(backoff=Backoff.CALLABLE, call=broken, base_ms=7 * SECOND, cap_ms=MINUTE)
    assert base_delay_ms(policy, 3) == 7 * SECOND


@pytest.mark.parametrize("backoff", [b for b in Backoff if b is not Backoff.CALLABLE])
@pytest.mark.parametrize("attempt", [1_000_000, 10**12, sys.maxsize])
def test_a_huge_attempt_number_gets_the_longest_delay_and_is_computed_quickly(
    backoff: Backoff, attempt: int
) -> None:
    policy = RetryPolicy(backoff=backoff, base_ms=MINUTE, steps_ms=(MINUTE, 2 * MINUTE))
    expected = {Backoff.FIBONACCI: 13 * MINUTE, Backoff.FIXED: 2 * MINUTE}
    assert base_delay_ms(policy, attempt) == expected.get(backoff, LONGEST_DELAY_MS)


@given(st.floats(1, 100), attempts)
def test_a_base_of_zero_never_waits(factor: float, attempt: int) -> None:
    assert base_delay_ms(RetryPolicy(base_ms=0, factor=factor), attempt) == 0


def test_a_factor_of_one_waits_the_same_every_time() -> None:
    policy = RetryPolicy(base_ms=7 * SECOND, factor=1.0)
    assert {base_delay_ms(policy, n) for n in (1, 2, 50, 10**6)} == {7 * SECOND}


@pytest.mark.parametrize("jitter", list(Jitter))
@pytest.mark.parametrize("attempt", [0, -1])
def test_there_is_no_delay_before_the_first_attempt(jitter: Jitter, attempt: int) -> None:
    policy = RetryPolicy(base_ms=MINUTE, jitter=jitter, jitter_ms=SECOND)
    assert base_delay_ms(policy, attempt) == 0
    assert delay_ms(policy, attempt, ALMOST_ONE) == 0


@pytest.mark.parametrize("kind", Backoff)
def test_each_kind_of_backoff_ignores_the_fields_of_the_others(kind: Backoff) -> None:
    own: dict[str, Any] = {"base_ms": 1_000, "factor": 3.0, "steps_ms": (5,), "call": lambda n: 7.0}
    other: dict[str, Any] = {
        "base_ms": 2_000,
        "factor": 4.0,
        "steps_ms": (900,),
        "call": lambda attempt: 800.0,
    }
    used = BACKOFF_FIELDS[kind]
    delay = base_delay_ms(RetryPolicy(backoff=kind, **own), 3)
    ignored = {name: value for name, value in other.items() if name not in used}
    assert base_delay_ms(RetryPolicy(backoff=kind, **own | ignored), 3) == delay
    for name in used:
        assert base_delay_ms(RetryPolicy(backoff=kind, **own | {name: other[name]}), 3) != delay
