"""Effects of a settlement on a row: retry, ending, postponement, and a cancel that arrived meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from homing.core.lifecycle.claims import Claim, Lease
from homing.core.lifecycle.commands import CommandName
from homing.core.lifecycle.outcomes import AttemptRecord, Settlement
from homing.core.lifecycle.row_commands import apply_command
from homing.core.lifecycle.rows import Change, Row, claim_of, extend, lease, reclaim, settle
from homing.core.notifications import OutcomeKind, Reason, Status
from homing.core.retry.decide import RecipientFacts, check_before_attempt, decide, postpone
from support.core_builders import (
    DAY,
    HOUR,
    MESSAGE,
    MINUTE,
    NOW,
    SECOND,
    STEADY,
    TWO,
    accept,
    make_command,
    make_new,
    make_outcome,
    make_row,
)

LEASE_MS = 40 * SECOND


def leased(**changes: Any) -> tuple[Row, Claim]:
    row = make_row(**changes)
    lease(row, "worker-1", LEASE_MS, NOW)
    return row, claim_of(row, MESSAGE, NOW)


def finish(row: Row, kind: OutcomeKind, now: int = NOW + SECOND, **outcome: Any) -> Change:
    claim = claim_of(row, MESSAGE, NOW)
    settled = decide(
        claim, make_outcome(kind, **outcome), STEADY, TWO, elapsed_ms=SECOND, latency_ms=900, u=0.0
    )
    change = settle(row, settled, now)
    assert change is not None
    return change


@pytest.mark.parametrize(("status", "token"), [(Status.SENDING, 9), (Status.SENT, 1), (Status.PENDING, 1)])
def test_a_late_settlement_changes_nothing(status: Status, token: int) -> None:
    row, claim = leased()
    row.status = status
    before = replace(row)
    assert settle(row, postpone(replace(claim, token=token), STEADY, MINUTE, None), NOW) is None
    assert row == before


def test_no_settlement_leaves_a_row_in_sending() -> None:
    row, claim = leased()
    with pytest.raises(AssertionError, match="illegal: sending → sending"):
        settle(row, replace(postpone(claim, STEADY, 0, None), status=Status.SENDING), NOW)


def test_a_retry_s_delay_starts_at_the_commit() -> None:
    row, _ = leased(spent={"sns": 1})
    change = finish(row, OutcomeKind.TRANSIENT, now=NOW + 5 * SECOND, error="busy", error_code="503")
    assert (row.status, row.due_at) == (Status.RETRYING, NOW + 5 * SECOND + 10 * SECOND)
    assert (row.last_error, row.error_code, row.last_attempt_at) == ("busy", "503", NOW + 5 * SECOND)
    assert (row.lease_until, row.worker, row.failures_here, row.last_delay_ms) == (None, "", 0, 10 * SECOND)
    assert (change.before, change.attempts_before) == (Status.SENDING, 1)
    assert (change.attempt is not None, change.cause) == (True, None)


@pytest.mark.parametrize(("delivered", "status"), [(False, Status.SENT), (True, Status.DELIVERED)])
def test_success_keeps_the_last_error_and_records_the_time(delivered: bool, status: Status) -> None:
    row, _ = leased(last_error="busy", error_code="503", attempts=1, status=Status.RETRYING, failed_at=5)
    finish(row, OutcomeKind.ACCEPTED, delivered=delivered)
    assert (row.status, row.last_error, row.error_code, row.failed_at) == (status, "busy", "503", None)
    assert row.sent_at == NOW + SECOND
    assert row.delivered_at == (NOW + SECOND if delivered else None)
    assert (row.due_at, row.deadline_at) == (None, None)


def test_a_dead_letter_records_when_why_and_after_how_many_attempts() -> None:
    row, _ = leased(attempts=4, status=Status.RETRYING, spent={"sns": 1})
    finish(row, OutcomeKind.TRANSIENT, error="Twilio API timeout", error_code="timeout")
    assert (row.status, row.reason) == (Status.FAILED, Reason.RETRIES_EXHAUSTED)
    assert (row.failed_at, row.last_error, row.attempts) == (NOW + SECOND, "Twilio API timeout", 5)


def test_a_move_at_once_is_due_at_once_and_stored_with_what_is_spent() -> None:
    row, _ = leased(last_delay_ms=7)
    finish(row, OutcomeKind.TRANSIENT)
    assert (row.status, row.provider, row.due_at) == (Status.RETRYING, "sns", NOW + SECOND)
    assert (row.spent, row.moves, row.free_move, row.attempts) == ({"twilio": 1}, 1, True, 1)
    lease(row, "worker-1", MINUTE, NOW + SECOND)
    finish(row, OutcomeKind.ACCEPTED)
    assert (row.spent, row.moves, row.free_move) == ({"twilio": 1}, 1, False), "a receipt may still need it"


def test_a_postponement_leaves_what_is_spent_and_a_move_at_once_alone() -> None:
    row, claim = leased(
        provider="sns", attempts=1, moves=1, free_move=True, spent={"twilio": 1}, status=Status.RETRYING
    )
    assert settle(row, postpone(claim, STEADY, MINUTE, Reason.RATE_LIMIT), NOW + SECOND) is not None
    assert (row.spent, row.moves, row.free_move, row.attempts) == ({"twilio": 1}, 1, True, 1)


def test_extending_a_lease_leaves_what_is_spent_alone() -> None:
    row, claim = leased(attempts=1, moves=1, free_move=True, spent={"spare": 1}, status=Status.RETRYING)
    assert extend(row, Lease(row.id, claim.token, "sns", "sns"), MINUTE, NOW)
    assert (row.provider, row.spent, row.moves, row.free_move) == ("sns", {"spare": 1}, 1, True)


def test_a_postponement_returns_the_attempt_and_records_nothing() -> None:
    row, claim = leased()
    change = settle(row, postpone(claim, STEADY, MINUTE, Reason.RATE_LIMIT), NOW + SECOND)
    assert change is not None
    assert (row.status, row.attempts, row.due_at) == (Status.PENDING, 0, NOW + SECOND + MINUTE)
    assert (row.reason, row.last_attempt_at) == (Reason.RATE_LIMIT, None)
    assert (change.attempts_before, change.attempt, change.cause) == (1, None, None)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (Status.EXPIRED, Reason.EXPIRED),
        (Status.SKIPPED, Reason.SUPPRESSED),
        (Status.FAILED, Reason.PROVIDER_UNAVAILABLE),
        (Status.SKIPPED, None),
    ],
)
def test_an_ending_by_the_guard_names_the_guard_as_its_cause(status: Status, reason: Reason | None) -> None:
    row, claim = leased()
    settled = replace(postpone(claim, STEADY, 0, reason), status=status)
    change = settle(row, settled, NOW)
    assert change is not None
    assert change.cause is not None
    assert (change.cause.kind, change.cause.name, change.cause.who) == ("guard", status.value, "homing")
    assert (change.cause.before, change.cause.after) == (Status.SENDING, status)
    assert change.cause.why == (reason.value if reason else "")
    assert row.attempts == 0


def test_a_new_age_limit_moves_the_deadline() -> None:
    row, claim = leased()
    settle(row, replace(postpone(claim, STEADY, MINUTE, None), max_age_ms=HOUR), NOW)
    assert (row.max_age_ms, row.deadline_at) == (HOUR, NOW + HOUR)


def test_a_provider_with_retry_after_is_put_on_hold_and_expired_holds_are_dropped() -> None:
    row, _ = leased(failures_here=1, holds={"spare": NOW + DAY, "other": NOW + 1})
    finish(row, OutcomeKind.THROTTLED, now=NOW + SECOND, retry_after_ms=HOUR)
    assert row.holds == {"spare": NOW + DAY, "twilio": NOW + SECOND + HOUR}
    assert (row.provider, row.outlet) == ("sns", "sns")


# Cancelled during an attempt -------------------------------------------------------------------------


def cancelled_while_sending() -> tuple[Row, Claim]:
    row, claim = leased()
    assert apply_command(row, make_command(CommandName.CANCEL), NOW) is not None
    assert (row.status, row.cancel_requested) == (Status.SENDING, True)
    return row, claim


def test_a_cancel_during_an_attempt_ends_a_row_that_would_have_waited() -> None:
    row, _ = cancelled_while_sending()
    change = finish(row, OutcomeKind.TRANSIENT, error="busy")
    assert (row.status, row.due_at, row.cancel_requested) == (Status.CANCELLED, None, False)
    assert change.cause is not None
    assert (change.cause.kind, change.cause.name, change.cause.after) == (
        "command",
        "cancel",
        Status.CANCELLED,
    )
    assert change.attempt is not None, "the attempt was made and stays on record"


@pytest.mark.parametrize("reason", [None, Reason.RATE_LIMIT])
def test_a_cancelled_row_names_the_operator_as_its_cause_whatever_it_would_have_waited_for(
    reason: Reason | None,
) -> None:
    row, claim = cancelled_while_sending()
    settle(row, postpone(claim, STEADY, MINUTE, reason), NOW)
    assert (row.status, row.reason, row.attempts) == (Status.CANCELLED, Reason.OPERATOR, 0)


@pytest.mark.parametrize(
    ("kind", "status"),
    [(OutcomeKind.ACCEPTED, Status.SENT), (OutcomeKind.BAD_RECIPIENT, Status.FAILED)],
)
def test_a_cancel_that_came_too_late_is_kept_only_while_a_receipt_may_report_a_failure(
    kind: OutcomeKind, status: Status
) -> None:
    row, _ = cancelled_while_sending()
    finish(row, kind)
    assert (row.status, row.cancel_requested) == (status, status is Status.SENT)


def test_an_attempt_is_stored_as_in_its_settlement() -> None:
    row, claim = leased()
    record = AttemptRecord(
        number=1, provider="sns", outcome=OutcomeKind.LOST, started_at=NOW, latency_ms=5, worker=claim.worker
    )
    settled = Settlement(
        id=claim.id,
        token=claim.token,
        worker=claim.worker,
        started_at=claim.started_at,
        status=Status.RETRYING,
        attempt=record,
        provider="sns",
        outlet="sns",
        hold_ms=MINUTE,
        max_age_ms=DAY,
    )
    change = settle(row, settled, NOW)
    assert change is not None
    assert change.attempt is record
    assert row.holds == {"sns": NOW + MINUTE}


@pytest.mark.parametrize(("worker", "later_ms"), [("worker-2", 0), ("worker-1", 1)])
def test_a_lease_with_the_same_token_is_not_settled_by_the_claim_of_a_lease_that_was_lost(
    worker: str, later_ms: int
) -> None:
    """The store has gone back to the state before the first lease."""
    _, lost = leased()
    row = make_row()
    lease(row, worker, LEASE_MS, NOW + later_ms)
    before = replace(row)
    settled = decide(
        lost, make_outcome(OutcomeKind.ACCEPTED), STEADY, TWO, elapsed_ms=SECOND, latency_ms=900, u=0.0
    )
    for settlement in (settled, postpone(lost, STEADY, 0, None)):
        assert settle(row, settlement, NOW + SECOND) is None
    assert row == before


def test_no_attempt_is_given_back_to_a_row_that_was_taken_over_past_its_deadline() -> None:
    """The store has gone back to the state before the first lease, whose worker has the second one too."""
    _, lost = leased()
    row = make_row()
    reclaim(row, "worker-1", LEASE_MS, NOW + SECOND)
    assert (row.token, row.overdue) == (lost.token, True)
    before = replace(row)
    assert settle(row, postpone(lost, STEADY, 0, None), NOW + MINUTE) is None
    assert row == before
    own = settle(row, postpone(claim_of(row, MESSAGE, NOW), STEADY, 0, None), NOW + MINUTE)
    assert (own is not None, row.attempts) == (True, 0)


def test_every_change_has_a_sequence_number() -> None:
    row = accept(make_new()).row
    numbers = [row.changes]
    for _ in range(3):
        lease(row, "worker-1", LEASE_MS, NOW)
        numbers.append(row.changes)
        settle(row, postpone(claim_of(row, MESSAGE, NOW), STEADY, 0, None), NOW + MINUTE)
        numbers.append(row.changes)
    assert numbers == [1, 2, 3, 4, 5, 6, 7]
    assert row.updated_at == NOW + MINUTE


def test_a_cancel_during_the_attempt_forgets_the_move_that_would_have_followed() -> None:
    row, _ = leased()
    row.cancel_requested = True
    finish(row, OutcomeKind.PROVIDER_FAULT)
    assert (row.status, row.attempts, row.moves, row.free_move) == (Status.CANCELLED, 1, 0, False)


def test_a_move_that_was_made_still_counts_when_the_row_ends() -> None:
    row, _ = leased(moves=1, free_move=True, attempts=1, status=Status.RETRYING)
    finish(row, OutcomeKind.ACCEPTED)
    assert (row.attempts, row.moves, row.free_move) == (2, 1, False)


def test_a_row_that_ends_before_its_move_at_once_has_not_made_it() -> None:
    row, claim = leased(moves=1, free_move=True, attempts=1, status=Status.RETRYING)
    ended = check_before_attempt(claim, STEADY, RecipientFacts(skip=Reason.SUPPRESSED), now=NOW)
    assert ended is not None
    settle(row, ended, NOW)
    assert (row.status, row.attempts, row.moves, row.free_move) == (Status.SKIPPED, 1, 0, False)
