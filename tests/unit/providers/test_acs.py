"""Azure Communication Services: signatures, requests, and the meaning of responses and look-ups."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing.core.errors import ConfigError
from homing.core.lifecycle.claims import provider_key
from homing.core.lifecycle.receipts import Receipt, ReceiptEvent
from homing.core.notifications import Attachment, Content, OutcomeKind
from homing.core.ports.providers import SupportsLookup
from homing.net.http_messages import HttpResponse, Transport, TransportFailure
from homing.providers.acs.callbacks import notification_id_of
from homing.providers.acs.provider import (
    AcsProvider,
    AcsSigner,
    build_host_header,
    build_operation_receipt,
    operation_id,
)
from support.email_deliveries import FULL, ID, NOW_MS, UNREACHABLE, FakeTransport, a_mail
from support.vector_files import vectors

K = OutcomeKind
HMAC: dict[str, Any] = vectors("azure_acs_hmac")
KEY = HMAC["access_key_base64"]
ENDPOINT = "https://contoso.unitedstates.communication.azure.com"


def an_acs(transport: Transport = UNREACHABLE, **options: Any) -> AcsProvider:
    given: dict[str, Any] = {
        "sender_address": "donotreply@example.com",
        "base_url": ENDPOINT,
        "access_key": KEY,
    }
    return AcsProvider(transport, now_ms=lambda: NOW_MS, **{**given, **options})


# Signatures ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", HMAC["cases"], ids=lambda case: str(case["id"]))
def test_each_request_of_the_vectors_is_signed_as_by_the_sdk(case: dict[str, Any]) -> None:
    origin, slash, rest = case["url"].partition("/emails")
    assert build_host_header(origin) == case["host"]
    signed = dict(
        AcsSigner(KEY, case["host"]).headers(case["method"], slash + rest, case["body"].encode(), NOW_MS)
    )
    assert signed == {
        "x-ms-date": case["x_ms_date"],
        "x-ms-content-sha256": case["x_ms_content_sha256"],
        "Authorization": case["authorization"],
    }


def test_the_provider_signs_what_it_sends() -> None:
    case = HMAC["cases"][0]
    request = an_acs().build(a_mail(), NOW_MS)
    assert request.url == case["url"]
    target = request.url.removeprefix(ENDPOINT)
    assert AcsSigner(KEY, case["host"]).headers("POST", target, request.body, NOW_MS) == request.headers[:3]


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://a.example:443", "a.example"),
        ("http://a.example:80", "a.example"),
        ("http://a.example:443", "a.example:443"),
        ("http://[::1]:8080", "[::1]:8080"),
    ],
)
def test_the_signed_host_is_that_of_the_host_header(url: str, host: str) -> None:
    assert build_host_header(url) == host


def test_each_attempt_has_a_new_signature_and_the_same_operation() -> None:
    provider = an_acs()
    first, second = provider.build(a_mail(), NOW_MS), provider.build(a_mail(attempt=2), NOW_MS + 60_000)
    assert first.body == second.body
    assert dict(first.headers)["Operation-Id"] == dict(second.headers)["Operation-Id"] == ID
    assert dict(first.headers)["Authorization"] != dict(second.headers)["Authorization"]
    assert "Operation-Id" not in dict(an_acs(name_operations=False).build(a_mail(), NOW_MS).headers)


def test_an_operation_is_a_uuid_for_any_idempotency_key() -> None:
    made = operation_id(a_mail(idempotency_key="order-17"))
    assert str(UUID(made)) == made == operation_id(a_mail(idempotency_key="order-17", attempt=5))
    assert made != operation_id(a_mail(idempotency_key="order-18"))


def test_the_operation_of_a_later_key_is_another_one_that_still_names_the_notification() -> None:
    keys = [provider_key(ID, bounce_floor) for bounce_floor in range(16)]
    made = [operation_id(a_mail(idempotency_key=key)) for key in keys]
    assert made[0] == ID
    assert UUID(made[1]).version == 8
    assert len(set(made)) == len(made) == 16
    assert {notification_id_of(one) for one in made} == {notification_id_of(made[3].upper())} == {ID}


# Requests and settings -------------------------------------------------------------------------------


def test_an_email_with_all_fields_has_the_service_s_format() -> None:
    provider = an_acs(
        reply_to="help@example.com", reply_to_name="Help", engagement_tracking=False,
        unsubscribe_mailto="unsub@example.com",
    )  # fmt: skip
    assert json.loads(provider.build(a_mail(FULL), NOW_MS).body) == {
        "senderAddress": "donotreply@example.com",
        "replyTo": [{"address": "help@example.com", "displayName": "Help"}],
        "userEngagementTrackingDisabled": True,
        "content": {"subject": FULL.subject, "plainText": FULL.text, "html": FULL.html},
        "recipients": {"to": [{"address": "ada@example.org"}]},
        "headers": {
            **(FULL.headers or {}),
            "List-Unsubscribe": f"<{FULL.unsubscribe_url}>, <mailto:unsub@example.com>",
            "List-Unsubscribe-Post": "List-Unsubscribe=One-Click",
        },
        "attachments": [
            {
                "name": "rechnung.pdf",
                "contentType": "application/pdf",
                "contentInBase64": "JVBERi0xLjQKJcOkw7zDtsOfCg==",
            },
            {"name": 'Ünï "code".txt', "contentType": "text/plain", "contentInBase64": "w6TDtsO8"},
        ],
    }


def test_an_image_that_the_html_shows_has_its_content_id() -> None:
    logo = Attachment("logo.png", "QQ==", "image/png", content_id="logo")
    body = json.loads(
        an_acs().build(a_mail(Content(html='<img src="cid:logo">', attachments=(logo,))), 0).body
    )
    assert body["attachments"] == [
        {"name": "logo.png", "contentType": "image/png", "contentInBase64": "QQ==", "contentId": "logo"}
    ]


def test_a_connection_string_contains_endpoint_and_key() -> None:
    joined = an_acs(base_url="", access_key="", connection_string=f"endpoint={ENDPOINT}/;accesskey={KEY}")
    assert joined.build(a_mail(), NOW_MS) == an_acs().build(a_mail(), NOW_MS)


def test_an_older_api_version_can_be_configured() -> None:
    request = an_acs(api_version="2023-03-31").build(a_mail(), NOW_MS)
    assert request.url == HMAC["cases"][1]["url"]


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("access_key", {"access_key": ""}),
        ("access_key", {"access_key": "not base64!"}),
        ("base_url", {"base_url": ""}),
        ("base_url", {"base_url": "contoso.communication.azure.com"}),
        ("base_url", {"base_url": "https://x:99999999"}),
        ("connection_string", {"connection_string": "accesskey=QQ=="}),
        ("sender_address", {"sender_address": "nobody"}),
    ],
)
def test_a_wrong_setting_is_named_at_start(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=field) as error:
        an_acs(**options)
    assert KEY not in error.value.message


# Answers ---------------------------------------------------------------------------------------------


def error(code: str, message: str = "No.") -> bytes:
    return json.dumps({"error": {"code": code, "message": message}}).encode()


@pytest.mark.parametrize(
    ("status", "body", "kind", "code"),
    [
        (400, error("BadRequest"), K.BAD_CONTENT, "400"),
        (400, error("InvalidEmailAddress"), K.BAD_RECIPIENT, "InvalidEmailAddress"),
        (400, error("EmailDropped"), K.BAD_RECIPIENT, "EmailDropped"),
        (401, error("Denied"), K.PROVIDER_FAULT, "Denied"),
        (401, b"", K.PROVIDER_FAULT, "401"),
        (403, b"<html>", K.PROVIDER_FAULT, "403"),
        (404, error("DomainNotLinked"), K.PROVIDER_FAULT, "DomainNotLinked"),
        (404, b"", K.PROVIDER_FAULT, "404"),
        (409, b"", K.AMBIGUOUS, "409"),
        (413, b"", K.BAD_CONTENT, "413"),
        (429, error("TooManyRequests"), K.THROTTLED, "TooManyRequests"),
        (500, b"\xff", K.TRANSIENT, "500"),
        (503, b"", K.TRANSIENT, "503"),
        (200, b"<html>", K.AMBIGUOUS, "200"),
        (302, b"", K.PROVIDER_FAULT, "302"),
        (
            202,
            b'{"id":"x","status":"Failed","error":{"code":"EmailDropped"}}',
            K.BAD_RECIPIENT,
            "EmailDropped",
        ),
    ],
)
def test_each_response_has_its_outcome(status: int, body: bytes, kind: OutcomeKind, code: str) -> None:
    outcome = an_acs().classify(HttpResponse(status=status, headers={}, body=body), NOW_MS)
    assert (outcome.kind, outcome.error_code) == (kind, code)
    assert outcome.error


def test_a_code_missing_in_the_table_is_still_reported() -> None:
    outcome = an_acs().classify(
        HttpResponse(status=400, headers={"x-ms-error-code": "Odd"}, body=b""), NOW_MS
    )
    assert (outcome.error_code, outcome.error) == ("400", "Odd")


@pytest.mark.parametrize("code", ["InvalidSenderUserName", "SubscriptionBlocked"])
def test_a_blocked_account_or_sender_is_a_fault_of_the_provider(code: str) -> None:
    outcome = an_acs().classify(HttpResponse(status=400, headers={}, body=error(code)), NOW_MS)
    assert (outcome.kind, outcome.error_code) == (K.PROVIDER_FAULT, code)


@pytest.mark.parametrize(
    ("status", "body", "unlisted"),
    [
        (400, b"", False),
        (400, error("BadRequest"), False),
        (400, error("Odd"), True),
        (422, b"", True),
        (413, error("Odd"), False),
        (403, error("Odd"), False),
    ],
)
def test_a_refusal_missing_in_the_table_is_marked_as_unlisted(
    status: int, body: bytes, unlisted: bool
) -> None:
    outcome = an_acs().classify(HttpResponse(status=status, headers={}, body=body), NOW_MS)
    assert outcome.unlisted is unlisted


def test_an_accepted_email_has_the_id_of_its_operation() -> None:
    body = b'{"id":"8540c0de-899f-5cce-acb5-3ec493af3800","status":"Running"}'
    taken = an_acs().classify(HttpResponse(status=202, headers={"retry-after": "10"}, body=body), NOW_MS)
    assert (taken.kind, taken.provider_message_id) == (K.ACCEPTED, "8540c0de-899f-5cce-acb5-3ec493af3800")
    assert taken.retry_after_ms is None
    where = {"operation-location": "https://x.example//emails/operations/abc-1?api-version=2025-09-01"}
    assert an_acs().classify(HttpResponse(status=202, headers=where), NOW_MS).provider_message_id == "abc-1"


def test_the_delay_is_that_of_the_response() -> None:
    answer = HttpResponse(status=429, headers={"retry-after": "57"}, body=error("TooManyRequests"))
    assert an_acs().classify(answer, NOW_MS).retry_after_ms == 57_000


bodies = st.binary(max_size=300) | st.sampled_from(
    [
        b'{"error":7}',
        b'{"error":{"code":[],"message":{}}}',
        b'{"id":5,"status":[]}',
        b"[" * 9000,
        b'{"status":{}}',
    ]
)


@given(st.integers(100, 999), bodies, st.text(max_size=40))
def test_no_response_makes_it_raise(status: int, body: bytes, header: str) -> None:
    headers = dict.fromkeys(("operation-location", "x-ms-error-code", "retry-after"), header)
    answer = HttpResponse(status=status, headers=headers, body=body)
    assert an_acs().classify(answer, NOW_MS).kind is not K.ACCEPTED or status == 202
    receipt = build_operation_receipt(answer, "op", a_mail(), NOW_MS)
    assert receipt is None or isinstance(receipt, Receipt)


# Look-ups --------------------------------------------------------------------------------------------


async def look_up(
    body: object, status: int = 200, known: str | None = None
) -> tuple[Receipt | None, FakeTransport]:
    transport = FakeTransport(HttpResponse(status=status, headers={}, body=json.dumps(body).encode()))
    provider = an_acs(transport)
    assert isinstance(provider, SupportsLookup)
    return await provider.look_up(a_mail(attempt=2), known), transport


@pytest.mark.parametrize(
    ("status", "event"),
    [
        ("NotStarted", ReceiptEvent.QUEUED),
        ("Running", ReceiptEvent.QUEUED),
        ("Succeeded", ReceiptEvent.SENT),
        ("Failed", ReceiptEvent.FAILED),
        ("Canceled", ReceiptEvent.FAILED),
    ],
)
async def test_a_look_up_returns_the_state_of_the_operation(status: str, event: ReceiptEvent) -> None:
    receipt, transport = await look_up({"id": ID, "status": status})
    assert receipt is not None
    assert (receipt.event, receipt.notification_id, receipt.attempt) == (event, ID, 2)
    again, _ = await look_up({"id": ID, "status": status})
    assert again == receipt
    (request,) = transport.requests
    assert request.url == f"{ENDPOINT}/emails/operations/{ID}?api-version=2025-09-01"
    assert (request.method, "Authorization" in dict(request.headers)) == ("GET", True)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("EmailDropped", OutcomeKind.BAD_RECIPIENT),
        ("DomainNotLinked", OutcomeKind.PROVIDER_FAULT),
        ("TooManyRequests", OutcomeKind.THROTTLED),
        ("SomethingNew", None),
    ],
)
async def test_a_look_up_of_a_failure_has_the_class_of_its_code(code: str, kind: OutcomeKind | None) -> None:
    receipt, _ = await look_up({"status": "Failed", "error": {"code": code, "message": "gone"}})
    assert receipt is not None
    assert (receipt.outcome, receipt.error_code) == (kind, code)


async def test_a_look_up_uses_the_known_operation() -> None:
    _, transport = await look_up({}, known="8540c0de")
    assert "/operations/8540c0de?" in transport.requests[0].url


@pytest.mark.parametrize("status", [404, 401, 429, 500, 202])
async def test_a_look_up_with_an_unusable_response_returns_nothing(status: int) -> None:
    receipt, _ = await look_up({"status": "Succeeded"}, status)
    assert receipt is None


async def test_a_look_up_that_cannot_be_made_returns_nothing() -> None:
    assert (
        await an_acs(FakeTransport(TransportFailure(code="timeout", error="", written=True))).look_up(
            a_mail(), None
        )
        is None
    )
    assert await an_acs(name_operations=False).look_up(a_mail(), None) is None
    odd, transport = await look_up({"status": "Succeeded"}, known="../../secrets")
    assert (odd, transport.requests) == (None, [])
