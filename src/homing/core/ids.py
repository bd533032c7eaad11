"""Creates ids, which are UUIDv7 and so sort by time. Time and random bits are passed in."""

from __future__ import annotations

from functools import lru_cache

BITS_EACH = 80
"""Number of random bits that `uuids7` takes per id. It uses 74 of them."""

_MAX_MS = (1 << 48) - 1
_VARIANT = 0b10 << 62
_RAND_B = (1 << 62) - 1
_VARIANTS = {f"{digit:x}": "89ab"[digit % 4] for digit in range(16)}
_DIGITS_EACH = BITS_EACH // 4


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
    made = [
        f"{head}{text[i : i + 3]}-{_VARIANTS[text[i + 3]]}{text[i + 4 : i + 7]}-{text[i + 7 : i + 19]}"
        for i in range(0, _DIGITS_EACH * number, _DIGITS_EACH)
    ]
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
