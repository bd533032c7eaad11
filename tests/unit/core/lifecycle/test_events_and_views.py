"""Data that leaves the core: event payloads and the read model."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.core.lifecycle import events
from homing.core.lifecycle.outcomes import AttemptRecord
from homing.core.lifecycle.rows import CauseRecord
from homing.core.lifecycle.views import history, notification, optional_moment
from homing.core.notifications import Channel, Message, OutcomeKind, Reason, Recipient, Status
from support.core_builders import DAY, HOUR, MESSAGE, NOW, SECOND, make_row

SEED_002 = {
    "eventType": "NotificationFailed",
    "notificationId": "notif-uuid-123",
    "tenantId": "tenant-uuid-456",
    "userId": "user-uuid-789",
    "channel": "sms",
    "templateKey": "order_confirmed",
    "attemptCount": 6,
    "lastError": "Twilio API timeout",
    "failedAt": "2025-01-20T15:30:00Z",
    "providerAttempts": [
        {"provider": "twilio", "messageId": "SM123", "error": "timeout"},
        {"provider": "sns", "messageId": "sns-456", "error": "invalid_number"},
    ],
}
"""The alert of source 002, with Homing's own provider ids."""


YEAR_2200 = 7_258_118_400_000


def attempt(number: int, provider: str, **fields: str | None) -> AttemptRecord:
    return AttemptRecord(
        number=number,
        provider=provider,
        outcome=OutcomeKind.TRANSIENT,
        started_at=NOW,
        latency_ms=250,
        worker="worker-1",
        error_code=fields.get("error_code"),
        error=fields.get("error"),
        provider_message_id=fields.get("message_id"),
    )


ATTEMPTS = (
    attempt(1, "twilio", message_id="SM123", error_code="timeout", error="Twilio API timeout"),
    attempt(2, "sns", message_id="sns-456", error="invalid_number"),
)


@pytest.mark.source("002", "439", "455-470")
def test_the_alert_of_a_dead_letter_has_the_fields_of_source_002() -> None:
    found = events.notification_failed(
        notification_id="notif-uuid-123",
        tenant="tenant-uuid-456",
        channel=Channel.SMS,
        message=MESSAGE,
        attempts=ATTEMPTS,
        attempt_count=6,
        reason=Reason.RETRIES_EXHAUSTED,
        last_error="Twilio API timeout",
        at=NOW,
    )
    assert found.pop("reason") == "RETRIES_EXHAUSTED"
    assert found == SEED_002 | {"failedAt": "2025-01-20T15:30:00.000Z"}
    assert datetime.fromisoformat(found["failedAt"]) == datetime.fromisoformat("2025-01-20T15:30:00Z")


def test_an_alert_about_an_unknown_recipient_says_so() -> None:
    message = Message(recipient=Recipient(phone="+15550100"), content=MESSAGE.content)
    found = events.notification_failed(
        notification_id="n-1",
        tenant="acme",
        channel=Channel.SMS,
        message=message,
        attempts=(),
        attempt_count=0,
        reason=None,
        last_error=None,
        at=NOW,
    )
    assert (found["userId"], found["templateKey"], found["reason"]) == (None, None, None)
    assert found["providerAttempts"] == []
    assert "+15550100" not in str(found), "no address leaves with an alert"


def test_a_status_change_has_both_statuses_and_the_reason() -> None:
    found = events.status_changed(
        notification_id="n-1",
        batch_id="b-1",
        before=Status.SENDING,
        after=Status.SKIPPED,
        attempts=2,
        reason=Reason.SUPPRESSED,
        at=NOW + 7,
    )
    assert (found["statusBefore"], found["status"], found["reason"]) == ("sending", "skipped", "SUPPRESSED")
    assert found["at"] == "2025-01-20T15:30:00.007Z"


def test_an_alert_carries_its_details() -> None:
    assert events.alert("ProviderDown", "twilio is down", NOW, provider="twilio", waiting=7) == {
        "eventType": "Alert",
        "alert": "ProviderDown",
        "message": "twilio is down",
        "at": "2025-01-20T15:30:00.000Z",
        "provider": "twilio",
        "waiting": 7,
    }


def test_every_event_name_is_known() -> None:
    assert frozenset({"StatusChanged", "NotificationFailed", "ManualReview", "Alert"}) == events.EVENT_NAMES


@given(st.integers(0, YEAR_2200))
def test_a_time_is_written_to_the_millisecond_and_reads_back_as_it_was(at: int) -> None:
    assert datetime.fromisoformat(events.format_time(at)) == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
        milliseconds=at
    )


@given(st.integers(0, YEAR_2200))
def test_the_read_model_s_times_are_exact_and_in_utc(at: int) -> None:
    found = optional_moment(at)
    assert found == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at)
    assert found.utcoffset() == timedelta(0)


def test_an_absent_time_stays_absent() -> None:
    assert optional_moment(None) is None


def test_the_read_model_uses_the_public_names() -> None:
    row = make_row(
        status=Status.FAILED,
        attempts=2,
        failed_at=NOW + HOUR,
        reason=Reason.RETRIES_EXHAUSTED,
        last_error="Twilio API timeout",
        error_code="timeout",
        acknowledged_at=NOW + DAY,
        acknowledged_by="ada",
        acknowledged_why="known outage",
        due_at=None,
        engagement={"open": 2},
    )
    found = msgspec.to_builtins(notification(row, MESSAGE, ATTEMPTS))
    assert found["attemptCount"] == 2
    assert found["providerNames"] == ("twilio", "sns")
    assert found["providerMessageIds"] == ("SM123", "sns-456")
    assert (found["status"], found["reason"], found["lastError"]) == (
        "failed",
        "RETRIES_EXHAUSTED",
        "Twilio API timeout",
    )
    assert found["failedAt"] == "2025-01-20T16:30:00Z"
    assert (found["acknowledgedBy"], found["acknowledgedWhy"]) == ("ada", "known outage")
    assert found["engagement"] == {"open": 2}
    assert "nextRetryAt" not in found


@pytest.mark.parametrize("status", [Status.PENDING, Status.RETRYING])
def test_a_waiting_notification_shows_its_next_attempt(status: Status) -> None:
    found = notification(make_row(status=status), MESSAGE)
    assert found.next_retry_at == optional_moment(NOW)
    assert (found.provider_names, found.provider_message_ids) == ((), ())


def test_every_public_field_of_the_row_is_in_the_read_model() -> None:
    hidden = {
        "lane",
        "outlet",
        "address",
        "token",
        "changes",
        "attempts",
        "failures_here",
        "free_move",
        "last_delay_ms",
        "max_age_ms",
        "holds",
        "aged_from",
        "due_at",
        "deadline_at",
        "lease_until",
        "started_at",
        "worker",
        "overdue",
        "bounce_always",
        "bounce_min_ms",
        "bounce_max_ms",
        "unknown_bounce",
    }
    row = make_row()
    shown = notification(row, MESSAGE)
    assert set(row.__struct_fields__) - set(shown.__struct_fields__) == hidden


def test_the_history_has_every_attempt_and_every_other_change() -> None:
    cause = CauseRecord(
        kind="command",
        name="retry",
        at=NOW + SECOND,
        before=Status.FAILED,
        after=Status.RETRYING,
        who="ada",
        why="escalated",
    )
    found = history(make_row(attempts=2), MESSAGE, ATTEMPTS, [cause])
    assert [one.number for one in found.attempts] == [1, 2]
    first = found.attempts[0]
    assert (first.ended_at - first.started_at, first.latency_ms) == (timedelta(milliseconds=250), 250)
    assert (first.error_code, first.error, first.worker) == ("timeout", "Twilio API timeout", "worker-1")
    (told,) = found.causes
    assert (told.kind, told.name, told.who, told.why) == ("command", "retry", "ada", "escalated")
    assert (told.status_before, told.status_after, told.at) == (
        Status.FAILED,
        Status.RETRYING,
        optional_moment(NOW + SECOND),
    )
    assert found.notification.provider_names == ("twilio", "sns")
