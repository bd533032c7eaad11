"""Effects of a receipt's verdict on a row."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from msgspec.structs import replace

from homing.core.lifecycle.commands import CommandName
from homing.core.lifecycle.outcomes import AttemptRecord
from homing.core.lifecycle.receipt_decision import (
    ReceiptContext,
    apply_receipt,
    decide_receipt,
    receipt_context,
)
from homing.core.lifecycle.receipts import Receipt, ReceiptEvent
from homing.core.lifecycle.row_commands import apply_command
from homing.core.lifecycle.rows import Change, Row, claim_of, lease, settle
from homing.core.notifications import Mode, OutcomeKind, Reason, Status
from homing.core.retry.decide import NO_OBJECTION, allowed_attempts, check_before_attempt, decide
from homing.core.retry.policy import BounceFailover, Jitter
from support.core_builders import (
    DAY,
    HOUR,
    MESSAGE,
    MINUTE,
    NOW,
    STEADY,
    TWO,
    make_command,
    make_outcome,
    make_receipt,
    make_row,
)

E = ReceiptEvent
LATER = NOW + HOUR


def sent_row(**changes: Any) -> Row:
    fields: dict[str, Any] = {
        "status": Status.SENT,
        "attempts": 1,
        "sent_at": NOW,
        "due_at": None,
        "deadline_at": None,
    }
    return make_row(**fields | changes)


def stand(row: Row, rank: int, now: int) -> ReceiptContext:
    record = AttemptRecord(row.attempts, row.provider, OutcomeKind.ACCEPTED, NOW, 1, "worker-1")
    return receipt_context(row, [record], [rank], 0, now)


def handle_callback(row: Row, receipt: Receipt, now: int = LATER, rank: int = 0) -> Change:
    verdict = decide_receipt(stand(row, rank, now), receipt)
    assert verdict is not None
    return apply_receipt(row, verdict, receipt, now)


def test_a_delivery_is_recorded_with_its_cause() -> None:
    row = sent_row()
    change = handle_callback(row, make_receipt(E.DELIVERED))
    assert (row.status, row.sent_at, row.delivered_at) == (Status.DELIVERED, NOW, LATER)
    assert change.cause is not None
    assert (change.cause.kind, change.cause.name, change.cause.who) == ("receipt", "delivered", "twilio")
    assert (change.cause.before, change.cause.after) == (Status.SENT, Status.DELIVERED)
    assert (change.before, change.attempts_before, row.updated_at) == (Status.SENT, 1, LATER)


def test_a_delivered_dead_letter_is_no_longer_dead() -> None:
    row = sent_row(status=Status.FAILED, failed_at=NOW, reason=Reason.RETRIES_EXHAUSTED, sent_at=None)
    handle_callback(row, make_receipt(E.DELIVERED))
    assert (row.status, row.failed_at, row.reason) == (Status.DELIVERED, None, None)
    assert (row.sent_at, row.delivered_at) == (LATER, LATER)


def test_a_delivery_ends_the_waiting() -> None:
    row = make_row(status=Status.RETRYING, attempts=1)
    handle_callback(row, make_receipt(E.DELIVERED))
    assert (row.status, row.due_at, row.deadline_at) == (Status.DELIVERED, None, None)


def test_a_bounce_reopens_the_row_at_the_next_provider_at_once() -> None:
    row = sent_row(failures_here=1)
    change = handle_callback(row, make_receipt(E.FAILED, error="unreachable", error_code="30005"))
    assert (row.status, row.provider, row.outlet, row.due_at) == (Status.RETRYING, "sns", "sns", LATER)
    assert (row.failures_here, row.sent_at, row.reason) == (0, None, None)
    assert (row.last_error, row.error_code) == ("unreachable", "30005")
    assert change.cause is not None
    assert change.cause.why == "30005"


def test_a_bounce_without_an_error_keeps_the_previous_error() -> None:
    row = sent_row(last_error="earlier", error_code="1")
    change = handle_callback(row, make_receipt(E.FAILED))
    assert (row.last_error, row.error_code) == ("earlier", "1")
    assert change.cause is not None
    assert change.cause.why == ""


@pytest.mark.parametrize(("attempts", "allowed"), [(1, 5), (4, 5), (5, 6)])
def test_a_bounce_grants_one_extra_attempt_only_if_none_is_left(attempts: int, allowed: int) -> None:
    row = sent_row(attempts=attempts, pinned=True)
    handle_callback(row, make_receipt(E.FAILED))
    lease(row, "worker-1", MINUTE, LATER)
    claim = claim_of(row, MESSAGE, LATER)
    assert allowed_attempts(claim, STEADY) == allowed
    assert check_before_attempt(claim, STEADY, NO_OBJECTION, now=LATER) is None


def test_a_bounce_after_the_last_attempt_moves_at_once_without_an_extra_attempt() -> None:
    row = sent_row(attempts=5)
    handle_callback(row, make_receipt(E.FAILED))
    lease(row, "worker-1", MINUTE, LATER)
    claim = claim_of(row, MESSAGE, LATER)
    assert allowed_attempts(claim, STEADY) == 5
    assert check_before_attempt(claim, STEADY, NO_OBJECTION, now=LATER) is None


def test_repeated_bounces_grant_one_extra_attempt_in_total() -> None:
    row, now, made = sent_row(attempts=0, status=Status.SENT), NOW, 0
    for number in range(1, 20):
        now += HOUR
        receipt = make_receipt(E.FAILED, outcome=OutcomeKind.TRANSIENT, provider=row.provider)
        handle_callback(row, receipt, now=now)
        assert row.status is Status.RETRYING
        assert row.due_at is not None
        lease(row, "worker-1", MINUTE, now)
        claim = claim_of(row, MESSAGE, now)
        ended = check_before_attempt(claim, STEADY, NO_OBJECTION, now=now)
        if ended is not None:
            assert (ended.status, ended.reason) == (Status.FAILED, Reason.RETRIES_EXHAUSTED)
            break
        accepted = make_outcome(OutcomeKind.ACCEPTED, provider_message_id=f"m-{number + 1}")
        settled = decide(claim, accepted, STEADY, TWO, elapsed_ms=1, latency_ms=1, u=0.0)
        assert settle(row, settled, now) is not None
        made += 1
    assert made <= len(TWO) * (STEADY.max_attempts + 1) + 1  # the row was sent without an attempt of its own


def test_a_bounce_of_a_pinned_notification_stays_at_its_provider() -> None:
    row = sent_row(pinned=True, bounce_min_ms=MINUTE, bounce_max_ms=MINUTE)
    handle_callback(row, make_receipt(E.FAILED))
    assert (row.status, row.provider, row.outlet) == (Status.RETRYING, "twilio", "twilio")
    assert (row.due_at, row.holds, row.spent, row.moves) == (LATER + MINUTE, {}, {}, 0)


def test_a_bounce_puts_its_provider_on_hold_and_drops_expired_holds() -> None:
    row = sent_row(bounce_min_ms=MINUTE, bounce_max_ms=MINUTE, holds={"spare": NOW, "other": LATER + 1})
    handle_callback(row, make_receipt(E.FAILED, outcome=OutcomeKind.THROTTLED, retry_after_ms=MINUTE))
    assert row.holds == {"twilio": LATER + MINUTE, "other": LATER + 1}


def test_a_bounce_spends_its_provider_and_moves_at_once() -> None:
    row = sent_row(attempts=3, moves=1, spent={"spare": 1})
    handle_callback(row, make_receipt(E.FAILED))
    assert (row.provider, row.due_at, row.spent) == ("sns", LATER, {"spare": 1, "twilio": 1})
    assert (row.moves, row.free_move, row.bounce_floor) == (2, True, 2)


@pytest.mark.parametrize(("pinned", "last_delay_ms"), [(False, 7), (True, MINUTE)])
def test_a_bounce_draws_a_backoff_unless_it_moves_at_once(pinned: bool, last_delay_ms: int) -> None:
    row = sent_row(bounce_min_ms=MINUTE, bounce_max_ms=MINUTE, last_delay_ms=7, pinned=pinned)
    handle_callback(row, make_receipt(E.FAILED))
    assert row.last_delay_ms == last_delay_ms


def test_jitter_is_added_to_the_hold_of_the_provider_that_a_new_round_begins_with() -> None:
    row = sent_row(
        bounce_min_ms=0, bounce_max_ms=MINUTE, spent={"sns": 1}, holds={"sns": LATER + HOUR}, attempts=2
    )
    handle_callback(row, make_receipt(E.FAILED, outcome=OutcomeKind.PROVIDER_FAULT))
    assert row.due_at is not None
    assert (row.provider, LATER + HOUR < row.due_at < LATER + HOUR + MINUTE) == ("sns", True)


def test_a_bounce_does_not_undo_a_refusal() -> None:
    row = sent_row(bounce_min_ms=MINUTE, bounce_max_ms=MINUTE, spent={"twilio": 2, "sns": 1})
    handle_callback(row, make_receipt(E.FAILED))
    assert (row.provider, row.spent, row.due_at) == ("sns", {"twilio": 2}, LATER + MINUTE)


def test_a_bounce_never_shortens_a_hold() -> None:
    row = sent_row(bounce_min_ms=MINUTE, bounce_max_ms=MINUTE, holds={"twilio": LATER + HOUR})
    handle_callback(row, make_receipt(E.FAILED, outcome=OutcomeKind.THROTTLED, retry_after_ms=MINUTE))
    assert row.holds == {"twilio": LATER + HOUR}


def test_a_settlement_stores_the_policy_fields_that_receipts_need() -> None:
    row = sent_row(status=Status.PENDING, attempts=0)
    lease(row, "worker-1", MINUTE, NOW)
    accepted = make_outcome(OutcomeKind.ACCEPTED, provider_message_id="m-1")
    policy = replace(STEADY, jitter=Jitter.ADDITIVE, jitter_ms=500, bounce_failover=BounceFailover.ALWAYS)
    for u in (0.0, 0.9):
        settled = decide(claim_of(row, MESSAGE, NOW), accepted, policy, TWO, elapsed_ms=1, latency_ms=1, u=u)
        assert (settled.bounce_always, settled.bounce_min_ms, settled.bounce_max_ms) == (True, 10_000, 10_500)
    assert settle(row, settled, NOW) is not None
    assert (row.bounce_always, row.bounce_min_ms, row.bounce_max_ms) == (True, 10_000, 10_500)


@pytest.mark.parametrize("kind", [OutcomeKind.AMBIGUOUS, OutcomeKind.LOST])
def test_a_failure_reported_after_a_manual_retry_waits_for_the_backoff_of_the_rule(kind: OutcomeKind) -> None:
    """The last attempt had an unknown outcome, and an operator repeats it before its failure is reported."""
    row = sent_row(status=Status.PENDING, attempts=0, pinned=True, sent_at=None)
    lease(row, "worker-1", MINUTE, NOW)
    claim, policy = claim_of(row, MESSAGE, NOW), replace(STEADY, max_attempts=1)
    settled = decide(claim, make_outcome(kind), policy, TWO, elapsed_ms=1, latency_ms=1, u=0.0)
    assert settle(row, settled, NOW) is not None
    assert row.status is Status.FAILED
    assert apply_command(row, make_command(CommandName.RETRY), NOW) is not None
    handle_callback(row, make_receipt(E.FAILED, outcome=OutcomeKind.TRANSIENT))
    assert (row.status, row.due_at) == (Status.RETRYING, LATER + 10_000)


def test_a_bounce_two_days_later_still_moves_to_the_next_provider() -> None:
    row = sent_row()
    later = NOW + 2 * DAY
    handle_callback(row, make_receipt(E.FAILED), now=later)
    lease(row, "worker-1", MINUTE, later)
    assert check_before_attempt(claim_of(row, MESSAGE, later), STEADY, NO_OBJECTION, now=later) is None


def test_a_bounce_caused_by_the_recipient_is_a_dead_letter() -> None:
    row = sent_row()
    handle_callback(
        row, make_receipt(E.FAILED, outcome=OutcomeKind.BAD_RECIPIENT, error="mailbox does not exist")
    )
    assert (row.status, row.reason, row.failed_at) == (Status.FAILED, Reason.RECEIPT_FAILED, LATER)
    assert (row.last_error, row.due_at) == ("mailbox does not exist", None)


def test_a_synchronous_notification_that_bounces_has_failed_for_good() -> None:
    row = sent_row(mode=Mode.SYNCHRONOUS)
    handle_callback(row, make_receipt(E.FAILED))
    assert (row.status, row.due_at) == (Status.FAILED, None)


def test_a_spam_report_is_final() -> None:
    row = sent_row(status=Status.DELIVERED, delivered_at=NOW)
    handle_callback(row, make_receipt(E.SPAM_REPORT), rank=4)
    assert (row.status, row.reason, row.failed_at) == (Status.FAILED, Reason.SPAM_REPORT, LATER)


def test_a_receipt_resolves_a_row_in_doubt() -> None:
    row = sent_row(status=Status.IN_DOUBT, sent_at=None, reason=Reason.UNCONFIRMED)
    handle_callback(row, make_receipt(E.SENT))
    assert (row.status, row.sent_at, row.reason) == (Status.SENT, LATER, None)


def test_opens_and_clicks_are_counted_and_change_nothing_else() -> None:
    row = sent_row(reason=None)
    for event in (E.OPEN, E.OPEN, E.CLICK):
        change = handle_callback(row, make_receipt(event))
        assert (change.before, row.status) == (Status.SENT, Status.SENT)
    assert row.engagement == {"open": 2, "click": 1}
    assert (row.sent_at, row.due_at) == (NOW, None)


@pytest.mark.parametrize("event", [E.QUEUED, E.SENT, E.UNSUBSCRIBE])
def test_a_receipt_without_effect_on_the_status_is_still_recorded(event: ReceiptEvent) -> None:
    row = sent_row()
    number = row.changes
    change = handle_callback(row, make_receipt(event, error_code="noise"))
    assert row.changes == number + 1
    assert (row.status, row.error_code, row.engagement) == (Status.SENT, None, {})
    assert change.cause is not None
    assert (change.cause.before, change.cause.after) == (Status.SENT, Status.SENT)


def test_a_receipt_during_an_attempt_is_applied_after_its_settlement() -> None:
    row = make_row(status=Status.SENDING)
    with pytest.raises(AssertionError, match="kept for later"):
        handle_callback(row, make_receipt(E.DELIVERED))


@pytest.mark.parametrize(
    "order", list(itertools.permutations([(E.FAILED, True), (E.SPAM_REPORT, False), (E.SENT, False)]))
)
def test_the_reason_of_a_dead_letter_does_not_depend_on_the_order_of_its_receipts(
    order: tuple[tuple[ReceiptEvent, bool], ...],
) -> None:
    row, rank = sent_row(), 0
    for event, at_fault in order:
        receipt = make_receipt(event, outcome=OutcomeKind.BAD_RECIPIENT if at_fault else None)
        verdict = decide_receipt(stand(row, rank, LATER), receipt)
        if verdict is not None:
            apply_receipt(row, verdict, receipt, LATER)
            rank = verdict.rank
    assert (row.status, row.reason) == (Status.FAILED, Reason.SPAM_REPORT)


@pytest.mark.parametrize("events", [(E.SPAM_REPORT, E.DELIVERED), (E.DELIVERED, E.SPAM_REPORT)])
def test_a_spam_report_about_one_message_outranks_receipts_about_others(
    events: tuple[ReceiptEvent, ReceiptEvent],
) -> None:
    row = sent_row()
    for number, event in enumerate(events):
        handle_callback(row, make_receipt(event, provider_message_id=f"m-{number}"))
    assert (row.status, row.reason) == (Status.FAILED, Reason.SPAM_REPORT)
