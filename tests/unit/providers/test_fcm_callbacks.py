"""Apps' reports about FCM messages, signed by the official library."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from homing.core.errors import CallbackRefused, ConfigError
from homing.core.lifecycle.receipts import Callback, ParsedCallback, Receipt, ReceiptEvent
from homing.core.notifications import OutcomeKind
from homing.core.ports.providers import SupportsCallbacks
from homing.net.http_client import CurlTransport
from homing.providers.fcm.callbacks import FcmCallbacks
from support.push_deliveries import NAME, NOW_MS, an_fcm

SECRET = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
OTHER = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
DELIVERED = {"messageId": NAME, "event": "delivered", "timestamp": "2024-01-15T11:59:58Z"}

CALLBACKS = FcmCallbacks("demo-proj", SECRET)


def reported(report: Any, secret: str = SECRET, at_ms: int = NOW_MS, id: str = "evt_1") -> Callback:
    """Returns a report as an app's backend signs it, with the official library."""
    body = report if isinstance(report, bytes) else json.dumps(report).encode()
    signed = Webhook(secret).sign(id, datetime.fromtimestamp(at_ms / 1000, UTC), body.decode("latin-1"))
    headers = {
        "webhook-id": id,
        "webhook-timestamp": str(at_ms // 1000),
        "webhook-signature": signed,
        "content-type": "application/json",
    }
    return Callback(
        url="https://homing.example/api/v1/webhooks/fcm/delivery-status", headers=headers, body=body
    )


def heard(report: Any) -> ParsedCallback:
    return CALLBACKS.handle_callback(reported(report), NOW_MS)


def receipt_of(**fields: Any) -> Receipt:
    (receipt,) = heard({**DELIVERED, **fields}).receipts
    return receipt


@pytest.mark.source("002", "353-354")
def test_a_signed_delivery_report_is_accepted() -> None:
    assert receipt_of() == Receipt(
        provider="fcm",
        provider_message_id=NAME,
        event=ReceiptEvent.DELIVERED,
        event_id="evt_1",
        at=NOW_MS - 2_000,
    )


def test_the_provider_accepts_it_too() -> None:
    provider = an_fcm(CurlTransport(), callback_secret=SECRET)
    assert isinstance(provider, SupportsCallbacks)
    assert provider.handle_callback(reported(DELIVERED), NOW_MS) == heard(DELIVERED)


def test_a_report_may_use_the_short_message_id() -> None:
    assert receipt_of(messageId=NAME.rpartition("/")[2]).provider_message_id == NAME


def test_a_failure_has_its_error() -> None:
    receipt = receipt_of(event="failed", error="the app could not show it")
    assert (receipt.event, receipt.error) == (ReceiptEvent.FAILED, "the app could not show it")
    assert (receipt.outcome, receipt.error_code) == (None, None)


@pytest.mark.parametrize(
    ("error", "kind", "wait_ms"),
    [
        ("UNREGISTERED", OutcomeKind.DEAD_ADDRESS, None),
        ("SENDER_ID_MISMATCH", OutcomeKind.BAD_RECIPIENT, None),
        ("QUOTA_EXCEEDED", OutcomeKind.THROTTLED, 60_000),
        ("UNAVAILABLE", OutcomeKind.TRANSIENT, None),
        ("SOMETHING_ELSE", None, None),
    ],
)
def test_an_fcm_error_has_the_class_and_delay_of_its_table(
    error: str, kind: OutcomeKind | None, wait_ms: int | None
) -> None:
    receipt = receipt_of(event="failed", error=error, deviceToken="tok1")
    assert (receipt.outcome, receipt.retry_after_ms) == (kind, wait_ms)


def test_a_delivery_has_no_error_whatever_the_report_contains() -> None:
    receipt = receipt_of(error="UNREGISTERED")
    assert (receipt.error, receipt.outcome) == (None, None)


@pytest.mark.parametrize(
    ("timestamp", "at"),
    [
        (NOW_MS - 5_000, NOW_MS - 5_000),
        (NOW_MS // 1000 - 5, NOW_MS - 5_000),
        ("2024-01-15T11:59:55+00:00", NOW_MS - 5_000),
        ("2024-01-15T11:59:55", NOW_MS - 5_000),
        ("yesterday", NOW_MS),
        (None, NOW_MS),
        (-1, NOW_MS),
        (NOW_MS + 5_000, NOW_MS),
        ("9999-12-31T23:59:59-23:59", NOW_MS),
    ],
)
def test_the_time_is_the_app_s_but_never_in_the_future(timestamp: Any, at: int) -> None:
    assert receipt_of(timestamp=timestamp).at == at


@pytest.mark.parametrize(
    "report",
    [b"", b"not json", [], {}, {"event": "delivered"}, {"messageId": 7, "event": "delivered"},
     {**DELIVERED, "messageId": ""}],
)  # fmt: skip
def test_an_unreadable_report_is_counted(report: Any) -> None:
    assert heard(report) == ParsedCallback(unreadable=1)


def test_other_events_are_ignored() -> None:
    assert heard({**DELIVERED, "event": "opened"}) == ParsedCallback(ignored=1)


def test_both_secrets_are_accepted_during_a_change() -> None:
    both = FcmCallbacks("demo-proj", [OTHER, SECRET])
    for secret in (SECRET, OTHER):
        assert both.handle_callback(reported(DELIVERED, secret), NOW_MS).receipts


def test_a_report_without_a_valid_secret_is_refused() -> None:
    with pytest.raises(CallbackRefused):
        FcmCallbacks("demo-proj").handle_callback(reported(DELIVERED), NOW_MS)
    with pytest.raises(CallbackRefused):
        CALLBACKS.handle_callback(reported(DELIVERED, OTHER), NOW_MS)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature", "body"])
def test_a_report_that_was_tampered_with_is_refused(name: str) -> None:
    honest = reported(DELIVERED)
    headers, body = dict(honest.headers), honest.body
    if name == "body":
        body = body.replace(b"delivered", b"failed")
    else:
        headers[name] = headers[name].translate(str.maketrans("1ab", "2bc"))
    with pytest.raises(CallbackRefused):
        CALLBACKS.handle_callback(Callback(url=honest.url, headers=headers, body=body), NOW_MS)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_a_report_without_one_of_the_headers_is_refused(name: str) -> None:
    honest = reported(DELIVERED)
    headers = {key: value for key, value in honest.headers.items() if key != name}
    with pytest.raises(CallbackRefused):
        CALLBACKS.handle_callback(Callback(url=honest.url, headers=headers, body=honest.body), NOW_MS)


def test_an_old_report_is_refused() -> None:
    CALLBACKS.handle_callback(reported(DELIVERED, at_ms=NOW_MS - 300_000), NOW_MS)
    with pytest.raises(CallbackRefused):
        CALLBACKS.handle_callback(reported(DELIVERED, at_ms=NOW_MS - 301_000), NOW_MS)


def test_an_invalid_secret_is_an_error_at_start() -> None:
    with pytest.raises(ConfigError, match="callback_secret"):
        FcmCallbacks("demo-proj", "whsec_not base64!")


@given(
    st.dictionaries(
        st.sampled_from(["messageId", "event", "error", "deviceToken", "timestamp"]),
        st.none() | st.text() | st.floats() | st.integers() | st.sampled_from(["delivered", "failed"]),
    )
)
def test_no_signed_report_makes_it_raise(report: dict[str, Any]) -> None:
    found = heard(report)
    assert len(found.receipts) + found.ignored + found.unreadable == 1


def test_a_report_above_64_kib_is_refused_even_if_signed() -> None:
    assert len(heard({**DELIVERED, "more": "x" * 60_000}).receipts) == 1
    with pytest.raises(CallbackRefused, match="more than 65536 bytes"):
        heard({**DELIVERED, "more": "x" * 70_000})
