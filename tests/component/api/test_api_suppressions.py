"""Suppressions over HTTP, and their effect on sends."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

import pytest

from support.running_service import RunningService

Serve = Callable[..., RunningService]
PATH = "/api/v1/suppressions"
ADA = "ada@example.org"


@pytest.fixture
def service(serve: Serve) -> RunningService:
    return serve(store="memory:")


def test_an_address_is_suppressed_found_and_released(service: RunningService) -> None:
    added = service.call(
        "POST", PATH, {"channel": "email", "address": "ada@EXAMPLE.org", "category": "news", "why": "asked"}
    )
    assert added.status == 201
    assert (added.json["address"], added.json["updatedBy"]) == (ADA, "key:default")
    assert service.call("GET", f"{PATH}?channel=email&address={ADA}").json == {"items": [added.json]}
    assert (
        service.call("DELETE", f"{PATH}?channel=email&address={ADA}").status == 404
    )  # an empty category would mean `*`
    assert service.call("DELETE", f"{PATH}?channel=email&address={ADA}&category=news").status == 204
    assert service.call("GET", PATH).json == {"items": []}


def test_a_suppressed_newsletter_blocks_no_other_category(service: RunningService) -> None:
    service.call("POST", PATH, {"channel": "email", "address": ADA, "category": "newsletter"})

    def status(category: str) -> str:
        sent = service.call(
            "POST",
            "/api/v1/notifications/send",
            {
                "recipient": {"email": ADA},
                "channel": "email",
                "category": category,
                "content": {"body": "hi"},
            },
        )
        service.on_loop(lambda engine: engine.process())
        path = f"/api/v1/notifications/{sent.json['notificationId']}"
        found: str = service.call("GET", path).json["status"]
        return found

    assert (status("newsletter"), status("otp")) == ("skipped", "sent")


def test_pages_continue_correctly_for_addresses_with_a_common_prefix(service: RunningService) -> None:
    for address in ("https://a.example", "https://a.example:8443/x"):
        for category in ("news", "offers"):
            body = {"channel": "webhook", "address": address, "category": category}
            assert service.call("POST", PATH, body).status == 201
    first = service.call("GET", f"{PATH}?limit=3").json
    rest = service.call("GET", f"{PATH}?limit=3&cursor={quote(first['cursor'])}").json
    assert (len(first["items"]), len(rest["items"]), "cursor" in rest) == (3, 1, False)
    one = service.call("GET", f"{PATH}?channel=webhook&address={quote('https://a.example')}&limit=1").json
    assert [item["category"] for item in one["items"]] == ["news"]
    more = service.call(
        "GET",
        f"{PATH}?channel=webhook&address={quote('https://a.example')}&limit=2&cursor={quote(one['cursor'])}",
    ).json
    assert [item["category"] for item in more["items"]] == ["offers"]


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"channel": "pigeon", "address": ADA}, 400, "channel"),
        ({"channel": "email", "address": "nobody"}, 422, "address"),
        ({"channel": "email", "address": ADA, "category": "no good"}, 400, "category"),
        ({"channel": "email"}, 400, "address"),
    ],
)
def test_an_invalid_suppression_is_refused(
    service: RunningService, body: dict[str, str], status: int, field: str
) -> None:
    refused = service.call("POST", PATH, body)
    assert (refused.status, refused.json["error"]["field"]) == (status, field)
    assert service.call("GET", PATH).json == {"items": []}


def test_another_tenant_neither_sees_nor_releases_it(service: RunningService) -> None:
    service.call("POST", PATH, {"channel": "email", "address": ADA}, key="acme")
    assert service.call("GET", PATH, key="other").json == {"items": []}
    assert service.call("DELETE", f"{PATH}?channel=email&address={ADA}", key="other").status == 404
    assert len(service.call("GET", PATH, key="acme").json["items"]) == 1


def test_the_author_of_a_suppression_is_recorded_without_the_address(service: RunningService) -> None:
    service.call("POST", PATH, {"channel": "email", "address": ADA, "category": "news"})
    service.call("DELETE", f"{PATH}?channel=email&address={ADA}&category=news")
    assert [action for _, action, _, _ in service.trail.notes] == ["suppression.add", "suppression.lift"]
    assert ADA not in str(service.trail.notes)
