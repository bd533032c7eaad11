"""The send request, and all of its checks and normalizations that need no I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from datetime import datetime
from functools import lru_cache
from math import isfinite
from operator import attrgetter
from typing import Annotated, Any, NoReturn
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from homing.core.bounds import NOT_A_SETTING, Bytes, PositiveCount
from homing.core.content.email import check_email_content, check_email_parts, normalize_email
from homing.core.content.locales import MAX_HEADER_CHARACTERS
from homing.core.errors import InvalidRequest
from homing.core.notifications import Attachment, Channel, Content, Priority, Recipient
from homing.core.plain_values import (
    MAX_INTEGER,
    MAX_JSON_DEPTH,
    MIN_INTEGER,
    NotPlain,
    check_line,
    check_text,
    is_storable,
    plain_json,
    plain_text,
)

BOTH = (Channel.EMAIL, Channel.PUSH)


_TABLE_ALIASES = {
    "aws_sns": "sns",
    "azure": "acs",
    "azure_communication_services": "acs",
    "firebase": "fcm",
}
"""Other spelling of a provider id in the settings → the provider id. Only these four, because a provider that
got another id would no longer find its notifications."""

_ALIASES = {
    "awssns": "sns",
    "azure": "acs",
    "azurecommunicationservices": "acs",
    "firebase": "fcm",
    "firebasecloudmessaging": "fcm",
}
"""Name by which a provider may be asked for, in lower case without blanks, hyphens and underscores → the
provider id."""

_SEPARATORS = str.maketrans("", "", " -_\t\u00a0")


class SendRequest(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename="camel",
    forbid_unknown_fields=True,
    gc=False,
):
    """A request to send a message. It may create several notifications, which share a `batch_id`."""

    recipient: Recipient | None = None
    recipients: tuple[Recipient, ...] = ()
    channel: str | None = None
    """One of the channels, or `both` for those of email and push that the recipient has an address for. If
    left out, the template's only channel applies, or else the setting `default_channel`."""
    channels: tuple[str, ...] = ()
    type: str | None = None
    """What happened, for example `order_confirmed`. If left out, it is the template's key or `message`."""
    category: str | None = None
    """Category to which the recipients' preferences apply. If left out, it is the type."""
    priority: str = "medium"
    origin: str = ""
    template_key: str | None = None
    data: dict[str, Any] | None = None
    accept_language: str | None = None
    """Accept-Language header of the recipient's browser or app. The recipient's own locale comes first."""
    content: Content | None = None
    synchronous: bool | None = None
    """Whether to send the message before the request returns. If left out, the type decides."""
    bulk: bool = False
    provider: str | None = None
    """Provider to use, without failover. If left out, the channel's route applies."""
    idempotency_key: str | None = None
    """Key under which a repeated request returns the same ids instead of sending again."""
    dedup_key: str | None = None
    """Key of the message. A message with the same key to the same recipient is accepted only once within the
    dedup window. If left out, the content is compared, provided that the type has a dedup window."""
    send_at: datetime | None = None
    expires_at: datetime | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


class SendLimits(Struct, frozen=True, kw_only=True):
    """Limits of a request: its sizes in bytes, its number of recipients and the depth of its JSON."""

    content_bytes: Bytes = 256 * 1024
    attachments_bytes: Bytes = 10 * 1024 * 1024
    metadata_bytes: Bytes = 16 * 1024
    fan_out: PositiveCount = 10_000
    depth: Annotated[int, NOT_A_SETTING] = MAX_JSON_DEPTH


_CACHE_SIZE = 4_096
"""Number of URL origins whose check is cached."""

_KEY = re.compile(r"[\x20-\x7e]{1,255}")

_NAME = re.compile(r"[\w.:/\-]{1,100}")

_ORIGIN = re.compile(r"[^:/?#]*://[^/?#]*")

_EMAIL = Channel.EMAIL

_PHONE_SEPARATORS = re.compile(r"[\s().\-]")

_PHONE = re.compile(r"\+?[0-9]{3,15}")


ADDRESS_FIELD: dict[Channel, str] = {
    Channel.EMAIL: "email",
    Channel.SMS: "phone",
    Channel.PUSH: "device_token",
    Channel.WEBHOOK: "url",
    Channel.CHAT: "url",
    Channel.QUEUE: "url",
}

_CONTENT_FIELDS: dict[Channel, tuple[str, ...]] = {
    Channel.EMAIL: ("text", "html", "body"),
    Channel.SMS: ("text", "body"),
    Channel.PUSH: ("title", "body", "data"),
    Channel.WEBHOOK: ("data", "body", "text", "title", "subject"),
    Channel.CHAT: ("text", "body", "title"),
    Channel.QUEUE: ("data", "body", "text"),
}


def channels_of(request: SendRequest) -> tuple[Channel, ...]:
    """Returns the request's channels in order, without repetitions."""
    return channels_named(request.channel, request.channels)


def channels_named(channel: str | None, channels: tuple[str, ...]) -> tuple[Channel, ...]:
    """Returns the channels of these names in order, without repetitions.

    Raises `InvalidRequest` if a name is unknown or none is given.
    """
    named = (*((channel,) if channel else ()), *channels)
    if not named:
        raise InvalidRequest("channel", f"is missing; give one of {_one_of(Channel)} or both")
    found: dict[Channel, None] = {}
    for name in named:
        lower = str(name).lower()
        if lower == "both":
            found.update(dict.fromkeys(BOTH))
            continue
        try:
            found[Channel(lower)] = None
        except ValueError:
            raise InvalidRequest(
                "channel", f"is {name!r}; it must be one of {_one_of(Channel)} or both"
            ) from None
    return tuple(found)


def names_both(request: SendRequest) -> bool:
    """Returns True if the request names `both`: those of email and push that the recipient has."""
    return any(str(name).lower() == "both" for name in (request.channel, *request.channels))


def has_address(recipient: Recipient, channel: Channel) -> bool:
    """Returns True if the recipient has an address on this channel, valid or not."""
    return bool(_ADDRESSES[channel][0](recipient))


def recipients_of(request: SendRequest, limits: SendLimits) -> tuple[Recipient, ...]:
    """Returns the request's recipients.

    Raises `InvalidRequest` if there are none or too many, or one is invalid.
    """
    if request.recipient is not None and request.recipients:
        raise InvalidRequest("recipients", "and recipient are both given; give only one of them")
    found = (request.recipient,) if request.recipient is not None else request.recipients
    if type(found) is not tuple:
        raise NotPlain
    if not found:
        raise InvalidRequest("recipient", "is missing; give at least one address (email, phone, …) or an id")
    if len(found) > limits.fan_out:
        raise InvalidRequest("recipients", f"has {len(found)} entries; at most {limits.fan_out} are allowed")
    for recipient in found:
        check_recipient(recipient)
    return found


def priority_of(name: str) -> Priority:
    """Returns the priority of this name. Raises `InvalidRequest` if there is no such priority."""
    lowered = name.lower()
    try:
        return Priority("medium" if lowered == "normal" else lowered)
    except ValueError:
        raise InvalidRequest("priority", f"is {name!r}; it must be one of {_one_of(Priority)}") from None


def provider_id(name: str) -> str:
    """Returns the id of a provider that the settings call by this name, in lower case."""
    lowered = name.strip().lower()
    return _TABLE_ALIASES.get(lowered, lowered)


def find_provider_id(name: str, known: Container[str]) -> str:
    """Returns the id of the provider that is asked for by a name. The result may be unknown.

    An id in `known` is found first, in any case. Otherwise the name may be an alias, whose case, blanks,
    hyphens and underscores do not matter: `AWS SNS` is `sns`.
    """
    lowered = name.strip().lower()
    return lowered if lowered in known else _ALIASES.get(lowered.translate(_SEPARATORS), lowered)


def address_of(recipient: Recipient, channel: Channel) -> str:
    """Returns the recipient's address on this channel, normalized.

    Raises `InvalidRequest` if the address is missing or invalid.
    """
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
    """Returns the content with its data converted to built-in types.

    Raises `InvalidRequest` if the content is empty on this channel, too large or has control characters, or
    if one of its email parts is invalid.
    """
    if not any(_read_content_fields[channel](content)):
        raise InvalidRequest(
            "content", f"is empty for {channel}; give one of {', '.join(_CONTENT_FIELDS[channel])}"
        )
    most = _max_bytes(content.data, limits.depth) if content.data else 0
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


def check_content_types(content: Content) -> None:
    """Raises `NotPlain` if a field of the content does not have exactly its declared built-in type."""
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
        if one.content_id is not None:
            _only_texts(one.content_id)


def _only_texts(*values: Any) -> None:
    for value in values:
        if type(value) is not str:
            raise NotPlain


def _check_size(content: Content, texts: tuple[str | None, ...], limits: SendLimits) -> None:
    """Raises `InvalidRequest` if the exact size exceeds the limit. Used if the estimated size does."""
    size = _json_bytes(content.data, "content.data") if content.data else 0
    size += sum(len(text.encode()) for text in texts if text is not None)
    size += _bytes_of_headers(content.headers or {})
    if size > limits.content_bytes:
        raise InvalidRequest("content", f"has {size} bytes; at most {limits.content_bytes} are allowed")


def _bytes_of_headers(headers: dict[str, str]) -> int:
    return sum(len(name) + len(value) for name, value in headers.items())


def check_names(request: SendRequest) -> None:
    """Raises `InvalidRequest` unless type, category, template key and origin are valid names."""
    if request.type is not None:
        check_name(request.type, "type")
    if request.category is not None:
        check_name(request.category, "category")
    if request.template_key is not None:
        check_name(request.template_key, "templateKey")
    if request.origin:
        check_name(request.origin, "origin")


def check_keys(request: SendRequest) -> None:
    """Raises `InvalidRequest` if idempotency key, dedup key or Accept-Language header is invalid.

    Raises `NotPlain` if one of them is not an exact `str`.
    """
    if request.idempotency_key is not None:
        _check_key(request.idempotency_key, "idempotencyKey")
    if request.dedup_key is not None:
        _check_key(request.dedup_key, "dedupKey")
    if request.accept_language is not None:
        _only_texts(request.accept_language)
        check_line(request.accept_language, "acceptLanguage")
        if (length := len(request.accept_language)) > MAX_HEADER_CHARACTERS:
            raise InvalidRequest(
                "acceptLanguage", f"has {length} characters; at most {MAX_HEADER_CHARACTERS} are allowed"
            )


def check_name(value: Any, where: str) -> None:
    """Raises `InvalidRequest` unless the value is a valid name of a type, category, origin or template."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise InvalidRequest(where, "must have 1 to 100 letters, digits, or . _ : / -")


def _check_key(value: str, where: str) -> None:
    _only_texts(value)
    if not _KEY.fullmatch(value):
        raise InvalidRequest(where, "must have 1 to 255 visible ASCII characters or spaces")


def check_json(value: Any, where: str, limits: SendLimits, max_bytes: int | None = None) -> Any:
    """Returns a JSON value of a request, converted to built-in types.

    Raises `InvalidRequest` if the value is nested too deeply, is too large, or has a NUL or an unpaired
    surrogate, which no store can keep.
    """
    if value is None or value == {}:
        return value
    most = _max_bytes(value, limits.depth)
    if most >= _UNKNOWN_BYTES:
        value = plain_json(value, where, limits.depth)
    if max_bytes is not None and most > max_bytes:
        size = _json_bytes(value, where)
        if size > max_bytes:
            raise InvalidRequest(where, f"has {size} bytes; at most {max_bytes} are allowed")
    return value


def _json_bytes(value: Any, where: str) -> int:
    try:
        return len(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequest(where, f"cannot be written as JSON: {error}") from None


_UNKNOWN_BYTES = 1 << 62
"""Stands for the size of a value that is not JSON, or must be converted first."""

_SCALARS = frozenset({float, bool, type(None)})

_MAX_SCALAR_BYTES, _MAX_CHARACTER_BYTES = 32, 6
"""Maximum size in JSON of a number, boolean or null, and of one character of a text."""


def _max_bytes(value: Any, depth: int) -> int:
    """Returns an upper bound of a value's size as JSON, which is cheaper than encoding it.

    Returns at least `_UNKNOWN_BYTES` if a part is not JSON or cannot be stored. `plain_json` then
    converts or rejects it.
    """
    if depth < 0:
        return _UNKNOWN_BYTES
    if isinstance(value, dict):
        return _max_bytes_of_members(value, depth)
    kind = type(value)
    if kind is str:
        return _MAX_CHARACTER_BYTES * len(value) + 2 if is_storable(value) else _UNKNOWN_BYTES
    if kind is int:
        return _MAX_SCALAR_BYTES if MIN_INTEGER <= value <= MAX_INTEGER else _UNKNOWN_BYTES
    if isinstance(value, (list, tuple)):
        most = 2
        for item in value:
            if type(item) is str and depth and item.isascii() and "\x00" not in item:
                most += _MAX_CHARACTER_BYTES * len(item) + 3  # inlined for the most common type
            else:
                most += _max_bytes(item, depth - 1) + 1
        return most
    if kind not in _SCALARS or (kind is float and not isfinite(value)):
        return _UNKNOWN_BYTES
    return _MAX_SCALAR_BYTES


def _max_bytes_of_members(value: dict[Any, Any], depth: int) -> int:
    most = 2
    for key, item in value.items():
        if type(key) is not str or ((not key.isascii() or "\x00" in key) and not is_storable(key)):
            return _UNKNOWN_BYTES
        most += _MAX_CHARACTER_BYTES * len(key) + 4
        kind = type(item)
        if kind is str and depth and item.isascii() and "\x00" not in item:
            most += _MAX_CHARACTER_BYTES * len(item) + 2  # inlined for the common types, to save a call
        elif kind is int and depth and MIN_INTEGER <= item <= MAX_INTEGER:
            most += _MAX_SCALAR_BYTES
        else:
            most += _max_bytes(item, depth - 1)
    return most


def check_recipient(recipient: Recipient) -> None:
    """Raises `InvalidRequest` if a field has a line break or control character, or is too long.

    All fields are checked, whatever the channel. Raises `NotPlain` if a field is not an exact `str`.
    """
    if type(recipient) is not Recipient:
        raise NotPlain
    values = _values_of(recipient)
    usual = True
    for value in values:
        if value is None:
            continue
        if type(value) is not str:
            raise NotPlain
        if not (len(value) <= _MAX_LENGTH and value.isascii() and value.isprintable()):
            usual = False
    if usual:
        return
    for value, (where, longest) in zip(values, _RECIPIENT_FIELDS.values(), strict=True):
        if value is not None:
            check_line(value, where)
            if len(value) > longest:
                raise InvalidRequest(where, f"has {len(value)} characters; at most {longest} are allowed")


def _normalize_phone(number: str, where: str) -> str:
    bare = _PHONE_SEPARATORS.sub("", number)
    if not _PHONE.fullmatch(bare):
        raise InvalidRequest(where, "is not a phone number like +15550100")
    return bare


def _check_url(url: str, where: str) -> str:
    path = url.find("/", 8)  # after http:// or https://
    if " " in url or not _is_origin(url if path < 0 else url[:path]):
        raise InvalidRequest(where, "is not a URL like https://example.org/hook")
    return url


@lru_cache(_CACHE_SIZE)
def _is_origin(url: str) -> bool:
    """Returns True if the URL is valid up to its path. The path itself cannot be invalid."""
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

_read_content_fields = {channel: attrgetter(*parts) for channel, parts in _CONTENT_FIELDS.items()}

_MAX_LENGTH = 320

_RECIPIENT_FIELDS = {
    name: (f"recipient.{wire}", 4096 if name in ("device_token", "url") else _MAX_LENGTH)
    for name, wire in zip(Recipient.__struct_fields__, Recipient.__struct_encode_fields__, strict=True)
}
"""Field → its name in error messages, and its maximum length."""

_values_of = attrgetter(*_RECIPIENT_FIELDS)

_NORMALIZERS: dict[Channel, Callable[[str, str], str]] = {
    Channel.EMAIL: normalize_email,
    Channel.SMS: _normalize_phone,
    Channel.WEBHOOK: _check_url,
}

_ADDRESSES = {
    channel: (attrgetter(name), _RECIPIENT_FIELDS[name][0], _NORMALIZERS.get(channel))
    for channel, name in ADDRESS_FIELD.items()
}
"""Channel → getter of its address, name in error messages, and normalizing function if there is one."""


def _one_of(kind: type[Channel] | type[Priority]) -> str:
    return ", ".join(member.value for member in kind)
