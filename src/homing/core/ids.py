"""Ids: UUIDv7, so they sort by time. Time and random bits are handed in."""

from __future__ import annotations

_MAX_MS = (1 << 48) - 1
_VERSION = 0x7 << 76 | 0b10 << 62
_RAND_B = (1 << 62) - 1


def uuid7(now_ms: int, bits: int) -> str:
    """A UUIDv7 from a time and 74 random bits."""
    ms = now_ms if 0 <= now_ms <= _MAX_MS else max(0, min(now_ms, _MAX_MS))
    text = "%032x" % (ms << 80 | _VERSION | (bits >> 62 & 0xFFF) << 64 | bits & _RAND_B)
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def made_at(id: str) -> int:
    """The time in a UUIDv7, in epoch milliseconds; 0 where it is none."""
    try:
        return int(id[:8] + id[9:13], 16)
    except ValueError:
        return 0
