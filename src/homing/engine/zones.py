"""Time zones by their names in the tz database."""

from __future__ import annotations

from datetime import UTC, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo


@lru_cache(maxsize=1024)
def zone(name: str) -> tzinfo | None:
    """The zone of that name; None: there is none."""
    if name == "UTC":
        return UTC  # also where there is no tz database
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):  # unknown, not a name at all, or the name of a folder
        return None


def is_zone(name: str) -> bool:
    """Whether there is a zone of that name."""
    return zone(name) is not None
