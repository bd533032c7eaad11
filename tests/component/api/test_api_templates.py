"""Templates over HTTP: written, checked, previewed, restored; per tenant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.running_service import RunningService

Serve = Callable[..., RunningService]
PATH = "/api/v1/templates"


def written(english: str = "Hello {{ name }}", german: str = "Hallo {{ name }}") -> dict[str, Any]:
    return {
        "locales": {
            locale: {"email": {"subject": "Hi", "html": f"<p>{text}</p>"}, "sms": {"text": text}}
            for locale, text in (("en-US", english), ("de", german))
        },
        "sample": {"name": "Ada"},
    }


@pytest.fixture
def service(serve: Serve, tmp_path: Path) -> RunningService:
    for locale in ("en-US", "de"):
        (tmp_path / "shop/hello" / locale).mkdir(parents=True)
        (tmp_path / "shop/hello" / locale / "sms.txt").write_text("From the folder")
    (tmp_path / "shop/hello/sample.json").write_text("{}")
    return serve(store="memory:", templates={"folder": str(tmp_path), "locales": ["en-US", "de"]})


def send(service: RunningService, key: str, **more: Any) -> Any:
    body = {
        "recipient": {"phone": "+15550100"},
        "channel": "sms",
        "templateKey": key,
        "data": {"name": "Bob"},
        **more,
    }
    return service.call("POST", "/api/v1/notifications/send", body)


def test_a_template_is_written_used_read_and_deleted(service: RunningService) -> None:
    put = service.call("PUT", f"{PATH}/greeting", written())
    assert (put.status, put.json["version"], put.json["updatedBy"]) == (200, 1, "key:default")
    assert service.call("GET", f"{PATH}/greeting").json == put.json
    sent = send(service, "greeting", recipient={"phone": "+15550100", "locale": "de-AT"})
    found = service.call("GET", f"/api/v1/notifications/{sent.json['notificationId']}").json
    assert (found["content"], found["templateVersion"], found["locale"]) == (
        {"text": "Hallo Bob"},
        "1",
        "de",
    )
    assert service.call("DELETE", f"{PATH}/greeting").json == {"key": "greeting", "version": 1}
    for path in ("greeting", "greeting/versions", "greeting/versions/1"):
        assert service.call("GET", f"{PATH}/{path}").status == 404
    gone = send(service, "greeting")
    assert (gone.status, gone.json["error"]["code"]) == (422, "TEMPLATE_NOT_FOUND")


def test_the_folder_s_templates_are_listed_too_and_can_be_replaced_under_the_same_key(
    service: RunningService,
) -> None:
    service.call("PUT", f"{PATH}/greeting", written())
    listed = service.call("GET", PATH).json["items"]
    assert [(one["key"], one["origin"]) for one in listed] == [
        ("greeting", "own"),
        ("shop/hello", "folder"),
    ]
    assert listed[0]["locales"]["de"] == {"version": "1", "channels": ["email", "sms"]}
    read = service.call("GET", f"{PATH}/shop%2Fhello").json
    assert read["locales"]["de"] == {"sms": {"text": "From the folder"}}
    read["locales"]["de"]["sms"]["text"] = "Eigenes"
    replaced = service.call("PUT", f"{PATH}/shop%2Fhello", {"locales": read["locales"]})
    assert (replaced.status, replaced.json["origin"], replaced.json["version"]) == (200, "own", 1)
    assert service.call("GET", f"{PATH}?limit=1").json["cursor"] == "greeting"
    assert service.call("DELETE", f"{PATH}/shop%2Fhello").status == 200
    assert service.call("GET", f"{PATH}/shop%2Fhello").json["origin"] == "folder"
    assert service.call("DELETE", f"{PATH}/shop%2Fhello").status == 404


def test_a_faulty_template_is_refused_with_everything_that_is_wrong(service: RunningService) -> None:
    body = written(german="{{ nme }}")
    refused = service.call("PUT", f"{PATH}/greeting", body)
    assert (refused.status, refused.json["error"]["code"]) == (422, "TEMPLATE_FAILED")
    assert "greeting/de/sms.txt, line 1: 'nme' is undefined" in refused.json["error"]["message"]
    report = service.call("POST", f"{PATH}/check", body).json
    assert {one["locale"] for one in report["findings"]} == {"de"}
    del body["locales"]["de"]
    refused = service.call("PUT", f"{PATH}/greeting", body)
    assert "greeting/de: is missing" in refused.json["error"]["message"]
    assert service.call("GET", f"{PATH}/greeting").status == 404
    assert service.call("POST", f"{PATH}/check").json == {
        "keys": ["shop/hello"],
        "locales": ["en-US", "de"],
        "findings": [],
    }


@pytest.mark.parametrize(
    ("change", "status", "field"),
    [
        ({"locales": {}}, 400, "locales"),
        ({"locales": {"de": {"fax": {"text": "x"}}}}, 400, None),
        ({"locales": {"de": {"sms": {"txt": "x"}}}}, 400, None),
        ({"locales": {"de": {"sms": {}}}}, 422, "locales.de.sms"),
        ({"key": "other"}, 400, "key"),
        ({"version": 7}, 409, None),
    ],
)
def test_an_invalid_request_is_refused(
    service: RunningService, change: dict[str, Any], status: int, field: str | None
) -> None:
    refused = service.call("PUT", f"{PATH}/greeting", {**written(), **change})
    assert refused.status == status
    assert field is None or refused.json["error"]["field"] == field
    assert service.call("PUT", f"{PATH}/_shared", written()).status == 400


def test_a_preview_shows_what_a_recipient_would_read(service: RunningService) -> None:
    service.call("PUT", f"{PATH}/greeting", written())
    sample = service.call("POST", f"{PATH}/greeting/preview").json
    assert sample["contents"]["email"] == {"subject": "Hi", "html": "<p>Hello Ada</p>"}
    wanted = {"locale": "de-CH", "channel": "email", "data": {"name": "<Eve>"}}
    shown = service.call("POST", f"{PATH}/greeting/preview", wanted).json
    assert shown["contents"] == {"email": {"subject": "Hi", "html": "<p>Hallo &lt;Eve&gt;</p>"}}
    failed = service.call("POST", f"{PATH}/greeting/preview", {"data": {}})
    assert (failed.status, failed.json["error"]["code"]) == (422, "TEMPLATE_FAILED")
    assert service.call("POST", f"{PATH}/nothing/preview").status == 404
    assert service.call("POST", f"{PATH}/greeting/preview", {"locale": "fr"}).status == 422


def test_versions_are_kept_and_restored(service: RunningService) -> None:
    for text in ("One {{ name }}", "Two {{ name }}"):
        service.call("PUT", f"{PATH}/greeting", written(english=text))
    history = service.call("GET", f"{PATH}/greeting/versions?limit=1").json
    assert ([one["version"] for one in history["items"]], history["cursor"]) == ([2], 2)
    older = service.call("GET", f"{PATH}/greeting/versions?cursor=2").json
    assert [one["version"] for one in older["items"]] == [1]
    first = service.call("GET", f"{PATH}/greeting/versions/1").json
    assert first["locales"]["en-US"]["sms"]["text"] == "One {{ name }}"
    restored = service.call("POST", f"{PATH}/greeting/versions/1/restore")
    assert (restored.status, restored.json["version"]) == (200, 3)
    late = service.call("PUT", f"{PATH}/greeting", {**written(), "version": 2})
    assert (late.status, late.json["error"]["code"]) == (409, "VERSION_CONFLICT")
    assert service.call("GET", f"{PATH}/greeting/versions/9").status == 404
    service.call("DELETE", f"{PATH}/greeting")
    back = service.call("POST", f"{PATH}/greeting/versions/3/restore")
    assert (back.status, back.json["version"]) == (200, 4)


def test_another_tenant_neither_sees_nor_uses_nor_changes_a_template(service: RunningService) -> None:
    service.call("PUT", f"{PATH}/greeting", written(), key="acme")
    for method, path in (
        ("GET", "greeting"),
        ("DELETE", "greeting"),
        ("POST", "greeting/preview"),
        ("GET", "greeting/versions/1"),
        ("POST", "greeting/versions/1/restore"),
    ):
        assert service.call(method, f"{PATH}/{path}", key="other").status == 404, (method, path)
    assert service.call("GET", f"{PATH}/greeting/versions", key="other").status == 404
    assert [one["key"] for one in service.call("GET", PATH, key="other").json["items"]] == ["shop/hello"]
    assert service.call("GET", f"{PATH}/greeting", key="acme").status == 200


def test_the_author_of_a_change_is_recorded_and_readers_may_not_write(service: RunningService) -> None:
    assert service.call("PUT", f"{PATH}/greeting", written(), key="acme:read").status == 403
    service.call("PUT", f"{PATH}/greeting", written())
    service.call("POST", f"{PATH}/greeting/versions/1/restore")
    service.call("DELETE", f"{PATH}/greeting")
    assert [(action, target) for _, action, target, _ in service.trail.notes] == [
        ("template.put", "greeting"),
        ("template.restore", "greeting"),
        ("template.delete", "greeting"),
    ]
