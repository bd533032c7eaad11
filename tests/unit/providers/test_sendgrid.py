"""SendGrid: requests checked against its OpenAPI file and its SDK, and the meaning of responses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sendgrid import SendGridAPIClient  # type: ignore[import-untyped]
from sendgrid.helpers import mail as sdk  # type: ignore[import-untyped]

from homing.core.errors import ConfigError
from homing.core.notifications import Attachment, Content, OutcomeKind
from homing.net.http_messages import HttpRequest, HttpResponse, Transport
from homing.providers.common.error_tables import load_error_table
from homing.providers.sendgrid.provider import SendGridProvider
from support.email_deliveries import FULL, ID, NOW_MS, UNREACHABLE, a_mail, contents
from support.openapi_validation import OpenApi

K = OutcomeKind
SPEC = OpenApi("sendgrid_mail_v3.openapi.json")
EVERYTHING: dict[str, Any] = {
    "from_name": "Vögel & Söhne",
    "reply_to": "help@example.com",
    "on_behalf_of": "subuser",
    "sandbox": True,
    "categories": ["orders", "mail"],
    "asm_group_id": 17,
    "ip_pool_name": "warm",
    "open_tracking": False,
    "click_tracking": True,
    "unsubscribe_mailto": "unsub@example.com",
}


def a_sendgrid(transport: Transport = UNREACHABLE, **options: Any) -> SendGridProvider:
    return SendGridProvider(transport, **{"api_key": "SG.key", "from_email": "orders@example.com", **options})


def check(request: HttpRequest) -> Any:
    assert (
        SPEC.check(request.method, request.url, request.body, dict(request.headers)["Content-Type"])
        == "SendMail"
    )
    return json.loads(request.body)


@pytest.mark.parametrize("options", [{}, EVERYTHING], ids=["usual", "everything"])
@given(contents)
@settings(max_examples=40, deadline=None)
def test_every_request_is_valid_by_the_openapi_file(options: dict[str, Any], content: Content) -> None:
    check(a_sendgrid(**options).build(a_mail(content), NOW_MS))


def test_the_sdk_sends_the_same_for_the_same_email() -> None:
    ours = check(a_sendgrid(**EVERYTHING).build(a_mail(FULL, attempt=3), NOW_MS))
    theirs = sdk.Mail(
        from_email=sdk.From("orders@example.com", "Vögel & Söhne"),
        to_emails=sdk.To("ada@example.org", p=0),
        subject=FULL.subject,
        plain_text_content=FULL.text,
        html_content=FULL.html,
    )
    theirs.reply_to = sdk.ReplyTo("help@example.com")
    theirs.asm = sdk.Asm(sdk.GroupId(17))
    theirs.ip_pool_name = sdk.IpPoolName("warm")
    theirs.category = [sdk.Category("mail"), sdk.Category("orders")]  # the SDK reverses their order
    theirs.custom_arg = [
        sdk.CustomArg("homing_notification_id", ID, p=0),
        sdk.CustomArg("homing_attempt", "3", p=0),
    ]
    theirs.mail_settings = sdk.MailSettings(sandbox_mode=sdk.SandBoxMode(True))
    theirs.tracking_settings = sdk.TrackingSettings(
        click_tracking=sdk.ClickTracking(True, True), open_tracking=sdk.OpenTracking(False)
    )
    for name, value in {
        **(FULL.headers or {}),
        "List-Unsubscribe": f"<{FULL.unsubscribe_url}>, <mailto:unsub@example.com>",
        "List-Unsubscribe-Post": "List-Unsubscribe=One-Click",
    }.items():
        theirs.header = sdk.Header(name, value)
    theirs.attachment = [
        sdk.Attachment(
            sdk.FileContent(a.content.strip()), sdk.FileName(a.filename), sdk.FileType(a.content_type),
            sdk.Disposition("attachment"),
        )
        for a in reversed(FULL.attachments)
    ]  # fmt: skip
    assert _ordered(ours) == _ordered(theirs.get())


def _ordered(body: dict[str, Any]) -> dict[str, Any]:
    """The order of attachments and categories in the SDK's request is undefined."""
    body = dict(body)
    body["attachments"] = sorted(body["attachments"], key=lambda one: str(one["filename"]))
    body["categories"] = sorted(body["categories"])
    return body


def test_an_image_that_the_html_shows_is_written_as_by_the_sdk() -> None:
    logo = Attachment("logo.png", "QQ==", "image/png", content_id="logo")
    mail = a_mail(Content(subject="s", html='<img src="cid:logo">', attachments=(logo,)))
    theirs = sdk.Attachment(
        sdk.FileContent("QQ=="), sdk.FileName("logo.png"), sdk.FileType("image/png"),
        sdk.Disposition("inline"), sdk.ContentId("logo"),
    )  # fmt: skip
    assert json.loads(a_sendgrid().build(mail, 0).body)["attachments"] == [theirs.get()]


def test_url_and_headers_are_those_of_the_sdk() -> None:
    client = SendGridAPIClient("SG.key", host="https://api.eu.sendgrid.com", impersonate_subuser="subuser")
    request = a_sendgrid(base_url="https://api.eu.sendgrid.com/", on_behalf_of="subuser").build(a_mail(), 0)
    theirs = {name.lower(): value for name, value in client.client.request_headers.items()}
    ours = {name.lower(): value for name, value in request.headers}
    assert request.url == client.client.mail.send._build_url(None)
    assert ours["authorization"] == theirs["authorization"]
    assert ours["on-behalf-of"] == theirs["on-behalf-of"]


def test_custom_arguments_identify_the_attempt_and_the_key_is_not_shown() -> None:
    provider = a_sendgrid()
    request = provider.build(a_mail(attempt=2), NOW_MS)
    assert check(request)["personalizations"][0]["custom_args"] == {
        "homing_notification_id": ID,
        "homing_attempt": "2",
    }
    assert "SG.key" not in repr(request) + repr(provider) + str(vars(UNREACHABLE))


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("api_key", {"api_key": ""}),
        ("from_email", {"from_email": "nobody"}),
        ("reply_to", {"reply_to": "a b@c"}),
        ("base_url", {"base_url": "api.sendgrid.com"}),
        ("categories", {"categories": "orders"}),
        ("categories", {"categories": ["x"] * 11}),
        ("webhook_public_key", {"webhook_public_key": "not a key"}),
        ("webhook_tolerance_ms", {"webhook_tolerance_ms": -1}),
    ],
)
def test_a_wrong_setting_is_named_at_start(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=field):
        a_sendgrid(**options)


# Answers ---------------------------------------------------------------------------------------------


def errors(message: str, field: str | None = None) -> bytes:
    return json.dumps({"errors": [{"message": message, "field": field, "help": None}], "id": "x"}).encode()


@pytest.mark.parametrize(
    ("status", "body", "kind", "code"),
    [
        (400, errors("bad"), K.BAD_CONTENT, "400"),
        (400, errors("bad", "null"), K.BAD_CONTENT, "400"),
        (400, errors("bad", "subject"), K.BAD_CONTENT, "subject"),
        (400, errors("bad", "attachments.0.content"), K.BAD_CONTENT, "attachments"),
        (400, errors("bad", "tracking_settings.open_tracking.enable"), K.PROVIDER_FAULT, "tracking_settings"),
        (400, errors("bad", "send_at"), K.BAD_CONTENT, "400"),
        (400, errors("bad", "personalizations.0.to.0.email"), K.BAD_RECIPIENT, "personalizations.to.email"),
        (400, errors("bad", "from.email"), K.PROVIDER_FAULT, "from.email"),
        (500, errors("bad", "from.email"), K.TRANSIENT, "500"),
        (401, errors("The provided authorization grant is invalid"), K.PROVIDER_FAULT, "401"),
        (403, b"", K.PROVIDER_FAULT, "403"),
        (404, b"<html>", K.PROVIDER_FAULT, "404"),
        (405, b"", K.PROVIDER_FAULT, "405"),
        (413, errors("payload too large"), K.BAD_CONTENT, "413"),
        (500, b"", K.TRANSIENT, "500"),
        (502, b"<html>", K.TRANSIENT, "502"),
        (503, b"\xff\xfe", K.TRANSIENT, "503"),
        (200, b"<html>welcome to the hotel", K.AMBIGUOUS, "200"),
        (301, b"", K.PROVIDER_FAULT, "301"),
        (418, b"", K.BAD_CONTENT, "418"),
    ],
)
def test_each_response_has_its_outcome(status: int, body: bytes, kind: OutcomeKind, code: str) -> None:
    outcome = a_sendgrid().classify(HttpResponse(status=status, headers={}, body=body), NOW_MS)
    assert (outcome.kind, outcome.error_code) == (kind, code)
    assert outcome.error


@pytest.mark.parametrize(
    ("status", "field", "unlisted"),
    [
        (400, None, False),
        (400, "subject", False),
        (400, "send_at", True),
        (413, "send_at", False),
        (418, None, True),
        (403, "send_at", False),
        (503, "send_at", False),
    ],
)
def test_an_error_about_an_unlisted_field_is_marked_as_unlisted(
    status: int, field: str | None, unlisted: bool
) -> None:
    answer = HttpResponse(status=status, headers={}, body=errors("bad", field))
    assert a_sendgrid().classify(answer, NOW_MS).unlisted is unlisted


def test_an_accepted_email_has_the_id_of_its_header() -> None:
    taken = HttpResponse(status=202, headers={"x-message-id": "14c5d75ce93.dfd.64b469"})
    assert a_sendgrid().classify(taken, NOW_MS).provider_message_id == "14c5d75ce93.dfd.64b469"
    assert a_sendgrid().classify(HttpResponse(status=202, headers={}), NOW_MS).kind is K.ACCEPTED
    sandboxed = a_sendgrid(sandbox=True).classify(HttpResponse(status=200, headers={}), NOW_MS)
    assert sandboxed.kind is K.ACCEPTED


@pytest.mark.parametrize(
    ("headers", "wait_ms"),
    [
        ({"x-ratelimit-reset": str(NOW_MS // 1000 + 30)}, 30_000),
        ({"x-ratelimit-reset": str(NOW_MS // 1000 - 30)}, 0),
        ({"x-ratelimit-reset": "99999999999"}, 24 * 3_600_000),
        ({"x-ratelimit-reset": "soon", "retry-after": "7"}, 7_000),
        ({"x-ratelimit-reset": "9" * 400}, None),
        ({}, None),
    ],
)
def test_the_delay_lasts_until_the_rate_window_resets(headers: dict[str, str], wait_ms: int | None) -> None:
    outcome = a_sendgrid().classify(
        HttpResponse(status=429, headers=headers, body=b"too many requests"), NOW_MS
    )
    assert (outcome.kind, outcome.retry_after_ms) == (K.THROTTLED, wait_ms)


def test_no_error_contains_a_recipient() -> None:
    said = errors("Does not contain a valid address: ada@example.org", "personalizations.0.to.0.email")
    outcome = a_sendgrid().classify(HttpResponse(status=400, headers={}, body=said), NOW_MS)
    assert "ada@" not in (outcome.error or "")


@given(
    st.integers(100, 999),
    st.binary(max_size=300)
    | st.sampled_from([b'{"errors":[]}', b'{"errors":[7]}', b"[" * 9000, b'{"errors":{"0":1}}']),
    st.dictionaries(
        st.sampled_from(["x-message-id", "x-ratelimit-reset", "retry-after"]), st.text(max_size=20)
    ),
)
def test_no_response_makes_it_raise(status: int, body: bytes, headers: dict[str, str]) -> None:
    outcome = a_sendgrid().classify(HttpResponse(status=status, headers=headers, body=body), NOW_MS)
    assert (outcome.kind is K.ACCEPTED) == (status == 202)


def test_the_table_has_every_status_of_the_openapi_file() -> None:
    named = SPEC._document["paths"]["/v3/mail/send"]["post"]["responses"]
    table = load_error_table("sendgrid")
    assert all(str(status) in table.statuses or status in ("202", "500") for status in named)


async def test_the_health_check_sends_nothing() -> None:
    request = a_sendgrid().check_request()
    assert (request.method, request.body) == ("GET", b"")
