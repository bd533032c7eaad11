"""Suspected steps of the store's clock: until when they are suspected, and when they are believed."""

from __future__ import annotations

import pytest

from homing.core.clock_steps import (
    ACCEPTED_AFTER_MS,
    MAX_BELIEVED_STEP_MS,
    SET_BACK_MS,
    SETTLING_MS,
    VOID_AFTER_MS,
    ClockStep,
    describe_step,
    was_set_back,
)

HOUR = 3_600_000
STEP = ClockStep(correction_ms=-HOUR, suspected_at=1_000_000, renewed_at=1_000_000)
"""The clock was set forward by an hour."""


def at(corrected_ms: int) -> int:
    """Returns what the clock shows at a corrected time."""
    return corrected_ms + HOUR


def renewed_at(time: int) -> ClockStep:
    return STEP.renewed(at(time))


def test_a_time_without_the_step_is_the_time_of_the_clock_plus_the_correction() -> None:
    assert STEP.corrected(at(5)) == 5


@pytest.mark.parametrize(
    ("age_ms", "is_current"),
    [
        (0, True),
        (VOID_AFTER_MS, True),
        (VOID_AFTER_MS + 1, False),
        (-MAX_BELIEVED_STEP_MS, True),
        (-MAX_BELIEVED_STEP_MS - 1, False),
    ],
)
def test_a_step_is_suspected_while_processes_renew_its_record(age_ms: int, is_current: bool) -> None:
    assert STEP.is_current(at(STEP.renewed_at + age_ms)) is is_current


def test_a_step_is_suspected_for_ten_minutes() -> None:
    last = STEP.suspected_at + ACCEPTED_AFTER_MS - 1
    step = renewed_at(last)
    assert (step.is_pending(at(last)), step.is_current(at(last))) == (True, True)
    assert (step.is_pending(at(last + 1)), step.is_current(at(last + 1))) == (False, False)


def test_a_renewal_never_goes_back() -> None:
    later = renewed_at(2_000_000)
    assert later.renewed_at == 2_000_000
    assert later.renewed(at(1_500_000)) == later


def test_the_minute_after_a_step_was_accepted_settles_it() -> None:
    accepted = STEP.suspected_at + ACCEPTED_AFTER_MS
    step = renewed_at(accepted - VOID_AFTER_MS)
    times = (accepted - 1, accepted, accepted + SETTLING_MS - 1, accepted + SETTLING_MS)
    assert [step.is_settling(at(time)) for time in times] == [False, True, True, False]


def test_a_step_that_was_forgotten_before_its_ten_minutes_were_over_settles_nothing() -> None:
    accepted = STEP.suspected_at + ACCEPTED_AFTER_MS
    assert not renewed_at(accepted - VOID_AFTER_MS - 1).is_settling(at(accepted))


def test_a_time_far_ahead_shows_that_the_clock_was_set_back() -> None:
    assert not was_set_back(SET_BACK_MS, 0)
    assert was_set_back(SET_BACK_MS + 1, 0)
    assert not was_set_back(0, SET_BACK_MS + 1)


def test_a_step_is_described_by_its_direction_and_size() -> None:
    assert describe_step(STEP) == "the store's clock was set forward by 1h"
    back = ClockStep(correction_ms=90_000, suspected_at=0, renewed_at=0)
    assert describe_step(back) == "the store's clock was set back by 1m 30s"
