"""Time zones by their names in the tz database."""

from __future__ import annotations

from datetime import UTC, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo


@lru_cache(maxsize=1024)
def zone(name: str) -> tzinfo | None:
    """Returns the time zone with this name, or None if there is none."""
    if name == "UTC":
        return UTC  # works even without a tz database
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):  # unknown name, malformed name, or a folder of the database
        return None


def is_zone(name: str) -> bool:
    """Returns True if there is a time zone with this name."""
    return zone(name) is not None
