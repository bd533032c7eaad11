"""One-click unsubscribe over HTTP: the five cases of the vectors, and the effects of a click."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from homing import Reason, Recipient, RecipientFacts
from homing.api.intake import unsubscribe as module
from homing.api.intake.unsubscribe import is_one_click
from homing.core.lifecycle.claims import Claim
from homing.core.recipients.unsubscribe_links import Subscription
from support.running_service import Reply, RunningService

Serve = Callable[..., RunningService]
VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "vectors/list_unsubscribe.json").read_text()
)
BASE = "https://notify.example.org"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
ADA = "ada@example.org"
ON = {
    "store": "memory:",
    "service": {"public_url": BASE},
    "unsubscribe": {"enabled": True, "exempt_categories": ["invoice"]},
}


@pytest.fixture
def service(serve: Serve) -> RunningService:
    return serve(**ON)


def send(service: RunningService, category: str = "newsletter", **more: Any) -> dict[str, Any]:
    """Processes the notification and returns it."""
    body = {
        "recipient": {"email": ADA},
        "channel": "email",
        "category": category,
        "content": {"subject": "News", "body": "hello"},
        **more,
    }
    sent = service.call("POST", "/api/v1/notifications/send", body)
    assert sent.status in (200, 202), sent.body
    service.on_loop(lambda engine: engine.process())
    found: dict[str, Any] = service.call("GET", f"/api/v1/notifications/{sent.json['notificationId']}").json
    return found


def link(service: RunningService, **more: Any) -> str:
    """Returns the path of the link in an email."""
    url: str = send(service, **more)["content"]["unsubscribeUrl"]
    assert url.startswith(f"{BASE}/unsubscribe/")
    return url.removeprefix(BASE)


def click(service: RunningService, path: str, body: str = "List-Unsubscribe=One-Click") -> Reply:
    return service.call("POST", path, body=body.encode(), headers=FORM, key=None)


def unsubscribed(service: RunningService) -> bool:
    return str(send(service)["status"]) == "skipped"


def test_all_cases_of_the_vectors_are_present() -> None:
    assert [one["method"] for one in VECTORS["server"]] == ["POST", "POST", "GET", "POST", "POST"]


@pytest.mark.parametrize("case", VECTORS["server"], ids=lambda case: f"{case['method']} {case['token']}")
def test_the_server_behaves_as_in_the_vectors(service: RunningService, case: dict[str, Any]) -> None:
    path = link(service)
    if case["token"] == "valid, again":
        assert click(service, path).status == 200
    if case["token"] == "tampered":
        path = path[:-1] + ("A" if path[-1] != "A" else "B")
    if case["method"] == "GET":
        answer = service.call("GET", path, key=None)
    else:
        answer = click(service, path, case["body"])
    if case["status"] in ("2xx", 200):
        assert answer.status == 200
    else:
        assert 400 <= answer.status < 500
    expected = case["effect"].startswith(("unsubscribed", "idempotent"))
    assert unsubscribed(service) is expected


@pytest.mark.parametrize("kind", VECTORS["one_click_request"]["content_types"])
def test_both_form_encodings_are_accepted(service: RunningService, kind: str) -> None:
    path, body, headers = link(service), "List-Unsubscribe=One-Click", dict(FORM)
    if kind == "multipart/form-data":
        headers = {"Content-Type": 'multipart/form-data; boundary="b-1"'}
        body = (
            '--b-1\r\nContent-Disposition: form-data; name="List-Unsubscribe"\r\n\r\nOne-Click\r\n--b-1--\r\n'
        )
    assert service.call("POST", path, body=body.encode(), headers=headers, key=None).status == 200
    assert unsubscribed(service)


MULTIPART = "multipart/form-data; boundary=b"
PART = '--b\r\nContent-Disposition: form-data; name="List-Unsubscribe"\r\n\r\nOne-Click\r\n--b--\r\n'


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("List-Unsubscribe=Yes", "application/x-www-form-urlencoded"),
        ("List-Unsubscribe=One-Click&a=b", "application/x-www-form-urlencoded"),
        ('{"List-Unsubscribe": "One-Click"}', "application/json"),
        ("--b\r\n\r\nOne-Click", MULTIPART),
        ("One-Click", "multipart/form-data"),
        ("\xff\xfe", "application/x-www-form-urlencoded"),
        ("&".join(["a=b"] * 1000), "application/x-www-form-urlencoded"),
        (PART + "x" * 1024, MULTIPART),
    ],
)
def test_any_other_body_changes_nothing(service: RunningService, body: str, kind: str) -> None:
    path = link(service)
    refused = service.call(
        "POST", path, body=body.encode("latin-1"), headers={"Content-Type": kind}, key=None
    )
    expected = 415 if kind == "application/json" else 413 if len(body) > 1024 else 400
    assert refused.status == expected, refused.body
    assert not unsubscribed(service)


@pytest.mark.parametrize("how", ["plain", "chunked", "gzip"])
def test_a_body_of_more_than_1_kib_is_refused_before_it_is_parsed(
    service: RunningService, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    parsed: list[int] = []

    def watched(kind: str, body: bytes) -> bool:
        parsed.append(len(body))
        return is_one_click(kind, body)

    monkeypatch.setattr(module, "is_one_click", watched)
    path, sizes = link(service), (1024, 1025, 40_000)
    statuses = []
    for size in sizes:
        body: Any = PART.encode().ljust(size)
        headers = {"Content-Type": MULTIPART}
        if how == "gzip":
            body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
        elif how == "chunked":
            body = iter([body])
        statuses.append(service.call("POST", path, body=body, headers=headers, key=None).status)
    assert statuses == [200, 413, 413]
    assert parsed == [1024]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (MULTIPART, PART),
        (MULTIPART, PART.replace("\r\n", "\n")),
        (MULTIPART, "\r\n" + PART + "\r\n"),
        (MULTIPART, PART.replace('"', "")),
        (MULTIPART, PART.replace("Content-Disposition", "content-disposition")),
        (MULTIPART, PART.replace("--b\r\n", "--b\r\nContent-Type: text/plain; charset=utf-8\r\n")),
        ('multipart/form-data; charset=utf-8; boundary="b"', PART),
        ("Multipart/Form-Data;BOUNDARY=b", PART),
        (
            "multipart/form-data; boundary=----WebKit'()+_,./:=?b",
            PART.replace("--b", "------WebKit'()+_,./:=?b"),
        ),
        (FORM["Content-Type"], "List-Unsubscribe=One-Click\r\n"),
        (FORM["Content-Type"], "List%2DUnsubscribe=One%2DClick"),
        (FORM["Content-Type"] + "; charset=utf-8", "List-Unsubscribe=One-Click"),
    ],
)
def test_the_field_is_found_however_it_is_written(kind: str, body: str) -> None:
    assert is_one_click(kind, body.encode())


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (MULTIPART, ""),
        (MULTIPART, PART.replace("One-Click", "Yes")),
        (MULTIPART, PART.replace("One-Click", "one-click")),
        (MULTIPART, PART.replace("List-Unsubscribe", "list-unsubscribe")),
        (MULTIPART, PART.replace("form-data; name", "attachment; name")),
        (MULTIPART, PART.replace("--b--", "--b")),
        (MULTIPART, PART.replace("\r\n--b--\r\n", "")),
        (MULTIPART, PART.removesuffix("--b--\r\n") + PART),
        (MULTIPART, "preamble\r\n" + PART),
        (MULTIPART, PART + "epilogue"),
        (MULTIPART, PART.replace("--b\r\n", "--bc\r\n")),
        (MULTIPART, PART.replace("\r\n\r\n", "\r\n")),
        (MULTIPART, PART.replace("--b\r\n", "--b\r\nContent-Disposition: form-data; name=x\r\n")),
        ("multipart/form-data", PART),
        ("multipart/form-data; boundary=", PART),
        ('multipart/form-data; boundary=""', PART),
        ('multipart/form-data; boundary="b', PART),
        (f"multipart/form-data; boundary={'b' * 71}", PART.replace("--b", f"--{'b' * 71}")),
        ("multipart/form-data; boundary=b\n", PART.replace("--b", "--b\n")),
        (f"multipart/form-data{'; a=b' * 5_000}", PART),
        (FORM["Content-Type"], ""),
        (FORM["Content-Type"], "&".join(["List-Unsubscribe=One-Click"] * 2)),
        (FORM["Content-Type"], "%" * 1024),
        (FORM["Content-Type"], "\u00e9"),
    ],
)
def test_anything_but_the_one_field_does_not_count_as_a_click(kind: str, body: str) -> None:
    assert not is_one_click(kind, body.encode())


def test_the_page_has_a_form_without_script_and_its_button_unsubscribes(service: RunningService) -> None:
    path = link(service)
    page = service.call("GET", path, key=None)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    text = page.body.decode()
    assert "<script" not in text
    assert '<form method="post">' in text
    name, value = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]+)">', text)[0]
    assert ADA not in text
    done = click(service, path, f"{name}={value}")
    assert "no more <strong>newsletter</strong> by email" in done.body.decode()
    assert unsubscribed(service)


def test_unsubscribing_from_one_category_affects_no_other_category_or_tenant(service: RunningService) -> None:
    click(service, link(service))
    assert send(service, "offers")["status"] == "sent"
    assert send(service, "otp", type="otp", synchronous=True)["status"] == "sent"
    other = service.call(
        "POST",
        "/api/v1/notifications/send",
        {
            "recipient": {"email": ADA},
            "channel": "email",
            "category": "newsletter",
            "content": {"body": "x"},
        },
        key="other",
    )
    service.on_loop(lambda engine: engine.process())
    path = f"/api/v1/notifications/{other.json['notificationId']}"
    assert service.call("GET", path, key="other").json["status"] == "sent"


def test_a_recipient_with_an_id_gets_a_preference_and_can_subscribe_again(service: RunningService) -> None:
    ada = {"id": "u-1", "email": ADA}
    path = link(service, recipient=ada)
    click(service, path)
    (said,) = service.call("GET", "/api/v1/recipients/u-1/preferences").json["items"]
    assert (said["category"], said["channel"], said["allowed"], said["updatedBy"]) == (
        "newsletter",
        "email",
        False,
        "recipient",
    )
    assert service.call("GET", "/api/v1/suppressions").json == {"items": []}
    assert send(service, recipient=ada)["reason"] == "UNSUBSCRIBED"
    service.call("DELETE", "/api/v1/recipients/u-1/preferences/newsletter/email")
    assert send(service, recipient=ada)["status"] == "sent"


def test_a_recipient_without_an_id_is_suppressed_in_that_category(service: RunningService) -> None:
    click(service, link(service))
    (one,) = service.call("GET", "/api/v1/suppressions").json["items"]
    assert (one["address"], one["category"], one["why"]) == (ADA, "newsletter", "unsubscribed")


def test_exempt_synchronous_and_other_channels_have_no_link_and_a_caller_s_own_link_is_kept(
    service: RunningService,
) -> None:
    assert "unsubscribeUrl" not in send(service, "invoice")["content"]
    assert "unsubscribeUrl" not in send(service, "otp", type="otp", synchronous=True)["content"]
    sms = send(service, recipient={"phone": "+15550100"}, channel="sms")
    assert "unsubscribeUrl" not in sms["content"]
    own = {"body": "x", "unsubscribeUrl": "https://example.org/u/1"}
    assert send(service, content=own)["content"]["unsubscribeUrl"] == own["unsubscribeUrl"]


def test_deduplication_works_for_emails_with_a_link(serve: Serve) -> None:
    service = serve(**ON, dedup_windows_ms={"newsletter": "5m"})
    assert (
        send(service, type="newsletter", content={"body": "hi"})["id"]
        == send(service, type="newsletter", content={"body": "hi"})["id"]
    )


def test_a_template_can_show_the_link(service: RunningService) -> None:
    parts = {"email": {"subject": "News", "text": "Leave: {{ unsubscribeUrl }}"}}
    written = {"locales": {"en-US": parts}, "sample": {"unsubscribeUrl": "https://example.org/u"}}
    assert service.call("PUT", "/api/v1/templates/news", written).status == 200
    content = send(service, templateKey="news", content=None)["content"]
    assert content["text"] == f"Leave: {content['unsubscribeUrl']}"


def test_an_unsubscribe_is_recorded_once_for_the_tenant_without_the_address(service: RunningService) -> None:
    path = link(service)
    for _ in range(3):
        click(service, path)
    ((who, action, target, detail),) = service.trail.notes
    assert (who, action, target) == ("recipient", "recipient.unsubscribe", "")
    assert detail == {"category": "newsletter", "channel": "email"}


def test_the_secret_is_created_once_and_shared_by_all_processes(serve: Serve, tmp_path: Path) -> None:
    on = {**ON, "store": str(tmp_path / "homing.db")}
    first, second = serve(**on), serve(**on)
    path = link(first)
    assert second.call("GET", path, key=None).status == 200
    assert click(second, path).status == 200


def test_existing_links_work_after_new_ones_are_disabled(serve: Serve) -> None:
    secret = "x" * 32
    before = serve(**{**ON, "unsubscribe": {"enabled": True, "secret": secret}})
    path = link(before)
    after = serve(store="memory:", unsubscribe={"secret": secret})
    assert "unsubscribeUrl" not in send(after)["content"]
    assert click(after, path).status == 200


class CustomDirectory:
    """A custom recipient directory."""

    async def resolve(self, tenant: str, ids: Any) -> dict[str, Recipient]:
        return {}

    async def facts(self, claims: Sequence[Claim]) -> dict[str, RecipientFacts]:
        return {}


class UnsubscribableDirectory(CustomDirectory):
    """A custom directory that accepts unsubscribes."""

    def __init__(self) -> None:
        self.left: list[Subscription] = []

    async def unsubscribe(self, subscription: Subscription) -> None:
        self.left.append(subscription)

    async def facts(self, claims: Sequence[Claim]) -> dict[str, RecipientFacts]:
        gone = {one.address for one in self.left}
        return {one.id: RecipientFacts(skip=Reason.UNSUBSCRIBED) for one in claims if one.address in gone}


def test_a_custom_directory_gets_unsubscribes_or_there_are_no_links(serve: Serve) -> None:
    assert "unsubscribeUrl" not in send(serve(**ON, directory=CustomDirectory()))["content"]
    users = UnsubscribableDirectory()
    service = serve(**ON, directory=users)
    click(service, link(service))
    assert [(one.category, one.address) for one in users.left] == [("newsletter", ADA)]
    assert send(service)["reason"] == "UNSUBSCRIBED"
