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


def test_a_split_is_overridden_listed_and_reset(service: RunningService) -> None:
    wanted = {"shares": {"AWS_SNS": 3, "mail": 1}, "why": "mail is slow", "forMs": 3_600_000}
    done = service.call("PUT", "/api/v1/providers/splits/sms", wanted)
    assert done.status == 200
    assert done.json["shares"] == {"mail": 25.0, "sns": 75.0}
    override = done.json["override"]
    assert (override["shares"], override["by"], override["why"]) == (
        {"mail": 1, "sns": 3},
        "key:default",
        "mail is slow",
    )
    listed = service.call("GET", "/api/v1/providers/splits", key="default:read").json["items"]
    assert {one["channel"]: one.get("override") for one in listed}["sms"] == override
    assert service.call("GET", "/api/v1/providers/sns").json["splits"] == {"sms": override}
    assert service.call("GET", "/api/v1/providers/overview").json["items"][0]["provider"]["splits"]
    ended = service.call("DELETE", "/api/v1/providers/splits/sms?why=over")
    assert "override" not in ended.json
    assert service.call("DELETE", "/api/v1/providers/splits/sms").status == 404
    assert [note[1:3] for note in service.trail.notes][:2] == [("split.set", "sms"), ("split.reset", "sms")]


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        ({"why": ""}, 400),
        ({"why": " "}, 422),
        ({"forMs": 0}, 400),
        ({"shares": {}}, 400),
        ({"shares": {"fax": 1}}, 422),
        ({"shares": {"mail": 0}}, 422),
    ],
)
def test_an_invalid_split_is_refused_and_not_in_the_audit_trail(
    service: RunningService, wrong: dict[str, object], status: int
) -> None:
    body = {"shares": {"mail": 1}, "why": "x", "forMs": 1000, **wrong}
    assert service.call("PUT", "/api/v1/providers/splits/sms", body).status == status
    good = {"shares": {"mail": 1}, "why": "x", "forMs": 1000}
    for key in ("default:read", "default:operate"):
        assert service.call("PUT", "/api/v1/providers/splits/sms", good, key=key).status == 403
        assert service.call("DELETE", "/api/v1/providers/splits/sms", key=key).status == 403
    assert service.trail.notes == []
