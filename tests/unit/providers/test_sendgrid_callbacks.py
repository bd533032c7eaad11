"""SendGrid's events: only signed ones are accepted, and each has the meaning given by the vectors."""

from __future__ import annotations

import json
import random
from base64 import b64encode
from contextlib import suppress
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from hypothesis import given
from hypothesis import strategies as st
from sendgrid.helpers.eventwebhook import EventWebhook  # type: ignore[import-untyped]

from homing.core.errors import CallbackRefused, ConfigError
from homing.core.lifecycle.receipts import Callback, ParsedCallback, Receipt, ReceiptEvent
from homing.core.notifications import OutcomeKind
from homing.providers.sendgrid.callbacks import (
    ATTEMPT_ARG,
    NOTIFICATION_ARG,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    SendGridCallbacks,
    read_message_id,
    read_receipts,
)
from support.email_deliveries import ID, NOW_MS
from support.vector_files import vectors

R = ReceiptEvent
SIGNATURES: dict[str, Any] = vectors("sendgrid_event_signature")
EVENTS: dict[str, Any] = vectors("sendgrid_events")
KEY = ec.generate_private_key(ec.SECP256R1())


def public(key: Any = KEY) -> str:
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return b64encode(key.public_key().public_bytes(*form)).decode()


def signed(body: bytes, timestamp: str = str(NOW_MS // 1000)) -> Callback:
    signature = b64encode(KEY.sign(timestamp.encode() + body, ec.ECDSA(SHA256()))).decode()
    return a_callback(body, signature, timestamp)


def a_callback(body: bytes, signature: str, timestamp: str) -> Callback:
    headers = {SIGNATURE_HEADER: signature, TIMESTAMP_HEADER: timestamp}
    return Callback(url="https://h.example/api/v1/webhooks/sendgrid/events", headers=headers, body=body)


def heard(events: object, now_ms: int = NOW_MS) -> ParsedCallback:
    return SendGridCallbacks(public(), 600_000).handle_callback(signed(json.dumps(events).encode()), now_ms)


def believed(callbacks: SendGridCallbacks, callback: Callback) -> bool:
    try:
        callbacks.handle_callback(callback, NOW_MS)
    except CallbackRefused:
        return False
    return True


# Signatures ------------------------------------------------------------------------------------------


def test_the_headers_are_those_of_the_contract() -> None:
    assert SIGNATURES["headers"]["signature"].lower() == SIGNATURE_HEADER
    assert SIGNATURES["headers"]["timestamp"].lower() == TIMESTAMP_HEADER


@pytest.mark.source("002", "331-338")
@pytest.mark.parametrize("case", SIGNATURES["cases"], ids=lambda case: str(case["id"]))
def test_each_signature_of_the_vectors_is_judged_correctly(case: dict[str, Any]) -> None:
    callbacks = SendGridCallbacks(case["public_key"], 0)
    callback = a_callback(case["raw_body"].encode(), case["signature"], case["timestamp"])
    assert believed(callbacks, callback) is case["valid"]


def test_the_sdk_gives_the_same_verdict_on_five_hundred_requests() -> None:
    rng, ours = random.Random(8058), SendGridCallbacks(public(), 0)
    theirs = EventWebhook(public())
    verdicts = []
    for number in range(500):
        text, signature, timestamp = _tampered(rng, number)
        try:
            expected = theirs.verify_signature(text, signature, timestamp)
        except Exception:  # the SDK raises if the base64 is broken
            expected = False
        assert believed(ours, a_callback(text.encode(), signature, timestamp)) is expected, number
        verdicts.append(expected)
    assert 100 < sum(verdicts) < 400


def _tampered(rng: random.Random, number: int) -> tuple[str, str, str]:
    """A signed batch, unchanged or changed in one of several realistic ways."""
    event = {
        "event": "open",
        "sg_event_id": f"e{number}",
        "note": rng.choice(["plain", "Olá ação", "🐦", "\\u00e9"]),
    }
    text = json.dumps([event], ensure_ascii=rng.random() < 0.5) + rng.choice(["", "\r\n", "\n"])
    timestamp = str(1_700_000_000 + number)
    raw = KEY.sign((timestamp + text).encode(), ec.ECDSA(SHA256()))
    signature = b64encode(raw).decode()
    flipped = bytearray(raw)
    flipped[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    ways = [
        (text, signature, timestamp),
        (text, f" {signature[:20]}\n{signature[20:]} ", timestamp),
        (text, signature[:30] + "!-" + signature[30:], timestamp),
        (text.strip() + " ", signature, timestamp),
        (text.replace("open", "opem"), signature, timestamp),
        (text, signature, timestamp + "0"),
        (text, signature, ""),
        (text, signature.rstrip("=") + "A", timestamp),
        (text, b64encode(bytes(flipped)).decode(), timestamp),
        (text, b64encode(raw[:-1]).decode(), timestamp),
        (text, b64encode(raw + b"\0").decode(), timestamp),
        (text, "", timestamp),
        (text, "%%%", timestamp),
        (text, "é", timestamp),
        (text, b64encode(b"\0" * 70).decode(), timestamp),
    ]
    return ways[0] if rng.random() < 0.3 else rng.choice(ways)


@pytest.mark.parametrize(
    ("age_ms", "tolerance_ms", "fine"),
    [
        (0, 600_000, True),
        (600_000, 600_000, True),
        (601_000, 600_000, False),
        (-601_000, 600_000, False),
        (10**12, 0, True),
    ],
)
def test_the_maximum_age_of_a_signature_can_be_set(age_ms: int, tolerance_ms: int, fine: bool) -> None:
    callback = signed(b"[]", str((NOW_MS - age_ms) // 1000))
    assert believed(SendGridCallbacks(public(), tolerance_ms), callback) is fine


@pytest.mark.parametrize("timestamp", ["", "soon", "-5", "1e9", "١٢٣", "9" * 13])
def test_an_invalid_signed_time_is_refused(timestamp: str) -> None:
    assert not believed(SendGridCallbacks(public(), 10**15), signed(b"[]", timestamp))


def test_without_a_key_everything_is_refused() -> None:
    with pytest.raises(CallbackRefused, match="webhook_public_key"):
        SendGridCallbacks("", 0).handle_callback(signed(b"[]"), NOW_MS)


def test_the_key_may_be_pem_and_must_be_of_the_right_type() -> None:
    pem = f"-----BEGIN PUBLIC KEY-----\n{public()[:64]}\n{public()[64:]}\n-----END PUBLIC KEY-----\n"
    assert believed(SendGridCallbacks(pem, 0), signed(b"[]"))
    others = [rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP384R1())]
    for wrong in ["AAAA", "%", *map(public, others)]:
        with pytest.raises(ConfigError) as error:
            SendGridCallbacks(wrong, 0)
        assert wrong not in error.value.message


# Events ----------------------------------------------------------------------------------------------

MEANT: dict[str, list[ReceiptEvent]] = {
    "accepted": [R.QUEUED],
    "deferred": [R.QUEUED],
    "delivered": [R.DELIVERED],
    "bounced": [R.FAILED],
    "blocked": [R.FAILED],
    "rejected_by_provider": [R.FAILED],
    "opened": [R.DELIVERED, R.OPEN],
    "opened_by_machine": [R.DELIVERED],
    "clicked": [R.DELIVERED, R.CLICK],
    "complained": [R.SPAM_REPORT],
    "unsubscribed": [R.UNSUBSCRIBE],
    "unsubscribed_group": [R.UNSUBSCRIBE],
    "resubscribed_group": [],
    "unknown": [],
}


def suppresses(receipt: Receipt) -> bool:
    return (
        receipt.address_dead
        or receipt.event is R.SPAM_REPORT
        or (receipt.event is R.UNSUBSCRIBE and receipt.unsubscribed_from_all)
    )


@pytest.mark.source("002", "340-341", "347")
@pytest.mark.parametrize("case", EVENTS["events"], ids=lambda case: str(case["event"]["sg_event_id"]))
def test_each_event_of_the_vectors_has_its_meaning(case: dict[str, Any]) -> None:
    event, found = case["event"], heard([case["event"]])
    kinds = [receipt.event for receipt in found.receipts]
    expected = MEANT[case["normalised"]]
    assert kinds[: len(expected)] == expected
    assert set(kinds) - set(expected) <= {
        R.UNSUBSCRIBE
    }  # a drop because of an earlier unsubscribe reports that unsubscribe
    assert any(map(suppresses, found.receipts)) is case["suppress"]
    assert (found.ignored, found.unreadable) == (0 if expected else 1, 0)
    for receipt in found.receipts:
        assert receipt.at == event["timestamp"] * 1000
        assert receipt.provider_message_id == "14c5d75ce93.dfd.64b469"
        assert receipt.event_id.partition(":")[0] == event[EVENTS["dedupe_key"]]
    assert len({receipt.event_id for receipt in found.receipts}) == len(kinds)
    if case["kind"] == "terminal_failure":
        assert found.receipts[0].error == event["reason"]
        assert found.receipts[0].recipient_at_fault is case["suppress"]


@pytest.mark.source("002", "342-343", "346")
@pytest.mark.parametrize(
    ("other", "usual"), [("opened", "open"), ("clicked", "click"), ("spam_report", "spamreport")]
)
def test_other_spellings_of_an_event_mean_the_same(other: str, usual: str) -> None:
    event = {"sg_message_id": "abc.filter1", "sg_event_id": "e", "timestamp": 1_700_000_000}
    found, expected = heard([{**event, "event": other}]), heard([{**event, "event": usual}])
    assert found.receipts
    assert found == expected


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"event": "bounce", "type": "bounce"}, OutcomeKind.DEAD_ADDRESS),
        ({"event": "bounce", "type": "blocked"}, OutcomeKind.TRANSIENT),
        ({"event": "bounce", "type": "new"}, None),
        ({"event": "bounce"}, None),
        ({"event": "dropped", "reason": "Bounced Address"}, OutcomeKind.DEAD_ADDRESS),
        ({"event": "dropped", "reason": "invalid "}, OutcomeKind.DEAD_ADDRESS),
        ({"event": "dropped", "reason": "Unsubscribed Address"}, OutcomeKind.OPTED_OUT),
        ({"event": "dropped", "reason": "Spam Content"}, OutcomeKind.BAD_CONTENT),
        ({"event": "dropped", "reason": "Recipient List over Package Quota"}, OutcomeKind.PROVIDER_FAULT),
        ({"event": "dropped", "reason": "Something New"}, None),
        ({"event": "dropped"}, None),
    ],
)
def test_a_failure_has_the_class_of_its_type_or_reason(
    event: dict[str, Any], kind: OutcomeKind | None
) -> None:
    failed = heard([{"sg_message_id": "abc.filter1", "sg_event_id": "e", **event}]).receipts[0]
    assert (failed.event, failed.outcome) == (R.FAILED, kind)


@pytest.mark.parametrize("case", EVENTS["message_id_relation"], ids=lambda case: str(case["x_message_id"]))
def test_the_id_of_the_send_is_the_prefix_of_the_event_s_message_id(case: dict[str, Any]) -> None:
    found = read_message_id({"sg_message_id": case["sg_message_id"]})
    assert (found == case["x_message_id"]) is case["matches"]


def test_our_custom_arguments_identify_the_attempt_without_a_message_id() -> None:
    event = {"event": "delivered", "sg_event_id": "e", "timestamp": 1, NOTIFICATION_ARG: ID, ATTEMPT_ARG: "3"}
    (receipt,) = heard([event]).receipts
    assert (receipt.notification_id, receipt.attempt, receipt.provider_message_id) == (ID, 3, "")
    (odd,) = heard([{**event, ATTEMPT_ARG: "three"}]).receipts
    assert odd.attempt == 0


def test_an_event_about_no_message_is_ignored() -> None:
    assert heard([{"event": "account_status_change", "sg_event_id": "e"}]) == ParsedCallback(ignored=1)


def test_the_same_event_has_the_same_id_even_if_sendgrid_gives_none() -> None:
    event = {"event": "delivered", "sg_message_id": "abc.filter1", "timestamp": 5}
    first, second = heard([event, event]).receipts
    other = heard([{**event, "timestamp": 6}]).receipts[0]
    assert first.event_id == second.event_id != other.event_id


def test_one_bad_event_never_fails_its_batch() -> None:
    good = {"event": "delivered", "sg_message_id": "abc.filter1", "sg_event_id": "e"}
    bad: list[Any] = [None, 7, "text", [], {}, {"event": None}, {"event": 5, "sg_message_id": "x"}]
    found = heard([good, *bad, good])
    assert (len(found.receipts), found.unreadable) == (2, len(bad))


@pytest.mark.parametrize("body", [b"", b"{}", b"not json", b"\xff", b"[" * 5000, b"null"])
def test_a_signed_body_that_is_not_a_list_counts_as_unreadable(body: bytes) -> None:
    assert SendGridCallbacks(public(), 0).handle_callback(signed(body), NOW_MS) == ParsedCallback(
        unreadable=1
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
fields = [
    "event",
    "type",
    "reason",
    "status",
    "timestamp",
    "sg_event_id",
    "sg_message_id",
    "smtp-id",
    ATTEMPT_ARG,
]
names = st.sampled_from(["bounce", "dropped", "open", "click", "delivered", "unsubscribe"])


@given(st.dictionaries(st.sampled_from(fields), json_values | names, max_size=9), names)
def test_any_event_is_read_or_refused_for_its_form(event: dict[str, Any], name: str) -> None:
    with suppress(ValueError):
        for receipt in read_receipts({**event, "event": name}, NOW_MS):
            assert isinstance(receipt.at, int)
            assert len(receipt.event_id) <= 120


def test_during_a_rotation_events_of_the_new_and_the_old_key_are_accepted() -> None:
    new = ec.generate_private_key(ec.SECP256R1())
    assert believed(SendGridCallbacks([public(new), public()], 0), signed(b"[]"))
    assert not believed(SendGridCallbacks([public(new)], 0), signed(b"[]"))
