"""Attempts made elsewhere before acceptance, and a notification's own maximum of attempts."""

from __future__ import annotations

import pytest

from homing.core.lifecycle.outcomes import Outcome
from homing.core.lifecycle.row_events import roll_up_counts
from homing.core.lifecycle.rows import claim_of, lease, settle
from homing.core.lifecycle.views import history, notification
from homing.core.notifications import OutcomeKind, Reason, Status
from homing.core.retry.decide import NO_OBJECTION, allowed_attempts, check_before_attempt, decide, postpone
from support.core_builders import HOUR, MESSAGE, NOW, ONE, SECOND, STEADY, accept, make_claim, make_new


@pytest.mark.parametrize(
    ("own", "floor", "bounce", "allowed"),
    [(None, 0, 0, 5), (3, 0, 0, 3), (9, 0, 0, 9), (3, 4, 0, 4), (3, 0, 4, 4), (3, 0, 9, 4), (1, 0, 0, 1)],
)
def test_a_notification_s_own_maximum_replaces_the_policy_s(
    own: int | None, floor: int, bounce: int, allowed: int
) -> None:
    claim = make_claim(max_attempts=own, attempt_floor=floor, bounce_floor=bounce)
    assert allowed_attempts(claim, STEADY) == allowed


@pytest.mark.parametrize(("attempt", "status"), [(2, Status.RETRYING), (3, Status.FAILED)])
def test_the_decision_respects_the_notification_s_own_maximum(attempt: int, status: Status) -> None:
    claim = make_claim(attempt=attempt, max_attempts=3)
    failed = Outcome(OutcomeKind.TRANSIENT)
    assert decide(claim, failed, STEADY, ONE, elapsed_ms=0, latency_ms=0, u=0.0).status is status


def test_a_notification_beyond_its_own_maximum_is_not_attempted() -> None:
    settlement = check_before_attempt(make_claim(attempt=4, max_attempts=3), STEADY, NO_OBJECTION, now=NOW)
    assert settlement is not None
    assert (settlement.status, settlement.reason) == (Status.FAILED, Reason.RETRIES_EXHAUSTED)


def test_a_notification_tried_elsewhere_waits_for_its_next_attempt_and_ages_from_now() -> None:
    row = accept(make_new(attempts_before=2, delay_ms=40 * SECOND, max_attempts=6)).row
    assert (row.status, row.attempts, row.attempts_before) == (Status.RETRYING, 2, 2)
    assert (row.due_at, row.aged_from, row.last_delay_ms) == (NOW + 40 * SECOND, NOW, 40 * SECOND)
    lease(row, "worker-1", 40 * SECOND, NOW + HOUR)
    claim = claim_of(row, MESSAGE, NOW)
    assert (claim.attempt, claim.attempts_before, claim.max_attempts) == (3, 2, 6)


def test_after_a_postponement_it_still_waits_for_a_retry() -> None:
    row = accept(make_new(attempts_before=1)).row
    lease(row, "worker-1", 40 * SECOND, NOW)
    settle(row, postpone(claim_of(row, MESSAGE, NOW), STEADY, SECOND, Reason.RATE_LIMIT), NOW)
    assert (row.status, row.attempts) == (Status.RETRYING, 1)


def test_taking_a_notification_over_does_not_count_as_a_retry() -> None:
    assert roll_up_counts(accept(make_new(attempts_before=3))) == {"accepted": 1}


def test_attempts_made_elsewhere_keep_their_numbers_without_a_provider() -> None:
    row = accept(make_new(attempts_before=2)).row
    whole = history(row, MESSAGE, (), ()).notification
    assert (whole.provider_names, whole.provider_message_ids) == (("", ""), (None, None))
    assert notification(row, MESSAGE).provider_names == ()
