"""Reads what others wrote into our structs; what does not fit is an error that names the field."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from homing.core.errors import InvalidRequest
from homing.core.model import Attachment, Content, Recipient
from homing.core.request import ADDRESS_FIELD, SendRequest, channels_of

_UNKNOWN = re.compile(r"Object contains unknown field `([^`]+)`")
_MISSING = re.compile(r"Object missing required field `([^`]+)`")
_AT = re.compile(r" - at `(?:key in )?\$?\.?([^`]*)`$|- at `key` in `\$\.?([^`]*)`$")


def request_from(raw: Any) -> SendRequest:
    """A request from a mapping with snake_case or camelCase keys.

    A recipient may be just an address: it is the one for the (only) channel.
    """
    if not isinstance(raw, Mapping):
        raise InvalidRequest(
            "request", f"is {type(raw).__name__}; give a SendRequest or a mapping of its fields"
        )
    fields = fields_from(raw, SendRequest, "")
    channel = fields.get("channel") or _first(fields.get("channels"))
    if "recipient" in fields:
        fields["recipient"] = _recipient(fields["recipient"], channel)
    if "recipients" in fields:
        if not isinstance(fields["recipients"], (list, tuple)):
            raise InvalidRequest("recipients", "must be a list of recipients")
        fields["recipients"] = [_recipient(one, channel) for one in fields["recipients"]]
    if "content" in fields:
        fields["content"] = _content(fields["content"])
    try:
        return msgspec.convert(fields, SendRequest)
    except msgspec.ValidationError as error:
        raise InvalidRequest(*explained(error, SendRequest.__struct_encode_fields__)) from None


def explained(error: msgspec.ValidationError, known: Iterable[str]) -> tuple[str, str]:
    """(field, what is wrong with it) of a validation error."""
    text = str(error)
    if unknown := _UNKNOWN.match(text):
        return unknown[1], unknown_field(unknown[1], known)
    place = _AT.search(text)
    field = (place[1] or place[2] or "") if place else ""
    if missing := _MISSING.match(text):
        return f"{field}.{missing[1]}" if field else missing[1], "is missing"
    return field or "request", text[: place.start()].strip() if place else text


def unknown_field(name: str, known: Iterable[str]) -> str:
    """What to say about a field that does not exist."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    return (
        f"is not known; did you mean {close[0]}?"
        if close
        else f"is not known; allowed are {', '.join(names)}"
    )


def camel(name: str) -> str:
    """snake_case as it is on the wire."""
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)


def fields_from(raw: Mapping[Any, Any], kind: type[Struct], where: str) -> dict[str, Any]:
    """The mapping with wire names; a key that the struct does not have is refused."""
    names = _names(kind)
    found: dict[str, Any] = {}
    for key, value in raw.items():
        name = names.get(key) if isinstance(key, str) else None
        if name is None:
            unknown = camel(key) if isinstance(key, str) else repr(key)
            if unknown not in names:
                raise InvalidRequest(
                    f"{where}{unknown}", unknown_field(unknown, kind.__struct_encode_fields__)
                )
            name = unknown
        if value is not None:
            found[name] = value
    return found


@cache
def _names(kind: type[Struct]) -> dict[str, str]:
    """Field → its name on the wire, by both of its names."""
    wire = kind.__struct_encode_fields__
    return {**dict(zip(kind.__struct_fields__, wire, strict=True)), **dict(zip(wire, wire, strict=True))}


def _recipient(to: Any, channel: Any) -> Any:
    if isinstance(to, Struct):
        to = msgspec.to_builtins(to)
    if isinstance(to, Mapping):
        return fields_from(to, Recipient, "recipient.")
    if not isinstance(to, str):
        raise InvalidRequest("recipient", f"is {type(to).__name__}; give an address or a recipient")
    first = channels_of(SendRequest(channel=channel if isinstance(channel, str) else None))
    if len(first) > 1:
        raise InvalidRequest(
            "recipient", "is one address for several channels; name its email and deviceToken"
        )
    return {camel(ADDRESS_FIELD[first[0]]): to}


def _content(content: Any) -> Any:
    if isinstance(content, Struct):
        content = msgspec.to_builtins(content)
    if not isinstance(content, Mapping):
        return content
    fields = fields_from(content, Content, "content.")
    attachments = fields.get("attachments")
    if isinstance(attachments, (list, tuple)):
        fields["attachments"] = [
            fields_from(one, Attachment, "content.attachments.") if isinstance(one, Mapping) else one
            for one in attachments
        ]
    return fields


def _first(channels: Any) -> Any:
    return channels[0] if isinstance(channels, (list, tuple)) and channels else None
