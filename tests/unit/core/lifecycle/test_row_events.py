"""Events that a change emits, and amounts that it adds to the roll-ups."""

from __future__ import annotations

from typing import Any

import pytest

from homing.core.lifecycle import events
from homing.core.lifecycle.commands import CommandName
from homing.core.lifecycle.outcomes import AttemptRecord
from homing.core.lifecycle.receipt_decision import ReceiptDecision, apply_receipt
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.lifecycle.row_commands import apply_command, resent_row
from homing.core.lifecycle.row_events import events_of, roll_up_counts
from homing.core.lifecycle.rows import Change, Row, claim_of, lease, reclaim, settle
from homing.core.notifications import OutcomeKind, Reason, Status
from homing.core.retry.decide import decide, postpone
from homing.core.statistics import RollUp
from support.core_builders import (
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
    make_receipt,
    make_row,
)

ALL = events.EVENT_NAMES


def settled(kind: OutcomeKind, **changes: Any) -> Change:
    """Returns the change made by an attempt with this outcome."""
    row = make_row(**changes)
    lease(row, "worker-1", MINUTE, NOW)
    outcome = make_outcome(kind, error="Twilio API timeout")
    claim = claim_of(row, MESSAGE, NOW)
    settlement = decide(claim, outcome, STEADY, TWO, elapsed_ms=SECOND, latency_ms=9, u=0.0)
    change = settle(row, settlement, NOW + SECOND)
    assert change is not None
    return change


def names(change: Change, subscribed: frozenset[str] = ALL) -> list[str]:
    return [event.name for event in events_of(change, subscribed, MESSAGE, ())]


def ordered(row: Row, name: CommandName, **changes: Any) -> Change:
    change = apply_command(row, make_command(name, **changes), NOW + HOUR)
    assert change is not None
    return change


def received(row: Row, event: ReceiptEvent, after: Status, *, reopened: bool = False) -> Change:
    verdict = ReceiptDecision(status_after=after, rank=3, provider="sns", outlet="sns", reopened=reopened)
    return apply_receipt(row, verdict, make_receipt(event), NOW + HOUR)


# Events ----------------------------------------------------------------------------------------------


def test_a_new_notification_emits_that_it_is_pending() -> None:
    change = accept(make_new())
    (event,) = events_of(change, ALL, MESSAGE, ())
    assert (event.name, event.tenant, event.at, event.notification_id) == (
        "StatusChanged",
        "acme",
        NOW,
        "n-1",
    )
    assert event.payload == {
        "eventType": "StatusChanged",
        "notificationId": "n-1",
        "batchId": "b-1",
        "statusBefore": None,
        "status": "pending",
        "attemptCount": 0,
        "reason": None,
        "at": "2025-01-20T15:30:00.000Z",
    }


def test_the_start_of_an_attempt_emits_nothing() -> None:
    row = make_row()
    assert names(lease(row, "worker-1", MINUTE, NOW)) == []
    assert names(reclaim(row, "worker-2", MINUTE, NOW)) == []
    assert names(accept(make_new(), lease_to="api-1")) == []


def test_a_retry_emits_its_status_and_a_dead_letter_emits_an_alert_too() -> None:
    assert names(settled(OutcomeKind.TRANSIENT)) == ["StatusChanged"]
    assert names(settled(OutcomeKind.ACCEPTED)) == ["StatusChanged"]
    assert names(settled(OutcomeKind.BAD_RECIPIENT)) == ["StatusChanged", "NotificationFailed"]


def test_only_subscribed_events_are_written() -> None:
    change = settled(OutcomeKind.BAD_RECIPIENT)
    assert names(change, frozenset()) == []
    assert names(change, frozenset({events.STATUS_CHANGED})) == ["StatusChanged"]
    assert names(change, frozenset({events.NOTIFICATION_FAILED})) == ["NotificationFailed"]
    assert names(change, frozenset({events.ALERT})) == []


def test_the_alert_of_a_dead_letter_lists_every_attempt() -> None:
    change = settled(OutcomeKind.TRANSIENT, attempts=4, status=Status.RETRYING, spent={"sns": 1})
    attempts = [
        AttemptRecord(
            number=n,
            provider=provider,
            outcome=OutcomeKind.TRANSIENT,
            started_at=NOW,
            latency_ms=1,
            worker="w",
            error_code="timeout",
        )
        for n, provider in enumerate(("twilio", "sns"), 1)
    ]
    failed = events_of(change, ALL, MESSAGE, attempts)[1]
    assert failed.payload["attemptCount"] == 5
    assert failed.payload["lastError"] == "Twilio API timeout"
    assert failed.payload["failedAt"] == "2025-01-20T15:30:01.000Z"
    assert [a["provider"] for a in failed.payload["providerAttempts"]] == ["twilio", "sns"]


def test_a_command_that_keeps_the_status_emits_nothing() -> None:
    failed = make_row(status=Status.FAILED, attempts=2)
    assert names(ordered(failed, CommandName.ACKNOWLEDGE)) == []
    assert names(ordered(make_row(), CommandName.RETRY)) == []
    assert names(ordered(failed, CommandName.RETRY)) == ["StatusChanged"]


def test_each_event_of_a_change_has_its_own_deterministic_id() -> None:
    change = settled(OutcomeKind.BAD_RECIPIENT)
    ids = [event.id for event in events_of(change, ALL, MESSAGE, ())]
    assert len(set(ids)) == 2
    assert ids == [event.id for event in events_of(change, ALL, MESSAGE, ())]


def test_the_events_of_two_changes_never_share_an_id() -> None:
    row, seen = make_row(), []
    for _ in range(5):
        lease(row, "worker-1", MINUTE, NOW)
        change = settle(row, postpone(claim_of(row, MESSAGE, NOW), STEADY, 0, Reason.RATE_LIMIT), NOW)
        assert change is not None
        seen += [event.id for event in events_of(change, ALL, MESSAGE, ())]
    assert len(seen) == len(set(seen)) == 5


# Roll-ups --------------------------------------------------------------------------------------------


def test_the_amounts_have_the_names_of_the_roll_up() -> None:
    changes = [accept(make_new()), *(settled(kind) for kind in OutcomeKind)]
    named = {name for change in changes for name in roll_up_counts(change)}
    assert named == {"accepted", "attempts", "retried", "sent", "failed"}
    assert named | {"delivered"} <= set(RollUp.__struct_fields__)


@pytest.mark.parametrize(
    ("kind", "sums"),
    [
        (OutcomeKind.ACCEPTED, {"attempts": 1, "sent": 1}),
        (OutcomeKind.TRANSIENT, {"attempts": 1, "retried": 1}),
        (OutcomeKind.LOST, {"attempts": 1, "retried": 1}),
        (OutcomeKind.BAD_CONTENT, {"attempts": 1, "failed": 1}),
    ],
)
def test_an_attempt_counts_itself_and_its_result(kind: OutcomeKind, sums: dict[str, int]) -> None:
    assert roll_up_counts(settled(kind)) == sums


def test_an_attempt_confirmed_at_once_counts_as_sent_and_delivered() -> None:
    row = make_row()
    lease(row, "worker-1", MINUTE, NOW)
    outcome = make_outcome(OutcomeKind.ACCEPTED, delivered=True)
    settlement = decide(claim_of(row, MESSAGE, NOW), outcome, STEADY, TWO, elapsed_ms=1, latency_ms=1, u=0.0)
    change = settle(row, settlement, NOW)
    assert change is not None
    assert roll_up_counts(change) == {"attempts": 1, "sent": 1, "delivered": 1}


def test_an_acceptance_and_a_resend_each_count_as_accepted() -> None:
    assert roll_up_counts(accept(make_new())) == {"accepted": 1}
    assert roll_up_counts(accept(make_new(), lease_to="api-1")) == {"accepted": 1}
    order = make_command(CommandName.RESEND, new_ids={"n-1": "n-2"})
    assert roll_up_counts(resent_row(make_row(status=Status.FAILED), order, NOW)) == {"accepted": 1}


def test_a_claim_and_a_postponement_count_nothing() -> None:
    row = make_row(status=Status.RETRYING, attempts=1)
    assert roll_up_counts(lease(row, "worker-1", MINUTE, NOW)) == {}
    change = settle(row, postpone(claim_of(row, MESSAGE, NOW), STEADY, MINUTE, None), NOW)
    assert change is not None
    assert row.status is Status.RETRYING
    assert roll_up_counts(change) == {}


def test_a_postponement_before_the_first_attempt_counts_nothing_either() -> None:
    row = make_row()
    lease(row, "worker-1", MINUTE, NOW)
    change = settle(row, postpone(claim_of(row, MESSAGE, NOW), STEADY, MINUTE, None), NOW)
    assert change is not None
    assert roll_up_counts(change) == {}


def test_a_receipt_counts_the_delivery_or_the_retry_it_causes() -> None:
    sent = {"status": Status.SENT, "attempts": 1}
    assert roll_up_counts(received(make_row(**sent), ReceiptEvent.DELIVERED, Status.DELIVERED)) == {
        "delivered": 1
    }
    bounced = received(make_row(**sent), ReceiptEvent.FAILED, Status.RETRYING, reopened=True)
    assert roll_up_counts(bounced) == {"retried": 1, "bounced": 1}
    assert roll_up_counts(received(make_row(**sent), ReceiptEvent.OPEN, Status.SENT)) == {"opened": 1}
    assert roll_up_counts(received(make_row(**sent), ReceiptEvent.CLICK, Status.SENT)) == {"clicked": 1}


def test_a_manual_retry_counts_as_a_retry_but_hurrying_a_waiting_row_does_not() -> None:
    assert roll_up_counts(ordered(make_row(status=Status.FAILED, attempts=1), CommandName.RETRY)) == {
        "retried": 1
    }
    assert roll_up_counts(ordered(make_row(status=Status.RETRYING, attempts=1), CommandName.RETRY)) == {}
    assert roll_up_counts(ordered(make_row(), CommandName.CANCEL)) == {}
