"""The published form of events: code, JSON Schema and reference agree."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from homing.core.lifecycle import events
from homing.core.lifecycle.events import EVENT_NAMES, EVENT_SCHEMA_VERSION, Event, event_body, event_headers
from homing.core.lifecycle.outcomes import AttemptRecord
from homing.core.lifecycle.trace_ids import traceparent_of
from homing.core.notifications import Channel, Content, Message, OutcomeKind, Reason, Recipient, Status

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"

SCHEMA = json.loads((REFERENCE / "events.schema.json").read_text())

ID = "0193f1c2-aaaa-7bbb-8ccc-0123456789ab"


def attempt(provider: str, error: str | None) -> AttemptRecord:
    return AttemptRecord(
        number=1,
        worker="w",
        provider=provider,
        outcome=OutcomeKind.TRANSIENT,
        started_at=0,
        latency_ms=1,
        provider_message_id=None if error else "m-1",
        error_code=error,
    )


def an_event(name: str, payload: dict[str, Any], about: str | None = ID) -> Event:
    tenant = "default" if about else "*"
    return Event(id="e-1", name=name, tenant=tenant, at=0, notification_id=about, payload=payload)


def changed(before: Status | None, after: Status, reason: Reason | None = None) -> Event:
    payload = events.status_changed(
        notification_id=ID, batch_id="b", before=before, after=after, attempts=1, reason=reason, at=0
    )
    return an_event(events.STATUS_CHANGED, payload)


def failed(channel: Channel, *, bare: bool = False) -> Event:
    payload = events.notification_failed(
        notification_id=ID,
        tenant="default",
        channel=channel,
        message=Message(
            recipient=Recipient(id=None if bare else "u-1"),
            content=Content(body="x"),
            template_key=None if bare else "order_confirmed",
        ),
        attempts=() if bare else (attempt("twilio", "timeout"), attempt("sns", None)),
        attempt_count=0 if bare else 2,
        reason=None if bare else Reason.RETRIES_EXHAUSTED,
        last_error=None if bare else "timeout",
        at=1_700_000_000_123,
    )
    return an_event(events.NOTIFICATION_FAILED, payload)


REVIEWED = an_event(
    events.MANUAL_REVIEW,
    events.manual_review(
        notification_id=ID,
        address="orders",
        message=Message(
            recipient=Recipient(url="orders"),
            content=Content(data={"payload": "eA=="}),
            metadata={"message_id": "m", "retry_count": 3},
        ),
        reason=Reason.RETRIES_EXHAUSTED,
        last_error="timeout",
        at=1_700_000_000_123,
    ),
)

ALERTED = an_event(events.ALERT, events.alert("RetryBacklog", "a message", 5, value=3, limit=2), about=None)

PUBLISHED = [
    *(changed(before, after) for before in (None, *Status) for after in Status),
    *(changed(Status.SENDING, Status.FAILED, reason) for reason in Reason),
    *(failed(channel) for channel in Channel),
    failed(Channel.SMS, bare=True),
    REVIEWED,
    ALERTED,
]


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]})


def test_the_schema_itself_is_valid() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert set(SCHEMA["$defs"]) == EVENT_NAMES
    assert [one["$ref"] for one in SCHEMA["oneOf"]] == [f"#/$defs/{name}" for name in SCHEMA["$defs"]]


def test_every_event_that_is_published_follows_the_schema() -> None:
    whole, single = Draft202012Validator(SCHEMA), {name: validator(name) for name in EVENT_NAMES}
    for event in PUBLISHED:
        body = json.loads(event_body(event))
        assert [*whole.iter_errors(body), *single[event.name].iter_errors(body)] == []


@pytest.mark.parametrize(
    "event", [changed(None, Status.PENDING), failed(Channel.SMS), REVIEWED, ALERTED], ids=str
)
def test_the_schema_requires_every_field_that_is_published_and_no_other(event: Event) -> None:
    described = SCHEMA["$defs"][event.name]
    body = json.loads(event_body(event))
    details = {"value", "limit"} if event is ALERTED else set()
    assert set(described["required"]) == set(described["properties"]) == set(body) - details
    for field in described["required"]:
        assert not validator(event.name).is_valid({key: body[key] for key in body if key != field})
    assert not validator(event.name).is_valid({**body, "schemaVersion": EVENT_SCHEMA_VERSION + 1})


def test_the_schema_has_the_version_of_the_code() -> None:
    assert SCHEMA["$id"] == f"urn:homing:events:{EVENT_SCHEMA_VERSION}"
    for described in SCHEMA["$defs"].values():
        assert described["properties"]["schemaVersion"]["const"] == EVENT_SCHEMA_VERSION


def test_the_reference_lists_the_common_fields_and_all_headers() -> None:
    section = (
        (REFERENCE / "events.md").read_text().partition("## The published form")[2].partition("\n## ")[0]
    )
    named = re.findall(r"^\| `([\w-]+)` \|", section, re.MULTILINE)
    common = set.intersection(*(set(one["properties"]) for one in SCHEMA["$defs"].values())) - {"eventType"}
    traced = Event(
        id="e", name="n", tenant="t", at=0, notification_id=ID, payload={"reason": "R"}, traceparent="00-…"
    )
    assert named == [*json.loads(event_body(traced)), *event_headers(traced)][:3] + list(
        event_headers(traced)
    )
    assert common == set(named[:3])


def test_the_example_in_the_reference_follows_the_schema() -> None:
    text = (REFERENCE / "events.md").read_text()
    example = re.search(r"```json\n(.*?)```", text, re.DOTALL)
    assert example
    validator("NotificationFailed").validate(json.loads(example[1]))


@pytest.mark.source("002", "455-470")
def test_the_alert_event_has_the_fields_of_its_source() -> None:
    body = json.loads(event_body(failed(Channel.SMS)))
    fields = ["eventType", "notificationId", "tenantId", "userId", "channel", "templateKey"]
    fields += ["attemptCount", "lastError", "failedAt", "providerAttempts"]
    assert set(fields) <= set(body)
    assert body["eventType"] == "NotificationFailed"
    assert body["failedAt"] == "2023-11-14T22:13:20.123Z"
    assert [set(one) for one in body["providerAttempts"]] == [{"provider", "messageId", "error"}] * 2


def test_headers_are_text_that_every_protocol_can_carry() -> None:
    for event in PUBLISHED:
        for name, value in event_headers(event).items():
            assert name == name.lower()
            assert isinstance(value, str)
            assert value
            assert value.isascii()
    assert event_headers(ALERTED) == {
        "homing-event-id": "e-1",
        "homing-event-type": "Alert",
        "homing-schema-version": "1",
        "homing-tenant": "*",
        "homing-reason": "RetryBacklog",
    }


def test_a_body_is_the_same_bytes_whenever_it_is_published() -> None:
    assert event_body(failed(Channel.SMS)) == event_body(failed(Channel.SMS))


@pytest.mark.parametrize(
    ("id", "share", "expected"),
    [
        (ID, 1.0, "00-0193f1c2aaaa7bbb8ccc0123456789ab-8ccc0123456789ab-01"),
        (ID, 0.01, "00-0193f1c2aaaa7bbb8ccc0123456789ab-8ccc0123456789ab-00"),
        (ID, 0.0, None),
        (None, 1.0, None),
        ("not-a-uuid", 1.0, None),
    ],
)
def test_the_trace_context_follows_from_the_id(id: str | None, share: float, expected: str | None) -> None:
    assert traceparent_of(id, share) == expected


def test_the_tenant_of_a_failure_is_the_tenant_of_its_event() -> None:
    body: Mapping[str, Any] = json.loads(event_body(failed(Channel.EMAIL)))
    assert body["tenantId"] == "default"
