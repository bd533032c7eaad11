"""Converts values to built-in types that every store and encoder accepts, and checks texts for control
characters.

Frameworks return subclasses: text that Django or Jinja rendered is a `SafeString` or `Markup`, and an enum
member may be a `str` or an `int`. They are converted to their built-in type, and types without a JSON form,
such as dates and sets, to text or lists. A value that cannot be converted is an error that names its place
in the request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from enum import Enum, StrEnum
from math import isfinite
from numbers import Integral, Real
from typing import Any, TypeVar

import msgspec

from homing.core.errors import InvalidRequest

MAX_JSON_DEPTH = 32

MIN_INTEGER, MAX_INTEGER = -(2**63), 2**63 - 1

_LONGEST_KEY = 50

_LONGEST_PATH = 60

_E = TypeVar("_E", bound=StrEnum)


class NotPlain(TypeError):
    """A field of a request holds a value that is not of the exact built-in type it declares."""


def is_storable(text: str) -> bool:
    """Returns True if every store can keep this text, which must have no NUL and no unpaired surrogate."""
    return "\x00" not in text and (text.isascii() or SURROGATE.search(text) is None)


def plain_json(value: Any, where: str, depth: int = MAX_JSON_DEPTH) -> Any:
    """Returns the value as JSON made of exact built-in types only.

    Raises `InvalidRequest` with the path of a part that JSON or a store cannot represent.
    """
    if depth < 0:
        where = where if len(where) <= _LONGEST_PATH else f"{where[:_LONGEST_PATH]}…"
        raise InvalidRequest(where, f"is nested too deeply; at most {MAX_JSON_DEPTH} levels are allowed")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return plain_text(value, where)
    if isinstance(value, (int, float)):
        return _plain_number(value, where)
    if isinstance(value, Mapping):
        return _plain_members(value, where, depth)
    if isinstance(value, (list, tuple)):
        return [plain_json(item, f"{where}[{place}]", depth - 1) for place, item in enumerate(value)]
    return plain_json(_converted(value, where), where, depth - 1)


def plain_text(value: str, where: str) -> str:
    """Returns the text as an exact `str`. Raises `InvalidRequest` if no store can keep it."""
    text = value if type(value) is str else str.__str__(value)
    if not is_storable(text):
        raise InvalidRequest(where, "has a NUL or an unpaired surrogate, which cannot be stored; remove it")
    return text


def enum_member(kind: type[_E], value: _E | str, where: str) -> _E:
    """Returns the member with this value. Raises `InvalidRequest` with all values if there is none."""
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(kind)
        raise InvalidRequest(where, f"is {value!r}; it must be one of {names}") from None


def plain_time(value: datetime) -> datetime:
    """Returns the time as an exact `datetime`, because some libraries return subclasses of it."""
    if type(value) is datetime:
        return value
    return datetime.combine(value.date(), value.time(), value.tzinfo)


def to_builtin(value: Any) -> Any:
    """Converts a value that msgspec cannot encode to built-in types. Used as `enc_hook` of an encoder."""
    return plain_json(value, "request")


def member_path(where: str, key: str) -> str:
    """Returns the path of a JSON object's member, for error messages."""
    if len(key) <= _LONGEST_KEY and key.isprintable() and key.strip():
        return f"{where}.{key}"
    return f"{where}[{ascii(key)[:_LONGEST_KEY]}]"


def _plain_members(value: Mapping[Any, Any], where: str, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise InvalidRequest(where, f"has the key {key!r}; keys must be text")
        place = member_path(where, key)
        found[plain_text(key, place)] = plain_json(item, place, depth - 1)
    return found


def _plain_number(value: int | float, where: str) -> int | float:
    if isinstance(value, int):
        if not MIN_INTEGER <= value <= MAX_INTEGER:
            raise InvalidRequest(where, "has a whole number beyond 64 bits; write it as text")
        return value if type(value) is int else int.__int__(value)
    if not isfinite(value):
        raise InvalidRequest(where, f"has the number {float.__float__(value)}, which JSON cannot represent")
    return value if type(value) is float else float.__float__(value)


def _converted(value: Any, where: str) -> Any:
    """Converts a value that is not of a JSON type, for example a date to text or a set to a list."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        value = plain_time(value)
    try:
        if isinstance(value, Integral):
            return int(value)
        if isinstance(value, Real):
            return float(value)
        return msgspec.to_builtins(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        raise InvalidRequest(where, not_json_problem(value)) from None


def not_json_problem(value: Any) -> str:
    """Returns the error message for a value that cannot be converted to JSON."""
    kind = type(value).__name__
    return (
        f"is of type {kind}, which is neither text nor another JSON value; convert it first, e.g. with str()"
    )


_NOT_IN_A_LINE = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]")

_PLAIN_TEXT = bytes(range(0x20, 0x7F)) + b"\t\n\r"

_NOT_IN_A_TEXT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")

SURROGATE = re.compile(r"[\ud800-\udfff]")


def is_plain(value: str) -> bool:
    """Returns True if the text is visible ASCII and spaces only. Most text is, and this check is cheap."""
    return value.isascii() and value.isprintable()


def check_line(value: str | None, where: str) -> None:
    """Raises `InvalidRequest` if the text has line breaks or control characters."""
    if value is not None and not is_plain(value) and _NOT_IN_A_LINE.search(value):
        raise InvalidRequest(where, "has a line break or control character; it must be one plain line")


def check_text(value: str | None, where: str) -> None:
    """Raises `InvalidRequest` if the text has control characters other than tabs and line breaks."""
    if value is None or (value.isascii() and not value.encode().translate(None, _PLAIN_TEXT)):
        return  # the usual case, detected much faster than by the search
    if _NOT_IN_A_TEXT.search(value):
        raise InvalidRequest(where, "has a control character; only text, tabs and line breaks are allowed")
