"""Builds SNS's calls: Publish for an SMS or a push message to a platform endpoint, and the opt-out check.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from homing.core.errors import ConfigError
from homing.core.notifications import Channel, Priority
from homing.core.ports.providers import Delivery
from homing.providers.common.error_tables import build_refusal, check_segments
from homing.providers.common.http_provider import encode_form
from homing.providers.common.push_content import PushContent, read_push_content, remaining_ttl_s

MAX_SMS = 1600

MAX_BYTES = 262_144


SMS_TYPES = ("Transactional", "Promotional", "")


MessageAttribute = tuple[str, str, str]
"""The name, data type and value of a message attribute."""


_ENDPOINT = re.compile(
    r"arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]{12}:endpoint/(?P<platform>[A-Z_]+)/[^/\s]+/[0-9A-Za-z-]+"
)

_SENDER_ID = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9]{1,11}")

_URGENT = (Priority.CRITICAL, Priority.HIGH)


class SnsMessageBuilder(Struct, frozen=True, kw_only=True):
    """Builds SNS's calls from deliveries. The fields are the settings that decide how to write a message."""

    sms_attributes: tuple[MessageAttribute, ...]
    push_attributes: tuple[MessageAttribute, ...]
    max_segments: int
    push_ttl: bool
    """True if `AWS.SNS.MOBILE.<PLATFORM>.TTL` is added to notifications that expire."""

    def body(self, delivery: Delivery, now_ms: int) -> bytes:
        """Returns the form for one attempt.

        Raises `Unsendable` if SNS or the settings do not allow the message.
        """
        if delivery.channel is Channel.SMS:
            return self._sms(delivery)
        if delivery.channel is Channel.PUSH:
            return self._push(delivery, now_ms)
        raise build_refusal("sns", "channel")

    def _sms(self, delivery: Delivery) -> bytes:
        text = delivery.content.text or delivery.content.body or ""
        if not text:
            raise build_refusal("sns", "empty")
        if len(text) > MAX_SMS:
            error = f"the text has {len(text)} characters; SNS accepts at most {MAX_SMS}"
            raise build_refusal("sns", "too_long", error)
        check_segments("sns", text, self.max_segments)
        return build_publish_form({"PhoneNumber": delivery.address, "Message": text}, self.sms_attributes)

    def _push(self, delivery: Delivery, now_ms: int) -> bytes:
        endpoint = _ENDPOINT.fullmatch(delivery.address)
        if endpoint is None:
            raise build_refusal("sns", "address")
        message = build_push_message(delivery, endpoint["platform"])
        if len(message.encode()) > MAX_BYTES:
            raise build_refusal("sns", "too_large")
        call = {"TargetArn": delivery.address, "MessageStructure": "json", "Message": message}
        ttl = self._ttl(delivery, endpoint["platform"], now_ms)
        return build_publish_form(call, (*self.push_attributes, *ttl))

    def _ttl(self, delivery: Delivery, platform: str, now_ms: int) -> tuple[MessageAttribute, ...]:
        left_s = remaining_ttl_s(delivery, now_ms, None) if self.push_ttl else None
        return () if left_s is None else ((f"AWS.SNS.MOBILE.{platform}.TTL", "String", str(left_s)),)


def build_publish_form(call: Mapping[str, str], attributes: tuple[MessageAttribute, ...]) -> bytes:
    """Returns a Publish call in AWS's query protocol."""
    return f"Action=Publish&Version=2010-03-31&{encode_form(call.items())}{_entries(attributes)}".encode(
        "ascii"
    )


def build_opt_out_form(number: str) -> bytes:
    """Returns a call of CheckIfPhoneNumberIsOptedOut."""
    call = encode_form((("phoneNumber", number),))
    return f"Action=CheckIfPhoneNumberIsOptedOut&Version=2010-03-31&{call}".encode("ascii")


@lru_cache(256)
def _entries(attributes: tuple[MessageAttribute, ...]) -> str:
    """Returns the message attributes, numbered from 1. Cached, because most messages have the same ones."""
    made = ""
    for number, (name, kind, value) in enumerate(attributes, 1):
        entry = f"MessageAttributes.entry.{number}"
        named = (
            (f"{entry}.Name", name),
            (f"{entry}.Value.DataType", kind),
            (f"{entry}.Value.StringValue", value),
        )
        made += f"&{encode_form(named)}"
    return made


def build_push_message(delivery: Delivery, platform: str) -> str:
    """Returns `Message` for `MessageStructure=json`, in which the platform's document is JSON within JSON."""
    content = read_push_content(delivery.content, "image")
    if content.silent and not content.data:
        raise build_refusal("sns", "empty")
    made = {"default": content.body or content.title or _json(content.data)}
    if platform == "GCM":
        made["GCM"] = _json(_gcm(content, delivery.priority in _URGENT))
    elif platform.startswith(("APNS", "MACOS")):
        made[platform] = _json(_apns(content))
    return _json(made)


def build_sms_attributes(
    sender_id: str, sms_type: str, max_price: str | float | None, origination_number: str
) -> tuple[MessageAttribute, ...]:
    """Returns the attributes of every SMS. Raises `ConfigError` if a setting is wrong."""
    if sender_id and not _SENDER_ID.fullmatch(sender_id):
        raise ConfigError("sender_id", "must have 1 to 11 letters and digits, including at least one letter")
    if sms_type not in SMS_TYPES:
        raise ConfigError("sms_type", f"is {sms_type!r}; use Transactional or Promotional")
    given = (
        ("AWS.SNS.SMS.SenderID", "String", sender_id),
        ("AWS.SNS.SMS.SMSType", "String", sms_type),
        ("AWS.SNS.SMS.MaxPrice", "Number", "" if max_price is None else str(max_price)),
        ("AWS.MM.SMS.OriginationNumber", "String", origination_number),
    )
    return tuple(attribute for attribute in given if attribute[2])


def _gcm(content: PushContent, urgent: bool) -> dict[str, Any]:
    made: dict[str, Any] = {}
    shown = {"title": content.title, "body": content.body, "image": content.image}
    if not content.silent:
        made["notification"] = {name: text for name, text in shown.items() if text is not None}
    if content.data:
        # FCM accepts only text as data.
        made["data"] = {name: v if isinstance(v, str) else _json(v) for name, v in content.data.items()}
    if urgent:
        made["priority"] = "high"
    return made


def _apns(content: PushContent) -> dict[str, Any]:
    alert = {"title": content.title, "body": content.body}
    aps: dict[str, Any] = {"content-available": 1}
    if not content.silent:
        aps = {"alert": {name: text for name, text in alert.items() if text is not None}, "sound": "default"}
    if content.image is not None:
        aps["mutable-content"] = 1  # lets the app fetch the image before the message is shown
        return {**content.data, "image": content.image, "aps": aps}
    return {**content.data, "aps": aps}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
