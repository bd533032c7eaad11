"""Verifies messages that SNS posts to us: SNS must have signed them, and their topic must be one of ours.

The signature alone proves little, because anyone can create a topic whose messages SNS signs. Everything here
is pure. The certificates are fetched before and passed in.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as NotBase64
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from homing.core.callbacks import Callback, CallbackRefused, Heard
from homing.core.errors import ConfigError
from homing.providers.sns_events import read_events

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
FAREWELL = "UnsubscribeConfirmation"

_SIGNED = {
    NOTIFICATION: ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"),
    CONFIRMATION: ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"),
    FAREWELL: ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"),
}
_HOST = r"https://sns\.[a-z0-9-]{3,40}\.amazonaws\.com(?:\.cn)?(?::443)?"
_CERTIFICATE_URL = re.compile(_HOST + r"/SimpleNotificationService-[0-9A-Za-z]{1,64}\.pem")
_SUBSCRIBE_URL = re.compile(_HOST + r"/\?[\x21-\x7e]{1,2000}")
_MAX_CERTIFICATES = 16
_MAX_BODY_BYTES = 2 * 1024 * 1024
"""An SNS message has at most 256 KiB, but can be several times as long when encoded as JSON."""


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
    """Returns the envelope. Raises `CallbackRefused` if the body is not one."""
    if len(callback.body) > _MAX_BODY_BYTES:
        raise CallbackRefused(f"the body has more than {_MAX_BODY_BYTES} bytes; SNS messages are smaller")
    try:
        return msgspec.json.decode(callback.body, type=SnsMessage)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise CallbackRefused("the body is not an SNS message") from None


class CertificateShelf:
    """Fetched certificates by URL, limited to more than SNS has in use at a time."""

    def __init__(self) -> None:
        self._kept: dict[str, Certificate] = {}

    def get(self, url: str) -> Certificate | None:
        return self._kept.get(url)

    def put(self, url: str, pem: bytes) -> None:
        """Stores the certificate. Ignores bytes that are not one."""
        try:
            certificate = load_pem_x509_certificate(pem)
        except (ValueError, UnsupportedAlgorithm):
            return
        while len(self._kept) >= _MAX_CERTIFICATES:
            del self._kept[next(iter(self._kept))]
        self._kept[url] = certificate


class SnsCallbacks:
    """Verifies and reads the messages of our topics."""

    def __init__(self, topics: tuple[str, ...], certificates: CertificateShelf) -> None:
        self._topics = topics
        self._certificates = certificates

    def hear(self, callback: Callback, now_ms: int) -> Heard:
        message = self.verified(callback, now_ms)
        if message.type != NOTIFICATION:
            return Heard(ignored=1)
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


def may_confirm(message: SnsMessage) -> bool:
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
