"""What a notification becomes in Twilio's form: recipient, sender, words, media, time to live. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from homing.core.errors import ConfigError
from homing.core.model import Channel, Content
from homing.core.ports import Delivery
from homing.providers.forms import form
from homing.providers.refusals import check_segments, refusal

MAX_BODY = 1600
MAX_MEDIA = 10
MAX_VALIDITY_S = 36_000
MAX_CALLBACK_URL = 4000

WHATSAPP = "whatsapp:"

_PHONE = re.compile(r"\+?[0-9]{3,15}")
_CONTENT_SID = re.compile(r"HX[0-9a-fA-F]{32}")
_MEDIA_URL = re.compile(r"https?://[^\s/?#]+\S*")
_LONGEST_CORRELATION = 80
"""Of `delivery=…&attempt=…` with the sign before it: an id has 36 characters."""

Field = tuple[str, str]


class TwilioMessages(Struct, frozen=True, kw_only=True):
    """The settings that decide how a message is written."""

    sender: str
    messaging_service_sid: str
    whatsapp_sender: str
    callback_url: str
    max_segments: int
    extras: tuple[Field, ...]
    """Fields that go with every message."""

    def body(self, delivery: Delivery, now_ms: int) -> bytes:
        """The form of one attempt."""
        to = recipient(delivery)
        whatsapp = to.startswith(WHATSAPP)
        fields = [("To", to), self._sender(whatsapp), *_content(delivery.content)]
        if not whatsapp:
            check_segments("twilio", words(delivery.content), self.max_segments)
        if self.callback_url:
            fields.append(("StatusCallback", correlated(self.callback_url, delivery)))
        validity_s = _validity_s(delivery, now_ms)
        if validity_s is not None:
            fields.append(("ValidityPeriod", str(validity_s)))
        return form((*fields, *self.extras)).encode("ascii")

    def _sender(self, whatsapp: bool) -> Field:
        if whatsapp and self.whatsapp_sender:
            return "From", self.whatsapp_sender
        if self.messaging_service_sid:
            return "MessagingServiceSid", self.messaging_service_sid
        return "From", as_whatsapp(self.sender) if whatsapp else self.sender


def recipient(delivery: Delivery) -> str:
    """`To`: the number, or for WhatsApp `whatsapp:` and the number."""
    address = delivery.address
    if delivery.channel is Channel.SMS:
        return address
    if delivery.channel is not Channel.CHAT:
        raise refusal("twilio", "channel")
    if not _PHONE.fullmatch(address.removeprefix(WHATSAPP)):
        raise refusal("twilio", "address")
    return as_whatsapp(address)


def words(content: Content) -> str:
    """What a phone shows."""
    return content.text or content.body or content.title or ""


def as_whatsapp(number: str) -> str:
    return number if number.startswith(WHATSAPP) else WHATSAPP + number


def correlated(callback_url: str, delivery: Delivery) -> str:
    """The callback's URL with our own id in it, so that a receipt finds its attempt without Twilio's."""
    url, hash_sign, overrides = callback_url.partition("#")
    joint = "&" if "?" in url else "?"
    query = f"{joint}delivery={delivery.notification_id}&attempt={delivery.attempt}"
    return f"{url}{query}{hash_sign}{overrides}"


def checked_callback_url(url: str) -> str:
    """The setting `callback_url`; Twilio refuses messages (21609) whose callback it does not like."""
    if not url:
        return url
    try:
        parts = urlsplit(url)
        host = parts.hostname if parts.port != 0 else None
    except ValueError:
        host = None
    if _is_odd(url) or not host or parts.scheme not in ("http", "https"):
        raise ConfigError("callback_url", "is not a URL like https://notify.example.org/twilio")
    if "_" in host:
        raise ConfigError("callback_url", "has an underscore in its host, which Twilio refuses")
    if len(url) > MAX_CALLBACK_URL - _LONGEST_CORRELATION:
        raise ConfigError("callback_url", f"is too long; Twilio takes {MAX_CALLBACK_URL} characters")
    return url


def _is_odd(url: str) -> bool:
    """Something in it would not be called, or signed, as it is written."""
    return not url.isascii() or any(character.isspace() or character < " " for character in url)


def _validity_s(delivery: Delivery, now_ms: int) -> int | None:
    """Seconds until it expires; None where Twilio's own ten hours end it sooner."""
    if delivery.expires_at is None:
        return None
    left_s = (delivery.expires_at - now_ms) // 1000
    return max(1, left_s) if left_s < MAX_VALIDITY_S else None


def _content(content: Content) -> Iterator[Field]:
    data = content.data or {}
    if "contentSid" in data:
        yield from _template(data)
        return
    media = _media(data.get("mediaUrl"))
    text = words(content)
    if not text and not media:
        raise refusal("twilio", "empty")
    if len(text) > MAX_BODY:
        raise refusal("twilio", "too_long", f"the text has {len(text)} characters; Twilio takes {MAX_BODY}")
    if text:
        yield "Body", text
    for url in media:
        yield "MediaUrl", url


def _template(data: dict[str, Any]) -> Iterator[Field]:
    sid, variables = data["contentSid"], data.get("contentVariables")
    if not isinstance(sid, str) or not _CONTENT_SID.fullmatch(sid):
        raise refusal("twilio", "template", "contentSid is not HX and 32 hexadecimal digits")
    if variables is not None and not isinstance(variables, dict):
        raise refusal("twilio", "template", "contentVariables is not a table of names and values")
    yield "ContentSid", sid
    if variables:
        yield "ContentVariables", msgspec.json.encode(variables).decode()


def _media(given: Any) -> list[str]:
    urls = given if isinstance(given, list) else [] if given is None else [given]
    if len(urls) > MAX_MEDIA or not all(isinstance(url, str) and _MEDIA_URL.fullmatch(url) for url in urls):
        raise refusal("twilio", "media")
    return urls
