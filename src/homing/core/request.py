"""The send request, and every check that can be made without I/O. What passes here is stored as it is."""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache
from math import isfinite
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, field

from homing.core.email import check_email_content, check_email_parts, email_address
from homing.core.errors import InvalidRequest
from homing.core.locale import MOST_CHARACTERS
from homing.core.model import Channel, Content, Priority, Recipient
from homing.core.text import SURROGATE, check_line, check_text, is_plain

BOTH = (Channel.EMAIL, Channel.PUSH)

PROVIDER_ALIASES = {
    "aws_sns": "sns",
    "azure": "acs",
    "azure_communication_services": "acs",
    "firebase": "fcm",
}
"""Spellings of the source designs; ids are lower case."""


class SendRequest(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """What an application asks for. One request may become several notifications (see `batch_id`)."""

    recipient: Recipient | None = None
    recipients: tuple[Recipient, ...] = ()
    channel: str | None = None
    """One of the channels, or `both` = email + push."""
    channels: tuple[str, ...] = ()
    type: str | None = None
    """What happened, e.g. `order_confirmed`; the template's key if left out, else `message`."""
    category: str | None = None
    """For preferences; the type if left out."""
    priority: str = "medium"
    origin: str = ""
    template_key: str | None = None
    data: dict[str, Any] | None = None
    accept_language: str | None = None
    """As the recipient's browser or app sent it: for a recipient without a locale."""
    content: Content | None = None
    synchronous: bool | None = None
    bulk: bool = False
    provider: str | None = None
    idempotency_key: str | None = None
    dedup_key: str | None = None
    send_at: datetime | None = None
    expires_at: datetime | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


class SendLimits(Struct, frozen=True, kw_only=True):
    """The largest of everything that a request may carry."""

    content_bytes: int = 256 * 1024
    attachments_bytes: int = 10 * 1024 * 1024
    metadata_bytes: int = 16 * 1024
    fan_out: int = 10_000
    depth: int = 32


_REMEMBERED = 4_096
"""Words of requests that are used again and again: their check is remembered for so many."""
_KEY = re.compile(r"[\x20-\x7e]{1,255}")
_NAME = re.compile(r"[\w.:/\-]{1,100}")
_ORIGIN = re.compile(r"[^:/?#]*://[^/?#]*")
_PHONE_FILL = re.compile(r"[\s().\-]")
_PHONE = re.compile(r"\+?[0-9]{3,15}")

ADDRESS_FIELD: dict[Channel, str] = {
    Channel.EMAIL: "email",
    Channel.SMS: "phone",
    Channel.PUSH: "device_token",
    Channel.WEBHOOK: "url",
    Channel.CHAT: "url",
    Channel.QUEUE: "url",
}
_SAYS: dict[Channel, tuple[str, ...]] = {
    Channel.EMAIL: ("text", "html", "body"),
    Channel.SMS: ("text", "body"),
    Channel.PUSH: ("title", "body", "data"),
    Channel.WEBHOOK: ("data", "body", "text", "title", "subject"),
    Channel.CHAT: ("text", "body", "title"),
    Channel.QUEUE: ("data", "body", "text"),
}


def channels_of(request: SendRequest) -> tuple[Channel, ...]:
    """The channels asked for, each once, in order."""
    return channels_named(request.channel, request.channels)


def channels_named(channel: str | None, channels: tuple[str, ...]) -> tuple[Channel, ...]:
    """The channels of these names, each once, in order."""
    named = (*((channel,) if channel else ()), *channels)
    if not named:
        raise InvalidRequest("channel", f"is missing; allowed are {_one_of(Channel)} or both")
    found: dict[Channel, None] = {}
    for name in named:
        if name.lower() == "both":
            found.update(dict.fromkeys(BOTH))
            continue
        try:
            found[Channel(name.lower())] = None
        except ValueError:
            raise InvalidRequest("channel", f"is {name!r}; allowed are {_one_of(Channel)} or both") from None
    return tuple(found)


def recipients_of(request: SendRequest, limits: SendLimits) -> tuple[Recipient, ...]:
    """The recipients asked for."""
    if request.recipient is not None and request.recipients:
        raise InvalidRequest("recipients", "and recipient are both given; give one of them")
    found = (request.recipient,) if request.recipient is not None else request.recipients
    if not found:
        raise InvalidRequest("recipient", "is missing; give at least one address (email, phone, …) or an id")
    if len(found) > limits.fan_out:
        raise InvalidRequest("recipients", f"has {len(found)} entries; allowed are {limits.fan_out}")
    for recipient in found:
        _check_recipient(recipient)
    return found


def priority_of(name: str) -> Priority:
    lowered = name.lower()
    try:
        return Priority("medium" if lowered == "normal" else lowered)
    except ValueError:
        raise InvalidRequest("priority", f"is {name!r}; allowed are {_one_of(Priority)}") from None


def provider_id(name: str) -> str:
    """Provider ids are lower case; the sources' spellings are understood."""
    lowered = name.strip().lower()
    return PROVIDER_ALIASES.get(lowered, lowered)


def address_of(recipient: Recipient, channel: Channel) -> str:
    """The recipient's address on this channel, checked and in its usual form."""
    name = ADDRESS_FIELD[channel]
    raw = getattr(recipient, name)
    where, _ = _RECIPIENT_FIELDS[name]
    if raw is None or not raw.strip():
        if recipient.id:
            raise InvalidRequest(
                "recipient.id",
                f"{recipient.id!r} has no {where.removeprefix('recipient.')}, which {channel} needs",
            )
        raise InvalidRequest(where, f"is empty; {channel} needs it")
    check_line(raw, where)
    address = str(raw).strip()
    return _FORMS[channel](address, where) if channel in _FORMS else address


def check_content(content: Content, channel: Channel, limits: SendLimits) -> None:
    """The content says something on this channel, is not too large and has no hidden characters."""
    if not any(getattr(content, part) for part in _SAYS[channel]):
        raise InvalidRequest("content", f"is empty for {channel}; give one of {', '.join(_SAYS[channel])}")
    size = check_json(content.data, "content.data", limits)
    for part, where, check in _TEXTS_OF_CONTENT:
        text = getattr(content, part)
        if text is not None:
            check(text, where)
            size += len(text.encode())
    if content.headers:
        size += sum(len(name) + len(value) for name, value in content.headers.items())
    if size > limits.content_bytes:
        raise InvalidRequest("content", f"has {size} bytes; allowed are {limits.content_bytes}")
    check_email_parts(content, limits.attachments_bytes)
    if channel is Channel.EMAIL:
        check_email_content(content)


def check_names(request: SendRequest) -> None:
    """Names, keys and the header: short, printable, on one line."""
    if request.type is not None:
        check_name(request.type, "type")
    if request.category is not None:
        check_name(request.category, "category")
    if request.template_key is not None:
        check_name(request.template_key, "templateKey")
    if request.origin:
        check_name(request.origin, "origin")
    if request.idempotency_key is not None:
        _check_key(request.idempotency_key, "idempotencyKey")
    if request.dedup_key is not None:
        _check_key(request.dedup_key, "dedupKey")
    if request.accept_language is not None:
        check_line(request.accept_language, "acceptLanguage")
        if (said := len(request.accept_language)) > MOST_CHARACTERS:
            raise InvalidRequest("acceptLanguage", f"has {said} characters; allowed are {MOST_CHARACTERS}")


def check_name(value: Any, where: str) -> None:
    """A name as types, categories and origins have them."""
    if not isinstance(value, str) or not _is_name(value):
        raise InvalidRequest(where, "must have 1 to 100 letters, digits, or . _ : / -")


@lru_cache(_REMEMBERED)
def _is_name(value: str) -> bool:
    return _NAME.fullmatch(value) is not None


def _check_key(value: str, where: str) -> None:
    if not _KEY.fullmatch(value):
        raise InvalidRequest(where, "must have 1 to 255 visible ASCII characters")


def check_json(value: Any, where: str, limits: SendLimits, max_bytes: int | None = None) -> int:
    """Free JSON: not too deep, not too large, and storable everywhere (no NUL, no lone surrogates).

    How many bytes it has.
    """
    if value is None or value == {}:
        return 0
    _check_value(value, where, limits.depth)
    try:
        size = len(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequest(where, f"cannot be written as JSON: {error}") from None
    if max_bytes is not None and size > max_bytes:
        raise InvalidRequest(where, f"has {size} bytes; allowed are {max_bytes}")
    return size


def _check_value(value: Any, where: str, depth: int) -> None:
    if depth < 0:
        raise InvalidRequest(where, "is nested too deeply; allowed are 32 levels")
    if isinstance(value, str):
        _check_storable(value, where)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidRequest(where, f"has the key {key!r}; keys must be text")
            _check_storable(key, where)
            _check_value(item, where, depth - 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_value(item, where, depth - 1)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InvalidRequest(where, "has a whole number beyond 64 bits; write it as text")
    elif isinstance(value, float) and not isfinite(value):
        raise InvalidRequest(where, f"has the number {value}, which JSON does not have")


def _check_storable(text: str, where: str) -> None:
    if not is_plain(text) and ("\x00" in text or SURROGATE.search(text)):
        raise InvalidRequest(where, "has a NUL or an unpaired surrogate; no store can keep it")


def _check_recipient(recipient: Recipient) -> None:
    """Every field that is given is one short, plain line, whether this channel uses it or not."""
    for name, (where, longest) in _RECIPIENT_FIELDS.items():
        value = getattr(recipient, name)
        if value is not None:
            check_line(value, where)
            if len(value) > longest:
                raise InvalidRequest(where, f"has {len(value)} characters; allowed are {longest}")


def _phone(number: str, where: str) -> str:
    bare = _PHONE_FILL.sub("", number)
    if not _PHONE.fullmatch(bare):
        raise InvalidRequest(where, "is not a phone number like +15550100")
    return bare


def _url(url: str, where: str) -> str:
    origin = _ORIGIN.match(url)
    if " " in url or not _is_origin(origin[0] if origin else url):
        raise InvalidRequest(where, "is not a URL like https://example.org/hook")
    return url


@lru_cache(_REMEMBERED)
def _is_origin(url: str) -> bool:
    """Of a URL, what is before its path, where all that can be wrong with it is."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


_TEXTS_OF_CONTENT = (
    ("subject", "content.subject", check_line),
    ("title", "content.title", check_line),
    ("body", "content.body", check_text),
    ("text", "content.text", check_text),
    ("html", "content.html", check_text),
)
_RECIPIENT_FIELDS = {
    name: (f"recipient.{wire}", 4096 if name in ("device_token", "url") else 320)
    for name, wire in zip(Recipient.__struct_fields__, Recipient.__struct_encode_fields__, strict=True)
}
"""Field → how errors name it, and how long it may be."""
_FORMS = {Channel.EMAIL: email_address, Channel.SMS: _phone, Channel.WEBHOOK: _url}


def _one_of(kind: type[Channel] | type[Priority]) -> str:
    return ", ".join(member.value for member in kind)
