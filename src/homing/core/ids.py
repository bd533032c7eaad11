"""Ids: UUIDv7, so they sort by time. Time and random bits are handed in."""

from __future__ import annotations

from functools import lru_cache

BITS_EACH = 80
"""Random bits that `uuids7` takes for each id (of which it uses 74)."""

_MAX_MS = (1 << 48) - 1
_VARIANT = 0b10 << 62
_RAND_B = (1 << 62) - 1
_VARIANTS = {f"{digit:x}": "89ab"[digit % 4] for digit in range(16)}
_DIGITS_EACH = BITS_EACH // 4


def uuid7(now_ms: int, bits: int) -> str:
    """A UUIDv7 from a time and 74 random bits."""
    text = "%019x" % ((bits >> 62 & 0xFFF) << 64 | _VARIANT | bits & _RAND_B)
    return f"{_head(now_ms)}{text[:3]}-{text[3:7]}-{text[7:]}"


def uuids7(now_ms: int, bits: int, number: int) -> list[str]:
    """So many of one time, in ascending order; `bits` are `BITS_EACH` random ones for each."""
    head, text = _head(now_ms), f"{bits:0{_DIGITS_EACH * number}x}"
    made = [
        f"{head}{text[i : i + 3]}-{_VARIANTS[text[i + 3]]}{text[i + 4 : i + 7]}-{text[i + 7 : i + 19]}"
        for i in range(0, _DIGITS_EACH * number, _DIGITS_EACH)
    ]
    made.sort()
    return made


@lru_cache(8)
def _head(now_ms: int) -> str:
    """The time and the version: many ids are of the same millisecond."""
    text = f"{max(0, min(now_ms, _MAX_MS)):012x}"
    return f"{text[:8]}-{text[8:]}-7"


def made_at(id: str) -> int:
    """The time in a UUIDv7, in epoch milliseconds; 0 where it is none."""
    try:
        return int(id[:8] + id[9:13], 16)
    except ValueError:
        return 0
