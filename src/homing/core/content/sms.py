"""Computes into how many SMS segments a text is split, before it is sent.

Text in the GSM 03.38 alphabet is sent as 7-bit characters: 160 in a single message, 153 in each of several. A
character of the alphabet's extension takes two septets. Any other text is sent as UCS-2: 70 characters, or 67
in each of several messages. Neither an escaped character nor a surrogate pair is split.
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
    """Size of a text as SMS."""

    encoding: SmsEncoding
    units: int
    """Number of septets, or of 16-bit units in UCS-2."""
    segments: int
    """Number of messages into which the text is split. Carriers charge for each."""


def sms_size(text: str) -> SmsSize:
    """Returns the size of a text. An empty text takes one message."""
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
    """Returns the number of segments.

    A character of two units that no longer fits starts the next segment.
    """
    segments, used = 1, 0
    for character in text:
        takes = 2 if is_wide(character) else 1
        if used + takes > joined:
            segments, used = segments + 1, 0
        used += takes
    return segments
