"""The application itself: what every route has in common, over real HTTP."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest

from homing.api.service import ServiceSettings
from service import Serving

Serve = Callable[..., Serving]
MAIL = {"recipient": {"email": "ada@example.org"}, "channel": "email", "content": {"body": "hello"}}


@pytest.fixture
def service(serve: Serve) -> Serving:
    return serve(ServiceSettings(body_bytes=10_000), store="memory:")


def test_an_accepted_request_is_answered_with_its_id_and_can_be_read_by_it(service: Serving) -> None:
    sent = service.call("POST", "/api/v1/notifications/send", MAIL)
    assert sent.status == 202
    assert sent.json["status"] == "queued"
    found = service.call("GET", f"/api/v1/notifications/{sent.json['notificationId']}")
    assert found.json["recipient"] == {"email": "ada@example.org"}


def test_without_a_key_nothing_is_answered_but_that(service: Serving) -> None:
    refused = service.call("POST", "/api/v1/notifications/send", MAIL, key=None)
    assert (refused.status, refused.json["error"]["code"]) == (401, "UNAUTHORIZED")
    assert refused.headers["www-authenticate"] == "Bearer"


def test_a_key_without_the_scope_is_told_which_it_needs(service: Serving) -> None:
    refused = service.call("POST", "/api/v1/notifications/send", MAIL, key="default:read")
    assert refused.status == 403
    assert "scope send" in refused.json["error"]["message"]


def test_another_tenant_finds_nothing(service: Serving) -> None:
    id = service.call("POST", "/api/v1/notifications/send", MAIL, key="acme").json["notificationId"]
    refused = service.call("GET", f"/api/v1/notifications/{id}", key="other")
    assert (refused.status, refused.json["error"]["code"]) == (404, "NOT_FOUND")


def test_a_wrong_type_and_an_unknown_field_are_named(service: Serving) -> None:
    wrong = service.call("POST", "/api/v1/notifications/send", {**MAIL, "bulk": "yes"})
    assert (wrong.status, wrong.json["error"]["field"]) == (400, "bulk")
    unknown = service.call("POST", "/api/v1/notifications/send", {**MAIL, "chanel": "sms"})
    assert (unknown.status, unknown.json["error"]["field"]) == (400, "chanel")
    assert "did you mean channel" in unknown.json["error"]["message"]


def test_what_fits_and_is_not_acceptable_is_told_apart_from_what_does_not_fit(service: Serving) -> None:
    refused = service.call("POST", "/api/v1/notifications/send", {**MAIL, "channel": "pigeon"})
    assert (refused.status, refused.json["error"]["code"]) == (422, "INVALID_REQUEST")
    assert refused.json["error"]["field"] == "channel"


def test_a_body_is_counted_after_decompression(service: Serving) -> None:
    bomb = zlib.compress(b" " * 1_000_000)
    refused = service.call(
        "POST",
        "/api/v1/notifications/send",
        body=bomb,
        headers={"Content-Type": "application/json", "Content-Encoding": "deflate"},
    )
    assert (refused.status, refused.json["error"]["code"]) == (413, "PAYLOAD_TOO_LARGE")


def test_an_unknown_address_and_an_unknown_method_are_told_apart(service: Serving) -> None:
    assert service.call("GET", "/api/v1/nothing").status == 404
    refused = service.call("DELETE", "/api/v1/notifications/send")
    assert refused.status == 405
    assert refused.headers["allow"] == "POST"
