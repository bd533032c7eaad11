"""A clock that stands still, and a pace of sweeps by it."""

from __future__ import annotations

from homing.stores.common.sweep_pace import SweepPace


class SweepClock:
    """Monotonic time in seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_sweep(pace: SweepPace, clock: SweepClock, seconds: float) -> None:
    """Makes a sweep that takes so long."""
    with pace.sweep():
        clock.now += seconds


def pace_of_slow_sweeps(clock: SweepClock) -> SweepPace:
    """Returns a pace by which the last sweeps took 0.1 s each, so that the next one is due in 2 s."""
    pace = SweepPace(clock)
    for _ in range(5):
        make_sweep(pace, clock, 0.1)
    return pace
