"""The check of the store's time after its clock was set: what it permits, and the violations next to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from simulation.checkers.clock import ClockChecker
from simulation.plan import build_faultless_plan
from simulation.shadow_state import SimulationState, Violation
from simulation.trace import Trace

from homing.rehearsal.virtual_time import VirtualClock, VirtualLoop, run_virtual

HOUR = 3_600_000

Scenario = Callable[["CheckedTime"], Coroutine[Any, Any, None]]


class CheckedTime:
    """A checker, and processes whose transactions get any time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._clock = VirtualClock(loop)
        self._state = SimulationState(build_faultless_plan(1, 1), self._clock, Trace(None))
        self._checker = ClockChecker(self._state)
        self._started_at = self._state.now - self._state.ms

    def jump(self, by_ms: int) -> None:
        self._clock.jump(by_ms)
        self._checker.jumped(by_ms)

    def use(self, process: str, offset_ms: int = 0, *, writable: bool = True) -> None:
        """Makes a transaction whose time is that of the start, continued, plus `offset_ms`."""
        now = self._started_at + self._state.ms + offset_ms
        self._checker.used(process, now, writable=writable)

    async def work(self, seconds: int, offset_ms: int = 0) -> None:
        """Lets two processes make a transaction every ten seconds."""
        for _ in range(0, seconds, 10):
            await asyncio.sleep(10)
            self.use("p1", offset_ms)
            self.use("p2", offset_ms)


def check(scenario: Scenario) -> None:
    async def main(loop: VirtualLoop) -> None:
        await scenario(CheckedTime(loop))

    run_virtual(main)


@pytest.mark.parametrize("seen_by", ["no process", "a reader", "a writer"])
def test_a_jump_that_is_undone_before_a_process_records_it_does_not_begin_the_ten_minutes_again(
    seen_by: str,
) -> None:
    """Two jumps within half a second came between the transactions of all processes (seed 1600210087)."""

    async def scenario(time: CheckedTime) -> None:
        await time.work(10)
        time.jump(HOUR)
        await time.work(100)
        time.jump(24 * HOUR)
        if seen_by != "no process":
            time.use("p1", writable=seen_by == "a writer")
        time.jump(-24 * HOUR)
        await time.work(500)
        if seen_by == "a writer":
            with pytest.raises(Violation, match=f"p1 believes a jump of {HOUR} ms after 500000 ms"):
                time.use("p1", HOUR)
        else:
            time.use("p1", HOUR)

    check(scenario)


def test_an_undone_jump_does_not_excuse_a_process_that_believes_the_one_before() -> None:
    async def scenario(time: CheckedTime) -> None:
        await time.work(10)
        time.jump(HOUR)
        await time.work(100)
        time.jump(24 * HOUR)
        time.jump(-24 * HOUR)
        await time.work(100)
        with pytest.raises(Violation, match=f"p1 believes a jump of {HOUR} ms after 200000 ms"):
            time.use("p1", HOUR)

    check(scenario)


async def disagree(time: CheckedTime) -> None:
    """Lets p1 believe a jump, of which it cannot know after a pause, while p2 does not."""
    time.use("p1")
    for _ in range(8):
        await asyncio.sleep(10)
        time.use("p2", writable=False)
    time.jump(HOUR)
    time.use("p2", writable=False)
    time.use("p1", HOUR)
    time.use("p2")


def test_processes_that_disagree_about_a_jump_may_go_on_by_their_own_times_after_another_one() -> None:
    """Neither process believes the second jump (seeds 1600210045 and 1600210247)."""

    async def scenario(time: CheckedTime) -> None:
        await disagree(time)
        time.jump(24 * HOUR)
        time.use("p2")
        time.use("p1", HOUR)
        time.use("p2")

    check(scenario)


def test_a_process_that_disagrees_with_others_must_not_believe_another_jump() -> None:
    async def scenario(time: CheckedTime) -> None:
        await disagree(time)
        time.jump(24 * HOUR)
        with pytest.raises(Violation, match="p2 believes a jump after 0 ms, as another one does"):
            time.use("p2", 25 * HOUR)

    check(scenario)


def test_processes_that_agree_again_are_not_excused_after_another_jump() -> None:
    async def scenario(time: CheckedTime) -> None:
        await disagree(time)
        time.use("p1")
        time.jump(24 * HOUR)
        time.use("p2")
        with pytest.raises(Violation, match=f"p1 believes a jump of {HOUR} ms after 0 ms"):
            time.use("p1", HOUR)

    check(scenario)


def test_a_process_that_missed_several_small_jumps_may_go_on_by_its_own_time() -> None:
    """Each of them is believed by a process that sees it, but not all of them at once (seed 1800100209)."""

    async def scenario(time: CheckedTime) -> None:
        await time.work(10)
        time.jump(-HOUR)
        await time.work(20)
        for seconds in (2, 4, 6):
            time.jump(2_000)
            await asyncio.sleep(5)
            time.use("p2", seconds * 1_000)
        time.use("p1")
        time.use("p2", 6_000)

    check(scenario)


def test_a_process_that_saw_the_small_jumps_must_not_return_to_the_time_before_them() -> None:
    async def scenario(time: CheckedTime) -> None:
        await time.work(10)
        time.jump(-HOUR)
        await time.work(20)
        for seconds in (2, 4, 6):
            time.jump(2_000)
            await asyncio.sleep(5)
            time.use("p2", seconds * 1_000)
        with pytest.raises(Violation, match="p2 believes a jump of -6000 ms"):
            time.use("p2")

    check(scenario)
