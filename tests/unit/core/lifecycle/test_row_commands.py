"""Effects of an operator's commands on a row."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from msgspec.structs import replace

from homing.core.lifecycle.commands import CommandName
from homing.core.lifecycle.row_commands import apply_command, resent_row
from homing.core.lifecycle.rows import Change, Row, claim_of, lease
from homing.core.lifecycle.states import WAITING, after_command
from homing.core.notifications import Mode, Reason, Status
from homing.core.retry.decide import NO_OBJECTION, check_before_attempt
from support.core_builders import DAY, HOUR, MESSAGE, MINUTE, NOW, SECOND, STEADY, make_command, make_row

C = CommandName
LATER = NOW + HOUR


def row_in(status: Status, **changes: Any) -> Row:
    """Returns a row with this status after two attempts."""
    fields: dict[str, Any] = {
        "status": status,
        "attempts": 2,
        "due_at": None,
        "deadline_at": None,
        "token": 2,
    }
    if status in WAITING:
        fields |= {"due_at": NOW + MINUTE, "deadline_at": NOW + DAY}
    if status is Status.SENDING:
        fields |= {"lease_until": NOW + MINUTE, "worker": "worker-1"}
    if status is Status.FAILED:
        fields |= {"failed_at": NOW, "reason": Reason.RETRIES_EXHAUSTED}
    return make_row(**fields | changes)


def order(row: Row, name: CommandName, now: int = LATER, **changes: Any) -> Change:
    change = apply_command(row, make_command(name, **changes), now)
    assert change is not None
    return change


@pytest.mark.parametrize(
    ("name", "status", "mode"),
    list(itertools.product(CommandName, Status, [Mode.STANDARD, Mode.SYNCHRONOUS])),
)
def test_a_command_is_applied_if_the_table_allows_it_and_otherwise_changes_nothing(
    name: CommandName, status: Status, mode: Mode
) -> None:
    row = row_in(status, mode=mode)
    given = make_command(
        name, resolution=Status.FAILED if name is C.RESOLVE else None, new_ids={"n-1": "n-2"}
    )
    untouched, expected = replace(row), after_command(given, status, mode=mode)
    change = apply_command(row, given, LATER)
    if expected is None:
        assert change is None
        assert row == untouched
        return
    assert change is not None
    assert row.status is expected
    assert change.cause is not None
    assert (change.cause.kind, change.cause.name, change.cause.at) == ("command", name.value, LATER)
    assert (change.cause.before, change.cause.after) == (status, expected)
    assert (change.cause.who, change.cause.why) == ("ada", "asked for")
    assert (change.before, change.attempts_before, row.updated_at) == (status, 2, LATER)


# Cancel ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [Status.PENDING, Status.RETRYING, Status.IN_DOUBT])
def test_a_cancelled_row_has_no_next_attempt(status: Status) -> None:
    row = row_in(status)
    order(row, C.CANCEL)
    assert (row.status, row.reason) == (Status.CANCELLED, Reason.OPERATOR)
    assert (row.due_at, row.deadline_at, row.failed_at) == (None, None, None)


def test_a_retry_of_a_cancelled_row_forgets_the_requested_cancel() -> None:
    row = row_in(Status.CANCELLED, cancel_requested=True)
    order(row, C.RETRY)
    assert (row.status, row.cancel_requested) == (Status.RETRYING, False)


def test_a_retry_begins_a_round_without_failures() -> None:
    row = row_in(Status.RETRYING, failures_here=1, spent={"sns": 1})
    order(row, C.RETRY)
    assert (row.failures_here, row.spent) == (0, {})


def test_a_cancel_forgets_a_move_that_was_not_made_yet() -> None:
    row = row_in(Status.RETRYING, moves=2, free_move=True, spent={"sns": 1})
    order(row, C.CANCEL)
    assert (row.attempts, row.moves, row.free_move) == (2, 1, False)


def test_a_cancel_during_an_attempt_is_only_recorded() -> None:
    row = row_in(Status.SENDING)
    order(row, C.CANCEL)
    assert (row.status, row.cancel_requested, row.lease_until) == (Status.SENDING, True, NOW + MINUTE)


# Retry -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [Status.PENDING, Status.RETRYING])
def test_retrying_a_waiting_row_makes_it_due_now_without_an_extra_attempt(status: Status) -> None:
    row = row_in(status, holds={"twilio": NOW + DAY})
    order(row, C.RETRY)
    assert (row.status, row.due_at, row.deadline_at) == (status, LATER, NOW + DAY)
    assert (row.attempt_floor, row.holds, row.aged_from) == (0, {}, NOW)


FINISHED = [Status.FAILED, Status.EXPIRED, Status.SKIPPED, Status.CANCELLED, Status.IN_DOUBT]


@pytest.mark.parametrize("status", FINISHED)
def test_retrying_a_finished_row_reopens_it_with_one_extra_attempt(status: Status) -> None:
    row = row_in(status, attempts=5, aged_from=NOW - 9 * DAY, holds={"twilio": NOW + DAY})
    order(row, C.RETRY)
    assert (row.status, row.due_at, row.attempt_floor) == (Status.RETRYING, LATER, 6)
    assert (row.failed_at, row.reason, row.holds) == (None, None, {})
    assert (row.aged_from, row.deadline_at) == (LATER, LATER + DAY)
    lease(row, "worker-1", MINUTE, LATER)
    claim = claim_of(row, MESSAGE, LATER)
    assert check_before_attempt(claim, STEADY, NO_OBJECTION, now=LATER) is None, "it may be attempted"


def test_a_row_without_attempts_waits_for_its_first() -> None:
    row = row_in(Status.SKIPPED, attempts=0)
    change = order(row, C.RETRY)
    assert row.status is Status.PENDING
    assert change.cause is not None
    assert change.cause.after is Status.PENDING


def test_an_attempt_granted_earlier_is_kept() -> None:
    row = row_in(Status.FAILED, attempts=2, attempt_floor=9)
    order(row, C.RETRY)
    assert row.attempt_floor == 9


@pytest.mark.parametrize(("expires_at", "kept"), [(LATER, None), (LATER - 1, None), (LATER + 1, LATER + 1)])
def test_an_expiry_in_the_past_is_dropped_and_one_in_the_future_is_kept(
    expires_at: int, kept: int | None
) -> None:
    row = row_in(Status.EXPIRED, expires_at=expires_at)
    order(row, C.RETRY)
    assert row.expires_at == kept


@pytest.mark.parametrize("status", [Status.RETRYING, Status.FAILED])
def test_a_forced_provider_is_used_and_kept(status: Status) -> None:
    row = row_in(status, failures_here=1)
    order(row, C.RETRY, provider="hook", outlet="hook@shop.example")
    assert (row.provider, row.outlet, row.pinned) == ("hook", "hook@shop.example", True)
    assert row.failures_here == 0


def test_without_an_outlet_the_forced_provider_is_its_own_outlet() -> None:
    row = row_in(Status.FAILED)
    order(row, C.RETRY, provider="sns")
    assert (row.provider, row.outlet) == ("sns", "sns")


# Reschedule, acknowledge, resolve --------------------------------------------------------------------


@pytest.mark.parametrize("status", [Status.PENDING, Status.RETRYING])
def test_a_rescheduled_row_is_due_at_the_given_time(status: Status) -> None:
    row = row_in(status)
    order(row, C.RESCHEDULE, delay_ms=30 * MINUTE)
    assert (row.status, row.due_at) == (status, LATER + 30 * MINUTE)


def test_a_rescheduled_row_no_longer_waits_for_its_own_provider() -> None:
    row = row_in(Status.RETRYING, holds={"twilio": NOW + DAY, "sns": NOW + DAY})
    order(row, C.RESCHEDULE, delay_ms=MINUTE)
    assert (row.provider, row.holds) == ("twilio", {"sns": NOW + DAY})


def test_a_row_rescheduled_beyond_its_age_limit_is_still_attempted_at_that_time() -> None:
    row = row_in(Status.PENDING, attempts=0)
    order(row, C.RESCHEDULE, now=NOW, delay_ms=3 * DAY)
    assert row.due_at == NOW + 3 * DAY
    assert row.deadline_at is not None
    assert row.deadline_at > row.due_at
    lease(row, "worker-1", MINUTE, row.due_at)
    claim = claim_of(row, MESSAGE, NOW + 3 * DAY)
    assert check_before_attempt(claim, STEADY, NO_OBJECTION, now=NOW + 3 * DAY) is None


def test_an_acknowledgement_records_who_when_and_why_and_changes_nothing_else() -> None:
    row = row_in(Status.FAILED)
    order(row, C.ACKNOWLEDGE)
    assert (row.acknowledged_at, row.acknowledged_by, row.acknowledged_why) == (LATER, "ada", "asked for")
    assert (row.status, row.failed_at, row.reason) == (Status.FAILED, NOW, Reason.RETRIES_EXHAUSTED)
    order(row, C.ACKNOWLEDGE, why="")
    assert row.acknowledged_why is None


def test_an_in_doubt_row_resolved_as_sent_is_sent() -> None:
    row = row_in(Status.IN_DOUBT, reason=Reason.UNCONFIRMED)
    order(row, C.RESOLVE, resolution=Status.SENT)
    assert (row.status, row.reason, row.sent_at, row.failed_at) == (Status.SENT, None, LATER, None)


def test_an_in_doubt_row_resolved_as_failed_is_a_dead_letter_with_the_operator_s_reason() -> None:
    row = row_in(Status.IN_DOUBT, reason=Reason.UNCONFIRMED)
    order(row, C.RESOLVE, resolution=Status.FAILED)
    assert (row.status, row.reason, row.failed_at) == (Status.FAILED, Reason.OPERATOR, LATER)


@pytest.mark.parametrize("status", [Status.PENDING, Status.RETRYING, Status.IN_DOUBT])
def test_a_row_moved_by_an_operator_is_a_dead_letter_and_waits_no_more(status: Status) -> None:
    row = row_in(status, last_error="busy")
    order(row, C.FAIL)
    assert (row.status, row.reason, row.failed_at) == (Status.FAILED, Reason.OPERATOR, LATER)
    assert (row.due_at, row.deadline_at, row.last_error) == (None, None, "busy")


# Resend ----------------------------------------------------------------------------------------------

RESEND = make_command(C.RESEND, new_ids={"n-1": "n-2"}, batch_id="b-2", max_age_ms=HOUR)


@pytest.mark.parametrize("status", [Status.FAILED, Status.EXPIRED, Status.SKIPPED, Status.CANCELLED])
def test_the_original_of_a_resend_is_acknowledged_and_linked_and_keeps_its_status(status: Status) -> None:
    row = row_in(status)
    assert apply_command(row, RESEND, LATER) is not None
    assert (row.status, row.resent_as) == (status, "n-2")
    assert (row.acknowledged_at, row.acknowledged_by) == (LATER, "ada")


def test_the_in_doubt_original_of_a_resend_is_final() -> None:
    row = row_in(Status.IN_DOUBT)
    assert apply_command(row, RESEND, LATER) is not None
    assert (row.status, row.failed_at, row.resent_as) == (Status.FAILED, LATER, "n-2")


def test_a_second_resend_changes_nothing() -> None:
    row = row_in(Status.FAILED)
    assert apply_command(row, RESEND, LATER) is not None
    assert apply_command(row, replace(RESEND, new_ids={"n-1": "n-3"}), LATER) is None
    assert apply_command(row, make_command(C.RETRY), LATER) is None
    assert row.resent_as == "n-2"


def test_the_new_row_of_a_resend_starts_from_scratch_with_the_same_message() -> None:
    old = row_in(
        Status.FAILED,
        attempt_floor=4,
        failures_here=1,
        last_delay_ms=9,
        holds={"twilio": LATER + 1},
        send_at=NOW - DAY,
        expires_at=NOW - 1,
        sent_at=NOW,
        engagement={"open": 1},
        last_error="busy",
        error_code="503",
        last_attempt_at=NOW,
        changes=8,
    )
    apply_command(old, RESEND, LATER)
    change = resent_row(old, RESEND, LATER)
    untouched = make_row()
    assert change.row == replace(
        untouched,
        id="n-2",
        batch_id="b-2",
        resend_of="n-1",
        max_age_ms=HOUR,
        created_at=LATER,
        updated_at=LATER,
        aged_from=LATER,
        due_at=LATER,
        deadline_at=LATER + HOUR,
    )
    assert (change.before, change.attempts_before, old.status) == (None, 0, Status.FAILED)


def test_a_resend_may_force_the_provider() -> None:
    old = row_in(Status.FAILED)
    fresh = resent_row(old, replace(RESEND, provider="hook", outlet="hook@shop.example"), LATER).row
    assert (fresh.provider, fresh.outlet, fresh.pinned) == ("hook", "hook@shop.example", True)
    assert resent_row(old, replace(RESEND, provider="sns"), LATER).row.outlet == "sns"
    assert not resent_row(old, RESEND, LATER).row.pinned


def test_the_original_s_lease_does_not_appear_in_its_resend() -> None:
    old = row_in(Status.FAILED, started_at=NOW - SECOND)
    fresh = resent_row(old, RESEND, LATER).row
    assert (fresh.lease_until, fresh.worker, fresh.overdue) == (None, "", False)
