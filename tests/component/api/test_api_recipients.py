"""Recipients over HTTP: written as a whole, read back, never another tenant's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from support.running_service import RunningService

Serve = Callable[..., RunningService]
ADA: dict[str, Any] = {
    "email": "ada@example.org",
    "phone": "+1 (555) 0100",
    "locale": "en-GB",
    "timeZone": "Europe/London",
    "quietHours": {"start": "22:00", "end": "07:00"},
    "devices": [{"token": "t-1", "platform": "ios"}],
}
PATH = "/api/v1/recipients"


@pytest.fixture
def service(serve: Serve) -> RunningService:
    return serve(store="memory:")


def test_a_recipient_is_written_read_listed_and_removed(service: RunningService) -> None:
    written = service.call("PUT", f"{PATH}/u-1", ADA)
    assert written.status == 200
    assert written.json["phone"] == "+15550100"
    assert written.json["devices"] == [{"token": "t-1", "platform": "ios", "active": True}]
    assert (written.json["version"], written.json["updatedBy"]) == (1, "key:default")
    assert service.call("GET", f"{PATH}/u-1").json == written.json
    assert service.call("GET", PATH).json == {"items": [written.json]}
    assert service.call("DELETE", f"{PATH}/u-1").status == 204
    assert service.call("GET", f"{PATH}/u-1").status == 404
    assert service.call("DELETE", f"{PATH}/u-1").status == 404


def test_a_write_over_another_version_is_refused(service: RunningService) -> None:
    read = service.call("PUT", f"{PATH}/u-1", ADA).json
    over = {**ADA, "version": read["version"]}
    changed = service.call("PUT", f"{PATH}/u-1", {**over, "locale": "de"})
    assert (changed.status, changed.json["version"]) == (200, 2)
    late = service.call("PUT", f"{PATH}/u-1", {**over, "locale": "fr"})
    assert (late.status, late.json["error"]["code"]) == (409, "VERSION_CONFLICT")
    assert service.call("GET", f"{PATH}/u-1").json["locale"] == "de"


def test_pages_continue_at_their_cursor(service: RunningService) -> None:
    for number in range(5):
        service.call("PUT", f"{PATH}/u-{number}", {})
    seen, cursor = [], ""
    while True:
        page = service.call("GET", f"{PATH}?limit=2{cursor}").json
        seen += [one["id"] for one in page["items"]]
        if "cursor" not in page:
            break
        cursor = f"&cursor={quote(page['cursor'])}"
    assert seen == [f"u-{number}" for number in range(5)]


def test_an_id_may_contain_slashes_and_punctuation(service: RunningService) -> None:
    id = "shop/7 %2F é?"
    assert service.call("PUT", f"{PATH}/{quote(id, safe='')}", {}).json["id"] == id
    assert service.call("GET", f"{PATH}/{quote(id, safe='')}").json["id"] == id


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"email": "nobody"}, 422, "email"),
        ({"timeZone": "Mars/Olympus"}, 422, "timeZone"),
        ({"quietHours": {"start": "9", "end": "10:00"}}, 422, "quietHours.start"),
        ({"devices": [{"token": "t"}, {"token": "t"}]}, 422, "devices[1].token"),
        ({"id": "other"}, 400, "id"),
        ({"emial": "x"}, 400, "emial"),
        ({"version": -1}, 400, "version"),
    ],
)
def test_an_invalid_recipient_is_refused_with_its_field_and_changes_nothing(
    service: RunningService, body: dict[str, Any], status: int, field: str
) -> None:
    refused = service.call("PUT", f"{PATH}/u-1", body)
    assert (refused.status, refused.json["error"]["field"]) == (status, field)
    assert service.call("GET", PATH).json == {"items": []}


def test_devices_are_added_deactivated_and_removed(service: RunningService) -> None:
    service.call("PUT", f"{PATH}/u-1", ADA)
    token = quote("https://push.example/a:b", safe="")
    added = service.call("PUT", f"{PATH}/u-1/devices/{token}", {"platform": "web"})
    assert [one["token"] for one in added.json["devices"]] == ["https://push.example/a:b", "t-1"]
    off = service.call("PUT", f"{PATH}/u-1/devices/t-1", {"active": False})
    assert {one["token"]: one["active"] for one in off.json["devices"]}["t-1"] is False
    assert service.call("DELETE", f"{PATH}/u-1/devices/{token}").status == 204
    assert service.call("DELETE", f"{PATH}/u-1/devices/{token}").status == 404
    assert [one["token"] for one in service.call("GET", f"{PATH}/u-1").json["devices"]] == ["t-1"]
    assert service.call("PUT", f"{PATH}/nobody/devices/t", {}).status == 404


def test_preferences_are_set_per_category_and_channel_and_removed(service: RunningService) -> None:
    said = service.call("PUT", f"{PATH}/u-1/preferences/news/email", {"allowed": False})
    (one,) = said.json["items"]
    assert (one["category"], one["channel"], one["allowed"]) == ("news", "email", False)
    service.call("PUT", f"{PATH}/u-1/preferences/*/*", {"allowed": True})
    assert len(service.call("GET", f"{PATH}/u-1/preferences").json["items"]) == 2
    assert service.call("DELETE", f"{PATH}/u-1/preferences/news/email").status == 204
    assert service.call("DELETE", f"{PATH}/u-1/preferences/news/email").status == 404
    assert service.call("PUT", f"{PATH}/u-1/preferences/news/pigeon", {"allowed": True}).status == 400


def test_another_tenant_finds_and_changes_nothing(service: RunningService) -> None:
    service.call("PUT", f"{PATH}/u-1", ADA, key="acme")
    service.call("PUT", f"{PATH}/u-1/preferences/news/email", {"allowed": False}, key="acme")
    assert service.call("GET", f"{PATH}/u-1", key="other").status == 404
    assert service.call("GET", f"{PATH}/u-1/preferences", key="other").status == 404
    assert service.call("DELETE", f"{PATH}/u-1", key="other").status == 404
    assert service.call("DELETE", f"{PATH}/u-1/devices/t-1", key="other").status == 404
    assert service.call("GET", f"{PATH}/u-1", key="acme").json["email"] == ADA["email"]


def test_reading_and_managing_need_separate_scopes(service: RunningService) -> None:
    assert service.call("PUT", f"{PATH}/u-1", {}, key="acme:read").status == 403
    assert service.call("PUT", f"{PATH}/u-1", {}, key="acme:manage").status == 200
    assert service.call("GET", f"{PATH}/u-1", key="acme:read").status == 200
    assert service.call("GET", f"{PATH}/u-1", key="acme:send").status == 403


def test_every_change_is_recorded_without_addresses(service: RunningService) -> None:
    service.call("PUT", f"{PATH}/u-1", ADA)
    service.call("PUT", f"{PATH}/u-1/devices/t-2", {})
    service.call("PUT", f"{PATH}/u-1/preferences/news/email", {"allowed": False})
    service.call("DELETE", f"{PATH}/u-1")
    assert [(action, target) for _, action, target, _ in service.trail.notes] == [
        ("recipient.put", "u-1"),
        ("device.put", "u-1"),
        ("preference.put", "u-1"),
        ("recipient.delete", "u-1"),
    ]
    assert not any(secret in str(service.trail.notes) for secret in ("ada@example.org", "t-1", "t-2"))
