"""Checks that text can be stored and sent: no control characters, and no line breaks in single lines."""

from __future__ import annotations

import re

from homing.core.errors import InvalidRequest

_NOT_IN_A_LINE = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]")
_PLAIN_TEXT = bytes(range(0x20, 0x7F)) + b"\t\n\r"
_NOT_IN_A_TEXT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
SURROGATE = re.compile(r"[\ud800-\udfff]")


def is_plain(value: str) -> bool:
    """Returns True for visible ASCII and spaces only. Most text is like that, and the check is very cheap."""
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
