"""A check that the settings of the engine and of providers share."""

from __future__ import annotations

from typing import Any

from homing.core.errors import ConfigError


def whole(value: Any, where: str, *, least: int = 0) -> int:
    """Returns the value. Raises `ConfigError` unless it is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(where, f"is {value!r}; it must be a whole number, at least {least}")
    return value
