"""The send request, and every check that can be made without I/O. What passes here is stored as it is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from math import isfinite
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, field

from homing.core.email import check_email_content, check_email_parts, email_address
from homing.core.errors import InvalidRequest
from homing.core.locale import MOST_CHARACTERS
from homing.core.model import Channel, Content, Priority, Recipient
from homing.core.text import SURROGATE, check_line, check_text

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


_KEY = re.compile(r"[\x20-\x7e]{1,255}")
_NAME = re.compile(r"[\w.:/\-]{1,100}")
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
    named = (*((request.channel,) if request.channel else ()), *request.channels)
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
    where = f"recipient.{_camel(name)}"
    if raw is None or not raw.strip():
        if recipient.id:
            raise InvalidRequest(
                "recipient.id", f"{recipient.id!r} has no {_camel(name)}, which {channel} needs"
            )
        raise InvalidRequest(where, f"is empty; {channel} needs it")
    check_line(raw, where)
    address = str(raw).strip()
    return _FORMS[channel](address, where) if channel in _FORMS else address


def check_content(content: Content, channel: Channel, limits: SendLimits) -> None:
    """The content says something on this channel, is not too large and has no hidden characters."""
    if not any(getattr(content, part) for part in _SAYS[channel]):
        raise InvalidRequest("content", f"is empty for {channel}; give one of {', '.join(_SAYS[channel])}")
    for part in ("subject", "title"):
        check_line(getattr(content, part), f"content.{part}")
    for part in ("body", "text", "html"):
        check_text(getattr(content, part), f"content.{part}")
    check_json(content.data, "content.data", limits)
    size = sum(
        len(p.encode())
        for p in (content.subject, content.title, content.body, content.text, content.html)
        if p
    )
    size += len(msgspec.json.encode(content.data)) if content.data else 0
    size += sum(len(name) + len(value) for name, value in (content.headers or {}).items())
    if size > limits.content_bytes:
        raise InvalidRequest("content", f"has {size} bytes; allowed are {limits.content_bytes}")
    check_email_parts(content, limits.attachments_bytes)
    if channel is Channel.EMAIL:
        check_email_content(content)


def check_names(request: SendRequest) -> None:
    """Names, keys and the header: short, printable, on one line."""
    for name, value in (
        ("type", request.type),
        ("category", request.category),
        ("templateKey", request.template_key),
    ):
        if value is not None:
            check_name(value, name)
    if request.origin:
        check_name(request.origin, "origin")
    for name, value in (("idempotencyKey", request.idempotency_key), ("dedupKey", request.dedup_key)):
        if value is not None and not _KEY.fullmatch(value):
            raise InvalidRequest(name, "must have 1 to 255 visible ASCII characters")
    check_line(request.accept_language, "acceptLanguage")
    if request.accept_language is not None and len(request.accept_language) > MOST_CHARACTERS:
        said = len(request.accept_language)
        raise InvalidRequest("acceptLanguage", f"has {said} characters; allowed are {MOST_CHARACTERS}")


def check_name(value: Any, where: str) -> None:
    """A name as types, categories and origins have them."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise InvalidRequest(where, "must have 1 to 100 letters, digits, or . _ : / -")


def check_json(value: Any, where: str, limits: SendLimits, max_bytes: int | None = None) -> None:
    """Free JSON: not too deep, not too large, and storable everywhere (no NUL, no lone surrogates)."""
    if value is None:
        return
    for text in _texts(value, where, limits.depth):
        if "\x00" in text or SURROGATE.search(text):
            raise InvalidRequest(where, "has a NUL or an unpaired surrogate; no store can keep it")
    try:
        size = len(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequest(where, f"cannot be written as JSON: {error}") from None
    if max_bytes is not None and size > max_bytes:
        raise InvalidRequest(where, f"has {size} bytes; allowed are {max_bytes}")


def _texts(value: Any, where: str, depth: int) -> Iterable[str]:
    if depth < 0:
        raise InvalidRequest(where, "is nested too deeply; allowed are 32 levels")
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidRequest(where, f"has the key {key!r}; keys must be text")
            yield key
            yield from _texts(item, where, depth - 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item, where, depth - 1)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InvalidRequest(where, "has a whole number beyond 64 bits; write it as text")
    elif isinstance(value, float) and not isfinite(value):
        raise InvalidRequest(where, f"has the number {value}, which JSON does not have")


def _check_recipient(recipient: Recipient) -> None:
    """Every field that is given is one short, plain line, whether this channel uses it or not."""
    for name in recipient.__struct_fields__:
        value, where = getattr(recipient, name), f"recipient.{_camel(name)}"
        check_line(value, where)
        longest = 4096 if name in ("device_token", "url") else 320
        if value is not None and len(value) > longest:
            raise InvalidRequest(where, f"has {len(value)} characters; allowed are {longest}")


def _phone(number: str, where: str) -> str:
    bare = _PHONE_FILL.sub("", number)
    if not _PHONE.fullmatch(bare):
        raise InvalidRequest(where, "is not a phone number like +15550100")
    return bare


def _url(url: str, where: str) -> str:
    try:
        parts = urlsplit(url)
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        port_is_fine = False
    if not port_is_fine or parts.scheme not in ("http", "https") or not parts.hostname or " " in url:
        raise InvalidRequest(where, "is not a URL like https://example.org/hook")
    return url


_FORMS = {Channel.EMAIL: email_address, Channel.SMS: _phone, Channel.WEBHOOK: _url}


def _one_of(kind: type[Channel] | type[Priority]) -> str:
    return ", ".join(member.value for member in kind)


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)
