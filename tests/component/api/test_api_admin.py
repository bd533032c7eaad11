"""Operations for administrators: the manual retry of source 002, purging, and what is not recorded."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from homing import Homing, Status
from homing.core.notifications import OutcomeKind
from homing.providers.local.scripted import ScriptedProvider
from support.running_service import RunningService

Serve = Callable[..., RunningService]
REASON = "Customer support request - SMS delivery failed due to temporary provider outage"
OVERRIDE = {"X-Admin-Override": "true"}
TEXT = {"recipient": {"phone": "+15550100"}, "channel": "sms", "content": {"body": "hello"}}


class AdminService:
    """A service with one dead letter. Both providers work again."""

    def __init__(self, serve: Serve) -> None:
        self.twilio = ScriptedProvider("twilio", [OutcomeKind.BAD_CONTENT])
        self.sns = ScriptedProvider("sns")
        self.http = serve(store="memory:", providers={"twilio": self.twilio, "sns": self.sns})
        self.id = self.send()

    def send(self, **more: Any) -> str:
        sent = self.http.call("POST", "/api/v1/notifications/send", {**TEXT, **more})
        id: str = sent.json["notificationId"]
        self.process()
        return id

    def process(self) -> None:
        self.http.on_loop(lambda engine: engine.process())

    def status(self, id: str) -> Status:
        async def read(engine: Homing) -> Status:
            return (await engine.get(id)).status

        return Status(self.http.on_loop(read))

    def retry(self, body: Any, id: str = "", headers: Any = OVERRIDE, **more: Any) -> Any:
        path = f"/api/v1/admin/notifications/{id or self.id}/retry"
        return self.http.call("POST", path, body, headers=headers, **more)


@pytest.fixture
def office(serve: Serve) -> AdminService:
    return AdminService(serve)


@pytest.mark.source("002", "440", "475-498", "600-616")
def test_a_manual_retry_is_answered_as_in_the_source_and_uses_the_forced_provider(
    office: AdminService,
) -> None:
    assert office.status(office.id) is Status.FAILED
    answer = office.retry({"reason": REASON, "forceProvider": "AWS_SNS"})
    assert answer.status == 200
    said = answer.json
    assert list(said) == [
        "success",
        "notificationId",
        "retryAttemptId",
        "status",
        "estimatedDeliveryTime",
    ]
    assert (said["success"], said["notificationId"], said["status"]) == (True, office.id, "queued")
    assert said["retryAttemptId"] == f"{office.id}:2"
    estimated = datetime.fromisoformat(said["estimatedDeliveryTime"])
    assert timedelta(0) < estimated - datetime.now(UTC) < timedelta(minutes=5)
    office.process()
    assert office.status(office.id) is Status.SENT
    assert (len(office.twilio.sent), len(office.sns.sent)) == (1, 1)
    assert office.http.trail.notes == [
        ("key:default", "notification.retry", office.id, {"why": REASON, "provider": "AWS_SNS"})
    ]


def test_without_the_override_scope_it_is_forbidden_and_nothing_happens(office: AdminService) -> None:
    for headers in ({}, {"X-Admin-Override": "false"}, {"X-Admin-Override": ""}):
        refused = office.retry({"reason": REASON}, headers=headers)
        assert (refused.status, refused.json["error"]["code"]) == (403, "FORBIDDEN")
        assert refused.json["error"]["field"] == "X-Admin-Override"
    assert office.retry({"reason": REASON}, key="default:operate,read,send,manage").status == 403
    assert office.status(office.id) is Status.FAILED
    assert office.http.trail.notes == []


def test_it_needs_a_reason_a_provider_of_the_channel_and_an_existing_notification(
    office: AdminService,
) -> None:
    for body in ({}, {"reason": ""}, {"reason": "  "}):
        refused = office.retry(body)
        assert refused.status == 400
        assert "reason" in refused.json["error"]["message"]
    wrong = office.retry({"reason": REASON, "forceProvider": "pigeon"})
    assert (wrong.status, wrong.json["error"]["field"]) == (422, "forceProvider")
    nobody = office.retry({"reason": REASON}, id="018d0c7e-5a00-7000-8000-000000000001")
    assert (nobody.status, nobody.json["error"]["code"]) == (404, "NOT_FOUND")
    assert office.retry({"reason": REASON}, key="other").status == 404
    assert office.status(office.id) is Status.FAILED


def test_a_sent_notification_is_not_retried(office: AdminService) -> None:
    id = office.send()
    refused = office.retry({"reason": REASON}, id=id)
    assert (refused.status, refused.json["error"]["code"]) == (409, "COMMAND_REFUSED")


def test_a_purge_counts_first_and_then_removes_old_notifications(office: AdminService) -> None:
    def purge(json: Any = None) -> Any:
        answer = office.http.call("POST", "/api/v1/admin/purge", json)
        assert answer.status == 200, answer.body
        return answer.json

    assert purge()["removed"]["notifications"] == 0
    would = purge({"days": 0, "dryRun": True})
    assert would == {"removed": {"notifications": 1}, "dryRun": True, "complete": True}
    assert purge({"deliveredDays": 0, "dryRun": True})["removed"]["notifications"] == 0
    assert office.status(office.id) is Status.FAILED
    assert purge({"othersDays": 0})["removed"]["notifications"] == 1
    assert office.http.call("GET", f"/api/v1/notifications/{office.id}").status == 404
    assert [note[1] for note in office.http.trail.notes] == ["purge.run", "purge.run"]


def test_a_purge_needs_an_administrator_and_names_an_invalid_field(office: AdminService) -> None:
    assert office.http.call("POST", "/api/v1/admin/purge", {}, key="default:operate").status == 403
    both = office.http.call("POST", "/api/v1/admin/purge", {"days": 1, "sentDays": 2})
    assert (both.status, both.json["error"]["field"]) == (422, "days")
    assert office.http.call("POST", "/api/v1/admin/purge", {"days": -1}).status == 400
    assert office.status(office.id) is Status.FAILED


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("notifications/none/cancel", {}),
        ("notifications/none/reschedule", {"delayMs": 1000}),
        ("notifications/none/resolve", {"status": "sent"}),
        ("notifications/none/move-to-dead-letter", {}),
        ("dead-letters/none/acknowledge", {}),
        ("dead-letters/none/resend", {}),
        ("tenants/none/disable", {}),
        ("tenants/none/enable", {}),
        ("keys/none/revoke", {}),
        ("jobs/01890000-0000-7000-8000-000000000000/stop", None),
    ],
)
def test_a_command_on_what_does_not_exist_leaves_no_entry_in_the_audit_trail(
    serve: Serve, path: str, body: dict[str, Any] | None
) -> None:
    """Entries are never removed, so requests with made-up ids must not add any."""
    service = serve(store="memory:")
    refused = service.call("POST", f"/api/v1/{path}", body)
    assert (refused.status, service.trail.notes) == (404, [])
