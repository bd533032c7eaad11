"""Computes into how many SMS segments a text is split, before it is sent.

Text in the GSM 03.38 alphabet is sent as septets. A single message holds 160 of them, and each segment of a
longer text 153. A character of the alphabet's extension takes two septets. Any other text is sent as UCS-2,
with 70 units in a single message and 67 in each segment of a longer text. A character of two septets or two
units is never split between segments.
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
    """Encoding of a text message."""

    GSM_7 = "gsm-7"
    UCS_2 = "ucs-2"


class SmsSize(Struct, frozen=True):
    """Size of a text that is sent as SMS."""

    encoding: SmsEncoding
    units: int
    """Length of the text in septets, or in 16-bit units if the encoding is UCS-2."""
    segments: int
    """Number of segments into which the text is split. Carriers charge for each segment."""


def sms_size(text: str) -> SmsSize:
    """Returns the encoding and size of a text. An empty text takes one segment."""
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
    """Returns the number of segments of a text with characters of two units.

    Such a character starts the next segment if it does not fit into the current one.
    """
    segments, used = 1, 0
    for character in text:
        takes = 2 if is_wide(character) else 1
        if used + takes > joined:
            segments, used = segments + 1, 0
        used += takes
    return segments
