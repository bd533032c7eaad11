"""Provider callbacks over real HTTP with real signatures: applied once, and never if forged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from homing import Homing, Status
from homing.api.settings import ServiceSettings
from homing.core.errors import StoreUnavailable
from support.fake_vendors import (
    GRID_KEY,
    PUBLIC,
    FakeVendors,
    Post,
    Report,
    forged,
    posts,
    signed_post,
    twilio_json_post,
)
from support.running_service import Reply, RunningService

Serve = Callable[..., RunningService]
TO: dict[str, dict[str, Any]] = {
    "twilio": {"recipient": {"phone": "+15550100"}, "channel": "sms"},
    "sendgrid": {"recipient": {"email": "ada@example.org"}, "channel": "email"},
    "fcm": {"recipient": {"deviceToken": "token-1"}, "channel": "push"},
}
SECOND = {"sns": "twilio", "acs": "sendgrid"}


class VendorService:
    """A service with all five vendors."""

    def __init__(self, serve: Serve, plan: Any = lambda vendor, address, number: ("delivered",)) -> None:
        self.vendors = FakeVendors(plan)
        self.http = serve(
            ServiceSettings(public_url=PUBLIC),
            store="memory:",
            providers=self.vendors.providers(),
            preset="priority",
        )

    def send(self, vendor: str) -> str:
        """Sends one message that this vendor accepts, and returns its id."""
        request = {**TO[SECOND.get(vendor, vendor)], "content": {"title": "Hi", "body": "Hello"}}
        sent = self.http.call("POST", "/api/v1/notifications/send", {**request, "provider": vendor})
        assert sent.status == 202, sent.body
        self.http.on_loop(lambda engine: engine.process())
        id: str = sent.json["notificationId"]
        assert self.status(id) is Status.SENT
        return id

    def post(self, post: Post) -> Reply:
        return self.http.call("POST", post.path, body=post.body, headers=post.headers, key=None)

    def status(self, id: str) -> Status:
        return Status(self.history(id).notification.status)

    def history(self, id: str) -> Any:
        async def read(engine: Homing) -> Any:
            return await engine.history(id)

        return self.http.on_loop(read)


@pytest.fixture
def service(serve: Serve) -> VendorService:
    return VendorService(serve)


@pytest.mark.source("002", "281", "302-311", "322-323", "329", "351")
@pytest.mark.parametrize("vendor", ["twilio", "sendgrid", "fcm", "acs", "sns"])
def test_a_signed_callback_is_applied_and_a_forged_one_is_refused(
    service: VendorService, vendor: str
) -> None:
    id = service.send(vendor)
    (report,) = service.vendors.reports
    before = service.history(id)
    refused = service.post(forged(report))
    assert (refused.status, refused.json["error"]["code"]) == (401, "INVALID_SIGNATURE")
    assert service.history(id) == before
    (post,) = posts([report])
    answer = service.post(post)
    assert (answer.status, answer.body) == (204, b"")
    assert "content-length" not in answer.headers
    assert service.status(id) is Status.DELIVERED
    again = service.post(post)
    assert again.status == 204


VENDORS = ["twilio", "sendgrid", "fcm", "acs", "sns"]

WITHOUT_ID = {
    "twilio": {"MessageStatus": "delivered"},
    "sendgrid": [{"event": "delivered", "sg_event_id": "e"}],
    "fcm": {"event": "delivered"},
    "acs": [{"id": "e", "eventType": "Microsoft.Communication.EmailDeliveryReportReceived", "data": {}}],
    "sns": {"status": "SUCCESS", "notification": {}},
}


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_signed_callback_that_cannot_be_read_is_answered_with_400_and_logged(
    service: VendorService, vendor: str, caplog: pytest.LogCaptureFixture
) -> None:
    no_id = msgspec.json.encode(WITHOUT_ID[vendor]).decode()
    for body in ("not JSON", "[[[", '"text"', "17", "null", "{}", no_id):
        caplog.clear()
        refused = service.post(signed_post(vendor, body))
        assert (refused.status, refused.json["error"]["code"]) == (400, "UNREADABLE_CALLBACK"), body
        assert any(
            vendor in found.getMessage() for found in caplog.records if found.name == "homing.callbacks"
        )


def test_readable_events_beside_an_unreadable_one_are_applied(service: VendorService) -> None:
    id = service.send("sendgrid")
    good = {"event": "delivered", "sg_event_id": "e", "homing_notification_id": id, "sg_message_id": "m"}
    answer = service.post(signed_post("sendgrid", msgspec.json.encode([{"event": "bounce"}, good]).decode()))
    assert answer.status == 204
    assert service.status(id) is Status.DELIVERED


def test_twilio_s_fields_are_also_read_from_a_json_object(service: VendorService) -> None:
    id = service.send("twilio")
    (report,) = service.vendors.reports
    post = twilio_json_post(report)
    changed = Post(post.path, post.headers, post.body.replace(b"delivered", b"undelivered"))
    assert service.post(changed).status == 401
    assert service.post(post).status == 204
    assert service.status(id) is Status.DELIVERED


def test_a_signed_body_that_was_tampered_with_is_refused(service: VendorService) -> None:
    id = service.send("sendgrid")
    (post,) = posts([Report("sendgrid", "unknown", "hard", {"homing_notification_id": id})])
    changed = Post(post.path, post.headers, post.body.replace(b"unknown", b"another"))
    assert service.post(changed).status == 401
    assert service.status(id) is Status.SENT


def test_a_callback_about_an_unknown_message_is_stored_and_answered_with_success(
    service: VendorService,
) -> None:
    (post,) = posts([Report("sns", "nobody-knows", "delivered")])
    assert service.post(post).status == 204


def test_both_handshakes_of_event_grid_are_answered(service: VendorService) -> None:
    path = f"/api/v1/webhooks/acs/events?key={GRID_KEY.replace(' ', '%20')}"
    asked = [
        {
            "id": "1",
            "eventType": "Microsoft.EventGrid.SubscriptionValidationEvent",
            "data": {"validationCode": "0123"},
        }
    ]
    said = service.http.call("POST", path, asked, key=None)
    assert (said.status, said.json) == (200, {"validationResponse": "0123"})
    assert said.headers["content-type"] == "application/json"
    origin = {"WebHook-Request-Origin": "eventgrid.azure.net"}
    greeted = service.http.call("OPTIONS", path, headers=origin, key=None)
    assert (greeted.status, greeted.headers["webhook-allowed-origin"]) == (200, "eventgrid.azure.net")
    stranger = service.http.call("OPTIONS", "/api/v1/webhooks/acs/events", headers=origin, key=None)
    assert stranger.status == 401


def test_every_configured_provider_has_a_callback_path_and_no_other_name_has(service: VendorService) -> None:
    id = service.send("fcm")
    (post,) = posts(service.vendors.reports)
    here = Post("/api/v1/webhooks/fcm", post.headers, post.body)
    assert service.post(here).status == 204
    assert service.status(id) is Status.DELIVERED
    for path in ("/api/v1/webhooks/pigeon", "/api/v1/webhooks/pigeon/events", "/api/v1/webhooks/"):
        refused = service.http.call("POST", path, {}, key=None)
        assert (refused.status, refused.json["error"]["code"]) == (404, "NOT_FOUND")
        assert "twilio" not in refused.json["error"]["message"]


def test_an_unconfigured_provider_is_not_found(serve: Serve) -> None:
    refused = serve(store="memory:").call("POST", "/api/v1/webhooks/twilio/sms-status", {}, key=None)
    assert refused.status == 404


def test_while_the_store_is_unavailable_the_provider_is_asked_to_repeat(service: VendorService) -> None:
    id = service.send("twilio")
    (post,) = posts(service.vendors.reports)
    backend: Any = service.http.engine._backend

    async def away(*_: Any) -> Any:
        raise StoreUnavailable

    usual, backend.receipt = backend.receipt, away
    lost = service.post(post)
    assert (lost.status, lost.headers["retry-after"]) == (503, "1")
    backend.receipt = usual
    assert service.post(post).status == 204
    assert service.status(id) is Status.DELIVERED


def test_a_very_large_body_is_not_read(service: VendorService) -> None:
    large = b"x" * (8 * 1024 * 1024 + 1)
    refused = service.post(Post("/api/v1/webhooks/sendgrid/events", {}, large))
    assert (refused.status, refused.json["error"]["code"]) == (413, "PAYLOAD_TOO_LARGE")


def test_any_body_gets_a_documented_response(service: VendorService) -> None:
    for vendor in ("twilio/sms-status", "sendgrid/events", "fcm/delivery-status", "sns/notifications"):
        for body in (b"", b"{", b"[]", b"\xff\x00", msgspec.json.encode([{"event": None}])):
            refused = service.post(Post(f"/api/v1/webhooks/{vendor}", {}, body))
            assert (refused.status, refused.json["error"]["code"]) == (401, "INVALID_SIGNATURE"), vendor
