"""Web Push: encryption that a browser decrypts, tokens that others verify, and push services' responses."""

from __future__ import annotations

import json
import logging
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import http_ece  # type: ignore[import-untyped]
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from py_vapid import Vapid02  # type: ignore[import-untyped]

from homing import Content, Outcome, OutcomeKind, Priority
from homing.core.errors import ConfigError
from homing.net.http_client import CurlTransport
from homing.net.http_messages import HttpRequest, HttpResponse
from homing.net.secrets import Secret
from homing.providers.common.http_provider import Unsendable
from homing.providers.common.push_content import MAX_TTL_S
from homing.providers.webpush.encryption import (
    MAX_PLAINTEXT_BYTES,
    VapidSigner,
    encrypt,
    generate_private_key,
    read_subscription,
)
from homing.providers.webpush.provider import WebPushProvider
from support.push_deliveries import NOW_MS, WEBPUSH, a_push
from support.web_push_browser import Browser

K = OutcomeKind
RFC8291, RFC8292 = WEBPUSH["rfc8291"], WEBPUSH["rfc8292"]


def raw(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def text(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


BROWSER = Browser()
KEY = ec.generate_private_key(ec.SECP256R1())
PEM = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
RAW = text(KEY.private_numbers().private_value.to_bytes(32, "big"))


def a_provider(**settings: Any) -> WebPushProvider:
    given: dict[str, Any] = {
        "vapid_private_key": PEM,
        "vapid_subject": "mailto:push@example.com",
        "now_ms": lambda: NOW_MS,
        **settings,
    }
    return WebPushProvider(CurlTransport(), **given)


def built(settings: dict[str, Any] | None = None, **fields: Any) -> HttpRequest:
    return a_provider(**(settings or {})).build(
        a_push(**{"address": BROWSER.subscription(), **fields}), NOW_MS
    )


def refused(**fields: Any) -> Outcome:
    with pytest.raises(Unsendable) as caught:
        built(**fields)
    return caught.value.outcome


# Vectors -----------------------------------------------------------------------------------------------


def test_the_example_of_rfc_8291_is_encrypted_byte_for_byte() -> None:
    keys = {"p256dh": RFC8291["ua_public"], "auth": RFC8291["auth_secret"]}
    to = read_subscription(json.dumps({"endpoint": "https://push.example.net/x", "keys": keys}), NOW_MS)
    private = ec.derive_private_key(int.from_bytes(raw(RFC8291["as_private"]), "big"), ec.SECP256R1())
    sealed = encrypt(RFC8291["plaintext"].encode(), to, private, raw(RFC8291["salt"]))
    assert text(sealed) == RFC8291["body"]


@given(
    plaintext=st.binary(min_size=1, max_size=MAX_PLAINTEXT_BYTES),  # for none, http_ece writes no record
    salt=st.binary(min_size=16, max_size=16),
    auth_secret=st.binary(min_size=16, max_size=16),
)
@settings(max_examples=50, deadline=None)
def test_the_encryption_gives_the_same_bytes_as_http_ece(
    plaintext: bytes, salt: bytes, auth_secret: bytes
) -> None:
    point = raw(RFC8291["ua_public"])
    keys = {"p256dh": RFC8291["ua_public"], "auth": text(auth_secret)}
    to = read_subscription(json.dumps({"endpoint": "https://push.example.net/x", "keys": keys}), NOW_MS)
    private = generate_private_key()
    assert encrypt(plaintext, to, private, salt) == http_ece.encrypt(
        plaintext, salt, private_key=private, dh=point, auth_secret=auth_secret, version="aes128gcm"
    )


def test_our_token_has_the_claims_of_the_example_in_rfc_8292() -> None:
    claims = RFC8292["claims"]
    vapid = VapidSigner(Secret(RAW), claims["sub"])
    header = vapid.authorization(claims["aud"], (claims["exp"] - 12 * 3600) * 1000)
    token, key = header.removeprefix("vapid t=").split(", k=")
    for made, public in ((token, key), (RFC8292["token"], RFC8292["public_key"])):
        point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), raw(public))
        found = jwt.decode(made, point, ["ES256"], audience=claims["aud"], options={"verify_exp": False})
        assert found == claims
        assert jwt.get_unverified_header(made) == jwt.get_unverified_header(RFC8292["token"])


# The request -------------------------------------------------------------------------------------------


def test_only_the_browser_can_decrypt_the_message() -> None:
    content = Content(title="T", body="Grüße", data={"image": "https://example.org/i.png", "n": 7})
    request = built(content=content)
    assert BROWSER.read(request.body) == {
        "id": "018d0c7e-5a00-7000-8000-000000000001",
        "type": "order_confirmed",
        "title": "T",
        "body": "Grüße",
        "image": "https://example.org/i.png",
        "data": {"n": 7},
    }
    with pytest.raises(http_ece.ECEException):
        Browser().read(request.body)


def test_every_attempt_is_encrypted_with_a_new_key_and_salt() -> None:
    first, second = built().body, built().body
    assert first[:16] != second[:16]
    assert first[21:86] != second[21:86]


def test_the_request_goes_to_the_endpoint_through_the_address_guard() -> None:
    request = built()
    assert (request.method, request.url, request.guarded) == (
        "POST",
        "https://push.example.net/send/abc?v=1",
        True,
    )
    headers = dict(request.headers)
    assert headers["Content-Encoding"] == "aes128gcm"
    assert headers["Content-Type"] == "application/octet-stream"


@pytest.mark.parametrize(
    ("endpoint", "origin"),
    [
        ("https://push.example.net/a", "https://push.example.net"),
        ("https://PUSH.example.net:443/a", "https://push.example.net"),
        ("https://push.example.net:8443/a", "https://push.example.net:8443"),
        ("https://[2001:db8::1]/a", "https://[2001:db8::1]"),
    ],
)
def test_other_libraries_verify_our_token_for_the_origin(endpoint: str, origin: str) -> None:
    header = dict(built(address=BROWSER.subscription(endpoint=endpoint)).headers)["Authorization"]
    assert Vapid02.verify(header.replace(", k=", ",k="))  # its parser accepts no space
    claims = jwt.decode(
        header[8:].split(",")[0], KEY.public_key(), ["ES256"], audience=origin, options={"verify_exp": False}
    )
    assert claims["sub"] == "mailto:push@example.com"
    assert NOW_MS / 1000 < claims["exp"] <= NOW_MS / 1000 + 24 * 3600


def test_a_token_is_reused_until_shortly_before_its_expiry() -> None:
    vapid = VapidSigner(Secret(PEM), "mailto:push@example.com")
    first = vapid.authorization("https://a.example", NOW_MS)
    assert vapid.authorization("https://a.example", NOW_MS + 10 * 3_600_000) == first
    assert vapid.authorization("https://b.example", NOW_MS) != first
    later = vapid.authorization("https://a.example", NOW_MS + 11 * 3_600_000)
    assert later != first
    claims = jwt.decode(later[8:].split(",")[0], options={"verify_signature": False})
    assert claims["exp"] == NOW_MS // 1000 + 23 * 3600


def test_the_number_of_cached_origins_is_limited() -> None:
    vapid = VapidSigner(Secret(PEM), "mailto:push@example.com")
    first = vapid.authorization("https://0.example", NOW_MS)
    for n in range(1, 300):
        vapid.authorization(f"https://{n}.example", NOW_MS)
    assert (
        vapid.authorization("https://0.example", NOW_MS) != first
    )  # signed again: ECDSA signatures differ each time


def test_a_key_may_be_pem_or_raw_bytes() -> None:
    of_pem, of_raw = (dict(built({"vapid_private_key": key}).headers)["Authorization"] for key in (PEM, RAW))
    assert of_pem.split("k=")[1] == of_raw.split("k=")[1]


@pytest.mark.parametrize(
    ("priority", "urgency"),
    [
        (Priority.CRITICAL, "high"),
        (Priority.HIGH, "high"),
        (Priority.MEDIUM, "normal"),
        (Priority.LOW, "very-low"),
    ],
)
def test_the_priority_becomes_an_urgency_that_settings_can_change(priority: Priority, urgency: str) -> None:
    request = built({"urgency": {"low": "very-low"}}, priority=priority)
    assert dict(request.headers)["Urgency"] == urgency


@pytest.mark.parametrize(
    ("expires_at", "ttl"),
    [(None, 60), (NOW_MS + 5_999, 5), (NOW_MS - 1, 0), (NOW_MS + 10**13, MAX_TTL_S)],
)
def test_the_time_to_live_ends_with_the_notification(expires_at: int | None, ttl: int) -> None:
    assert dict(built({"ttl_seconds": 60}, expires_at=expires_at).headers)["TTL"] == str(ttl)


@pytest.mark.parametrize(
    ("collapse", "kind", "topic"),
    [
        ("notification", "order", "018d0c7e5a0070008000000000000001"),
        ("type", "order", "order"),
        ("none", "order", None),
    ],
)
def test_an_undelivered_message_is_replaced_by_one_with_its_topic(
    collapse: str, kind: str, topic: str | None
) -> None:
    assert dict(built({"collapse": collapse}, type=kind).headers).get("Topic") == topic


def test_a_type_that_is_not_a_valid_topic_is_hashed() -> None:
    one, other = (dict(built({"collapse": "type"}, type=kind).headers)["Topic"] for kind in ("a/b", "a/c"))
    assert one != other
    assert re.fullmatch(r"[A-Za-z0-9_-]{32}", one)


def test_the_payload_may_have_3993_bytes_which_fill_a_record() -> None:
    empty = len(b'{"id":"018d0c7e-5a00-7000-8000-000000000001","type":"order_confirmed","body":""}')
    request = built(content=Content(body="x" * (MAX_PLAINTEXT_BYTES - empty)))
    assert len(request.body) == 4096
    assert BROWSER.read(request.body)["body"].startswith("xxx")
    outcome = refused(content=Content(body="x" * (MAX_PLAINTEXT_BYTES - empty + 1)))
    assert (outcome.kind, outcome.error_code) == (K.BAD_CONTENT, "too_large")


def test_an_empty_push_is_refused() -> None:
    assert refused(content=Content(text="for an email")).kind is K.BAD_CONTENT


# Subscriptions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "https://push.example.net/send/abc",
        "tok1",
        "{}",
        "[]",
        BROWSER.subscription(keys=None),
        BROWSER.subscription(keys={"p256dh": "AAAA", "auth": "AAAA"}),
        BROWSER.subscription(keys={"p256dh": "ä", "auth": "ä"}),
        BROWSER.subscription(keys={"p256dh": text(b"\x04" + bytes(64)), "auth": text(bytes(16))}),
        BROWSER.subscription(endpoint="http://push.example.net/a"),
        BROWSER.subscription(endpoint="https://user:pass@push.example.net/a"),
        BROWSER.subscription(endpoint="https:///a"),
        BROWSER.subscription(endpoint="https://push.example.net:x/a"),
        BROWSER.subscription(endpoint="https://push.example.net/a\r\nX: y"),
        BROWSER.subscription(endpoint="https://püsh.example.net/a"),
        BROWSER.subscription(endpoint="file:///etc/passwd"),
    ],
)
def test_an_invalid_subscription_is_the_recipient_s_fault(address: str) -> None:
    outcome = refused(address=address)
    assert (outcome.kind, outcome.error_code) == (K.BAD_RECIPIENT, "subscription")
    assert "abc" not in str(outcome.error)


def test_a_subscription_past_its_expiration_time_is_dead() -> None:
    assert refused(address=BROWSER.subscription(expirationTime=NOW_MS - 1)).kind is K.DEAD_ADDRESS
    built(address=BROWSER.subscription(expirationTime=NOW_MS + 1.5))


@given(st.text() | st.binary().map(lambda data: data.decode("latin-1")))
def test_any_text_as_an_address_is_sent_or_refused(address: str) -> None:
    assert refused(address=address).kind in (K.BAD_RECIPIENT, K.DEAD_ADDRESS)


# Answers -----------------------------------------------------------------------------------------------


def test_an_accepted_message_has_its_location_as_id() -> None:
    for status in (200, 201, 202):
        answered = HttpResponse(status=status, headers={"location": "https://push.example.net/m/1"})
        assert a_provider().classify(answered, NOW_MS) == Outcome(
            K.ACCEPTED, provider_message_id="https://push.example.net/m/1"
        )
    assert a_provider().classify(HttpResponse(status=201, headers={}), NOW_MS).provider_message_id is None


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (307, K.TRANSIENT),
        (400, K.BAD_CONTENT),
        (401, K.PROVIDER_FAULT),
        (403, K.BAD_RECIPIENT),
        (404, K.DEAD_ADDRESS),
        (410, K.DEAD_ADDRESS),
        (413, K.BAD_CONTENT),
        (429, K.THROTTLED),
        (500, K.TRANSIENT),
        (503, K.TRANSIENT),
    ],
)
def test_each_status_has_the_meaning_of_the_contract(status: int, kind: OutcomeKind) -> None:
    answered = HttpResponse(
        status=status, headers={"retry-after": "9"}, body=b"https://push.example.net/send/abc"
    )
    outcome = a_provider().classify(answered, NOW_MS)
    assert (outcome.kind, outcome.retry_after_ms) == (kind, 9_000)
    assert "abc" not in str(outcome.error)


@given(
    status=st.integers(0, 999),
    body=st.binary(),
    headers=st.dictionaries(st.sampled_from(["retry-after", "location"]), st.text()),
)
def test_no_response_makes_it_raise(status: int, body: bytes, headers: dict[str, str]) -> None:
    answered = HttpResponse(status=status, headers=headers, body=body)
    assert isinstance(a_provider().classify(answered, NOW_MS), Outcome)


# Settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("vapid_private_key", ""),
        ("vapid_private_key", "secret"),
        ("vapid_private_key", text(bytes(32))),
        ("vapid_private_key", "-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----"),
        ("vapid_subject", "push@example.com"),
        ("base_url", "ftp://push.example.net"),
        ("ttl_seconds", -1),
        ("collapse", "always"),
        ("urgency", {"low": "lazy"}),
        ("urgency", {"lowest": "low"}),
    ],
)
def test_a_wrong_setting_is_named_without_its_secret(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        a_provider(**{setting: value})
    assert caught.value.field.partition(".")[0] == setting
    assert "secret\n" not in str(caught.value)


def test_a_key_of_another_curve_is_refused() -> None:
    other = ec.generate_private_key(ec.SECP384R1())
    pem = other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    with pytest.raises(ConfigError, match="P-256"):
        a_provider(vapid_private_key=pem)


async def test_no_secret_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    provider = a_provider()
    request = provider.build(a_push(address=BROWSER.subscription()), NOW_MS)
    assert await provider.check()
    shown = repr(provider) + repr(vars(provider)) + repr(request) + caplog.text
    for hidden in (RAW, PEM.splitlines()[1], "send/abc", dict(request.headers)["Authorization"]):
        assert hidden not in shown


@pytest.mark.parametrize("status", [400, 413, 418, 422])
def test_no_refusal_is_marked_as_unlisted(status: int) -> None:
    """No other provider can use a browser's subscription."""
    outcome = a_provider().classify(HttpResponse(status=status, headers={}), NOW_MS)
    assert (outcome.kind, outcome.unlisted) == (OutcomeKind.BAD_CONTENT, False)
