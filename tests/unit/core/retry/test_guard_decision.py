"""Decisions of the guard before an attempt, and attempts returned by a postponement."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from homing.core.lifecycle.claims import Claim
from homing.core.lifecycle.outcomes import Settlement
from homing.core.lifecycle.states import WAITING
from homing.core.notifications import Mode, Reason, Status
from homing.core.retry.decide import (
    NO_OBJECTION,
    RecipientFacts,
    allowed_attempts,
    attempts_made,
    check_before_attempt,
    postpone,
    settle_timed_out,
    waiting_status,
)
from support.core_builders import DAY, HOUR, MINUTE, NOW, SECOND, STEADY, make_claim

SKIPS = (Reason.SUPPRESSED, Reason.UNSUBSCRIBED, Reason.DEVICE_INACTIVE)
QUIET = RecipientFacts(postpone_ms=HOUR, postpone_reason=Reason.QUIET_HOURS)


def verdict(claim: Claim, facts: RecipientFacts = NO_OBJECTION, now: int = NOW) -> Settlement | None:
    return check_before_attempt(claim, STEADY, facts, now=now)


def ending(
    claim: Claim, facts: RecipientFacts = NO_OBJECTION, now: int = NOW
) -> tuple[Status, Reason | None]:
    settled = verdict(claim, facts, now)
    assert settled is not None
    assert settled.attempt is None, "no attempt took place"
    return settled.status, settled.reason


def test_without_objections_the_attempt_goes_ahead() -> None:
    assert verdict(make_claim()) is None
    assert verdict(make_claim(attempt=5, expires_at=NOW + 1, aged_from=NOW - 2 * DAY + 1)) is None


def test_an_expired_notification_is_not_attempted() -> None:
    assert ending(make_claim(expires_at=NOW)) == (Status.EXPIRED, Reason.EXPIRED)
    assert ending(make_claim(expires_at=NOW - 1)) == (Status.EXPIRED, Reason.EXPIRED)


@pytest.mark.parametrize("reason", SKIPS)
def test_a_notification_that_must_not_be_sent_is_skipped_with_the_reason(reason: Reason) -> None:
    assert ending(make_claim(), RecipientFacts(skip=reason)) == (Status.SKIPPED, reason)


def test_a_notification_that_waited_too_long_is_a_dead_letter() -> None:
    expected = (Status.FAILED, Reason.PROVIDER_UNAVAILABLE)
    assert ending(make_claim(aged_from=NOW - 2 * DAY)) == expected
    assert ending(make_claim(aged_from=NOW - 2 * DAY, attempt=0, overdue=True)) == expected


def test_attempts_beyond_the_current_policy_s_maximum_are_not_made() -> None:
    assert ending(make_claim(attempt=6)) == (Status.FAILED, Reason.RETRIES_EXHAUSTED)
    assert verdict(make_claim(attempt=6, attempt_floor=6)) is None


def test_a_rate_limit_or_quiet_hours_only_postpone() -> None:
    settled = verdict(make_claim(), QUIET)
    assert settled is not None
    assert (settled.status, settled.reason, settled.delay_ms) == (Status.PENDING, Reason.QUIET_HOURS, HOUR)


def test_the_guard_checks_expired_skipped_too_old_exhausted_postponed_in_this_order() -> None:
    expired = {"expires_at": NOW}
    too_old = {"aged_from": NOW - 2 * DAY}
    spent = {"attempt": 6}
    against = replace(QUIET, skip=Reason.SUPPRESSED)
    assert ending(make_claim(**expired, **too_old, **spent), against)[0] is Status.EXPIRED
    assert ending(make_claim(**too_old, **spent), against)[0] is Status.SKIPPED
    assert ending(make_claim(**too_old, **spent), QUIET)[1] is Reason.PROVIDER_UNAVAILABLE
    assert ending(make_claim(**spent), QUIET)[1] is Reason.RETRIES_EXHAUSTED
    assert ending(make_claim(), QUIET)[1] is Reason.QUIET_HOURS


def test_a_synchronous_send_has_no_age_limit() -> None:
    assert verdict(make_claim(mode=Mode.SYNCHRONOUS, aged_from=NOW - 9 * DAY)) is None


@pytest.mark.parametrize("reason", [Reason.RATE_LIMIT, Reason.QUIET_HOURS, Reason.NO_PROVIDER])
def test_a_synchronous_send_is_never_queued_whatever_prevents_it(reason: Reason) -> None:
    claim = make_claim(mode=Mode.SYNCHRONOUS)
    judged = verdict(claim, RecipientFacts(postpone_ms=MINUTE, postpone_reason=reason))
    assert judged is not None
    assert judged.status not in WAITING
    assert postpone(claim, STEADY, MINUTE, reason).status not in WAITING


def test_a_synchronous_send_that_timed_out_before_anything_was_sent_is_final() -> None:
    settled = settle_timed_out(make_claim(mode=Mode.SYNCHRONOUS), STEADY)
    assert (settled.status, settled.reason) == (Status.FAILED, Reason.DELIVERY_TIMEOUT)
    assert (settled.attempt, settled.give_back) == (None, True)


@pytest.mark.parametrize(("attempt", "status"), [(1, Status.PENDING), (2, Status.RETRYING)])
def test_a_postponement_returns_the_attempt_and_changes_nothing_else(attempt: int, status: Status) -> None:
    claim = make_claim(
        attempt=attempt, provider="sns", outlet="sns", failures_here=1, last_delay_ms=20 * SECOND, token=9
    )
    assert postpone(claim, STEADY, MINUTE, Reason.RATE_LIMIT) == Settlement(
        id="n-1",
        token=9,
        worker=claim.worker,
        started_at=claim.started_at,
        status=status,
        reason=Reason.RATE_LIMIT,
        give_back=True,
        delay_ms=MINUTE,
        provider="sns",
        outlet="sns",
        failures_here=1,
        last_delay_ms=20 * SECOND,
        max_age_ms=2 * DAY,
    )


@pytest.mark.parametrize("facts", [RecipientFacts(skip=Reason.SUPPRESSED), QUIET])
@pytest.mark.parametrize("overdue", [False, True])
def test_only_a_counted_attempt_is_returned(facts: RecipientFacts, overdue: bool) -> None:
    settled = verdict(make_claim(overdue=overdue), facts)
    assert settled is not None
    assert settled.give_back is not overdue


def test_a_row_past_its_deadline_keeps_waiting_if_the_policy_s_max_age_was_raised() -> None:
    claim = make_claim(overdue=True, attempt=2, aged_from=NOW - HOUR, due_at=NOW + MINUTE)
    settled = verdict(claim)
    assert settled is not None
    assert (settled.status, settled.delay_ms, settled.give_back) == (Status.RETRYING, MINUTE, False)
    assert settled.max_age_ms == 2 * DAY, "the store looks again at the new deadline"


def test_a_row_past_its_deadline_that_was_due_long_ago_is_due_at_once() -> None:
    settled = verdict(make_claim(overdue=True, attempt=0, due_at=NOW - HOUR))
    assert settled is not None
    assert (settled.status, settled.delay_ms) == (Status.PENDING, 0)


def test_a_row_past_its_deadline_is_never_attempted_on_that_lease() -> None:
    for attempt, facts in itertools.product((0, 1, 9), (NO_OBJECTION, QUIET, RecipientFacts(skip=SKIPS[0]))):
        assert verdict(make_claim(overdue=True, attempt=attempt), facts) is not None


def test_the_claimed_attempt_does_not_count_as_made_unless_the_row_is_overdue() -> None:
    assert attempts_made(make_claim(attempt=3)) == 2
    assert attempts_made(make_claim(attempt=3, overdue=True)) == 3
    assert [waiting_status(n) for n in (0, 1, 2)] == [Status.PENDING, Status.RETRYING, Status.RETRYING]


@given(st.integers(1, 1_000), st.integers(0, 1_000))
def test_a_granted_attempt_raises_the_maximum_but_never_lowers_it(maximum: int, floor: int) -> None:
    allowed = allowed_attempts(make_claim(attempt_floor=floor), replace(STEADY, max_attempts=maximum))
    assert allowed == max(maximum, floor)
