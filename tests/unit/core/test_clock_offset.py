"""Bounds for the difference between a remote clock and the local monotonic clock."""

from __future__ import annotations

from homing.core.clock_offset import OffsetBounds, measure_offset


def test_a_response_was_true_at_some_moment_between_call_and_response() -> None:
    assert measure_offset(10_000, asked_ms=100, answered_ms=400) == OffsetBounds(9_600, 9_900, 100)


def test_an_exact_measurement_stays_after_a_vague_one_that_agrees() -> None:
    exact = OffsetBounds(9_750, 9_752, 1_000)
    assert exact.narrowed(OffsetBounds(5_000, 15_000, 2_000)) == exact


def test_measurements_that_overlap_narrow_each_other() -> None:
    assert OffsetBounds(0, 100, 1_000).narrowed(OffsetBounds(50, 150, 2_000)) == OffsetBounds(50, 100, 1_000)


def test_a_contradiction_means_that_the_clock_was_set() -> None:
    newer = OffsetBounds(500, 600, 2_000)
    assert OffsetBounds(0, 100, 1_000).narrowed(newer) == newer


def test_old_bounds_are_replaced_because_clocks_drift() -> None:
    newer = OffsetBounds(0, 1_000, 62_000)
    assert OffsetBounds(400, 401, 1_000).narrowed(newer) == newer
