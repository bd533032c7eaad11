"""Verifies the messages that SNS posts to us, and reads the delivery-status events in them. Pure.

SNS must have signed a message, and its topic must be one of ours. The signature alone proves little, because
anyone can create a topic whose messages SNS signs. The caller fetches the certificates and passes them in.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from homing.core.errors import CallbackRefused, ConfigError
from homing.core.lifecycle.receipts import Callback, ParsedCallback, Receipt, ReceiptEvent
from homing.providers.common.error_tables import failure_receipts, load_error_table
from homing.providers.common.response_parsing import (
    as_object,
    decode_json,
    decode_json_object,
    parse_past_time_ms,
    redacted_error_text,
    short_text_or_none,
)
from homing.providers.sns.partitions import DNS_SUFFIXES

try:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.hashes import SHA1, SHA256
    from cryptography.x509 import Certificate, load_pem_x509_certificate
except ImportError:  # pragma: no cover
    raise ConfigError("kind", "sns needs cryptography: pip install 'homing[sns]'") from None


NOTIFICATION = "Notification"

CONFIRMATION = "SubscriptionConfirmation"

UNSUBSCRIBE_CONFIRMATION = "UnsubscribeConfirmation"


_SIGNED = {
    NOTIFICATION: ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"),
    CONFIRMATION: ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"),
    UNSUBSCRIBE_CONFIRMATION: (
        "Message",
        "MessageId",
        "SubscribeURL",
        "Timestamp",
        "Token",
        "TopicArn",
        "Type",
    ),
}

_HOST = rf"https://sns\.[a-z0-9-]{{3,40}}\.(?:{'|'.join(map(re.escape, DNS_SUFFIXES))})(?::443)?"

_CERTIFICATE_URL = re.compile(_HOST + r"/SimpleNotificationService-[0-9A-Za-z]{1,64}\.pem")

_SUBSCRIBE_URL = re.compile(_HOST + r"/\?[\x21-\x7e]{1,2000}")

_MAX_CERTIFICATES = 16

_MAX_BODY_BYTES = 2 * 1024 * 1024
"""Largest body that is read.

An SNS message has at most 256 KiB, but can be several times as long when encoded as JSON.
"""


class SnsMessage(Struct, frozen=True, rename="pascal"):
    """The envelope of every message that SNS posts."""

    type: str
    message_id: str
    topic_arn: str
    message: str
    timestamp: str
    signature_version: str
    signature: str
    certificate_url: str = msgspec.field(name="SigningCertURL")
    subject: str | None = None
    token: str | None = None
    subscribe_url: str | None = msgspec.field(name="SubscribeURL", default=None)

    def signed_text(self) -> bytes:
        """Returns the text that SNS signed: names and values on lines of their own, without absent fields."""
        values = msgspec.to_builtins(self)
        names = _SIGNED.get(self.type, ())
        return "".join(f"{name}\n{values[name]}\n" for name in names if values[name] is not None).encode()


def read_message(callback: Callback) -> SnsMessage:
    """Returns the envelope. Raises `CallbackRefused` if the body is too long or not an SNS message."""
    if len(callback.body) > _MAX_BODY_BYTES:
        raise CallbackRefused(f"the body has more than {_MAX_BODY_BYTES} bytes; SNS messages are smaller")
    try:
        return msgspec.json.decode(callback.body, type=SnsMessage)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise CallbackRefused("the body is not an SNS message") from None


class CertificateCache:
    """Cache of fetched certificates by URL. SNS uses fewer at a time than the cache can hold."""

    def __init__(self) -> None:
        self._kept: dict[str, Certificate] = {}

    def get(self, url: str) -> Certificate | None:
        return self._kept.get(url)

    def put(self, url: str, pem: bytes) -> None:
        """Stores the certificate. Ignores bytes that are not a certificate."""
        try:
            certificate = load_pem_x509_certificate(pem)
        except (ValueError, UnsupportedAlgorithm):
            return
        while len(self._kept) >= _MAX_CERTIFICATES:
            del self._kept[next(iter(self._kept))]
        self._kept[url] = certificate


class SnsCallbacks:
    """Verifies and reads the messages of our topics."""

    def __init__(self, topics: tuple[str, ...], certificates: CertificateCache) -> None:
        self._topics = topics
        self._certificates = certificates

    def handle_callback(self, callback: Callback, now_ms: int) -> ParsedCallback:
        message = self.verified(callback, now_ms)
        if message.type != NOTIFICATION:
            return ParsedCallback(ignored=1)
        return read_events(message.message, now_ms)

    def verified(self, callback: Callback, now_ms: int) -> SnsMessage:
        """Returns the message. Raises `CallbackRefused` unless SNS signed it and its topic is ours."""
        message = self.wanted(callback)
        certificate = self._certificates.get(message.certificate_url)
        if certificate is None:
            raise CallbackRefused("the signing certificate could not be fetched")
        check_signature(message, certificate, now_ms)
        return message

    def wanted(self, callback: Callback) -> SnsMessage:
        """Returns the unverified message.

        Raises `CallbackRefused` if its topic or certificate URL is not allowed.
        """
        message = read_message(callback)
        if message.topic_arn not in self._topics:
            raise CallbackRefused("the message's topic is not listed in callback_topics")
        if not _CERTIFICATE_URL.fullmatch(message.certificate_url):
            raise CallbackRefused("the certificate's URL does not belong to SNS")
        return message


def should_confirm(message: SnsMessage) -> bool:
    """Returns True if this verified message asks to confirm a subscription at a URL of SNS."""
    return message.type == CONFIRMATION and bool(_SUBSCRIBE_URL.fullmatch(message.subscribe_url or ""))


def check_signature(message: SnsMessage, certificate: Certificate, now_ms: int) -> None:
    """Raises `CallbackRefused` unless the certificate's owner signed this message."""
    hashes = {"1": SHA1, "2": SHA256}
    key, made = certificate.public_key(), hashes.get(message.signature_version)
    if made is None or message.type not in _SIGNED or not isinstance(key, RSAPublicKey):
        raise CallbackRefused("the signature is of a kind that SNS does not use")
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise CallbackRefused("the signing certificate has expired or is not valid yet")
    try:
        signature = b64decode(message.signature, validate=True)
        key.verify(signature, message.signed_text(), PKCS1v15(), made())
    except (InvalidSignature, NotBase64, ValueError):
        raise CallbackRefused("the signature does not match the message") from None


_MAX_EVENTS = 1000


def read_events(text: str, now_ms: int) -> ParsedCallback:
    """Reads the delivery-status events of a message, which holds one event or a list of them."""
    decoded = decode_json(text)
    events = decoded if isinstance(decoded, list) else [decoded]
    receipts: list[Receipt] = []
    ignored = unreadable = 0
    for event in events[:_MAX_EVENTS]:
        status = as_object(event).get("status")
        message_id = short_text_or_none(as_object(as_object(event).get("notification")).get("messageId"))
        if not isinstance(status, str) or message_id is None:
            unreadable += 1
        elif status not in ("SUCCESS", "FAILURE"):
            ignored += 1
        else:
            receipts += _receipts(event, status, message_id, now_ms)
    return ParsedCallback(receipts=tuple(receipts), ignored=ignored, unreadable=unreadable)


def _receipts(event: dict[str, Any], status: str, message_id: str, now_ms: int) -> Iterator[Receipt]:
    delivery = as_object(event.get("delivery"))
    receipt = Receipt(
        provider="sns",
        provider_message_id=message_id,
        event=ReceiptEvent.DELIVERED,
        event_id=f"{message_id}:{status}",
        at=_event_time_ms(event, now_ms),
    )
    if status == "FAILURE":
        yield from _failures(receipt, delivery.get("providerResponse"))
    elif str(delivery.get("destination")).startswith("arn:"):
        yield replace(receipt, event=ReceiptEvent.SENT)  # the push platform has it, but maybe not the device
    else:
        yield receipt


def _failures(receipt: Receipt, response: Any) -> Iterator[Receipt]:
    code = _failure_code(response)
    meaning = load_error_table("sns").codes.get(code) if code else None
    return failure_receipts(receipt, meaning, code or "FAILURE", redacted_error_text(response))


def _failure_code(response: Any) -> str | None:
    """Returns SNS's error text for an SMS, or the platform's error code for a push message.

    Returns None if the table lists neither.
    """
    if not isinstance(response, str):
        return None
    decoded = decode_json_object(response)
    results = decoded.get("results")
    first = as_object(results[0]) if isinstance(results, list) and results else {}
    status = as_object(decoded.get("error")).get("status")
    for code in (response.strip().rstrip("."), decoded.get("reason"), first.get("error"), status):
        if isinstance(code, str) and code in load_error_table("sns").codes:
            return code
    return None


def _event_time_ms(event: dict[str, Any], now_ms: int) -> int:
    """Returns the publication time plus `dwellTimeMs`, or `now_ms` if the publication time is missing."""
    published = parse_past_time_ms(as_object(event.get("notification")).get("timestamp"), now_ms)
    took_ms = as_object(event.get("delivery")).get("dwellTimeMs")
    return min(now_ms, published + (took_ms if isinstance(took_ms, int) and took_ms > 0 else 0))
