"""Providers over HTTP: their state, health checks, test messages and forced breakers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from homing.core.notifications import OutcomeKind
from homing.providers.local.scripted import ScriptedProvider
from support.running_service import RunningService

Serve = Callable[..., RunningService]


@pytest.fixture
def mail() -> ScriptedProvider:
    return ScriptedProvider("mail")


@pytest.fixture
def service(serve: Serve, mail: ScriptedProvider) -> RunningService:
    return serve(store="memory:", providers={"mail": mail, "sns": ScriptedProvider("sns")})


def test_all_providers_are_listed_in_order_with_their_breakers(service: RunningService) -> None:
    items = service.call("GET", "/api/v1/providers", key="default:read").json["items"]
    assert [(one["id"], one["breaker"]["phase"]) for one in items] == [("mail", "closed"), ("sns", "closed")]
    assert items[1]["routes"]["sms"] == 2
    for name in ("AWS_SNS", "AWS%20SNS", "aws-sns"):
        assert service.call("GET", f"/api/v1/providers/{name}").json["id"] == "sns"
    assert service.call("GET", "/api/v1/providers/pigeon").status == 404


def test_a_breaker_can_be_forced_and_returned_to_automatic(service: RunningService) -> None:
    held = service.call("POST", "/api/v1/providers/mail/breaker", {"phase": "open", "why": "they are down"})
    breaker = held.json["breaker"]
    assert (breaker["phase"], breaker["forced"], breaker["by"], breaker["why"]) == (
        "open",
        True,
        "key:default",
        "they are down",
    )
    closed = service.call("POST", "/api/v1/providers/mail/breaker", {"phase": "closed"}).json["breaker"]
    assert (closed["phase"], closed["forced"]) == ("closed", True)
    free = service.call("POST", "/api/v1/providers/mail/breaker", {"phase": "auto"}).json["breaker"]
    assert "forced" not in free
    detail = {"phase": "open", "why": "they are down"}
    assert service.trail.notes[0] == ("key:default", "breaker.set", "mail", detail)


def test_a_test_message_is_really_sent_and_nothing_is_stored(
    service: RunningService, mail: ScriptedProvider
) -> None:
    body = {"address": "ada@example.org", "channel": "email"}
    tried = service.call("POST", "/api/v1/providers/mail/test", body)
    assert (tried.status, tried.json["outcome"]) == (200, "accepted")
    assert [delivery.address for delivery in mail.sent] == ["ada@example.org"]
    assert service.call("GET", "/api/v1/notifications").json["items"] == []
    ((_, action, target, detail),) = service.trail.notes
    assert (action, target, detail) == ("provider.test", "mail", {"channel": "email"})
    mail.usual = OutcomeKind.BAD_RECIPIENT
    assert service.call("POST", "/api/v1/providers/mail/test", body).json["outcome"] == "bad_recipient"
    vague = service.call("POST", "/api/v1/providers/mail/test", {"address": "ada@example.org"})
    assert (vague.status, vague.json["error"]["field"]) == (422, "channel")


def test_health_checks_can_be_requested(service: RunningService, mail: ScriptedProvider) -> None:
    mail.up = False
    health = service.call("POST", "/api/v1/providers/check").json["items"]
    assert [(one["provider"], one["usable"]) for one in health] == [("mail", False), ("sns", True)]
    one = service.call("POST", "/api/v1/providers/mail/check").json
    assert (one["usable"], one["problem"]) == (False, "the health check failed")


def test_only_an_administrator_changes_what_all_tenants_share(
    service: RunningService, mail: ScriptedProvider
) -> None:
    key = "default:read,operate,manage,send"
    for path, body in (
        ("mail/breaker", {"phase": "open"}),
        ("mail/test", {"address": "a@example.org", "channel": "email"}),
        ("mail/check", None),
        ("check", None),
    ):
        assert service.call("POST", f"/api/v1/providers/{path}", body, key=key).status == 403
    assert mail.sent == []
    for path in ("breaker", "test"):
        body = {"phase": "open", "address": "x"}
        refused = service.call("POST", f"/api/v1/providers/mail/{path}", body)
        assert refused.status == 400
