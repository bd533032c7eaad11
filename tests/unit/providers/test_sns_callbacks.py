"""SNS messages: signed, from our own topics, and turned into receipts."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA1, SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from homing.core.errors import CallbackRefused
from homing.core.lifecycle.receipts import Callback, ParsedCallback, ReceiptEvent
from homing.core.notifications import OutcomeKind as K
from homing.net.http_messages import HttpRequest, HttpResponse, TransportFailure
from homing.providers.sns.callbacks import read_events
from support.sms_deliveries import ENDPOINT, NOW_MS, TOPIC, an_sns

CERTIFICATE_URL = "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-0123abcd.pem"
SUBSCRIBE_URL = "https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription&TopicArn=t&Token=abc"
KEY = rsa.generate_private_key(65537, 2048)
OTHER = rsa.generate_private_key(65537, 2048)


def certificate(key: Any = KEY, *, days: int = 30) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sns.amazonaws.com")])
    now = datetime.fromtimestamp(NOW_MS / 1000, UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=60))
        .not_valid_after(now + timedelta(days=days))
        .sign(key, SHA256())
    )
    return made.public_bytes(Encoding.PEM)


class FakeSns:
    """A transport with SNS's certificate that records confirmations."""

    def __init__(self, pem: bytes = b"", *, status: int = 200) -> None:
        self.pem = pem or certificate()
        self.status = status
        self.asked: list[HttpRequest] = []

    async def send(self, request: HttpRequest, *, timeout_ms: int) -> HttpResponse | TransportFailure:
        self.asked.append(request)
        if self.status == 0:
            return TransportFailure(code="connect", error="connection refused", written=False)
        return HttpResponse(status=self.status, headers={}, body=self.pem)

    async def close(self) -> None: ...


def posted(
    key: rsa.RSAPrivateKey = KEY, *, version: str = "2", tamper: Any = None, **fields: Any
) -> Callback:
    """Returns a message as SNS posts it, signed as documented."""
    message: dict[str, Any] = {
        "Type": "Notification",
        "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
        "TopicArn": TOPIC,
        "Message": "{}",
        "Timestamp": "2024-01-15T12:00:00.000Z",
        "SignatureVersion": version,
        "SigningCertURL": CERTIFICATE_URL,
        "UnsubscribeURL": "https://sns.us-east-1.amazonaws.com/?Action=Unsubscribe",
        **fields,
    }
    names = ["Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"]
    if message["Type"] != "Notification":
        names = ["Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"]
    text = "".join(f"{name}\n{message[name]}\n" for name in names if name in message)
    signature = key.sign(text.encode(), PKCS1v15(), SHA1() if version == "1" else SHA256())
    message["Signature"] = b64encode(signature).decode()
    message.update(tamper or {})
    return Callback(url="https://notify.example.org/sns", body=json.dumps(message).encode())


def confirmation(**fields: Any) -> Callback:
    given = {"Type": "SubscriptionConfirmation", "Token": "abc", "SubscribeURL": SUBSCRIBE_URL, **fields}
    return posted(**given)


async def handle_callback(
    callback: Callback, amazon: FakeSns | None = None, now_ms: int = NOW_MS
) -> ParsedCallback:
    provider = an_sns(amazon or FakeSns(), callback_topics=[TOPIC])
    await provider.prepare(callback, now_ms)
    return provider.handle_callback(callback, now_ms)


def sms_event(status: str = "SUCCESS", response: str = "Message has been accepted by phone carrier") -> Any:
    """Returns a delivery status as SNS writes it to CloudWatch Logs."""
    return {
        "notification": {"messageId": "34d9b400", "timestamp": "2024-01-15 11:59:00.558"},
        "delivery": {"destination": "+1XXX5550100", "providerResponse": response, "dwellTimeMs": 599},
        "status": status,
    }


# Verification -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("subject", [{}, {"Subject": "Delivery status"}])
async def test_both_signature_versions_are_accepted(version: str, subject: dict[str, Any]) -> None:
    heard = await handle_callback(posted(version=version, Message=json.dumps(sms_event()), **subject))
    (receipt,) = heard.receipts
    assert (receipt.provider_message_id, receipt.event) == ("34d9b400", ReceiptEvent.DELIVERED)


@pytest.mark.parametrize(
    "tamper",
    [
        {"Message": json.dumps(sms_event("FAILURE"))},
        {"MessageId": "another"},
        {"Timestamp": "2024-01-15T12:00:01.000Z"},
        {"Subject": "smuggled in"},
        {"Type": "SubscriptionConfirmation", "Token": "t", "SubscribeURL": SUBSCRIBE_URL},
        {"Type": "Nonsense"},
        {"SignatureVersion": "1"},
        {"SignatureVersion": "3"},
        {"Signature": ""},
        {"Signature": "not base64!"},
        {"Signature": b64encode(b"x" * 256).decode()},
    ],
)
async def test_a_message_that_was_tampered_with_is_refused(tamper: dict[str, str]) -> None:
    with pytest.raises(CallbackRefused):
        await handle_callback(posted(tamper=tamper))


async def test_a_signature_by_another_key_is_refused() -> None:
    with pytest.raises(CallbackRefused):
        await handle_callback(posted(OTHER))
    with pytest.raises(CallbackRefused):
        await handle_callback(posted(), FakeSns(certificate(ec.generate_private_key(ec.SECP256R1()))))


async def test_an_expired_certificate_is_refused() -> None:
    with pytest.raises(CallbackRefused, match="has expired or is not valid yet"):
        await handle_callback(posted(), FakeSns(certificate(days=-1)))


@pytest.mark.parametrize(
    "url",
    [
        "http://sns.us-east-1.amazonaws.com/SimpleNotificationService-0a.pem",
        "https://sns.us-east-1.amazonaws.com.evil.org/SimpleNotificationService-0a.pem",
        "https://evil.org/SimpleNotificationService-0a.pem",
        "https://sns.us-east-1.amazonaws.com@evil.org/SimpleNotificationService-0a.pem",
        "https://mybucket.s3.amazonaws.com/SimpleNotificationService-0a.pem",
        "https://sns.us-east-1.amazonaws.com/../SimpleNotificationService-0a.pem",
        "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-0a.pem?x",
        "https://sns.us-east-1.amazonaws.com:8443/SimpleNotificationService-0a.pem",
        "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-0a.pem\n",
        "",
    ],
)
async def test_a_certificate_from_another_host_is_not_even_fetched(url: str) -> None:
    amazon = FakeSns()
    with pytest.raises(CallbackRefused):
        await handle_callback(posted(SigningCertURL=url), amazon)
    assert amazon.asked == []


async def test_a_foreign_topic_is_refused_despite_a_valid_signature() -> None:
    amazon = FakeSns()
    with pytest.raises(CallbackRefused, match="callback_topics"):
        await handle_callback(posted(TopicArn=TOPIC.replace("123456789012", "999999999999")), amazon)
    assert amazon.asked == []


async def test_the_certificate_is_fetched_once_through_the_address_guard() -> None:
    amazon = FakeSns()
    provider = an_sns(amazon, callback_topics=TOPIC)
    for _ in range(3):
        await provider.prepare(posted(), NOW_MS)
        provider.handle_callback(posted(), NOW_MS)
    assert [(one.method, one.url, one.guarded) for one in amazon.asked] == [("GET", CERTIFICATE_URL, True)]


@pytest.mark.parametrize("amazon", [FakeSns(status=0), FakeSns(status=500), FakeSns(b"<html>")])
async def test_without_the_certificate_everything_is_refused(amazon: FakeSns) -> None:
    with pytest.raises(CallbackRefused, match="could not be fetched"):
        await handle_callback(posted(), amazon)


async def test_the_number_of_cached_certificates_is_limited() -> None:
    provider = an_sns(FakeSns(), callback_topics=[TOPIC])
    for number in range(40):
        url = CERTIFICATE_URL.replace("0123abcd", f"{number:08x}")
        await provider.prepare(posted(SigningCertURL=url), NOW_MS)
    assert len(provider._certificates._kept) == 16


# The handshake ------------------------------------------------------------------------------------------


async def test_a_subscription_to_our_topic_is_confirmed() -> None:
    amazon = FakeSns()
    assert await handle_callback(confirmation(), amazon) == ParsedCallback(ignored=1)
    assert [one.url for one in amazon.asked] == [CERTIFICATE_URL, SUBSCRIBE_URL]
    assert all(one.guarded and one.method == "GET" for one in amazon.asked)


@pytest.mark.parametrize(
    "url", ["https://evil.org/?Action=ConfirmSubscription", "http://sns.us-east-1.amazonaws.com/?a", ""]
)
async def test_a_confirmation_url_of_another_host_is_not_called(url: str) -> None:
    amazon = FakeSns()
    assert await handle_callback(confirmation(SubscribeURL=url), amazon) == ParsedCallback(ignored=1)
    assert [one.url for one in amazon.asked] == [CERTIFICATE_URL]


async def test_an_unsigned_confirmation_is_not_answered() -> None:
    amazon = FakeSns()
    with pytest.raises(CallbackRefused):
        await handle_callback(confirmation(tamper={"Token": "other"}), amazon)
    assert [one.url for one in amazon.asked] == [CERTIFICATE_URL]


async def test_an_unsubscribe_confirmation_is_accepted_without_effect() -> None:
    farewell = posted(Type="UnsubscribeConfirmation", Token="abc", SubscribeURL=SUBSCRIBE_URL)
    amazon = FakeSns()
    assert await handle_callback(farewell, amazon) == ParsedCallback(ignored=1)
    assert len(amazon.asked) == 1


@given(
    st.binary()
    | st.dictionaries(st.sampled_from(["Type", "TopicArn", "Message"]), st.text()).map(
        lambda value: json.dumps(value).encode()
    )
)
async def test_any_body_is_read_or_refused(body: bytes) -> None:
    with pytest.raises(CallbackRefused):
        await handle_callback(Callback(url="https://notify.example.org/sns", body=body))


# Events -------------------------------------------------------------------------------------------------


def test_a_successful_sms_was_delivered_at_the_time_of_the_event() -> None:
    (receipt,) = read_events(json.dumps(sms_event()), NOW_MS).receipts
    assert (receipt.event, receipt.event_id) == (ReceiptEvent.DELIVERED, "34d9b400:SUCCESS")
    assert receipt.at == 1_705_319_940_558 + 599


def test_a_successful_push_was_accepted_by_its_platform() -> None:
    event = sms_event()
    event["delivery"] = {"destination": ENDPOINT, "statusCode": 200, "providerResponse": "{}"}
    (receipt,) = read_events(json.dumps(event), NOW_MS).receipts
    assert receipt.event is ReceiptEvent.SENT


@pytest.mark.parametrize(
    ("response", "kind", "code"),
    [
        ("Unknown error attempting to reach phone", K.TRANSIENT, None),
        ("Invalid phone number", K.BAD_RECIPIENT, None),
        ("No quota left for account", K.PROVIDER_FAULT, None),
        ("Phone carrier has blocked this message.", K.BAD_CONTENT, "Phone carrier has blocked this message"),
        ('{"reason":"Unregistered"}', K.DEAD_ADDRESS, "Unregistered"),
        ('{"results":[{"error":"NotRegistered"}]}', K.DEAD_ADDRESS, "NotRegistered"),
        ('{"error":{"status":"UNREGISTERED"}}', K.DEAD_ADDRESS, "UNREGISTERED"),
        ("an unknown reason", None, "FAILURE"),
        ("unreadable", K.AMBIGUOUS, "unreadable"),
        (None, None, "FAILURE"),
        ({"results": 7}, None, "FAILURE"),
    ],
)
def test_a_failure_has_the_class_of_its_text(response: Any, kind: K | None, code: str | None) -> None:
    (failed,) = read_events(json.dumps(sms_event("FAILURE", response)), NOW_MS).receipts
    assert failed.event is ReceiptEvent.FAILED
    assert failed.outcome is kind
    assert failed.error_code == (code or response)


def test_a_phone_that_opted_out_is_suppressed_too() -> None:
    heard = read_events(json.dumps(sms_event("FAILURE", "Phone number is opted out")), NOW_MS)
    failed, suppressed = heard.receipts
    assert failed.recipient_at_fault
    assert (suppressed.event, suppressed.unsubscribed_from_all) == (ReceiptEvent.UNSUBSCRIBE, True)
    assert failed.event_id != suppressed.event_id


def test_one_bad_event_does_not_fail_its_batch() -> None:
    events = [7, sms_event(), {"status": "SUCCESS"}, sms_event("PENDING"), [], sms_event("FAILURE")]
    heard = read_events(json.dumps(events), NOW_MS)
    assert (len(heard.receipts), heard.ignored, heard.unreadable) == (2, 1, 3)


@pytest.mark.parametrize("stamp", ["tomorrow", None, 7, "9999-12-31 23:59:59", "0001-01-01 00:00:00"])
def test_an_invalid_time_becomes_the_current_time(stamp: Any) -> None:
    event = sms_event()
    event["notification"]["timestamp"] = stamp
    (receipt,) = read_events(json.dumps(event), NOW_MS).receipts
    assert receipt.at == NOW_MS


@given(
    st.text()
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    ["notification", "messageId", "status", "delivery", "timestamp", "dwellTimeMs"]
                ),
                inner,
            )
        ),
        max_leaves=12,
    ).map(json.dumps)
)
def test_no_event_makes_it_raise(text: str) -> None:
    assert isinstance(read_events(text, NOW_MS), ParsedCallback)


async def test_a_message_above_2_mib_is_refused_even_if_signed() -> None:
    assert await handle_callback(posted(Message="x" * 1_000_000)) is not None
    with pytest.raises(CallbackRefused, match="more than 2097152 bytes"):
        await handle_callback(posted(Message="x" * 2_100_000))
