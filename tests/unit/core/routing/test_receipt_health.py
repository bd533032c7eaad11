"""When receipts open a breaker, and when a provider is asked for a missing receipt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.core.lifecycle.receipts import lookup_delays_ms
from homing.core.routing.breaker import (
    Breaker,
    BreakerGate,
    BreakerPolicy,
    Phase,
    begin_trial,
    check_gate,
    force_phase,
    open_breaker,
    record_health_check,
    record_outcome,
)
from homing.core.routing.receipt_health import (
    ReceiptCounts,
    ReceiptHealthPolicy,
    bounce_rate_problem,
    missing_receipts_problem,
)
from support.core_builders import MINUTE, NOW, SECOND

POLICY = ReceiptHealthPolicy(bad_of=20, stopped_of=50)
counts = st.integers(0, 1_000)


@pytest.mark.parametrize(
    ("delivered", "bounced", "bad"),
    [(10, 10, True), (0, 20, True), (11, 9, False), (0, 19, False), (1_000, 10, False), (0, 0, False)],
)
def test_receipts_are_bad_if_enough_of_them_report_failures(delivered: int, bounced: int, bad: bool) -> None:
    assert (bounce_rate_problem(ReceiptCounts(5_000, delivered, bounced), POLICY) is not None) is bad


@pytest.mark.parametrize(
    ("window", "before", "missed"),
    [
        (ReceiptCounts(50), ReceiptCounts(100, 95, 0), True),
        (ReceiptCounts(50), ReceiptCounts(100, 45, 45), True),
        (ReceiptCounts(50), ReceiptCounts(100, 89, 0), False),
        (ReceiptCounts(49), ReceiptCounts(100, 100, 0), False),
        (ReceiptCounts(50, 1), ReceiptCounts(100, 100, 0), False),
        (ReceiptCounts(50, 0, 1), ReceiptCounts(100, 100, 0), False),
        (ReceiptCounts(50), ReceiptCounts(49, 49, 0), False),
        (ReceiptCounts(50), ReceiptCounts(), False),
    ],
)
def test_receipts_have_stopped_if_they_arrived_before(
    window: ReceiptCounts, before: ReceiptCounts, missed: bool
) -> None:
    assert (missing_receipts_problem(window, before, POLICY) is not None) is missed


@given(counts, counts, counts)
def test_a_reason_is_given_only_if_something_was_sent_or_received(sent: int, good: int, bad: int) -> None:
    window = ReceiptCounts(sent, good, bad)
    assert window.plus(window).minus(window) == window
    if bounce_rate_problem(window, ReceiptHealthPolicy(bad_share=0.0, bad_of=0)):
        assert window.final_receipts > 0


def test_a_tripped_breaker_stays_open_for_its_time_despite_good_health_checks() -> None:
    tripped = open_breaker(Breaker(failures=2), "bad receipts", 10 * MINUTE, NOW)
    assert (tripped.phase, tripped.why, tripped.open_until) == (Phase.OPEN, "bad receipts", NOW + 10 * MINUTE)
    assert record_health_check(tripped, NOW + SECOND) is tripped
    assert check_gate(tripped, NOW + 10 * MINUTE - 1) is BreakerGate.STOP
    assert check_gate(tripped, NOW + 10 * MINUTE) is BreakerGate.TRIAL


@pytest.mark.parametrize("blame", [True, False])
def test_after_its_trial_a_tripped_breaker_behaves_like_any_other(blame: bool) -> None:
    later = NOW + 10 * MINUTE
    tripped = open_breaker(Breaker(), "bad receipts", 10 * MINUTE, NOW)
    after = record_outcome(begin_trial(tripped, "w", later, MINUTE), BreakerPolicy(), blame, later)
    assert (after.why, after.phase) == ("", Phase.OPEN if blame else Phase.CLOSED)


def test_a_breaker_that_is_not_closed_or_was_forced_is_not_tripped() -> None:
    opened = Breaker(phase=Phase.OPEN, open_until=NOW + 1)
    forced = force_phase(Breaker(), Phase.CLOSED, "ada", NOW)
    for breaker in (opened, forced, begin_trial(opened, "w", NOW + 1, MINUTE)):
        assert open_breaker(breaker, "bad receipts", MINUTE, NOW) is breaker


@given(st.integers(1, 10_000_000), st.integers(0, 100_000_000))
def test_the_intervals_between_lookups_double_and_end(after_ms: int, until_ms: int) -> None:
    moments = list(lookup_delays_ms(after_ms, until_ms))
    assert moments == [after_ms * 2**n for n in range(len(moments))]
    assert all(moment <= until_ms for moment in moments)
    assert after_ms * 2 ** len(moments) > until_ms


def test_zero_means_never() -> None:
    assert list(lookup_delays_ms(0, MINUTE)) == []
