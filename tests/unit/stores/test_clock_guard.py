"""The clock of a store, compared with the monotonic clock of a process."""

from __future__ import annotations

import pytest

from homing.core.clock_steps import MAX_BELIEVED_STEP_MS, ClockStep
from homing.stores.common.clock_guard import ClockGuard, StoreTime, reclaim_bounds, steady_clock_ms

DAY = 86_400_000
START = 1_750_000_000_000


class Process:
    """A process whose transactions take no time, over a record that all processes share."""

    stored: ClockStep | None = None

    def __init__(self, *, may_record: bool = True) -> None:
        self.guard = ClockGuard()
        self._may_record = may_record

    def transaction(self, clock_now: int, mono_ms: int, *, writable: bool = True) -> StoreTime:
        time = self.guard.check(clock_now, mono_ms, mono_ms)
        if time is not None:
            return time
        found = self.guard.resolve(clock_now, mono_ms, mono_ms, Process.stored, writable=writable)
        if writable and (found.clear or found.record is not None):
            if self._may_record:
                Process.stored = found.record
            else:
                self.guard.keep_unrecorded(found.record)
        return found.time


def started(number: int = 1) -> list[Process]:
    Process.stored = None
    processes = [Process() for _ in range(number)]
    for process in processes:
        assert process.transaction(START, 0).now == START
    return processes


def run(process: Process, jump_ms: int, from_ms: int, to_ms: int) -> StoreTime:
    """Lets the process work until `to_ms` with a clock that was set by `jump_ms`. Returns the last time."""
    time = StoreTime(0)
    for mono_ms in (*range(from_ms, to_ms, 5_000), to_ms):
        time = process.transaction(START + mono_ms + jump_ms, mono_ms)
    return time


def test_a_small_step_is_believed_at_once() -> None:
    [process] = started()
    assert process.transaction(START + 1_000 + MAX_BELIEVED_STEP_MS, 1_000).now == START + 6_000
    assert process.transaction(START + 2_000, 2_000).now == START + 2_000
    assert Process.stored is None


def test_a_large_step_is_not_believed_for_ten_minutes_in_either_direction() -> None:
    for jump_ms in (DAY, -DAY, 60_000):
        [process] = started()
        assert run(process, jump_ms, 1_000, 600_000).now == START + 600_000
        accepted = run(process, jump_ms, 601_000, 601_000)
        assert accepted == StoreTime(START + 601_000 + jump_ms, settling=True)
        assert run(process, jump_ms, 602_000, 662_000).settling is False


def test_a_step_is_logged_once_by_each_process_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    one, other = started(2)
    for process in (one, other):
        run(process, DAY, 1_000, 60_000)
    run(one, 0, 61_000, 61_000)
    assert [record.getMessage() for record in caplog.records] == [
        *["the store's clock was set forward by 1d; Homing goes on by the old time for now"] * 2,
        "the store's clock shows the expected time again",
    ]


def test_an_accepted_step_is_forgotten_once_it_has_settled() -> None:
    for jump_ms in (DAY, -DAY):
        [process] = started()
        run(process, jump_ms, 1_000, 660_000)
        run(process, jump_ms, 661_000, 700_000)
        assert process.guard._step is None
        assert process.guard._agrees(START + 701_000 + jump_ms, 701_000, 701_000)
        assert process.guard.correct(START) == START


def test_a_clock_that_comes_back_ends_the_suspicion() -> None:
    [process] = started()
    run(process, DAY, 1_000, 21_000)
    assert Process.stored is not None
    assert run(process, 0, 22_000, 900_000).now == START + 900_000
    assert Process.stored is None


def test_another_step_begins_the_ten_minutes_again() -> None:
    [process] = started()
    run(process, DAY, 1_000, 400_000)
    assert run(process, 2 * DAY, 401_000, 1_000_000).now == START + 1_000_000
    assert run(process, 2 * DAY, 1_001_000, 1_002_000).now == START + 1_002_000 + 2 * DAY


def test_a_step_that_only_another_process_saw_begins_the_ten_minutes_again() -> None:
    one, other = started(2)
    run(one, 2 * DAY, 1_000, 400_000)
    other.transaction(START + 399_000 + 2 * DAY, 399_000)
    assert run(one, DAY, 400_100, 400_200).now == START + 400_200
    assert other.transaction(START + 401_000 + 2 * DAY, 401_000).now == START + 401_000
    assert run(one, 2 * DAY, 401_100, 1_000_000).now == START + 1_000_000
    assert other.transaction(START + 1_000_000 + 2 * DAY, 1_000_000).now == START + 1_000_000
    assert run(one, 2 * DAY, 1_001_000, 1_002_000).now == START + 1_002_000 + 2 * DAY


def test_a_step_that_another_process_saw_undone_for_a_moment_begins_the_ten_minutes_again() -> None:
    one, other = started(2)
    run(one, DAY, 1_000, 400_000)
    other.transaction(START + 399_000 + DAY, 399_000)
    assert other.transaction(START + 400_500, 400_500).now == START + 400_500
    assert Process.stored is None
    assert run(one, DAY, 401_000, 1_000_000).now == START + 1_000_000
    assert run(one, DAY, 1_001_000, 1_002_000).now == START + 1_002_000 + DAY


def test_a_process_that_only_reads_notices_that_another_one_saw_the_step_undone() -> None:
    one, reader = started(2)
    run(one, DAY, 1_000, 20_000)
    reader.transaction(START + 20_000 + DAY, 20_000, writable=False)
    run(one, 0, 21_000, 21_000)
    assert Process.stored is None
    for mono_ms in range(22_000, 77_000, 5_000):
        assert reader.transaction(START + mono_ms, mono_ms, writable=False).now == START + mono_ms
    again = reader.transaction(START + 77_500 + DAY, 77_500, writable=False)
    assert again.now == START + 77_500, "the same step as before is another step"


def test_a_process_that_starts_believes_the_clock_unless_a_live_process_has_recorded_a_step() -> None:
    [process] = started()
    run(process, DAY, 1_000, 10_000)
    assert Process().transaction(START + 11_000 + DAY, 777_000).now == START + 11_000
    assert Process().transaction(START + DAY + 3_600_000, 5).now == START + DAY + 3_600_000


def test_a_record_that_no_process_has_renewed_for_a_minute_is_void() -> None:
    """All processes that knew of the step have ended. Its ten minutes are not over."""
    [process] = started()
    process.transaction(START + 1_000 + DAY, 1_000)
    step = Process.stored
    assert step is not None
    assert step.renewed_at == START + 1_000
    assert Process().transaction(START + 61_000 + DAY, 777_000).now == START + 61_000
    Process.stored = step  # the transaction above has renewed it
    assert Process().transaction(START + 61_001 + DAY, 777_000).now == START + 61_001 + DAY


def test_all_processes_accept_a_step_at_the_same_time() -> None:
    one, two = started(2)
    run(one, DAY, 1_000, 30_000)
    assert run(two, DAY, 31_000, 600_900).now == START + 600_900
    assert one.transaction(START + 601_000 + DAY, 601_000).now == START + 601_000 + DAY
    assert two.transaction(START + 601_000 + DAY, 601_000).now == START + 601_000 + DAY


def test_a_step_whose_record_was_rolled_back_is_recorded_by_the_next_transaction() -> None:
    [process] = started()
    process.transaction(START + 1_000 + DAY, 1_000)
    Process.stored = None
    assert process.transaction(START + 2_000 + DAY, 2_000).now == START + 2_000
    assert Process.stored is not None


def test_a_second_step_is_not_believed_if_its_record_was_rolled_back_and_that_of_the_first_remains() -> None:
    """Corrected by the first step, the clock looks as if the record had been renewed a while ago."""
    [process] = started()
    run(process, 45_000, 1_000, 21_000)
    first = Process.stored
    assert process.transaction(START + 22_000 + 90_000, 22_000).now == START + 22_000
    Process.stored = first
    assert process.transaction(START + 23_000 + 90_000, 23_000).now == START + 23_000
    assert Process.stored is not None
    assert (Process.stored.correction_ms, Process.stored.suspected_at) == (-90_000, START + 23_000)


LONG_AGO = ClockStep(correction_ms=-DAY, suspected_at=START - 2 * DAY, renewed_at=START - 2 * DAY)


@pytest.mark.parametrize("earlier", [None, LONG_AGO], ids=["no record", "an earlier step"])
def test_a_process_that_may_not_record_a_step_believes_it_after_ten_minutes_too(
    earlier: ClockStep | None,
) -> None:
    Process.stored, process = earlier, Process(may_record=False)
    process.transaction(START, 0)
    assert run(process, DAY, 1_000, 600_000).now == START + 600_000
    assert run(process, DAY, 601_000, 602_000).now == START + 602_000 + DAY


def test_a_reading_transaction_gets_the_corrected_time_and_leaves_the_record_to_a_writing_one() -> None:
    [process] = started()
    assert process.transaction(START + 1_000 + DAY, 1_000, writable=False).now == START + 1_000
    assert Process.stored is None
    assert process.transaction(START + 2_000 + DAY, 2_000).now == START + 2_000
    assert Process.stored is not None


def test_a_process_that_was_idle_for_long_trusts_the_clock() -> None:
    """Others may have accepted the step, and no process is left that knows of it."""
    [process] = started()
    assert process.transaction(START + 400_000 + DAY, 400_000).now == START + 400_000 + DAY


def test_a_process_that_can_read_no_record_believes_the_clock() -> None:
    [process] = started()
    process.guard.believe_clock()
    assert process.guard.check(START + DAY, 1_000, 1_000) == StoreTime(START + DAY)
    assert process.transaction(START + 2_000, 2_000) == StoreTime(START + 2_000)


def test_a_slow_response_is_no_step() -> None:
    guard = ClockGuard()
    for mono_ms in (-100_000, -50_000, 0):  # not idle for a minute, so it is not new at the end
        guard.resolve(START + mono_ms, mono_ms, mono_ms, None)
    assert guard.check(START + 25_000, 1_000, 26_000) == StoreTime(START + 25_000)
    assert guard.check(START + 30_000, 27_000, 60_000) == StoreTime(START + 30_000)


def test_a_time_that_was_read_long_ago_is_corrected_by_what_is_known() -> None:
    [process] = started()
    process.transaction(START + 1_000 + DAY, 1_000)
    assert process.guard.correct(START + 2_000 + DAY) == START + 2_000
    assert process.guard.correct(START) == START


def test_leases_from_the_future_are_reclaimed_and_none_while_a_step_settles() -> None:
    assert reclaim_bounds(START, settling=False) == (START, START + 60_000, START + 5_000)
    assert reclaim_bounds(START, settling=True)[0] == -1


def test_the_steady_clock_counts_on() -> None:
    first = steady_clock_ms()
    assert first <= steady_clock_ms()


def test_a_process_that_was_suspended_does_not_bring_back_a_step_that_was_undone_meanwhile() -> None:
    suspended, other = started(2)
    for process in (suspended, other):
        assert run(process, 60_000, 1_000, 10_000).now == START + 10_000
    assert run(other, 60_000, 15_000, 40_000).now == START + 40_000
    assert run(other, 0, 45_000, 75_000).now == START + 75_000  # the clock was set right again
    assert Process.stored is None
    assert suspended.transaction(START + 76_000, 76_000).now == START + 76_000
    assert Process.stored is None


def test_a_process_that_was_suspended_reads_a_record_that_is_written_after_it_went_on() -> None:
    """It counts as one that starts: it may have gone on just after a step, before another one recorded it."""
    suspended, other = started(2)
    assert run(other, 0, 1_000, 70_000).now == START + 70_000
    assert suspended.transaction(START + 71_000 + DAY, 71_000).now == START + 71_000 + DAY
    assert run(other, DAY, 72_000, 81_000).now == START + 81_000
    assert suspended.transaction(START + 80_999 + DAY, 80_999).now == START + 80_999 + DAY
    assert suspended.transaction(START + 81_000 + DAY, 81_000).now == START + 81_000
