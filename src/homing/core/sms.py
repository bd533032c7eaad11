"""How many text messages one text becomes, known before it is sent.

A text that the GSM 03.38 alphabet has (with its extension, whose characters take an escape and a second
septet) goes as 7-bit: 160 in one message, 153 in each of several. Any other goes as UCS-2: 70, or 67 in
each of several. Neither an escaped character nor a surrogate pair is ever cut in two.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct

_BASIC = (
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?"
    "¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
_EXTENSION = "\f^{}\\[~]|€"

_GSM = frozenset(_BASIC + _EXTENSION)
_ESCAPED = frozenset(_EXTENSION)


class SmsEncoding(StrEnum):
    """The alphabet that a text message travels in."""

    GSM_7 = "gsm-7"
    UCS_2 = "ucs-2"


class SmsSize(Struct, frozen=True):
    """What a text costs."""

    encoding: SmsEncoding
    units: int
    """Septets, or 16-bit units."""
    segments: int
    """Messages that it is cut into; carriers count each."""


def sms_size(text: str) -> SmsSize:
    """The size of a text. An empty one is one message too."""
    if _GSM.issuperset(text):
        wide = sum(map(text.count, _ESCAPED))
        return _size(text, SmsEncoding.GSM_7, wide, _ESCAPED.__contains__, alone=160, joined=153)
    wide = sum(map(_is_pair, text))
    return _size(text, SmsEncoding.UCS_2, wide, _is_pair, alone=70, joined=67)


def _is_pair(character: str) -> bool:
    return character > "\uffff"


def _size(
    text: str, encoding: SmsEncoding, wide: int, is_wide: Callable[[str], bool], *, alone: int, joined: int
) -> SmsSize:
    units = len(text) + wide
    if units <= alone:
        return SmsSize(encoding, units, 1)
    if not wide:
        return SmsSize(encoding, units, -(-units // joined))
    return SmsSize(encoding, units, _cut(text, is_wide, joined))


def _cut(text: str, is_wide: Callable[[str], bool], joined: int) -> int:
    """Segments, filled one by one: a character of two units that finds room for one begins the next."""
    segments, used = 1, 0
    for character in text:
        takes = 2 if is_wide(character) else 1
        if used + takes > joined:
            segments, used = segments + 1, 0
        used += takes
    return segments
