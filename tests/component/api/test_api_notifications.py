"""Sending, and reading what was sent, over real HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from homing import Listed, OutcomeKind, PolicyPatch, Rule
from homing.core.notifications import Channel
from homing.core.retry.policy import OnTimeout
from homing.engine.system_runtime import SystemClock
from homing.providers.local.scripted import ScriptedProvider
from homing.testing.manual_clock import ManualClock
from support.running_service import RunningService

Serve = Callable[..., RunningService]
SEND = "/api/v1/notifications/send"
MAIL = {"recipient": {"email": "ada@example.org"}, "channel": "email", "content": {"body": "hello"}}
MINUTE_MS = 60_000


class ShiftedClock(SystemClock):
    """The real clock, plus an offset that a test chooses."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


def pigeon(*script: Any, usual: Any = OutcomeKind.ACCEPTED) -> dict[str, Any]:
    """A service with one email provider whose outcome the test chooses."""
    provider = ScriptedProvider("pigeon", script, usual=usual)
    return {"pigeon": Listed(id="pigeon", provider=provider, channels=(Channel.EMAIL, Channel.PUSH))}


@pytest.fixture
def service(serve: Serve) -> RunningService:
    return serve(store="memory:", providers=pigeon())


def accepted(service: RunningService, request: Any = MAIL, **options: Any) -> str:
    sent = service.call("POST", SEND, request, **options)
    assert sent.status == 202, sent
    return str(sent.json["notificationId"])


def process(service: RunningService) -> None:
    service.on_loop(lambda engine: engine.process())


# Sending ---------------------------------------------------------------------------------------------


def test_an_accepted_request_returns_its_queue(service: RunningService) -> None:
    sent = service.call("POST", SEND, MAIL)
    assert sent.status == 202
    assert sent.json["status"] == "queued"
    assert sent.json["queueName"] == "homing-standard"
    assert sent.json["notificationIds"] == [sent.json["notificationId"]]


def test_several_channels_become_several_notifications_of_one_batch(service: RunningService) -> None:
    to = {"email": "ada@example.org", "deviceToken": "token-1"}
    sent = service.call("POST", SEND, {**MAIL, "recipient": to, "channel": "both"})
    assert len(sent.json["notificationIds"]) == 2
    assert "notificationId" not in sent.json
    found = service.call("GET", f"/api/v1/notifications?batchId={sent.json['batchId']}").json["items"]
    assert {one["id"] for one in found} == set(sent.json["notificationIds"])
    batch = service.call("GET", f"/api/v1/batches/{sent.json['batchId']}", key="default:read").json
    assert (batch["total"], batch["statuses"], batch["complete"]) == (2, {"pending": 2}, True)
    assert service.call("GET", "/api/v1/batches").json["items"] == [batch]
    assert service.call("GET", "/api/v1/batches/01977420-dfe8-782e-af72-8b4fa42485e3").status == 404


def test_the_same_idempotency_key_returns_the_same_result_and_with_another_body_a_conflict(
    service: RunningService,
) -> None:
    key = {"Idempotency-Key": "order-1"}
    first = service.call("POST", SEND, MAIL, headers=key)
    again = service.call("POST", SEND, MAIL, headers=key)
    assert (again.status, again.json["notificationId"]) == (202, first.json["notificationId"])
    assert (first.json.get("duplicate"), again.json["duplicate"]) == (None, True)
    other = service.call("POST", SEND, {**MAIL, "priority": "high"}, headers=key)
    assert (other.status, other.json["error"]["code"]) == (409, "IDEMPOTENCY_CONFLICT")
    in_body = service.call("POST", SEND, {**MAIL, "idempotencyKey": "order-1"})
    assert in_body.json["notificationId"] == first.json["notificationId"]


def test_two_different_keys_in_one_request_are_refused(service: RunningService) -> None:
    refused = service.call("POST", SEND, {**MAIL, "idempotencyKey": "a"}, headers={"Idempotency-Key": "b"})
    assert (refused.status, refused.json["error"]["field"]) == (422, "idempotencyKey")
    assert service.call("GET", "/api/v1/notifications").json["items"] == []


def test_an_invalid_header_is_named(service: RunningService) -> None:
    for name, value in (("Idempotency-Key", ""), ("Idempotency-Key", "k" * 256), ("Accept-Language", "\x80")):
        refused = service.call("POST", SEND, MAIL, headers={name: value})
        assert (refused.status, refused.json["error"]["field"]) == (400, name)


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"recipient": {"email": "ada@example.org", "emial": "x"}}, "recipient.emial"),
        ({"content": {"body": "hello", "htlm": "<p>hello"}}, "content.htlm"),
        (
            {"content": {"body": "hello", "attachments": [{"filename": "a", "content": "", "typ": "b"}]}},
            "content.attachments[0].typ",
        ),
    ],
)
def test_an_unknown_field_at_any_depth_is_named_and_nothing_is_stored(
    service: RunningService, part: Any, field: str
) -> None:
    refused = service.call("POST", SEND, {**MAIL, **part})
    assert (refused.status, refused.json["error"]["field"]) == (400, field)
    assert refused.json["error"]["message"].startswith(f"{field}: is not known")
    assert service.call("GET", "/api/v1/notifications").json["items"] == []


def test_idempotency_keys_of_two_tenants_are_independent(service: RunningService) -> None:
    key = {"Idempotency-Key": "order-1"}
    one = accepted(service, key="acme", headers=key)
    assert accepted(service, key="other", headers=key) != one


# Looking ---------------------------------------------------------------------------------------------


def test_a_list_is_newest_first_and_continues_at_its_cursor(service: RunningService) -> None:
    ids = [accepted(service) for _ in range(5)]
    first = service.call("GET", "/api/v1/notifications?limit=3").json
    rest = service.call("GET", f"/api/v1/notifications?limit=3&cursor={first['cursor']}").json
    assert [one["id"] for one in first["items"] + rest["items"]] == sorted(ids, reverse=True)
    assert rest["cursor"] is None
    for path in (
        "notifications?cursor=made-up",
        "notifications?q=ada&cursor=made-up",
        "dead-letters?cursor=u-made-up",
    ):
        refused = service.call("GET", f"/api/v1/{path}")
        assert (refused.status, refused.json["error"]["field"]) == (422, "cursor"), path
    assert {one["attemptCount"] for one in first["items"]} == {0}, "it is there before the first attempt too"


def test_every_filter_finds_exactly_what_matches(serve: Serve) -> None:
    clock = ShiftedClock()
    pigeons = pigeon("bad_recipient")
    hawk = Listed(id="hawk", provider=ScriptedProvider("hawk"), channels=(Channel.EMAIL,))
    service = serve(store="memory:", providers={**pigeons, "hawk": hawk}, clock=clock)
    accepted(service, {**MAIL, "provider": "hawk"})
    process(service)
    clock.ahead_ms += MINUTE_MS
    to = {"deviceToken": "grace-1"}
    metadata = {"entry_id": 42, "paid": True}
    id = accepted(
        service, {**MAIL, "recipient": to, "channel": "push", "type": "other", "metadata": metadata}
    )
    process(service)
    found = service.call("GET", f"/api/v1/notifications/{id}").json
    for chosen in (
        "statuses=failed",
        "statuses=failed,expired",
        "statuses=failed&statuses=expired",
        "channel=push",
        "type=other",
        "provider=Pigeon",
        "address=grace-1",
        f"batchId={found['batchId']}",
        "reason=BAD_RECIPIENT",
        "errorCode=bad_recipient",
        "acknowledged=false&statuses=failed",
        "status=failed&status=expired",
        "metadata=entry_id=42&metadata=paid=true",
        f"createdFrom={found['createdAt']}",
    ):
        page = service.call("GET", f"/api/v1/notifications?{chosen}").json
        assert [one["id"] for one in page["items"]] == [id], chosen
    others = ("acknowledged=true", f"createdFrom={found['createdAt']}&channel=email", "metadata=paid=false")
    for chosen in others:
        assert service.call("GET", f"/api/v1/notifications?{chosen}").json["items"] == [], chosen


def test_an_invalid_filter_is_named(service: RunningService) -> None:
    for query, field in (
        ("state=failed", "state"),
        ("metadata=entry_id", "metadata[0]"),
        ("statuses=lost", "statuses[0]"),
        ("limit=0", "limit"),
        ("limit=many", "limit"),
        ("createdFrom=yesterday", "createdFrom"),
        ("createdFrom=2025-06-15T15:07:00", "createdFrom"),
        ("type=a%00b", "type"),
        ("limit=5&limit=6", "limit"),
    ):
        refused = service.call("GET", f"/api/v1/notifications?{query}")
        assert (refused.status, refused.json["error"]["code"]) == (400, "MALFORMED_REQUEST"), query
        assert refused.json["error"]["field"] == field


def test_attempts_and_explanation_show_the_past_and_the_next_step(serve: Serve) -> None:
    service = serve(store="memory:", providers=pigeon("transient"), preset="simple")
    id = accepted(service)
    process(service)
    told = service.call("GET", f"/api/v1/notifications/{id}/attempts").json
    assert [(one["number"], one["outcome"]) for one in told["attempts"]] == [(1, "transient")]
    assert told["causes"] == []
    why = service.call("GET", f"/api/v1/notifications/{id}/explain").json
    assert why["presetRule"] == "default"
    assert (why["policy"]["maxAttempts"], why["policy"]["baseMs"]) == (3, 300_000)
    assert why["sources"]["baseMs"] == "preset simple/default"
    assert why["verdict"] == "1 attempt so far: pigeon returned transient"
    assert why["nextStep"].startswith("attempt 2 of 3 at ")


def test_retry_info_accepts_other_settings_and_changes_nothing(serve: Serve) -> None:
    service = serve(store="memory:", providers=pigeon("transient"), preset="simple")
    id = accepted(service)
    process(service)
    path = f"/api/v1/notifications/{id}/retry-info"
    own, other = (
        service.call("GET", path).json,
        service.call("GET", f"{path}?maxAttempts=5&delayMs=600000").json,
    )
    assert list(own) == [
        "notificationId", "currentAttempts", "maxAttempts", "retriesRemaining", "hasMoreRetries",
        "lastAttemptAt", "nextRetryAt", "isReadyForRetry", "status", "errorMessage", "currentDelayMinutes",
        "nextDelayMinutes", "moves", "spent",
    ]  # fmt: skip
    assert (own["maxAttempts"], own["currentDelayMinutes"], own["nextDelayMinutes"]) == (3, 5.0, 10.0)
    assert (other["maxAttempts"], other["currentDelayMinutes"], other["nextDelayMinutes"]) == (5, 10.0, 20.0)
    assert service.call("GET", path).json == own


# Commands --------------------------------------------------------------------------------------------


def test_a_cancelled_notification_is_not_sent_and_shows_who_and_why(service: RunningService) -> None:
    id = accepted(service)
    done = service.call("POST", f"/api/v1/notifications/{id}/cancel", {"why": "typo"}, key="default:send")
    assert done.json == {"notificationId": id, "cancelled": True, "requested": False}
    (cause,) = service.call("GET", f"/api/v1/notifications/{id}/attempts").json["causes"]
    assert (cause["name"], cause["who"], cause["why"]) == ("cancel", "key:default", "typo")
    assert ("key:default", "notification.cancel", id, {}) in service.trail.notes
    again = service.call("POST", f"/api/v1/notifications/{id}/cancel")
    assert (again.status, again.json["error"]["code"]) == (409, "COMMAND_REFUSED")


def test_a_waiting_notification_is_rescheduled(serve: Serve) -> None:
    clock = ManualClock()
    service = serve(store="memory:", providers=pigeon(), clock=clock)
    id = accepted(service)
    later = service.call("POST", f"/api/v1/notifications/{id}/reschedule", {"delayMs": 90_000})
    assert later.json["nextRetryAt"] == "2025-06-15T15:08:10Z"
    assert service.trail.notes[-1][1:] == ("notification.reschedule", id, {"delayMs": 90_000})
    refused = service.call("POST", f"/api/v1/notifications/{id}/reschedule", {"delayMs": -1})
    assert (refused.status, refused.json["error"]["field"]) == (400, "delayMs")


def test_a_notification_in_doubt_is_resolved(serve: Serve) -> None:
    rules = [Rule(name="hold", policy=PolicyPatch(on_timeout=OnTimeout.HOLD))]
    service = serve(store="memory:", providers=pigeon("ambiguous"), rules=rules)
    id = accepted(service)
    process(service)
    path = f"/api/v1/notifications/{id}/resolve"
    assert service.call("POST", path, {"status": "delivered"}).status == 400
    assert service.call("POST", path, {"status": "sent", "why": "asked"}).json["status"] == "sent"
    assert service.call("POST", path, {"status": "sent"}).json["error"]["code"] == "COMMAND_REFUSED"


def test_another_tenant_s_notifications_are_neither_read_nor_changed(service: RunningService) -> None:
    id = accepted(service, key="acme")
    before = service.call("GET", f"/api/v1/notifications/{id}", key="acme").json
    for path in ("", "/attempts", "/explain", "/retry-info"):
        assert service.call("GET", f"/api/v1/notifications/{id}{path}", key="acme").status == 200
        refused = service.call("GET", f"/api/v1/notifications/{id}{path}", key="other")
        unknown = service.call("GET", f"/api/v1/notifications/{id[:-1]}x{path}", key="other")
        assert (refused.status, unknown.status) == (404, 404)
    commands: Any = {"cancel": {}, "reschedule": {"delayMs": 1}, "resolve": {"status": "sent"}}
    for name, body in commands.items():
        assert service.call("POST", f"/api/v1/notifications/{id}/{name}", body, key="other").status == 404
    assert service.call("GET", f"/api/v1/notifications/{id}", key="acme").json == before


def test_a_key_with_only_the_scope_send_cannot_operate(service: RunningService) -> None:
    id = accepted(service)
    for path, body in (("reschedule", {"delayMs": 1}), ("resolve", {"status": "sent"})):
        refused = service.call("POST", f"/api/v1/notifications/{id}/{path}", body, key="default:send")
        assert refused.status == 403
    assert service.call("GET", "/api/v1/notifications", key="default:send").status == 403
