"""Text that may be stored and sent on: no hidden characters, and one line where one line is meant."""

from __future__ import annotations

import re

from homing.core.errors import InvalidRequest

_NOT_IN_A_LINE = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]")
_PLAIN_TEXT = bytes(range(0x20, 0x7F)) + b"\t\n\r"
_NOT_IN_A_TEXT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
SURROGATE = re.compile(r"[\ud800-\udfff]")


def is_plain(value: str) -> bool:
    """Nothing but visible ASCII and spaces: most text is, and to see that costs next to nothing."""
    return value.isascii() and value.isprintable()


def check_line(value: str | None, where: str) -> None:
    """One plain line."""
    if value is not None and not is_plain(value) and _NOT_IN_A_LINE.search(value):
        raise InvalidRequest(where, "has a line break or control character; it must be one plain line")


def check_text(value: str | None, where: str) -> None:
    """Text of any number of lines."""
    if value is None or (value.isascii() and not value.encode().translate(None, _PLAIN_TEXT)):
        return  # the usual text, seen as such in a fraction of the time that the search takes
    if _NOT_IN_A_TEXT.search(value):
        raise InvalidRequest(where, "has a control character; allowed are text, tabs and line breaks")
