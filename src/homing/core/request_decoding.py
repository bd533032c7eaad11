"""Converts requests, recipients and content to typed structs, and reads filters. Errors name the field."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache, lru_cache
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from homing.core.errors import InvalidRequest
from homing.core.notifications import Attachment, Channel, Content, Filter, Reason, Recipient, Status
from homing.core.plain_values import (
    enum_member,
    member_path,
    not_json_problem,
    plain_json,
    plain_text,
    plain_time,
)
from homing.core.send_request import ADDRESS_FIELD, SendRequest, channels_of
from homing.core.times import check_zone

_UNKNOWN = re.compile(r"Object contains unknown field `([^`]+)`")

_MISSING = re.compile(r"Object missing required field `([^`]+)`")

_FREE_JSON_FIELDS = frozenset({"data", "metadata"})
"""Fields that may hold any JSON."""

_KNOWN_KINDS = (str, int, float, bytes, date, time, timedelta, Decimal, type(None))
"""Types that msgspec knows. If a field has the wrong one, the error message of msgspec is clear enough."""

_LONGEST_NAME = 100
"""Longer names are not compared with known ones: the comparison takes time in proportion to their length."""

_S = TypeVar("_S", bound=Struct)

_TIME_EXAMPLE = "2026-11-16T10:00:00Z"

_WRONG_TYPE = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")

_OUT_OF_RANGE = re.compile(r"Expected `([^`]+)`( of length)? (>=|<=|>|<) (\S+)")

_TYPE_WORDS = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
    "datetime": "a time",
}
"""What a person calls a type in an error message of msgspec."""

_PARTS = {"str": "character", "array": "item"}

_BOUNDS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}

_PATH = re.compile(r" - at `(?:key in )?\$?\.?([^`]*)`$|- at `key` in `\$\.?([^`]*)`$")


def read_request(raw: Any) -> SendRequest:
    """Reads a request from a mapping with snake_case or camelCase keys.

    A recipient may be given as an address if the request has only one channel. Raises `InvalidRequest` naming
    the invalid field.
    """
    if type(raw) is not dict and not isinstance(raw, Mapping):  # a dict needs no check in Python code
        raise InvalidRequest(
            "request", f"is {type(raw).__name__}; give a SendRequest or a mapping of its fields"
        )
    fields = read_fields(raw, SendRequest, "")
    channel = fields.get("channel") or _first(fields.get("channels"))
    if "recipient" in fields:
        fields["recipient"] = _recipient(fields["recipient"], channel, "recipient")
    if "recipients" in fields:
        if not isinstance(fields["recipients"], (list, tuple)):
            raise InvalidRequest("recipients", "must be a list of recipients")
        fields["recipients"] = [
            _recipient(one, channel, f"recipients[{index}]") for index, one in enumerate(fields["recipients"])
        ]
    if "content" in fields:
        fields["content"] = _content(fields["content"])
    try:
        return msgspec.convert(fields, SendRequest)
    except msgspec.ValidationError:
        pass
    # Some values are rejected only because their type is a subclass, such as another library's datetime.
    fields = {name: _plain_item(name, value, "") for name, value in fields.items()}
    try:
        return msgspec.convert(fields, SendRequest)
    except msgspec.ValidationError as error:
        raise InvalidRequest(*explain_error(error, SendRequest.__struct_encode_fields__)) from None


def plain_request(request: SendRequest) -> SendRequest:
    """Returns the request with values of exact built-in types, each of the type that its field declares.

    Used for requests built in Python, because a struct does not check the values it is given. Raises
    `InvalidRequest` naming the field that cannot be converted.
    """
    return _plain_struct(request, SendRequest, "request")


def plain_recipient(recipient: Recipient) -> Recipient:
    """Returns the recipient with exact `str` fields. Raises `InvalidRequest` naming the field."""
    return _plain_struct(recipient, Recipient, "recipient")


def plain_content(content: Content) -> Content:
    """Returns the content with values of exact built-in types. Raises `InvalidRequest` naming the field."""
    return _plain_struct(content, Content, "content")


def _plain_struct(value: Any, kind: type[_S], where: str) -> _S:
    prefix = "" if where == "request" else f"{where}."
    if not isinstance(value, Struct):
        raise InvalidRequest(where, not_json_problem(value))
    try:
        return msgspec.convert(_plain_fields(value, prefix), kind)
    except msgspec.ValidationError as error:
        field, problem = explain_error(error, kind.__struct_encode_fields__)
        raise InvalidRequest(where if field == "request" else f"{prefix}{field}", problem) from None


def _plain_fields(value: Struct, prefix: str) -> dict[str, Any]:
    """Returns the values of a struct's fields that are set, by their names in the API."""
    found: dict[str, Any] = {}
    for one in msgspec.structs.fields(value):
        item = getattr(value, one.name)
        if item is not None and not (isinstance(item, tuple) and not item):
            found[one.encode_name] = _plain_item(one.encode_name, item, prefix.removesuffix("."))
    return found


def _plain_item(name: Any, item: Any, where: str) -> Any:
    place = (member_path(where, str(name)) if where else str(name)) if isinstance(name, str) else where
    return (plain_json if name in _FREE_JSON_FIELDS else _plain)(item, place)


def _plain(value: Any, where: str) -> Any:
    """Converts the value of a field with a declared type to built-in types. msgspec checks the type later."""
    if isinstance(value, str):
        return plain_text(value, where)
    if isinstance(value, datetime):
        return plain_time(value)
    if isinstance(value, Struct):
        return _plain_fields(value, f"{where}.")
    if isinstance(value, Mapping):
        return {_plain(name, where): _plain_item(name, one, where) for name, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(one, where) for one in value]
    if not isinstance(value, _KNOWN_KINDS):
        raise InvalidRequest(where, not_json_problem(value))
    return value


def read_filter(filter: Filter | Mapping[str, Any]) -> Filter:
    """Returns the filter with enum members in place of their plain strings.

    A mapping has snake_case or camelCase keys, and `status` means `statuses`. Raises `InvalidRequest` naming
    a field that is unknown, has an unknown value, or that no store can search for. Any time with a zone is
    accepted, even one before or after all notifications.
    """
    if isinstance(filter, Mapping):
        given = {"statuses" if name == "status" else name: value for name, value in filter.items()}
        fields = {name: _plain(value, name) for name, value in read_fields(given, Filter, "").items()}
    elif isinstance(filter, Filter):
        fields = _plain_fields(filter, "")
    else:
        raise InvalidRequest(
            "filter", f"is {type(filter).__name__}; give a Filter or a mapping of its fields"
        )
    if isinstance(fields.get("metadata"), dict):
        fields["metadata"] = {key: _metadata_text(key, one) for key, one in fields["metadata"].items()}
    if isinstance(fields.get("statuses"), str):
        fields["statuses"] = [fields["statuses"]]
    if isinstance(fields.get("statuses"), list):
        fields["statuses"] = [enum_member(Status, one, "statuses") for one in fields["statuses"]]
    for name, kind in (("channel", Channel), ("reason", Reason)):
        if name in fields:
            fields[name] = enum_member(kind, fields[name], name)
    try:
        found = msgspec.convert(fields, Filter)
    except msgspec.ValidationError as error:
        raise InvalidRequest(*explain_error(error, Filter.__struct_encode_fields__)) from None
    for at, name in ((found.created_from, "createdFrom"), (found.created_until, "createdUntil")):
        if at is not None:
            check_zone(at, name)
    return found


def _metadata_text(key: str, value: object) -> str:
    """Returns the text that a value in the metadata is compared with."""
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, int, float)):
        return msgspec.json.encode(value).decode()
    raise InvalidRequest(f"metadata.{key}", "is neither a text nor a number, true or false")


def explain_error(error: msgspec.ValidationError, known: Iterable[str]) -> tuple[str, str]:
    """Converts a validation error to (field, what is wrong with it).

    `known` are the fields of the outermost struct.
    """
    text = str(error)
    place = _PATH.search(text)
    field = (place[1] or place[2] or "") if place else ""
    if unknown := _UNKNOWN.match(text):
        if field:
            return f"{field}.{unknown[1]}", "is not known"
        return unknown[1], unknown_field_problem(unknown[1], known)
    if missing := _MISSING.match(text):
        return f"{field}.{missing[1]}" if field else missing[1], "is missing"
    return field or "request", _in_plain_words(text[: place.start()].strip() if place else text)


def _in_plain_words(problem: str) -> str:
    """Returns what msgspec says about a value, without the names of Python's types."""
    if problem == "Invalid RFC3339 encoded datetime":
        return f"is not a time; write it like {_TIME_EXAMPLE}"
    if problem == "Expected `datetime` with a timezone component":
        return f"has no time zone; write it like {_TIME_EXAMPLE}"
    if found := _WRONG_TYPE.fullmatch(problem):
        wanted = [_TYPE_WORDS.get(name, name) for name in found[1].split(" | ") if name != "null"]
        return f"must be {' or '.join(wanted)}, not {_TYPE_WORDS.get(found[2], found[2])}"
    if found := _OUT_OF_RANGE.fullmatch(problem):
        kind, length, bound, number = found.groups()
        if length:
            noun = _PARTS.get(kind, "member")
            return f"must have {_BOUNDS[bound]} {number} {noun if number == '1' else f'{noun}s'}"
        return f"must be {_TYPE_WORDS.get(kind, kind)}, {_BOUNDS[bound]} {number}"
    return problem


def unknown_field_problem(name: str, known: Iterable[str]) -> str:
    """Returns the error message for an unknown field, with the most similar known one as a suggestion."""
    names = tuple(known)
    if len(name) <= _LONGEST_NAME and (nearest := _nearest(name, names)):
        return f"is not known; did you mean {nearest}?"
    return f"is not known; it must be one of {', '.join(names)}"


@lru_cache(maxsize=256)  # items of a batch often have the same mistake
def _nearest(name: str, known: tuple[str, ...]) -> str | None:
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def to_camel_case(name: str) -> str:
    """Converts snake_case to the camelCase used in the API."""
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)


def read_fields(raw: Mapping[Any, Any], kind: type[Struct], where: str) -> dict[str, Any]:
    """Returns the mapping with the names of the API, without keys whose value is None.

    Raises `InvalidRequest` for a key that is not a field of the struct.
    """
    names = _names(kind)
    found: dict[str, Any] = {}
    for key, value in raw.items():
        name = names.get(key) if isinstance(key, str) else None
        if name is None:
            unknown = to_camel_case(key) if isinstance(key, str) else repr(key)
            if unknown not in names:
                raise InvalidRequest(
                    f"{where}{unknown}", unknown_field_problem(unknown, kind.__struct_encode_fields__)
                )
            name = unknown
        if value is not None:
            found[name] = value
    return found


@cache
def _names(kind: type[Struct]) -> dict[str, str]:
    """Returns the API name of each field, by its Python name and by its API name."""
    wire = kind.__struct_encode_fields__
    return {**dict(zip(kind.__struct_fields__, wire, strict=True)), **dict(zip(wire, wire, strict=True))}


def _recipient(to: Any, channel: Any, where: str) -> Any:
    if isinstance(to, Struct):
        to = _plain_fields(to, f"{where}.")
    if type(to) is dict or isinstance(to, Mapping):
        return read_fields(to, Recipient, f"{where}.")
    if not isinstance(to, str):
        raise InvalidRequest(where, f"is {type(to).__name__}; give an address or a recipient")
    first = channels_of(SendRequest(channel=channel))
    if len(first) > 1:
        raise InvalidRequest(
            where, "is one address, but the request has several channels; give email and deviceToken"
        )
    return {to_camel_case(ADDRESS_FIELD[first[0]]): to}


def _content(content: Any) -> Any:
    if isinstance(content, Struct):
        content = _plain_fields(content, "content.")
    if not isinstance(content, Mapping):
        return content
    fields = read_fields(content, Content, "content.")
    attachments = fields.get("attachments")
    if isinstance(attachments, (list, tuple)):
        fields["attachments"] = [
            read_fields(one, Attachment, f"content.attachments[{index}].")
            if isinstance(one, Mapping)
            else one
            for index, one in enumerate(attachments)
        ]
    return fields


def _first(channels: Any) -> Any:
    return channels[0] if isinstance(channels, (list, tuple)) and channels else None
