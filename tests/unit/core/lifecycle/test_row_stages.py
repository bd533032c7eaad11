"""The stages of a row: accepted, leased, reclaimed, extended, settled."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from homing.core.clock_steps import MAX_BELIEVED_STEP_MS
from homing.core.lifecycle.claims import Claim, Lease
from homing.core.lifecycle.rows import Row, claim_of, extend, lease, reclaim, settle
from homing.core.notifications import Mode, Status
from homing.core.retry.decide import postpone
from support.core_builders import (
    DAY,
    HOUR,
    MESSAGE,
    MINUTE,
    NOW,
    SECOND,
    STEADY,
    accept,
    make_new,
    make_row,
)

LEASE_MS = 40 * SECOND


def leased(**changes: Any) -> tuple[Row, Claim]:
    row = make_row(**changes)
    lease(row, "worker-1", LEASE_MS, NOW)
    return row, claim_of(row, MESSAGE, NOW)


# Accepted --------------------------------------------------------------------------------------------


def test_a_new_row_is_due_now_for_its_first_attempt() -> None:
    change = accept(make_new(resend_of="n-0"))
    row = change.row
    assert (change.before, change.attempts_before, change.at) == (None, 0, NOW)
    assert (row.status, row.due_at, row.aged_from, row.attempts) == (Status.PENDING, NOW, NOW, 0)
    assert (row.deadline_at, row.lease_until, row.token) == (NOW + DAY, None, 0)
    assert (row.tenant, row.batch_id, row.resend_of) == ("acme", "b-1", "n-0")


def test_a_row_scheduled_for_later_is_due_and_ages_from_that_time() -> None:
    row = accept(make_new(send_at=NOW + 3 * DAY)).row
    assert (row.due_at, row.aged_from) == (NOW + 3 * DAY, NOW + 3 * DAY)
    assert row.deadline_at == NOW + 4 * DAY


def test_a_send_time_in_the_past_means_now() -> None:
    row = accept(make_new(send_at=NOW - HOUR)).row
    assert (row.due_at, row.aged_from) == (NOW, NOW)


def test_the_deadline_is_the_expiry_if_that_is_earlier() -> None:
    assert accept(make_new(expires_at=NOW + MINUTE)).row.deadline_at == NOW + MINUTE
    assert accept(make_new(expires_at=NOW + 9 * DAY)).row.deadline_at == NOW + DAY


def test_a_synchronous_row_is_accepted_with_a_lease_for_its_caller() -> None:
    change = accept(make_new(mode=Mode.SYNCHRONOUS), lease_to="api-1")
    row = change.row
    assert change.before is None
    assert (row.status, row.attempts, row.worker, row.token) == (Status.SENDING, 1, "api-1", 1)
    assert (row.lease_until, row.started_at) == (NOW + 12 * SECOND, NOW)
    assert (row.due_at, row.deadline_at) == (None, None)


# Leased ----------------------------------------------------------------------------------------------


def test_a_claim_counts_the_attempt_and_creates_a_token_before_anything_is_sent() -> None:
    row = make_row(attempts=2, status=Status.RETRYING, token=5)
    change = lease(row, "worker-1", LEASE_MS, NOW)
    assert (change.before, change.attempts_before) == (Status.RETRYING, 2)
    assert (row.status, row.attempts, row.token) == (Status.SENDING, 3, 6)
    assert (row.lease_until, row.started_at, row.due_at) == (NOW + LEASE_MS, NOW, None)


@pytest.mark.parametrize("status", sorted(set(Status) - {Status.PENDING, Status.RETRYING}))
def test_only_a_waiting_row_is_claimed(status: Status) -> None:
    with pytest.raises(AssertionError, match="only a waiting row is claimed"):
        lease(make_row(status=status), "worker-1", LEASE_MS, NOW)


def test_a_claim_contains_everything_the_worker_needs() -> None:
    row, _ = leased(
        attempts=1,
        status=Status.RETRYING,
        failures_here=1,
        last_delay_ms=10,
        holds={"sns": NOW + 5},
        expires_at=NOW + HOUR,
        attempt_floor=4,
    )
    claim = claim_of(row, MESSAGE, NOW - 5)
    assert (claim.attempt, claim.attempt_floor, claim.failures_here, claim.last_delay_ms) == (2, 4, 1, 10)
    assert (claim.holds, claim.due_at, claim.expires_at) == ({"sns": NOW + 5}, NOW - 5, NOW + HOUR)
    assert (claim.lease_until, claim.worker, claim.message) == (NOW + LEASE_MS, "worker-1", MESSAGE)


def test_there_is_no_claim_without_a_lease() -> None:
    with pytest.raises(AssertionError, match="a claim has a lease"):
        claim_of(make_row(), MESSAGE, NOW)


# Reclaimed -------------------------------------------------------------------------------------------


def test_a_lost_lease_keeps_its_attempt_worker_and_start_time() -> None:
    row, _ = leased()
    change = reclaim(row, "worker-2", LEASE_MS, NOW + MINUTE)
    assert (change.before, change.attempts_before) == (Status.SENDING, 1)
    assert (row.attempts, row.token, row.lease_until) == (1, 2, NOW + MINUTE + LEASE_MS)
    assert (row.worker, row.started_at, row.overdue) == ("worker-1", NOW, False)


def test_a_row_past_its_deadline_is_claimed_without_counting_an_attempt() -> None:
    row = make_row(attempts=1, status=Status.RETRYING)
    change = reclaim(row, "worker-2", LEASE_MS, NOW + DAY)
    assert (change.before, row.status, row.attempts) == (Status.RETRYING, Status.SENDING, 1)
    assert (row.overdue, row.worker, row.token) == (True, "worker-2", 1)
    assert (row.due_at, row.deadline_at) == (None, None)
    assert claim_of(row, MESSAGE, NOW).overdue


def test_a_row_claimed_past_its_deadline_keeps_its_due_time_even_if_its_worker_is_lost() -> None:
    row = make_row(due_at=NOW + 9 * DAY)
    reclaim(row, "worker-2", LEASE_MS, NOW + DAY)
    reclaim(row, "worker-3", LEASE_MS, NOW + DAY + MINUTE)
    assert row.started_at == NOW + 9 * DAY


def test_a_lost_lease_on_a_row_past_its_deadline_still_counts_no_attempt() -> None:
    row = make_row()
    reclaim(row, "worker-2", LEASE_MS, NOW + DAY)
    reclaim(row, "worker-3", LEASE_MS, NOW + DAY + MINUTE)
    assert (row.overdue, row.attempts, row.token) == (True, 0, 2)


def test_after_its_deadline_was_moved_a_claim_counts_an_attempt_again() -> None:
    row = make_row()
    reclaim(row, "worker-2", LEASE_MS, NOW + DAY)
    settle(row, postpone(claim_of(row, MESSAGE, NOW), STEADY, 0, None), NOW + DAY)
    lease(row, "worker-1", LEASE_MS, NOW + DAY)
    assert (row.overdue, row.attempts) == (False, 1)


# Extended --------------------------------------------------------------------------------------------


def test_a_held_lease_is_extended() -> None:
    row, claim = leased(failures_here=1)
    assert extend(row, Lease(row.id, claim.token), LEASE_MS, NOW + MINUTE)
    assert (row.lease_until, row.provider, row.failures_here) == (NOW + MINUTE + LEASE_MS, "twilio", 1)
    assert extend(row, Lease(row.id, claim.token, "twilio", "twilio"), LEASE_MS, NOW + MINUTE)
    assert row.failures_here == 1


def test_a_changed_provider_is_recorded_before_anything_is_sent_there() -> None:
    row, claim = leased(failures_here=1)
    assert extend(row, Lease(row.id, claim.token, "hook", "hook@shop.example"), LEASE_MS, NOW)
    assert (row.provider, row.outlet, row.failures_here) == ("hook", "hook@shop.example", 0)
    assert extend(row, Lease(row.id, claim.token, "sns"), LEASE_MS, NOW)
    assert (row.provider, row.outlet) == ("sns", "sns")


def test_an_extension_never_shortens_a_lease() -> None:
    row, claim = leased()
    assert extend(row, Lease(row.id, claim.token, "sns"), SECOND, NOW + SECOND)
    assert (row.lease_until, row.provider) == (NOW + LEASE_MS, "sns")


@pytest.mark.parametrize(
    ("step_ms", "is_believed"), [(MAX_BELIEVED_STEP_MS, True), (MAX_BELIEVED_STEP_MS + 1, False)]
)
def test_only_a_clock_that_was_set_back_far_shortens_a_lease(step_ms: int, is_believed: bool) -> None:
    row, claim = leased()
    assert extend(row, Lease(row.id, claim.token), SECOND, NOW - step_ms)
    assert row.lease_until == (NOW + LEASE_MS if is_believed else NOW - step_ms + SECOND)


@pytest.mark.parametrize(("status", "token"), [(Status.SENDING, 9), (Status.SENT, 1), (Status.PENDING, 1)])
def test_a_lost_lease_is_not_extended(status: Status, token: int) -> None:
    row, _ = leased()
    row.status = status
    before = replace(row)
    assert not extend(row, Lease(row.id, token, "sns", "sns"), LEASE_MS, NOW + MINUTE)
    assert row == before


def test_a_lease_of_another_worker_with_the_same_token_is_not_extended() -> None:
    row, claim = leased()
    before = replace(row)
    assert not extend(row, Lease(row.id, claim.token, worker="worker-9"), LEASE_MS, NOW + MINUTE)
    assert row == before
    assert extend(row, Lease(row.id, claim.token, worker=claim.worker), LEASE_MS, NOW + MINUTE)
