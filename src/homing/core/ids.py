"""Creates ids, which are UUIDv7 and so sort by time. Time and random bits are passed in."""

from __future__ import annotations

from functools import lru_cache

BITS_EACH = 80
"""Number of random bits that `uuids7` takes per id. It uses 74 of them."""

_MAX_MS = (1 << 48) - 1
_VARIANT = 0b10 << 62
_RAND_B = (1 << 62) - 1
_VARIANTS = {f"{digit:x}": "89ab"[digit % 4] for digit in range(16)}
_VARIANT_BYTES = bytes.maketrans("".join(_VARIANTS).encode(), "".join(_VARIANTS.values()).encode())
_DIGITS_EACH = BITS_EACH // 4

_MANY = 16
"""Number of ids from which it is quicker to write one place of all ids after the other."""

_NO_RANDOM_DIGITS = "000-0000-000000000000"
"""The end of an id, after its time and version."""

_LINE_LENGTH, _VARIANT_PLACE = 37, 19
"""Length of an id with a line break, and the place of the digit with the variant."""

_RANDOM_PLACES = tuple(
    (_LINE_LENGTH - 1 - len(_NO_RANDOM_DIGITS) + at, digit)
    for digit, at in enumerate(at for at, one in enumerate(_NO_RANDOM_DIGITS) if one == "0")
)
"""Places of the random digits in an id, each with the number of the digit."""


def uuid7(now_ms: int, bits: int) -> str:
    """Returns a UUIDv7 made from a time in epoch milliseconds and 74 random bits."""
    text = "%019x" % ((bits >> 62 & 0xFFF) << 64 | _VARIANT | bits & _RAND_B)
    return f"{_head(now_ms)}{text[:3]}-{text[3:7]}-{text[7:]}"


def uuids7(now_ms: int, bits: int, number: int) -> list[str]:
    """Returns `number` ids of the same time, in ascending order.

    `bits` has `BITS_EACH` random bits per id.
    """
    head, text = _head(now_ms), f"{bits:0{_DIGITS_EACH * number}x}"
    if number == 1:  # hot path: twice for each single request
        return [f"{head}{text[:3]}-{_VARIANTS[text[3]]}{text[4:7]}-{text[7:19]}"]
    if number < _MANY:
        made = [
            f"{head}{text[i : i + 3]}-{_VARIANTS[text[i + 3]]}{text[i + 4 : i + 7]}-{text[i + 7 : i + 19]}"
            for i in range(0, _DIGITS_EACH * number, _DIGITS_EACH)
        ]
    else:  # all together, one place after the other
        digits, lines = text.encode(), bytearray(f"{head}{_NO_RANDOM_DIGITS}\n".encode() * number)
        for place, digit in _RANDOM_PLACES:
            lines[place::_LINE_LENGTH] = digits[digit::_DIGITS_EACH]
        lines[_VARIANT_PLACE::_LINE_LENGTH] = lines[_VARIANT_PLACE::_LINE_LENGTH].translate(_VARIANT_BYTES)
        made = lines.decode().split()
    made.sort()
    return made


@lru_cache(8)
def _head(now_ms: int) -> str:
    """Returns the time and version digits of an id. Cached, because many ids have the same millisecond."""
    text = f"{max(0, min(now_ms, _MAX_MS)):012x}"
    return f"{text[:8]}-{text[8:]}-7"


def id_time_ms(id: str) -> int:
    """Returns the time in a UUIDv7, in epoch milliseconds, or 0 if its first digits are not hexadecimal."""
    try:
        return int(id[:8] + id[9:13], 16)
    except ValueError:
        return 0
