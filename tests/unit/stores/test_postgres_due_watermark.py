"""When a sweep is worth its cost, and what is remembered between two sweeps."""

from __future__ import annotations

from homing.stores.common.sweep_pace import SweepPace
from homing.stores.postgres.due_watermark import DueWatermark
from support.sweep_clock import SweepClock, make_sweep


def test_cheap_sweeps_run_with_every_claim() -> None:
    pace = SweepPace(clock := SweepClock())
    for _ in range(10):
        assert pace.due()
        make_sweep(pace, clock, 0.001)


def test_expensive_sweeps_take_a_twentieth_of_the_time() -> None:
    pace = SweepPace(clock := SweepClock())
    for _ in range(5):
        assert pace.due()
        make_sweep(pace, clock, 0.5)
    assert not pace.due()
    clock.now += 9.9
    assert not pace.due()
    clock.now += 0.2
    assert pace.due()


def test_one_busy_moment_has_no_effect() -> None:
    pace = SweepPace(clock := SweepClock())
    for seconds in (3.0, 3.0, 0.001, 3.0, 3.0):
        make_sweep(pace, clock, seconds)
        assert pace.due()


def test_a_queue_is_scanned_from_its_first_known_row() -> None:
    watermark = DueWatermark()
    watermark.replace_marks({1: 50, 2: 200})
    assert (watermark.begin(100), watermark.later(100)) == ({1: 50}, {2: 200})
    watermark.mark(1, 90)
    watermark.mark(2, None)
    assert (watermark.begin(100), watermark.later(100)) == ({1: 90}, {})


def test_a_row_is_due_in_the_millisecond_of_its_mark() -> None:
    watermark = DueWatermark()
    watermark.replace_marks({1: 100, 2: 101})
    assert (watermark.begin(100), watermark.later(100)) == ({1: 100}, {2: 101})


def test_a_cleared_watermark_has_no_marks_and_may_sweep_at_once() -> None:
    watermark = DueWatermark()
    assert not watermark.quiet
    watermark.pace = SweepPace(clock := SweepClock())
    for _ in range(5):
        make_sweep(watermark.pace, clock, 0.5)
    watermark.replace_marks({1: 50})
    assert not watermark.pace.due()
    watermark.clear()
    assert watermark.pace.due()
    assert (watermark.begin(100), watermark.later(100)) == ({}, {})
