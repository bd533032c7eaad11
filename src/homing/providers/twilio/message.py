"""Builds Twilio's form for a notification, and checks the callback URL. Pure.

The form has the recipient, sender, text, media, callback URL and validity period.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from homing.core.errors import ConfigError
from homing.core.notifications import Channel, Content
from homing.core.ports.providers import Delivery
from homing.providers.common.error_tables import build_refusal, check_segments
from homing.providers.common.http_provider import encode_form

MAX_BODY = 1600

MAX_MEDIA = 10

MAX_VALIDITY_S = 36_000

MAX_CALLBACK_URL = 4000


WHATSAPP_PREFIX = "whatsapp:"


_PHONE = re.compile(r"\+?[0-9]{3,15}")

_CONTENT_SID = re.compile(r"HX[0-9a-fA-F]{32}")

_MEDIA_URL = re.compile(r"https?://[^\s/?#]+\S*")

_MAX_CORRELATION_CHARS = 80
"""Upper bound for `?delivery=…&attempt=…` in characters, of which the notification id takes 36."""


FormField = tuple[str, str]


class TwilioMessageBuilder(Struct, frozen=True, kw_only=True):
    """Builds Twilio's forms from deliveries. The fields are the settings that decide how to write them."""

    sender: str
    messaging_service_sid: str
    whatsapp_sender: str
    callback_url: str
    max_segments: int
    extras: tuple[FormField, ...]
    """Form fields that are added to every message."""

    def body(self, delivery: Delivery, now_ms: int) -> bytes:
        """Returns the form for one attempt.

        Raises `Unsendable` if Twilio or the settings do not allow the message.
        """
        to = format_recipient(delivery)
        whatsapp = to.startswith(WHATSAPP_PREFIX)
        fields = [("To", to), self._sender(whatsapp), *_content(delivery.content)]
        if not whatsapp:
            check_segments("twilio", message_text(delivery.content), self.max_segments)
        if self.callback_url:
            fields.append(("StatusCallback", correlated_callback_url(self.callback_url, delivery)))
        validity_s = _validity_s(delivery, now_ms)
        if validity_s is not None:
            fields.append(("ValidityPeriod", str(validity_s)))
        return encode_form((*fields, *self.extras)).encode("ascii")

    def _sender(self, whatsapp: bool) -> FormField:
        if whatsapp and self.whatsapp_sender:
            return "From", self.whatsapp_sender
        if self.messaging_service_sid:
            return "MessagingServiceSid", self.messaging_service_sid
        return "From", whatsapp_address(self.sender) if whatsapp else self.sender


def format_recipient(delivery: Delivery) -> str:
    """Returns the field `To`: the phone number, with the prefix `whatsapp:` for WhatsApp."""
    address = delivery.address
    if delivery.channel is Channel.SMS:
        return address
    if delivery.channel is not Channel.CHAT:
        raise build_refusal("twilio", "channel")
    if not _PHONE.fullmatch(address.removeprefix(WHATSAPP_PREFIX)):
        raise build_refusal("twilio", "address")
    return whatsapp_address(address)


def message_text(content: Content) -> str:
    """Returns the text that the phone shows."""
    return content.text or content.body or content.title or ""


def whatsapp_address(number: str) -> str:
    return number if number.startswith(WHATSAPP_PREFIX) else WHATSAPP_PREFIX + number


def correlated_callback_url(callback_url: str, delivery: Delivery) -> str:
    """Adds the notification id and attempt to the callback URL, so that a receipt needs no Twilio id."""
    url, hash_sign, overrides = callback_url.partition("#")
    joint = "&" if "?" in url else "?"
    query = f"{joint}delivery={delivery.notification_id}&attempt={delivery.attempt}"
    return f"{url}{query}{hash_sign}{overrides}"


def check_callback_url(url: str) -> str:
    """Returns the setting `callback_url`.

    Raises `ConfigError` if the URL is invalid or too long, or if Twilio would not call or sign it exactly as
    written. With an unsuitable URL, Twilio rejects every message with its error 21609.
    """
    if not url:
        return url
    try:
        parts = urlsplit(url)
        host = parts.hostname if parts.port != 0 else None
    except ValueError:
        host = None
    if _has_unsafe_characters(url) or not host or parts.scheme not in ("http", "https"):
        raise ConfigError("callback_url", "must be a URL like https://notify.example.org/twilio")
    if "_" in host:
        raise ConfigError("callback_url", "has a host with an underscore, which Twilio rejects")
    if len(url) > MAX_CALLBACK_URL - _MAX_CORRELATION_CHARS:
        longest = MAX_CALLBACK_URL - _MAX_CORRELATION_CHARS
        raise ConfigError("callback_url", f"has {len(url)} characters; at most {longest} are allowed")
    return url


def _has_unsafe_characters(url: str) -> bool:
    """Returns True if the URL has characters that Twilio would encode before it calls and signs the URL."""
    return not url.isascii() or any(character.isspace() or character < " " for character in url)


def _validity_s(delivery: Delivery, now_ms: int) -> int | None:
    """Returns the seconds until the notification expires.

    Returns None if it never expires, or only after Twilio's maximum of ten hours.
    """
    if delivery.expires_at is None:
        return None
    left_s = (delivery.expires_at - now_ms) // 1000
    return max(1, left_s) if left_s < MAX_VALIDITY_S else None


def _content(content: Content) -> Iterator[FormField]:
    data = content.data or {}
    if "contentSid" in data:
        yield from _template(data)
        return
    media = _media(data.get("mediaUrl"))
    text = message_text(content)
    if not text and not media:
        raise build_refusal("twilio", "empty")
    if len(text) > MAX_BODY:
        error = f"the text has {len(text)} characters; Twilio accepts at most {MAX_BODY}"
        raise build_refusal("twilio", "too_long", error)
    if text:
        yield "Body", text
    for url in media:
        yield "MediaUrl", url


def _template(data: dict[str, Any]) -> Iterator[FormField]:
    sid, variables = data["contentSid"], data.get("contentVariables")
    if not isinstance(sid, str) or not _CONTENT_SID.fullmatch(sid):
        raise build_refusal("twilio", "template", "contentSid must be HX followed by 32 hexadecimal digits")
    if variables is not None and not isinstance(variables, dict):
        raise build_refusal("twilio", "template", "contentVariables must be an object of names and values")
    yield "ContentSid", sid
    if variables:
        yield "ContentVariables", msgspec.json.encode(variables).decode()


def _media(given: Any) -> list[str]:
    urls = given if isinstance(given, list) else [] if given is None else [given]
    if len(urls) > MAX_MEDIA or not all(isinstance(url, str) and _MEDIA_URL.fullmatch(url) for url in urls):
        raise build_refusal("twilio", "media")
    return urls
