"""Durations as people write and read them: the one parser and the one printer.

Everywhere else, a duration is an integer of milliseconds, and its name ends in `_ms`.
"""

from __future__ import annotations

import re
from itertools import pairwise
from math import isfinite
from typing import Any

from homing.core.errors import ConfigError
from homing.core.times import LONGEST_MS

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
"""Unit in a duration's text → its length in milliseconds, shortest first."""

TOO_LONG = "at most 100 years are allowed"

_HINT = "give milliseconds or text like 30s, 5m, 1h30m"

_MAX_CHARS = 100

_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")

_WHOLE_NUMBER = re.compile(r"-?[0-9]+")

_LONG_NAMES = {"m": "min"}


def parse_duration(value: Any, where: str) -> int:
    """Converts a number of milliseconds, or text such as `1h30m`, to milliseconds.

    Raises `ConfigError` for the setting `where` if the value is not a duration or is longer than 100 years.
    """
    found = read_duration(value)
    if found is None:
        if isinstance(value, str) and len(text := value.strip()) > _MAX_CHARS:
            raise ConfigError(where, f"has {len(text)} characters; {_HINT}")
        raise ConfigError(where, f"is {value!r}; {_HINT}")
    if found > LONGEST_MS:
        raise ConfigError(where, f"is {value!r}; {TOO_LONG}")
    return found


def read_duration(value: Any) -> int | None:
    """Returns a duration in milliseconds, of any length, or None if the value is not a duration."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if not isinstance(value, str):
        return int(value) if isfinite(value) else None
    text = value.strip().lower()
    if len(text) > _MAX_CHARS:
        return None
    if _WHOLE_NUMBER.fullmatch(text):
        return int(text)
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text.replace(" ", ""):
        return None
    return int(sum(float(number) * UNITS_MS[unit] for number, unit in parts))


def format_duration(ms: float, *, spaced: bool = False) -> str:
    """Formats a duration in at most two units: `1h 21m`, `12.5s`, `340ms`.

    If `spaced`, there is a space before each unit, and minutes are `min`: `1 h 21 min`, `12.5 s`, `340 ms`.
    """
    if ms < 1000:
        return _with_unit(f"{int(ms)}", "ms", spaced)
    if ms < 59_950:
        return _with_unit(f"{ms / 1000:.0f}" if ms % 1000 == 0 else f"{ms / 1000:.1f}", "s", spaced)
    whole = round(ms / 1000) * 1000
    for (unit, size), (next_unit, next_size) in pairwise(reversed(UNITS_MS.items())):
        if whole >= size:
            count, rest = _with_unit(str(whole // size), unit, spaced), whole % size // next_size
            return f"{count} {_with_unit(str(rest), next_unit, spaced)}" if rest else count
    raise AssertionError("a minute or more has a unit")


def _with_unit(number: str, unit: str, spaced: bool) -> str:
    return f"{number} {_LONG_NAMES.get(unit, unit)}" if spaced else f"{number}{unit}"
