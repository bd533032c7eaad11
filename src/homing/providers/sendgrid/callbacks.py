"""Verifies SendGrid's Event Webhook and turns its batches of events into receipts."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec

from homing.core.errors import CallbackRefused, ConfigError
from homing.core.lifecycle.receipts import Callback, ParsedCallback, Receipt, ReceiptEvent
from homing.net.secrets import SecretSetting, read_secrets
from homing.providers.common.error_tables import load_error_table
from homing.providers.common.response_parsing import decode_json, parse_past_time_ms, redacted_error_text

NOTIFICATION_ARG = "homing_notification_id"

ATTEMPT_ARG = "homing_attempt"
"""`NOTIFICATION_ARG` and `ATTEMPT_ARG` name custom arguments that SendGrid returns as members of each event.

Their prefix avoids the names of SendGrid's own members, which would override ours.
"""


SIGNATURE_HEADER = "x-twilio-email-event-webhook-signature"

TIMESTAMP_HEADER = "x-twilio-email-event-webhook-timestamp"


VerifySignature = Callable[[bytes, bytes], bool]
"""A function that takes a signature and the signed bytes. It returns True if SendGrid signed them."""


class SendGridCallbacks:
    """Verifies callbacks with the account's public keys, which are parsed once, and reads them."""

    def __init__(self, public_keys: SecretSetting, tolerance_ms: int) -> None:
        if tolerance_ms < 0:
            raise ConfigError("webhook_tolerance_ms", "is negative; use 0 to accept signatures of any age")
        keys = read_secrets("webhook_public_key", public_keys)
        self._verifiers = tuple(load_verifier(key.reveal()) for key in keys)
        self._tolerance_ms = tolerance_ms

    def handle_callback(self, callback: Callback, now_ms: int) -> ParsedCallback:
        """Verifies and reads one batch of events. Unreadable events are counted and skipped."""
        self._check(callback, now_ms)
        events = decode_json(callback.body)
        if not isinstance(events, list):
            return ParsedCallback(unreadable=1)
        receipts: list[Receipt] = []
        ignored = unreadable = 0
        for event in events:
            try:
                found = read_receipts(event, now_ms)
            except (TypeError, ValueError, AttributeError):
                unreadable += 1
                continue
            ignored += not found
            receipts += found
        return ParsedCallback(receipts=tuple(receipts), ignored=ignored, unreadable=unreadable)

    def _check(self, callback: Callback, now_ms: int) -> None:
        if not self._verifiers:
            raise CallbackRefused("webhook_public_key is not set, so callbacks cannot be verified")
        timestamp = callback.headers.get(TIMESTAMP_HEADER, "")
        try:
            signature = b64decode(callback.headers.get(SIGNATURE_HEADER, ""))
            signed = timestamp.encode() + callback.body
        except (NotBase64, ValueError):
            raise CallbackRefused from None
        is_signed = any(verify(signature, signed) for verify in self._verifiers)
        if not is_signed or not self._is_recent(timestamp, now_ms):
            raise CallbackRefused

    def _is_recent(self, timestamp: str, now_ms: int) -> bool:
        if not self._tolerance_ms:
            return True
        if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
            return False
        return abs(now_ms - int(timestamp) * 1000) <= self._tolerance_ms


def load_verifier(public_key: str) -> VerifySignature:
    """Returns a verifier for a public key, given as base64 DER (as SendGrid shows it) or as PEM."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    body = "".join(line for line in public_key.split("\n") if "-----" not in line)
    try:
        key: Any = load_der_public_key(b64decode("".join(body.split()), validate=True))
    except Exception:  # the library raises many types; the key must not appear in the error
        key = None
    if not (isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)):
        raise ConfigError(
            "webhook_public_key", "is not an ECDSA P-256 key; copy the verification key from SendGrid"
        )
    algorithm = ec.ECDSA(SHA256())

    def verify(signature: bytes, signed: bytes) -> bool:
        try:
            key.verify(signature, signed, algorithm)
        except InvalidSignature:
            return False
        return True

    return verify


# Events ----------------------------------------------------------------------------------------------

ReceiptTemplates = tuple[tuple[ReceiptEvent, dict[str, Any]], ...]
"""The receipts for one event: the kind of each, and the fields that it sets besides the common ones."""


_FIXED_RECEIPTS: dict[str, ReceiptTemplates] = {
    "processed": ((ReceiptEvent.QUEUED, {}),),
    "deferred": ((ReceiptEvent.QUEUED, {}),),
    "delivered": ((ReceiptEvent.DELIVERED, {}),),
    "click": ((ReceiptEvent.DELIVERED, {}), (ReceiptEvent.CLICK, {})),
    "spamreport": ((ReceiptEvent.SPAM_REPORT, {}),),
    "unsubscribe": ((ReceiptEvent.UNSUBSCRIBE, {"unsubscribed_from_all": True}),),
    "group_unsubscribe": ((ReceiptEvent.UNSUBSCRIBE, {}),),
}
"""Receipts by event name. A click also counts as delivered, because the delivery event may be lost."""


_ALIASES = {"opened": "open", "clicked": "click", "spam_report": "spamreport"}
"""Other spellings of event names, which gateways and older systems use."""


_UNSUBSCRIBED: ReceiptTemplates = ((ReceiptEvent.UNSUBSCRIBE, {"unsubscribed_from_all": True}),)


def read_receipts(event: dict[str, Any], now_ms: int) -> list[Receipt]:
    """Returns the receipts of one event.

    The list is empty if the event's name is not handled. Raises `ValueError` or `AttributeError` if the event
    is malformed, or is about a message but has neither a message id nor a notification id.
    """
    name = event["event"] if isinstance(event.get("event"), str) else None
    if name is None:
        raise ValueError("the event has no name")
    name = _ALIASES.get(name, name)
    message_id = read_message_id(event)
    notification_id = _text(event, NOTIFICATION_ARG, 64)
    meant = _meaning(name, event)
    if meant and not (message_id or notification_id):
        raise ValueError("the event names no message")
    event_id = _text(event, "sg_event_id", 100) or sha256(msgspec.json.encode(event)).hexdigest()
    attempt = _text(event, ATTEMPT_ARG, 6)
    common: dict[str, Any] = {
        "provider": "sendgrid",
        "provider_message_id": message_id,
        "at": parse_past_time_ms(event.get("timestamp"), now_ms),
        "notification_id": notification_id,
        "attempt": int(attempt) if attempt and attempt.isascii() and attempt.isdigit() else 0,
    }
    return [
        Receipt(
            event_id=event_id if one == 0 else f"{event_id}:{kind.value}",
            event=kind,
            error_code=_code(name, event) if kind is ReceiptEvent.FAILED else None,
            error=redacted_error_text(event.get("reason")) or redacted_error_text(event.get("response")),
            **common,
            **more,
        )
        for one, (kind, more) in enumerate(meant)
    ]


def _meaning(name: str, event: dict[str, Any]) -> ReceiptTemplates:
    if name == "bounce":
        return _failed(f"bounce.{_text(event, 'type', 20) or ''}")
    if name == "dropped":
        reason = (_text(event, "reason", 500) or "").strip().lower()
        if reason == "spam reporting address":
            return ((ReceiptEvent.SPAM_REPORT, {}),)
        failed = _failed(f"dropped.{reason}")
        return (*failed, *_UNSUBSCRIBED) if reason == "unsubscribed address" else failed
    if name == "open":
        # An open by a machine, which only fetches the images, proves the delivery but not a reader.
        opened: ReceiptTemplates = () if event.get("sg_machine_open") is True else ((ReceiptEvent.OPEN, {}),)
        return ((ReceiptEvent.DELIVERED, {}), *opened)
    return _FIXED_RECEIPTS.get(name, ())


def _failed(code: str) -> ReceiptTemplates:
    """Returns a failed receipt with the outcome that SendGrid's error table has for `code`, if any."""
    meaning = load_error_table("sendgrid").codes.get(code)
    if meaning is None:
        return ((ReceiptEvent.FAILED, {}),)
    classed = {"outcome": meaning.outcome, "retry_after_ms": meaning.retry_after_ms}
    return ((ReceiptEvent.FAILED, classed),)


def read_message_id(event: dict[str, Any]) -> str:
    """Returns the `X-Message-Id` of the send: `sg_message_id` without the routing data at its end."""
    whole = _text(event, "sg_message_id", 255) or ""
    at_sender = (_text(event, "smtp-id", 255) or "").strip("<>").partition("@")[0]
    if at_sender and whole.startswith(f"{at_sender}."):
        return at_sender
    for routing in (".filter", ".recvd"):
        if routing in whole:
            return whole.partition(routing)[0]
    return whole if whole.startswith("filter") else whole.partition(".")[0]


def _code(name: str, event: dict[str, Any]) -> str:
    return _text(event, "status", 20) or (_text(event, "type", 20) if name == "bounce" else None) or name


def _text(event: dict[str, Any], key: str, longest: int) -> str | None:
    value = event.get(key)
    return value[:longest] if isinstance(value, str) and value else None
