"""The circuit breaker: when it opens, how it recovers, who may try, and what operators can force."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from homing.core.notifications import Channel, OutcomeKind
from homing.core.routing.breaker import (
    BREAKER_OFF,
    PUSH_BREAKER,
    Breaker,
    BreakerGate,
    BreakerPolicy,
    Phase,
    begin_trial,
    blames_provider,
    check_gate,
    default_policy,
    force_phase,
    open_breaker,
    phase_now,
    ramp_per_second,
    record_health_check,
    record_outcome,
    reopens_at,
)
from support.core_builders import MINUTE, NOW, SECOND

POLICY = BreakerPolicy()
TRIAL_MS = 35 * SECOND


def after(breaker: Breaker, *blames: bool | None, now: int = NOW) -> Breaker:
    for blame in blames:
        breaker = record_outcome(breaker, POLICY, blame, now)
    return breaker


OPEN = after(Breaker(), *[True] * 5)
DUE = OPEN.open_until


def trying(worker: str = "worker-1", now: int = DUE) -> Breaker:
    return begin_trial(OPEN, worker, now, TRIAL_MS)


# Opening ---------------------------------------------------------------------------------------------


@pytest.mark.source("002", "197", "203", "209", "270")
def test_five_consecutive_failures_open_it_for_a_minute_and_for_push_ten_for_two_minutes() -> None:
    assert (POLICY.failures, POLICY.open_ms, POLICY.health_every_ms) == (5, MINUTE, 30 * SECOND)
    assert (PUSH_BREAKER.failures, PUSH_BREAKER.open_ms) == (10, 2 * MINUTE)
    assert default_policy(Channel.PUSH) is PUSH_BREAKER
    assert all(default_policy(channel) == POLICY for channel in set(Channel) - {Channel.PUSH})


@pytest.mark.parametrize("channel", list(Channel))
def test_it_opens_at_exactly_the_configured_number_of_failures(channel: Channel) -> None:
    policy, breaker = default_policy(channel), Breaker()
    for count in range(1, policy.failures + 1):
        assert check_gate(breaker, NOW) is BreakerGate.GO
        breaker = record_outcome(breaker, policy, True, NOW)
        assert breaker.failures == count
    assert (breaker.phase, breaker.open_until) == (Phase.OPEN, NOW + policy.open_ms)
    assert breaker.changed_at == NOW


def test_one_success_in_between_restarts_the_count() -> None:
    assert after(Breaker(), *[True] * 4, False, *[True] * 4).phase is Phase.CLOSED
    assert after(Breaker(), *[True] * 4, False, *[True] * 5).phase is Phase.OPEN


def test_an_outcome_that_does_not_concern_the_provider_neither_counts_nor_clears() -> None:
    assert after(Breaker(), *[True] * 4, None, None, True).phase is Phase.OPEN
    assert after(OPEN, None) is OPEN


def test_a_success_without_earlier_failures_changes_nothing() -> None:
    untouched = Breaker()
    assert after(untouched, False) is untouched


def test_errors_of_the_recipient_never_open_it() -> None:
    theirs = [
        OutcomeKind.BAD_CONTENT,
        OutcomeKind.BAD_RECIPIENT,
        OutcomeKind.DEAD_ADDRESS,
        OutcomeKind.OPTED_OUT,
    ]
    breaker = after(Breaker(), *[blames_provider(kind) for kind in theirs * 20])
    assert breaker == Breaker()


@pytest.mark.parametrize(
    ("kind", "blame"),
    [
        (OutcomeKind.ACCEPTED, False),
        (OutcomeKind.TRANSIENT, True),
        (OutcomeKind.THROTTLED, None),
        (OutcomeKind.BAD_CONTENT, False),
        (OutcomeKind.BAD_RECIPIENT, False),
        (OutcomeKind.DEAD_ADDRESS, False),
        (OutcomeKind.OPTED_OUT, False),
        (OutcomeKind.PROVIDER_FAULT, True),
        (OutcomeKind.AMBIGUOUS, True),
        (OutcomeKind.LOST, None),
    ],
)
def test_every_outcome_counts_as_failure_or_success_or_neither(kind: OutcomeKind, blame: bool | None) -> None:
    assert blames_provider(kind) is blame


def test_a_breaker_that_is_off_never_opens_and_forgets_an_earlier_opening_after_its_trial() -> None:
    breaker = Breaker()
    for _ in range(1_000):
        breaker = record_outcome(breaker, BREAKER_OFF, True, NOW)
    assert breaker == Breaker()
    for blame in (True, False):
        closed = record_outcome(trying(), BREAKER_OFF, blame, DUE + SECOND)
        assert (closed.phase, closed.failures) == (Phase.CLOSED, 0)


@pytest.mark.parametrize("forced", [Phase.OPEN, Phase.CLOSED])
def test_outcomes_do_not_change_a_forced_breaker(forced: Phase) -> None:
    held = force_phase(Breaker(failures=4), forced, "ada", NOW)
    assert after(held, True, True, False, True) is held


def test_a_breaker_whose_pause_is_over_reads_half_open_even_if_nothing_tries_it() -> None:
    assert phase_now(Breaker(), NOW) is Phase.CLOSED
    assert phase_now(OPEN, DUE - 1) is Phase.OPEN
    assert phase_now(OPEN, DUE) is phase_now(trying(), DUE) is Phase.HALF_OPEN
    assert phase_now(force_phase(OPEN, Phase.OPEN, "ada", NOW), DUE) is Phase.OPEN
    assert phase_now(force_phase(OPEN, Phase.CLOSED, "ada", NOW), NOW) is Phase.CLOSED


# Open, the trial, and back ---------------------------------------------------------------------------


@pytest.mark.source("002", "271")
def test_an_open_breaker_blocks_everything_until_its_time_is_up() -> None:
    assert check_gate(OPEN, DUE - 1) is BreakerGate.STOP
    assert check_gate(OPEN, DUE) is BreakerGate.TRIAL
    assert reopens_at(OPEN) == DUE


def test_late_failures_do_not_keep_it_open_longer() -> None:
    late = after(OPEN, True, True, now=NOW + 30 * SECOND)
    assert (late.phase, late.open_until) == (Phase.OPEN, DUE)


def test_late_successes_do_not_close_it() -> None:
    assert check_gate(after(OPEN, False, now=NOW + SECOND), NOW + SECOND) is BreakerGate.STOP


@pytest.mark.source("002", "267")
def test_there_is_only_one_trial_at_a_time() -> None:
    half = trying()
    assert (half.phase, half.trial_by, half.changed_at) == (Phase.HALF_OPEN, "worker-1", DUE)
    assert check_gate(half, DUE) is BreakerGate.STOP
    assert check_gate(half, DUE + TRIAL_MS - 1) is BreakerGate.STOP


def test_if_two_workers_start_the_trial_at_once_the_store_lets_one_win() -> None:
    stored = replace(OPEN, version=7)

    def put(candidate: Breaker) -> bool:
        nonlocal stored
        if candidate.version != stored.version:
            return False
        stored = replace(candidate, version=candidate.version + 1)
        return True

    first, second = (begin_trial(stored, worker, DUE, TRIAL_MS) for worker in ("one", "two"))
    assert [put(second), put(first)] == [True, False]
    assert (stored.trial_by, stored.version) == ("two", 8)


def test_a_trial_of_a_dead_worker_is_offered_again_after_its_time() -> None:
    half = trying()
    again_at = DUE + TRIAL_MS
    assert reopens_at(half) == again_at
    assert check_gate(half, again_at) is BreakerGate.TRIAL
    assert begin_trial(half, "worker-2", again_at, TRIAL_MS).trial_by == "worker-2"


@pytest.mark.source("002", "272")
def test_a_successful_trial_closes_it_and_starts_the_ramp() -> None:
    closed = after(trying(), False, now=DUE + SECOND)
    assert check_gate(closed, DUE + SECOND) is BreakerGate.GO
    assert (closed.phase, closed.failures, closed.trial_by) == (Phase.CLOSED, 0, "")
    assert (closed.ramp_from, closed.changed_at) == (DUE + SECOND, DUE + SECOND)


@pytest.mark.source("002", "273")
def test_one_failed_trial_opens_it_for_the_whole_time_again() -> None:
    reopened = after(trying(), True, now=DUE + SECOND)
    assert (reopened.phase, reopened.open_until) == (Phase.OPEN, DUE + SECOND + MINUTE)
    assert (reopened.trial_by, reopened.trial_until) == ("", 0)


def test_an_outage_began_when_the_breaker_opened_first_however_many_trials_fail() -> None:
    reopened = after(trying(), True, now=DUE + SECOND)
    tried_again = begin_trial(reopened, "worker-2", reopened.open_until, TRIAL_MS)
    for breaker in (OPEN, trying(), reopened, tried_again, record_health_check(reopened, DUE + 2 * SECOND)):
        assert breaker.failing_from == NOW
    closed = after(tried_again, False, now=DUE + MINUTE)
    assert closed.failing_from == 0
    assert after(closed, *[True] * 5, now=DUE + 2 * MINUTE).failing_from == DUE + 2 * MINUTE
    assert open_breaker(Breaker(), "bounces", MINUTE, NOW).failing_from == NOW


def test_a_trial_that_does_not_concern_the_provider_leaves_it_half_open() -> None:
    assert after(trying(), None) == trying()


def test_once_closed_it_takes_the_full_number_of_failures_to_open_again() -> None:
    closed = after(trying(), False, now=DUE)
    assert after(closed, *[True] * 4).phase is Phase.CLOSED
    assert after(closed, *[True] * 5).phase is Phase.OPEN


@pytest.mark.parametrize("breaker", [Breaker(), OPEN, trying(), force_phase(OPEN, Phase.OPEN, "ada", NOW)])
def test_a_trial_starts_only_if_the_gate_offers_one(breaker: Breaker) -> None:
    with pytest.raises(AssertionError, match="only if the gate permits one"):
        begin_trial(breaker, "worker-1", NOW, TRIAL_MS)


def test_a_good_health_check_offers_the_trial_early() -> None:
    better = record_health_check(OPEN, NOW + 30 * SECOND)
    assert check_gate(better, NOW + 30 * SECOND) is BreakerGate.TRIAL
    assert check_gate(better, NOW + 30 * SECOND - 20) is BreakerGate.TRIAL, "a clock may be a bit behind"
    assert better.changed_at == NOW + 30 * SECOND


def test_a_health_check_changes_nothing_unless_the_breaker_is_open() -> None:
    for breaker in (Breaker(), trying(), replace(OPEN, open_until=NOW - 1)):
        assert record_health_check(breaker, NOW) is breaker


# Forced states ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("automatic", [Breaker(), OPEN, trying()])
@pytest.mark.parametrize(
    ("choice", "expected"), [(Phase.OPEN, BreakerGate.STOP), (Phase.CLOSED, BreakerGate.GO)]
)
def test_a_forced_state_overrides_the_automatic_one(
    automatic: Breaker, choice: Phase, expected: BreakerGate
) -> None:
    forced = force_phase(automatic, choice, "ada", NOW)
    assert (forced.forced_by, forced.changed_at) == ("ada", NOW)
    moments = (NOW, DUE, DUE + TRIAL_MS, NOW + 99 * MINUTE)
    assert {check_gate(forced, now) for now in moments} == {expected}
    assert reopens_at(forced) is None


@pytest.mark.parametrize(
    ("choice", "expected"), [(Phase.OPEN, BreakerGate.STOP), (Phase.CLOSED, BreakerGate.GO)]
)
def test_neither_outcomes_nor_health_checks_undo_a_forced_state(choice: Phase, expected: BreakerGate) -> None:
    forced = force_phase(OPEN, choice, "ada", NOW)
    assert check_gate(after(forced, *[True] * 20, False, None), NOW) is expected
    assert check_gate(record_health_check(forced, NOW), NOW) is expected


def test_a_breaker_returned_to_automatic_control_starts_closed_with_a_ramp() -> None:
    stored = replace(force_phase(OPEN, Phase.OPEN, "ada", NOW), version=4)
    assert force_phase(stored, None, "ada", NOW + SECOND) == Breaker(
        changed_at=NOW + SECOND, ramp_from=NOW + SECOND, version=4
    )


# The ramp --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("since_ms", "rate"),
    [(0, 10), (7_500, 20), (15_000, 40), (30_000, 160), (52_500, 1_280), (60_000, None), (99_000, None)],
)
def test_the_ramp_doubles_eight_times_and_then_ends(since_ms: int, rate: float | None) -> None:
    assert ramp_per_second(Breaker(ramp_from=NOW), POLICY, NOW + since_ms) == rate


def test_a_provider_that_was_never_open_has_no_ramp() -> None:
    assert ramp_per_second(Breaker(), POLICY, NOW) is None


def test_a_breaker_that_opens_again_has_no_ramp_until_it_recovers_again() -> None:
    closed = after(trying(), False, now=DUE)
    assert ramp_per_second(after(closed, *[True] * 5), POLICY, DUE) is None


@given(st.integers(0, 59_999), st.integers(0, 59_999))
def test_the_ramp_starts_at_its_lowest_value_and_never_falls(one: int, other: int) -> None:
    breaker = Breaker(ramp_from=NOW)
    low, high = (ramp_per_second(breaker, POLICY, NOW + ms) for ms in sorted((one, other)))
    assert low is not None
    assert high is not None
    assert POLICY.ramp_per_second <= low <= high < POLICY.ramp_per_second * 2**8


def test_a_clock_that_is_behind_sees_the_start_of_the_ramp() -> None:
    assert ramp_per_second(Breaker(ramp_from=NOW), POLICY, NOW - MINUTE) == POLICY.ramp_per_second


@pytest.mark.parametrize("now", [NOW - 1, NOW, NOW + 1])
def test_a_ramp_of_zero_length_limits_nothing(now: int) -> None:
    assert ramp_per_second(Breaker(ramp_from=NOW), BreakerPolicy(ramp_ms=0), now) is None
