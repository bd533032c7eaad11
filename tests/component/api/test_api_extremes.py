"""Extreme times and texts over real HTTP: refused by name, nothing stored, and every list still works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from support.running_service import RunningService

Serve = Callable[..., RunningService]
SEND, LIST, BATCH = "/api/v1/notifications/send", "/api/v1/notifications", "/api/v1/notifications/batch"
MAIL: dict[str, Any] = {
    "recipient": {"email": "ada@example.org"},
    "channel": "email",
    "content": {"body": "hello"},
}
OUTSIDE = (
    "9999-12-31T23:59:59-12:00",
    "9999-12-31T23:59:59Z",
    "0001-01-01T00:00:00+12:00",
    "0001-01-01T00:00:00Z",
    "1969-12-31T23:59:59Z",
)


@pytest.fixture(params=["memory:", "sqlite"])
def service(serve: Serve, request: pytest.FixtureRequest, tmp_path: Path) -> RunningService:
    return serve(store="memory:" if request.param == "memory:" else str(tmp_path / "homing.db"))


@pytest.mark.parametrize("field", ["sendAt", "expiresAt"])
@pytest.mark.parametrize("at", OUTSIDE)
def test_a_time_outside_the_limits_is_a_422_with_its_name(
    service: RunningService, field: str, at: str
) -> None:
    refused = service.call("POST", SEND, {**MAIL, field: at})
    assert (refused.status, refused.json["error"]["code"]) == (422, "INVALID_REQUEST")
    assert refused.json["error"]["field"] == field
    assert "it must lie between 1970-01-01 and" in refused.json["error"]["message"]
    done = service.call("POST", BATCH, [MAIL, {**MAIL, field: at}, MAIL])
    assert [one["status"] for one in done.json["results"]] == ["queued", "rejected", "queued"]
    assert done.json["results"][1]["field"] == field
    listed = service.call("GET", LIST)
    assert (listed.status, len(listed.json["items"])) == (200, 2)


def test_a_reschedule_has_limits(service: RunningService) -> None:
    id = service.call("POST", SEND, MAIL).json["notificationId"]
    path = f"{LIST}/{id}/reschedule"
    assert service.call("POST", path, {"delayMs": 2**63 - 1}).json["error"]["field"] == "delayMs"
    assert service.call("POST", path, {"delayMs": 100 * 365 * 86_400_000}).status == 200
    assert service.call("GET", f"{LIST}/{id}/explain").status == 200
    assert service.call("GET", LIST).status == 200


@pytest.mark.parametrize("at", OUTSIDE)
def test_a_filter_accepts_any_time(service: RunningService, at: str) -> None:
    service.call("POST", SEND, MAIL)
    early = at.startswith(("0001", "1969"))
    for name, expected in (("createdFrom", early), ("createdUntil", not early)):
        found = service.call("GET", f"{LIST}?{name}={quote(at)}")
        assert (found.status, len(found.json["items"])) == (200, int(expected))


@pytest.mark.parametrize("field", ["timeoutMs", "maxAgeMs", "baseMs", "capMs", "jitterMs"])
def test_a_rule_with_an_absurd_duration_is_refused(service: RunningService, field: str) -> None:
    refused = service.call("PUT", "/api/v1/policies/all", {"policy": {field: 2**63}})
    assert refused.status in (400, 422), refused.json
    assert field in refused.json["error"]["field"]
    service.call("POST", SEND, MAIL)
    assert service.on_loop(lambda engine: engine.process()).succeeded == 1


def test_a_key_cannot_expire_beyond_the_limits(service: RunningService) -> None:
    body = {"name": "k", "scopes": ["send"], "expiresAt": "9999-12-31T23:59:59-12:00"}
    refused = service.call("POST", "/api/v1/keys", body)
    assert (refused.status, refused.json["error"]["field"]) == (422, "expiresAt")
    assert service.call("GET", "/api/v1/keys").status == 200


@pytest.mark.parametrize(
    "body",
    [
        rb'{"recipient": {"email": "ada@example.org"}, "channel": "email", "content": {"body": "\ud800"}}',
        rb'{"recipient": {"email": "ada@example.org"}, "channel": "email", "metadata": {"\udfff": 1}}',
    ],
)
def test_a_lone_surrogate_is_not_json(service: RunningService, body: bytes) -> None:
    refused = service.call("POST", SEND, body=body, headers={"Content-Type": "application/json"})
    assert (refused.status, refused.json["error"]["code"]) == (400, "MALFORMED_REQUEST")
    assert service.call("GET", LIST).json["items"] == []


def test_a_path_that_is_not_utf_8_finds_nothing(service: RunningService) -> None:
    assert service.call("GET", f"{LIST}/%ED%A0%80").status == 404
    assert service.call("GET", f"{LIST}?address=%ED%A0%80").status == 200
