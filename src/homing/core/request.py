"""The send request, and every check that can be made without I/O. What passes here is stored as it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from math import isfinite
from operator import attrgetter
from typing import Any, NoReturn
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from homing.core.email import check_email_content, check_email_parts, email_address
from homing.core.errors import InvalidRequest
from homing.core.locale import MOST_CHARACTERS
from homing.core.model import Attachment, Channel, Content, Priority, Recipient
from homing.core.plain import (
    LEAST_INTEGER,
    MOST_DEPTH,
    MOST_INTEGER,
    NotPlain,
    is_storable,
    plain_json,
    plain_text,
)
from homing.core.text import check_line, check_text

BOTH = (Channel.EMAIL, Channel.PUSH)

PROVIDER_ALIASES = {
    "aws_sns": "sns",
    "azure": "acs",
    "azure_communication_services": "acs",
    "firebase": "fcm",
}
"""Spellings of the source designs; ids are lower case."""


class SendRequest(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename="camel",
    forbid_unknown_fields=True,
    gc=False,
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
    depth: int = MOST_DEPTH


_REMEMBERED = 4_096
"""Words of requests that are used again and again: their check is remembered for so many."""
_KEY = re.compile(r"[\x20-\x7e]{1,255}")
_NAME = re.compile(r"[\w.:/\-]{1,100}")
_ORIGIN = re.compile(r"[^:/?#]*://[^/?#]*")
_EMAIL = Channel.EMAIL
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
    if type(found) is not tuple:
        raise NotPlain
    if not found:
        raise InvalidRequest("recipient", "is missing; give at least one address (email, phone, …) or an id")
    if len(found) > limits.fan_out:
        raise InvalidRequest("recipients", f"has {len(found)} entries; allowed are {limits.fan_out}")
    for recipient in found:
        check_recipient(recipient)
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
    raw_of, where, form = _ADDRESSES[channel]
    raw = raw_of(recipient)
    address = "" if raw is None else (raw if type(raw) is str else plain_text(raw, where)).strip()
    if not address:
        _refuse_no_address(recipient, channel, where)
    if not (address.isascii() and address.isprintable()):
        check_line(raw, where)
    return address if form is None else form(address, where)


def _refuse_no_address(recipient: Recipient, channel: Channel, where: str) -> NoReturn:
    if recipient.id:
        raise InvalidRequest(
            "recipient.id",
            f"{recipient.id!r} has no {where.removeprefix('recipient.')}, which {channel} needs",
        )
    raise InvalidRequest(where, f"is empty; {channel} needs it")


def check_content(content: Content, channel: Channel, limits: SendLimits) -> Content:
    """Raises `InvalidRequest` if the content is empty on this channel, too large or has hidden characters.

    Returns the content; its data consists of built-in types.
    """
    if not any(_said[channel](content)):
        raise InvalidRequest("content", f"is empty for {channel}; give one of {', '.join(_SAYS[channel])}")
    most = _most_bytes(content.data, limits.depth) if content.data else 0
    if most >= _UNKNOWN_BYTES:
        content = replace(content, data=plain_json(content.data, "content.data", limits.depth))
    texts = _texts_of(content)
    if texts != _NO_TEXTS:
        for text, (where, check) in zip(texts, _TEXTS_OF_CONTENT, strict=True):
            if text is not None:
                check(text, where)
                most += len(text) if text.isascii() else 4 * len(text)
    if content.headers:
        most += _bytes_of_headers(content.headers)
    if most > limits.content_bytes:
        _check_size(content, texts, limits)
    if content.headers is not None or content.unsubscribe_url is not None or content.attachments:
        check_email_parts(content, limits.attachments_bytes)
    if channel is _EMAIL:
        check_email_content(content)
    return content


def check_kinds(content: Content) -> None:
    """Raises `NotPlain` if a part of the content is not of the exact built-in type that it declares."""
    if type(content) is not Content or type(content.data) not in _DATA:
        raise NotPlain
    texts = _texts_of(content)
    if texts != _NO_TEXTS and not _TEXT_OR_NONE.issuperset(map(type, texts)):
        raise NotPlain
    if content.headers is None and content.unsubscribe_url is None and content.attachments == ():
        return
    if content.headers is not None:
        if type(content.headers) is not dict:
            raise NotPlain
        _only_texts(*content.headers.keys(), *content.headers.values())
    if content.unsubscribe_url is not None:
        _only_texts(content.unsubscribe_url)
    if type(content.attachments) is not tuple:
        raise NotPlain
    for one in content.attachments:
        if type(one) is not Attachment:
            raise NotPlain
        _only_texts(one.filename, one.content, one.content_type)


def _only_texts(*values: Any) -> None:
    for value in values:
        if type(value) is not str:
            raise NotPlain


def _check_size(content: Content, texts: tuple[str | None, ...], limits: SendLimits) -> None:
    """What may be too large is written out and counted."""
    size = _json_bytes(content.data, "content.data") if content.data else 0
    size += sum(len(text.encode()) for text in texts if text is not None)
    size += _bytes_of_headers(content.headers or {})
    if size > limits.content_bytes:
        raise InvalidRequest("content", f"has {size} bytes; allowed are {limits.content_bytes}")


def _bytes_of_headers(headers: dict[str, str]) -> int:
    return sum(len(name) + len(value) for name, value in headers.items())


def check_names(request: SendRequest) -> None:
    """Names: short, printable, on one line."""
    if request.type is not None:
        check_name(request.type, "type")
    if request.category is not None:
        check_name(request.category, "category")
    if request.template_key is not None:
        check_name(request.template_key, "templateKey")
    if request.origin:
        check_name(request.origin, "origin")


def check_keys(request: SendRequest) -> None:
    """Keys and the header, likewise. Raises `NotPlain` if one of them is not an exact `str`."""
    if request.idempotency_key is not None:
        _check_key(request.idempotency_key, "idempotencyKey")
    if request.dedup_key is not None:
        _check_key(request.dedup_key, "dedupKey")
    if request.accept_language is not None:
        _only_texts(request.accept_language)
        check_line(request.accept_language, "acceptLanguage")
        if (said := len(request.accept_language)) > MOST_CHARACTERS:
            raise InvalidRequest("acceptLanguage", f"has {said} characters; allowed are {MOST_CHARACTERS}")


def check_name(value: Any, where: str) -> None:
    """A name as types, categories and origins have them."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise InvalidRequest(where, "must have 1 to 100 letters, digits, or . _ : / -")


def _check_key(value: str, where: str) -> None:
    _only_texts(value)
    if not _KEY.fullmatch(value):
        raise InvalidRequest(where, "must have 1 to 255 visible ASCII characters")


def check_json(value: Any, where: str, limits: SendLimits, max_bytes: int | None = None) -> Any:
    """Returns free JSON, made of built-in types only.

    Raises `InvalidRequest` if it is too deep, too large or not storable everywhere (NUL, lone surrogates).
    """
    if value is None or value == {}:
        return value
    most = _most_bytes(value, limits.depth)
    if most >= _UNKNOWN_BYTES:
        value = plain_json(value, where, limits.depth)
    if max_bytes is not None and most > max_bytes:
        size = _json_bytes(value, where)
        if size > max_bytes:
            raise InvalidRequest(where, f"has {size} bytes; allowed are {max_bytes}")
    return value


def _json_bytes(value: Any, where: str) -> int:
    try:
        return len(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequest(where, f"cannot be written as JSON: {error}") from None


_UNKNOWN_BYTES = 1 << 62
"""Size of what may not be JSON at all, or has to be converted to be JSON."""
_SHORT = frozenset({float, bool, type(None)})
_MOST_SHORT, _MOST_CHARACTER = 32, 6
"""Bytes that a number and the like, and one character of a text, take at most."""


def _most_bytes(value: Any, depth: int) -> int:
    """Returns how many bytes a value takes as JSON at most. To write it out only for that costs more.

    Returns at least `_UNKNOWN_BYTES` if any part is not plain: `plain_json` then converts or refuses it.
    """
    if depth < 0:
        return _UNKNOWN_BYTES
    if isinstance(value, dict):
        return _most_bytes_of_members(value, depth)
    kind = type(value)
    if kind is str:
        return _MOST_CHARACTER * len(value) + 2 if is_storable(value) else _UNKNOWN_BYTES
    if kind is int:
        return _MOST_SHORT if LEAST_INTEGER <= value <= MOST_INTEGER else _UNKNOWN_BYTES
    if isinstance(value, (list, tuple)):
        most = 2
        for item in value:
            most += _most_bytes(item, depth - 1) + 1
        return most
    if kind not in _SHORT or (kind is float and not isfinite(value)):
        return _UNKNOWN_BYTES
    return _MOST_SHORT


def _most_bytes_of_members(value: dict[Any, Any], depth: int) -> int:
    most = 2
    for key, item in value.items():
        if type(key) is not str or ((not key.isascii() or "\x00" in key) and not is_storable(key)):
            return _UNKNOWN_BYTES
        most += _MOST_CHARACTER * len(key) + 4
        kind = type(item)
        if kind is str and depth and item.isascii() and "\x00" not in item:
            most += _MOST_CHARACTER * len(item) + 2  # most are such, or whole numbers: no call for them
        elif kind is int and depth and LEAST_INTEGER <= item <= MOST_INTEGER:
            most += _MOST_SHORT
        else:
            most += _most_bytes(item, depth - 1)
    return most


def check_recipient(recipient: Recipient) -> None:
    """Raises `InvalidRequest` unless every given field is one short, plain line, used by this channel or not.

    Raises `NotPlain` if one of them is not an exact `str`.
    """
    if type(recipient) is not Recipient:
        raise NotPlain
    values = _values_of(recipient)
    usual = True
    for value in [one for one in values if one is not None]:
        if type(value) is not str:
            raise NotPlain
        if not (len(value) <= _LONGEST and value.isascii() and value.isprintable()):
            usual = False
    if usual:
        return
    for value, (where, longest) in zip(values, _RECIPIENT_FIELDS.values(), strict=True):
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
    path = url.find("/", 8)  # after http:// or https://
    if " " in url or not _is_origin(url if path < 0 else url[:path]):
        raise InvalidRequest(where, "is not a URL like https://example.org/hook")
    return url


@lru_cache(_REMEMBERED)
def _is_origin(url: str) -> bool:
    """Before its path is all that can be wrong with a URL."""
    origin = _ORIGIN.match(url)
    try:
        parts = urlsplit(origin[0] if origin else url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


_TEXTS = {
    **dict.fromkeys(("subject", "title"), check_line),
    **dict.fromkeys(("body", "text", "html"), check_text),
}
_TEXTS_OF_CONTENT = tuple((f"content.{name}", check) for name, check in _TEXTS.items())
_texts_of = attrgetter(*_TEXTS)
_NO_TEXTS = (None,) * len(_TEXTS)
_TEXT_OR_NONE = frozenset({str, type(None)})
_DATA = frozenset({dict, type(None)})
_said = {channel: attrgetter(*parts) for channel, parts in _SAYS.items()}
_LONGEST = 320
_RECIPIENT_FIELDS = {
    name: (f"recipient.{wire}", 4096 if name in ("device_token", "url") else _LONGEST)
    for name, wire in zip(Recipient.__struct_fields__, Recipient.__struct_encode_fields__, strict=True)
}
"""Field → how errors name it, and how long it may be."""
_values_of = attrgetter(*_RECIPIENT_FIELDS)
_FORMS: dict[Channel, Callable[[str, str], str]] = {
    Channel.EMAIL: email_address,
    Channel.SMS: _phone,
    Channel.WEBHOOK: _url,
}
_ADDRESSES = {
    channel: (attrgetter(name), _RECIPIENT_FIELDS[name][0], _FORMS.get(channel))
    for channel, name in ADDRESS_FIELD.items()
}
"""Channel → how to get its address, how errors name it, and what gives it its usual form."""


def _one_of(kind: type[Channel] | type[Priority]) -> str:
    return ", ".join(member.value for member in kind)
