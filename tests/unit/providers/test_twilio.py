"""Twilio: requests, and the meaning of every response."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homing import Channel, Content
from homing.core.errors import ConfigError
from homing.core.notifications import OutcomeKind
from homing.core.ports.providers import Delivery
from homing.net.http_messages import HttpResponse
from homing.providers.common.error_tables import load_error_table
from homing.providers.common.http_provider import Unsendable
from homing.providers.twilio.provider import TwilioProvider, classify
from support.openapi_validation import OpenApi
from support.sms_deliveries import ACCOUNT, KINDS, NOW_MS, SERVICE, SID, TOKEN, a_delivery, a_twilio
from support.vector_files import vectors

ERRORS = vectors("twilio_errors")
SPEC = OpenApi("twilio_messages.openapi.json")
CHAT = {"channel": Channel.CHAT, "address": "whatsapp:+15558675310"}
TEMPLATE = "HX" + "d" * 32


def form(provider: TwilioProvider, delivery: Delivery) -> list[tuple[str, str]]:
    """Returns the form fields of the request after checking them against the OpenAPI file."""
    request = provider.build(delivery, NOW_MS)
    headers = dict(request.headers)
    assert SPEC.check(request.method, request.url, request.body, headers["Content-Type"]) == "CreateMessage"
    return parse_qsl(request.body.decode(), keep_blank_values=True)


def refused(delivery: Delivery, **settings: Any) -> tuple[OutcomeKind, str | None]:
    with pytest.raises(Unsendable) as raised:
        a_twilio(**settings).build(delivery, NOW_MS)
    return raised.value.outcome.kind, raised.value.outcome.error_code


def test_the_chat_channel_is_served_only_with_a_whatsapp_sender() -> None:
    assert a_twilio().channels == ("sms",)
    assert a_twilio(whatsapp_sender="+15550100").channels == ("sms", "chat")


def test_an_sms_has_recipient_sender_and_text() -> None:
    request = a_twilio().build(a_delivery(), NOW_MS)
    assert request.url == f"https://api.twilio.com/2010-04-01/Accounts/{ACCOUNT}/Messages.json"
    assert form(a_twilio(), a_delivery()) == [
        ("To", "+15558675310"),
        ("From", "+15017122661"),
        ("Body", "Your parcel is here"),
    ]


def test_the_status_callback_url_carries_our_id_and_attempt() -> None:
    def callback(url: str) -> str:
        return dict(form(a_twilio(callback_url=url), a_delivery()))["StatusCallback"]

    ours = "delivery=018d0c7e-5a00-7000-8000-000000000001&attempt=2"
    assert callback("https://n.example.org/cb") == f"https://n.example.org/cb?{ours}"
    assert callback("https://n.example.org/cb?k=1") == f"https://n.example.org/cb?k=1&{ours}"
    assert callback("https://n.example.org/cb#rc=3") == f"https://n.example.org/cb?{ours}#rc=3"


def test_an_expiry_sets_how_long_twilio_may_queue_the_message() -> None:
    def validity(left_ms: int) -> str | None:
        return dict(form(a_twilio(), a_delivery(expires_at=NOW_MS + left_ms))).get("ValidityPeriod")

    assert validity(90_500) == "90"
    assert validity(999) == "1"
    assert validity(-5_000) == "1"
    assert validity(35_999_999) == "35999"
    assert validity(36_000_000) is None


def test_a_messaging_service_replaces_the_sender() -> None:
    provider = a_twilio(sender="", messaging_service_sid=SERVICE)
    assert ("MessagingServiceSid", SERVICE) in form(provider, a_delivery())
    assert "From" not in dict(form(provider, a_delivery()))


@pytest.mark.parametrize(
    ("settings", "sender"),
    [
        ({}, ("From", "whatsapp:+15017122661")),
        ({"whatsapp_sender": "+15550009"}, ("From", "whatsapp:+15550009")),
        ({"whatsapp_sender": "whatsapp:+15550009"}, ("From", "whatsapp:+15550009")),
        ({"sender": "", "messaging_service_sid": SERVICE}, ("MessagingServiceSid", SERVICE)),
    ],
)
def test_the_chat_channel_is_whatsapp(settings: dict[str, Any], sender: tuple[str, str]) -> None:
    for address in ("whatsapp:+15558675310", "+15558675310"):
        fields = form(a_twilio(**settings), a_delivery(channel=Channel.CHAT, address=address))
        assert fields[:2] == [("To", "whatsapp:+15558675310"), sender]


def test_media_and_content_templates_come_from_the_data() -> None:
    media = ["https://example.org/a.png", "https://example.org/b.png"]
    content = Content(text="Look", data={"mediaUrl": media})
    fields = form(a_twilio(), a_delivery(content=content))
    assert [value for name, value in fields if name == "MediaUrl"] == media
    content = Content(text="left out", data={"contentSid": TEMPLATE, "contentVariables": {"1": "Ada"}})
    fields = form(a_twilio(), a_delivery(content=content, **CHAT))
    assert dict(fields)["ContentVariables"] == '{"1":"Ada"}'
    assert "Body" not in dict(fields)


def test_some_settings_apply_to_every_message() -> None:
    provider = a_twilio(smart_encoded=True, risk_check=False, shorten_urls=False)
    fields = form(provider, a_delivery())
    assert fields[-3:] == [("SmartEncoded", "true"), ("RiskCheck", "disable"), ("ShortenUrls", "false")]


@pytest.mark.parametrize(
    ("fields", "kind", "code"),
    [
        ({"content": Content(text="x" * 1601)}, OutcomeKind.BAD_CONTENT, "too_long"),
        ({"content": Content(subject="only a subject")}, OutcomeKind.BAD_CONTENT, "empty"),
        ({"content": Content(text="x", data={"mediaUrl": 7})}, OutcomeKind.BAD_CONTENT, "media"),
        ({"content": Content(text="x", data={"mediaUrl": "file:///x"})}, OutcomeKind.BAD_CONTENT, "media"),
        ({"content": Content(data={"mediaUrl": ["https://a/b"] * 11})}, OutcomeKind.BAD_CONTENT, "media"),
        ({"content": Content(data={"contentSid": "x"})}, OutcomeKind.BAD_CONTENT, "template"),
        (
            {"content": Content(data={"contentSid": TEMPLATE, "contentVariables": "x"})},
            OutcomeKind.BAD_CONTENT,
            "template",
        ),
        ({"channel": Channel.EMAIL, "address": "a@b.org"}, OutcomeKind.PROVIDER_FAULT, "channel"),
        ({"channel": Channel.CHAT, "address": "https://x.org"}, OutcomeKind.BAD_RECIPIENT, "address"),
    ],
)
def test_content_that_cannot_be_sent_is_refused_before_sending(
    fields: dict[str, Any], kind: OutcomeKind, code: str
) -> None:
    assert refused(a_delivery(**fields)) == (kind, code)


def test_a_text_may_not_need_more_segments_than_allowed() -> None:
    text = "ê" * 71
    assert refused(a_delivery(content=Content(text=text)), max_segments=1) == (
        OutcomeKind.BAD_CONTENT,
        "segments",
    )
    assert form(a_twilio(max_segments=2), a_delivery(content=Content(text=text)))
    assert form(a_twilio(max_segments=1), a_delivery(content=Content(text=text), **CHAT))


def test_a_text_of_1600_characters_is_sent() -> None:
    assert dict(form(a_twilio(), a_delivery(content=Content(text="é" * 1600))))["Body"] == "é" * 1600


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"account_sid": "ACshort"}, "account_sid"),
        ({"account_sid": 7}, "account_sid"),
        ({"auth_token": ""}, "auth_token"),
        ({"sender": ""}, "sender"),
        ({"messaging_service_sid": SERVICE}, "sender"),
        ({"sender": "", "messaging_service_sid": "MGx"}, "messaging_service_sid"),
        ({"api_key_sid": "SKx", "api_key_secret": "s"}, "api_key_sid"),
        ({"api_key_sid": "SK" + "e" * 32}, "api_key_secret"),
        ({"base_url": "api.twilio.com"}, "base_url"),
        ({"max_segments": -1}, "max_segments"),
        ({"max_segments": True}, "max_segments"),
        ({"callback_url": "ftp://example.org"}, "callback_url"),
        ({"callback_url": "https://my_host.example.org/"}, "callback_url"),
        ({"callback_url": "https://example.org/ä"}, "callback_url"),
        ({"callback_url": "https://example.org:99999/"}, "callback_url"),
        ({"callback_url": "https://example.org/" + "x" * 4000}, "callback_url"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as raised:
        a_twilio(**settings)
    assert raised.value.field == field
    assert TOKEN not in str(raised.value)


def test_an_api_key_authenticates_and_the_account_stays_in_the_path() -> None:
    key = "SK" + "e" * 32
    provider = a_twilio(auth_token="", api_key_sid=key, api_key_secret="hush")
    request = provider.build(a_delivery(), NOW_MS)
    assert dict(request.headers)["Authorization"] == "Basic " + _b64(f"{key}:hush")
    assert f"/Accounts/{ACCOUNT}/" in request.url
    own = a_twilio().build(a_delivery(), NOW_MS)
    assert dict(own.headers)["Authorization"] == "Basic " + _b64(f"{ACCOUNT}:{TOKEN}")
    for shown in (repr(provider), repr(request), str(request)):
        assert "hush" not in shown
        assert _b64(f"{key}:hush") not in shown


def _b64(text: str) -> str:
    return b64encode(text.encode()).decode()


# Answers ------------------------------------------------------------------------------------------------


def answer(status: int, body: Any = b"", **headers: str) -> HttpResponse:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return HttpResponse(status=status, headers=headers, body=data)


@pytest.mark.parametrize("status", [200, 201, 202])
def test_any_success_with_a_message_id_is_accepted(status: int) -> None:
    outcome = classify(answer(status, {"sid": SID, "status": "queued", "error_code": None}), NOW_MS)
    assert (outcome.kind, outcome.provider_message_id) == (OutcomeKind.ACCEPTED, SID)


@pytest.mark.parametrize(
    "body", [b"", b"<html>Welcome</html>", b'{"sid":', b'{"sid": 7}', b"[]", b'{"sid":""}']
)
def test_a_success_without_a_message_id_is_ambiguous(body: bytes) -> None:
    outcome = classify(answer(201, body), NOW_MS)
    assert (outcome.kind, outcome.error_code) == (OutcomeKind.AMBIGUOUS, "unreadable")


OUR_CLASS = {20404: "config"}
"""Codes for which our table differs from the vectors: Twilio uses them for a wrong account or service."""


@pytest.mark.parametrize("row", ERRORS["codes"], ids=lambda row: str(row["code"]))
def test_every_code_of_the_contract_has_its_outcome(row: dict[str, Any]) -> None:
    status = row["http"] or 400
    outcome = classify(answer(status, {"code": row["code"], "message": "m", "status": status}), NOW_MS)
    if row["action"].startswith("mark address invalid"):
        assert outcome.kind is OutcomeKind.DEAD_ADDRESS
    else:
        assert outcome.kind in KINDS[OUR_CLASS.get(row["code"], row["retry_class"])]
    assert outcome.error_code == str(row["code"])
    assert str(row["code"]) in load_error_table("twilio").codes


@pytest.mark.parametrize(
    ("stated", "statuses"),
    [
        ("http 429", (429,)),
        ("http 5xx", (500, 502, 503, 599)),
        ("http 408", (408,)),
        ("http 401/403", (401, 403)),
        ("other http 4xx", (400, 404, 405, 422)),
    ],
)
@pytest.mark.parametrize("body", [b"", b'{"code": 99999}', b'{"code": "unreadable"}'])
def test_an_unknown_code_falls_back_to_the_status(
    stated: str, statuses: tuple[int, ...], body: bytes
) -> None:
    for status in statuses:
        assert classify(answer(status, body), NOW_MS).kind in KINDS[ERRORS["fallback"][stated]]


@pytest.mark.parametrize("status", [429, 503, 408, 401, 400, 422])
def test_a_proxy_s_html_page_is_judged_by_its_status(status: int) -> None:
    assert classify(answer(status, b"<html>"), NOW_MS) == classify(answer(status, b""), NOW_MS)


@pytest.mark.parametrize("code", [20404, 21659, 21660, 21661, 21701, 21703, 21704, 21705, 30454, 63007])
def test_a_fault_of_account_or_sender_is_a_provider_fault(code: int) -> None:
    outcome = classify(answer(400, {"code": code, "message": "m"}), NOW_MS)
    assert (outcome.kind, outcome.unlisted) == (OutcomeKind.PROVIDER_FAULT, False)


def test_a_full_queue_of_the_sender_is_throttling() -> None:
    assert classify(answer(400, {"code": 21611}), NOW_MS).kind is OutcomeKind.THROTTLED
    assert classify(answer(429, {"code": 21611}), NOW_MS).kind is OutcomeKind.THROTTLED


@pytest.mark.parametrize(
    ("status", "body", "unlisted"),
    [
        (400, {"code": 29999}, True),
        (400, {}, True),
        (422, {"code": 29999}, True),
        (400, {"code": 21617}, False),
        (400, {"code": 21211}, False),
        (403, {"code": 29999}, False),
        (500, {"code": 29999}, False),
    ],
)
def test_a_refusal_missing_in_the_table_is_marked_as_unlisted(
    status: int, body: dict[str, Any], unlisted: bool
) -> None:
    assert classify(answer(status, body), NOW_MS).unlisted is unlisted


def test_the_error_is_twilio_s_text_without_the_phone_number() -> None:
    outcome = classify(answer(400, ERRORS["api_error_body"]), NOW_MS)
    assert (outcome.kind, outcome.error_code) == (OutcomeKind.DEAD_ADDRESS, "21211")
    assert outcome.error == "The 'To' number ••• is not a valid phone number."


def test_the_newer_error_format_is_read_too() -> None:
    outcome = classify(answer(400, ERRORS["api_error_body_rfc9457"]), NOW_MS)
    assert (outcome.kind, outcome.error_code) == (OutcomeKind.BAD_CONTENT, "20001")
    assert outcome.error == "The 'PhoneNumber' parameter is required."


def test_a_throttling_delay_is_read_in_both_forms() -> None:
    for value in ("7", "Mon, 15 Jan 2024 12:00:07 GMT"):
        outcome = classify(answer(429, {"code": 20429}, **{"retry-after": value}), NOW_MS)
        assert (outcome.kind, outcome.retry_after_ms) == (OutcomeKind.THROTTLED, 7_000)
    assert classify(answer(429, {"code": 20429}), NOW_MS).retry_after_ms is None
    assert classify(answer(400, {"code": 30450}), NOW_MS).retry_after_ms == 1_800_000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["sid", "code", "message", "x"]), inner),
    max_leaves=10,
)


@given(
    status=st.integers(100, 599),
    body=st.binary() | JSON.map(lambda value: json.dumps(value).encode()),
    retry_after=st.text(),
)
def test_no_response_makes_it_raise(status: int, body: bytes, retry_after: str) -> None:
    outcome = classify(answer(status, body, **{"retry-after": retry_after}), NOW_MS)
    assert outcome.kind is not OutcomeKind.ACCEPTED or 200 <= status < 300


def test_an_excessively_nested_body_is_ignored() -> None:
    assert classify(answer(201, b"[" * 60_000), NOW_MS).kind is OutcomeKind.AMBIGUOUS
